#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Every tool that writes disks, onto every kind of server, from every kind of
# source, over old data: the server ends with exactly the right bytes and the
# tool with status 0.
#
# By default every pair of tool and server, of tool and source, and of server
# and source occurs. MATRIX=full (or NBDFS_TEST_FULL=1): all triples.
# MATRIX_TOOLS, MATRIX_SERVERS, MATRIX_SOURCES choose some; MATRIX_MOUNT gives
# the options of the mount. MATRIX=plain: on local files, to test this test.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/matrix.sh
. "$(dirname "$0")/../matrix.sh"

requires rsync tar qemu-img bmaptool fallocate qemu-nbd nbd-server nbdkit \
	nbdkit-filter:nozero nbdkit-filter:noextents \
	nbdkit-filter:blocksize-policy nbdkit-plugin:eval
[ "$MATRIX" = plain ] || requires fuse
[ -z "$NBDFS_TEST_FULL" ] || MATRIX=${MATRIX:-full}

# The ways to mount, in turn.
mounts=("" "--cache=kernel" "--write-behind=0" "--detect-zeroes"
	"-C1 --read-ahead=0" "--extent-timeout=0")

mkdir "$T/src" "$T/old" "$T/want" "$T/disk" "$T/plain"
for s in "${matrix_sources[@]}"; do
	matrix_source "$s" "$T/src/$s"
	bmaptool -q create -o "$T/src/$s.bmap" "$T/src/$s" 2>/dev/null ||
		bail "bmaptool create"
done

# By size of the export: what was there before.
for v in "${matrix_servers[@]}"; do
	size=$(matrix_server_size "$v")
	[ -e "$T/old/$size" ] || matrix_old "$T/old/$size" "$size"
done

run_tool()
{
	RUN_TIMEOUT=60 run bash "$ROOT/tests/matrix.sh" tool "$@"
}

is_copy()
{
	[[ " ${matrix_copies[*]} " == *" $1 "* ]]
}

# expected TOOL SOURCE SIZE: sets WANT, a file with what must come out. The
# tool says it itself, on a local file that gets its size back afterwards.
expected()
{
	local tool=$1 source=$T/src/$2 size=$3
	WANT=$T/want/$tool.$2.$size
	[ ! -e "$WANT" ] || return 0
	cp "$T/old/$size" "$T/plain/disk" || return
	if ! run_tool "$tool" "$source" "$T/plain/disk"; then
		diag "$tool fails on a local file: $ERR"
		return 1
	fi
	truncate -s "$size" "$T/plain/disk"
	mv "$T/plain/disk" "$WANT"
	is_copy "$tool" || return 0
	cp "$source" "$T/plain/copy"
	truncate -s "$size" "$T/plain/copy"
	cmp -s "$T/plain/copy" "$WANT" && return
	diag "$tool does not copy, even to a local file"
	return 1
}

differences()
{
	diag "$1: $(cmp "$2" "$3" 2>&1 | tail -n 1);" \
		"$(cmp -l "$2" "$3" 2>/dev/null | wc -l) bytes differ"
}

uris=()
start_all()
{
	local v
	for v in "${matrix_servers[@]}"; do
		cp --sparse=never "$T/old/$(matrix_server_size "$v")" \
			"$T/disk/$v"
		[ "$MATRIX" != plain ] || continue
		matrix_serve "$v" "$T/disk/$v" || bail "server $v"
		uris+=("$v=$URI")
	done
}

mount_all()
{
	if [ "$MATRIX" = plain ]; then
		MNT=$T/disk
	else
		# shellcheck disable=SC2086
		mnt $1 "${uris[@]}"
	fi
}

umount_all()
{
	local v
	if [ "$MATRIX" = plain ]; then
		for v in "${matrix_servers[@]}"; do
			truncate -s "$(matrix_server_size "$v")" "$T/disk/$v"
		done
	else
		umnt "$MNT"
	fi
}

# cell TOOL SERVER SOURCE: the tool, and what the mount then shows.
cell()
{
	local what="$1 on $2 from $3"
	expected "$1" "$3" "$(matrix_server_size "$2")" || return
	if ! run_tool "$1" "$T/src/$3" "$MNT/$2"; then
		diag "$what: status $STATUS: $ERR"
		return 1
	fi
	[ "$MATRIX" != plain ] || return 0
	cmp -s "$WANT" "$MNT/$2" && return
	differences "$what, as the mount shows it" "$WANT" "$MNT/$2"
	return 1
}

# backing TOOL SERVER SOURCE: what the server has.
backing()
{
	expected "$1" "$3" "$(matrix_server_size "$2")" || return
	cmp -s "$WANT" "$T/disk/$2" && return
	differences "$1 on $2 from $3, on the server" "$WANT" "$T/disk/$2"
	return 1
}

# one_round TOOL NUMBER OPTIONS: one mount, one tool, all servers; which
# source a server gets changes with the number.
one_round()
{
	local tool=$1 number=$2 i v s bad=0 all=${#matrix_sources[@]}
	local picked=()

	for v in "${matrix_servers[@]}"; do
		dd if="$T/old/$(matrix_server_size "$v")" of="$T/disk/$v" \
			bs=1M conv=notrunc status=none
	done
	mount_all "$3" || return
	for i in "${!matrix_servers[@]}"; do
		s=${matrix_sources[(number + i + i / all) % all]}
		picked+=("$s")
		cell "$tool" "${matrix_servers[i]}" "$s" || bad=1
	done
	if ! umount_all; then
		diag "the mount ended badly"
		bad=1
	fi
	for i in "${!matrix_servers[@]}"; do
		backing "$tool" "${matrix_servers[i]}" "${picked[i]}" || bad=1
	done
	return $bad
}

start_all
n=0
for tool in "${matrix_tools[@]}"; do
	rounds=1
	[ "$MATRIX" != full ] || rounds=${#matrix_sources[@]}
	for ((r = 0; r < rounds; r++)); do
		options=${MATRIX_MOUNT-${mounts[(n + r) % ${#mounts[@]}]}}
		one_round "$tool" $((n + r)) "$options"
		ok "$?" "$tool, source ${matrix_sources[(n + r) % ${#matrix_sources[@]}]}" \
			"and on, mounted ${options:-as by default}"
	done
	n=$((n + 1))
	rm -f "$T"/want/*
done
done_testing
