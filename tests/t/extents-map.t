#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# The holes of a file in the mount are the zeroes that the server tells of:
# SEEK_DATA and SEEK_HOLE give the map that nbdinfo shows, for all kinds of
# servers, and tools that look for holes find these.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdinfo qemu-nbd qemu-img qemu-io xfs_io helper:seekmap helper:fileops \
	nbdkit-filter:extentlist nbdkit-filter:noextents nbdkit-filter:log \
	nbdkit-plugin:sparse-random nbdkit-plugin:data nbdkit-plugin:eval

ops=$NBDFS_HELPERS/fileops
operands=()
declare -A uris

# served NAME: the last server has the file of this name.
served()
{
	operands+=("$1=$URI")
	uris[$1]=$URI
}

# kit NAME ARGS...: nbdkit
kit()
{
	local name=$1
	shift
	start_nbdkit "$@" || bail "nbdkit $*"
	served "$name"
}

# what_nbdinfo_says URI: in the words of seekmap, neighbours merged.
what_nbdinfo_says()
{
	nbdinfo --map "$1" | awk '
	function put() { if (len) print kind, start, len }
	{
		k = int($3 / 2) % 2 ? "hole" : "data"
		if (k != kind) { put(); kind = k; start = $1; len = 0 }
		len += $2
	}
	END { put() }'
}

# ------------------------------------------------------------ many servers

head -c 1M /dev/urandom >"$T/dense"
kit dense file "$T/dense"
kit empty memory 1000003
kit one-byte memory 1
kit one-data data '1' size=1
kit data data '( "x" @+131071 )*40 ( 1 @+32767 )*10 @+7' size=8000001
kit ends data '@0x100000 1' size=$((0x100001))
kit begins data '"x"' size=4M
kit random sparse-random 1G seed=5 percent=10 runlength=100000
kit random-small sparse-random 64M seed=6 percent=10 runlength=3000
kit 512 eval get_size='echo 1M' pread='head -c $3 /dev/zero' can_extents=true \
	extents='for i in $(seq "$4" 512 $(($4 + $3 - 512))); do
		echo "$i 512 $((i / 512 % 2 ? 3 : 0))"
	done'
kit noextents --filter=noextents memory 1M
kit no-sr --no-sr memory 1M
unset "uris[no-sr]"	# no map in nbdinfo
# Extents of all kinds and lengths, from 1 byte on.
for seed in 1 2 3; do
	awk -v seed=$seed 'BEGIN {
		srand(seed)
		pos = 0
		while (pos < 5000000) {
			len = int(exp(rand() * 13)) + 1
			print pos, len, int(rand() * 4)
			pos += len
		}
	}' >"$T/list$seed"
	kit list$seed -r --filter=extentlist null 5M extentlist="$T/list$seed"
done

# Files, on the file systems that there are.
holes()
{
	truncate -s 20M "$1"
	for at in 0 10007 700000 1048576 5000000 5001000 19999999; do
		head -c $((at % 70000 + 9000)) /dev/urandom |
			dd of="$1" bs=1M seek=$at oflag=seek_bytes \
				conv=notrunc status=none
	done
	# Zeroes that take space, where the file system has them.
	fallocate -z -o 8M -l 100K "$1" 2>"$T/fallocate"
}
holes "$T/disk"
qemu-img convert -c -f raw -O qcow2 "$T/disk" "$T/base.qcow2"
kit file file "$T/disk"
kit blocks --filter=blocksize-policy file "$T/disk" blocksize-minimum=4K \
	blocksize-preferred=64K blocksize-maximum=1M \
	blocksize-error-policy=error
start_qemu_nbd "$T/disk" || bail "qemu-nbd"
served qemu-raw
shm=$(mktemp -d /dev/shm/nbdfs-test.XXXXXX)
on_exit rm -rf "$shm"
holes "$shm/disk"
kit tmpfs file "$shm/disk"

# A backing file, zero clusters, compression, a size that is no cluster.
qemu-img create -q -f qcow2 -F qcow2 -b "$T/base.qcow2" "$T/q.qcow2" 30000640
qemu-io -c "write -P 7 25M 100k" -c "write -z 700k 300k" \
	-c "write -z -u 1M 200k" -c "discard 4M 2M" "$T/q.qcow2" >"$T/qemu-io"
start_qemu_nbd "$T/q.qcow2" -f qcow2 || bail "qemu-nbd"
served qcow2

mnt "${operands[@]}" || bail "mount"
for name in "${!uris[@]}"; do
	what_nbdinfo_says "${uris[$name]}" >"$T/want"
	run extents "$MNT/$name"
	is "$ERR" "" "$name: the answers of lseek agree with each other"
	ok "cmp '$T/.out' '$T/want'" \
		"$name: and with nbdinfo ($(wc -l <"$T/want") lines)" || {
		diff "$T/.out" "$T/want" | head -n 10 | sed 's/^/# /'
	}
done

# Some of them by name, so that nbdinfo is not believed alone.
is "$(extents "$MNT/empty")" "hole 0 1000003" "all zero: one hole"
is "$(extents "$MNT/dense")" "data 0 1048576" "all data"
is "$(extents "$MNT/noextents")" "data 0 1048576" "noextents: all is data"
is "$(extents "$MNT/no-sr")" "data 0 1048576" "no structured replies: data"
is "$(extents "$MNT/one-byte")" "hole 0 1" "one byte of hole"
is "$(extents "$MNT/one-data")" "data 0 1" "one byte of data"
is "$(extents "$MNT/512" | wc -l)" 2048 "an extent for each sector"

# ------------------------------------------------------- what tools make of it

# The same from a program that does not ask as we do.
tool_map()
{
	xfs_io -r -c "seek -a -r 0" "$1" | awk -v size="$(stat -c %s "$1")" '
	$1 == "DATA" || $1 == "HOLE" {
		if (n++ && $2 != from)
			print kind, from, $2 - from
		kind = tolower($1)
		from = $2
	}
	END { if (from < size) print kind, from, size - from }'
}
for name in file tmpfs qcow2 data; do
	is "$(tool_map "$MNT/$name")" "$(what_nbdinfo_says "${uris[$name]}")" \
		"$name: xfs_io seek"
	# qemu-img map adds what its own format does not know: sectors.
	[ $(($(stat -c %s "$MNT/$name") % 512)) = 0 ] || continue
	is "$(qemu-img map -f raw --output=json "$MNT/$name" |
		sed 's/[{},:"]/ /g' | awk '
		{ for (i = 1; i < NF; i++) v[$i] = $(i + 1) }
		v["length"] { print v["zero"] == "true" ? "hole" : "data",
			v["start"], v["length"] }')" \
		"$(what_nbdinfo_says "${uris[$name]}")" "$name: qemu-img map"
done

# Seeks into the middle of things.
is "$("$ops" "open:r:$MNT/data" data:5000 hole:5000 data:40000 hole:40000 \
	data:131071 hole:131071 data:8000000 hole:8000000 data:8000001 \
	hole:8000001 | tr '\n' ,)" "open 0,data 5000,hole 32768,data 131072,\
hole 40000,data 131072,hole 131071,data ENXIO,hole 8000000,data ENXIO,\
hole ENXIO," "seeks from the middle"
umnt "$MNT"

# ------------------------------------------------------------------- options

declare -A reads
mnt --min-hole=64K l="${uris[list1]}" r="${uris[random]}" || bail "mount"
is "$(extents "$MNT/l" | awk '$1 == "hole" && $3 < 65536' | wc -l)" 0 \
	"--min-hole: no shorter hole"
isnt "$(extents "$MNT/l" | grep -c hole)" 0 "--min-hole: but longer ones"
umnt "$MNT"

# 4 MiB with small holes: read over, in fewer and larger pieces.
next_nbdkit
start_nbdkit --filter=log data '( "x"*32768 @+32768 )*64 "y"' size=5M \
	logfile="$REQUESTS" || bail "nbdkit"
nbdcopy "$URI" "$T/whole"
for options in --min-hole=0 --min-hole=64K; do
	mnt $options disk="$URI" || bail "mount"
	: >"$REQUESTS"
	cp "$MNT/disk" "$T/copy"
	ok "cmp '$T/copy' '$T/whole'" "cp with $options"
	umnt "$MNT"
	reads[${options##*=}]=$(requests Read | wc -l)
done
ok "[ ${reads[0]} -ge 64 ] && [ ${reads[64K]} -le 20 ]" \
	"cp reads ${reads[0]} extents, with --min-hole ${reads[64K]} larger ones"
stop_server
mnt --no-extents e="${uris[empty]}" || bail "mount"
is "$(extents "$MNT/e")" "data 0 1000003" "--no-extents: all is data"
umnt "$MNT"
done_testing
