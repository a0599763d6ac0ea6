#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck disable=SC2034
#
# matrix.sh - tools that write disks, servers that take them, sources: what
# tests/t/matrix.t combines.
#
#	tests/matrix.sh tools | servers | sources
#	tests/matrix.sh tool NAME SOURCE DESTINATION    runs one by hand
#	tests/matrix.sh source NAME FILE                makes one

MATRIX_SIZE=$((2 * 1024 * 1024 + 20480))	# a multiple of 4 KiB

# ------------------------------------------------------------------- tools
#
# Each gets SOURCE and DESTINATION. The ones in the first list leave the
# source, and zeroes behind it. What the others leave is their own affair;
# the same command on a local file shows it.

matrix_copies=(cp_auto cp_always cp_never cp_a cat_to dd_odd dd_sparse
	dd_direct rsync_inplace rsync_sparse tar_overwrite qemu_convert
	bmap_plain bmap_copy)
matrix_tools=("${matrix_copies[@]}" dd_sparse_notrunc dd_seek dd_seek_notrunc
	qemu_convert_n truncate_down truncate_zero fallocate_p fallocate_z
	fallocate_d fallocate_l)
[ -z "$MATRIX_TOOLS" ] || read -ra matrix_tools <<<"$MATRIX_TOOLS"

tool_cp_auto() { cp --sparse=auto "$1" "$2"; }
tool_cp_always() { cp --sparse=always "$1" "$2"; }
tool_cp_never() { cp --sparse=never "$1" "$2"; }
tool_cp_a() { cp -a "$1" "$2"; }
tool_cat_to() { cat "$1" >"$2"; }
tool_dd_odd() { dd if="$1" of="$2" bs=4097 status=none; }
tool_dd_sparse() { dd if="$1" of="$2" bs=65535 conv=sparse status=none; }
tool_dd_direct() { dd if="$1" of="$2" bs=64k oflag=direct status=none; }
tool_rsync_inplace() { rsync -a --inplace "$1" "$2"; }
tool_rsync_sparse() { rsync -a --inplace -S "$1" "$2"; }

tool_tar_overwrite()
{
	local from=${1##*/} to=${2##*/}
	tar -C "${1%/*}" --transform="s,^$from\$,$to," -cSf - "$from" |
		tar -C "${2%/*}" --overwrite -xSf -
	[ "${PIPESTATUS[*]}" = "0 0" ]
}

tool_qemu_convert() { qemu-img convert -f raw -O raw "$1" "$2"; }
tool_qemu_convert_n() { qemu-img convert -n -f raw -O raw "$1" "$2"; }
tool_bmap_plain() { bmaptool -q copy --nobmap "$1" "$2"; }
tool_bmap_copy() { bmaptool -q copy --bmap "$1.bmap" "$1" "$2"; }

tool_dd_sparse_notrunc()
{
	dd if="$1" of="$2" bs=4096 conv=sparse,notrunc status=none
}

tool_dd_seek() { dd if="$1" of="$2" bs=1000 seek=333 skip=333 status=none; }

tool_dd_seek_notrunc()
{
	dd if="$1" of="$2" bs=1536 seek=7 count=200 conv=notrunc status=none
}

# The size of the source gives them something to differ in.
tool_truncate_down() { truncate -s $(($(stat -c %s "$1") / 3 + 1)) "$2"; }
tool_truncate_zero() { truncate -s 0 "$2"; }

tool_fallocate_p()
{
	fallocate -p -o 300001 -l $(($(stat -c %s "$1") / 3)) "$2"
}

tool_fallocate_z()
{
	fallocate -z -o 300001 -l $(($(stat -c %s "$1") / 3)) "$2"
}

tool_fallocate_d() { fallocate -d "$2"; }
tool_fallocate_l() { fallocate -o 5 -l $(($(stat -c %s "$1") / 2)) "$2"; }

# ----------------------------------------------------------------- sources

matrix_sources=(head tail dense odd small)
[ -z "$MATRIX_SOURCES" ] || read -ra matrix_sources <<<"$MATRIX_SOURCES"

# put FILE OFFSET LENGTH: random bytes.
_put()
{
	head -c "$3" /dev/urandom | dd of="$1" bs=64k seek="$2" \
		oflag=seek_bytes conv=notrunc status=none
}

matrix_source()
{
	local f=$2 size=$MATRIX_SIZE
	case $1 in
	odd) size=$((1536 * 1024 + 12345)) ;;
	small) size=$((700 * 1024)) ;;
	esac
	rm -f "$f"
	truncate -s "$size" "$f"
	case $1 in
	head)
		_put "$f" 524288 $((size - 524288))
		;;
	tail)
		_put "$f" 0 1200000
		;;
	dense)
		# Zeroes that are data.
		_put "$f" 0 500000
		dd if=/dev/zero of="$f" bs=100000 count=1 seek=5 conv=notrunc \
			status=none
		_put "$f" 600000 $((size - 600000))
		;;
	odd)
		_put "$f" 0 300000
		_put "$f" 700000 200001
		_put "$f" $((size - 65536)) 65536
		;;
	small)
		_put "$f" 65536 131072
		_put "$f" 400000 100000
		;;
	esac
	# Programs that compare times must find it older than what it replaces.
	touch -d 2001-02-03 "$f"
}

# What lies on the disk before: data everywhere, some of it zeroes.
matrix_old()
{
	head -c "$2" /dev/urandom >"$1"
	dd if=/dev/zero of="$1" bs=4096 seek=123 count=31 conv=notrunc \
		status=none
}

# ----------------------------------------------------------------- servers

matrix_servers=(file qemu qemu_unmap nozero noextents no_sr blocks lying_trim
	keeps_space nbd_server)
[ -z "$MATRIX_SERVERS" ] || read -ra matrix_servers <<<"$MATRIX_SERVERS"

# The size of the export. An odd one is offered by servers that can.
matrix_server_size()
{
	case $1 in
	file | nozero) echo $((MATRIX_SIZE + 777)) ;;
	*) echo "$MATRIX_SIZE" ;;
	esac
}

# matrix_serve NAME BACKING: starts it; its address is $URI.
matrix_serve()
{
	local f=$2
	case $1 in
	file) start_nbdkit file "$f" ;;
	qemu) start_qemu_nbd "$f" ;;
	qemu_unmap) start_qemu_nbd "$f" --discard=unmap ;;
	nozero) start_nbdkit --filter=nozero file "$f" ;;
	noextents) start_nbdkit --filter=noextents file "$f" ;;
	no_sr) start_nbdkit --no-sr file "$f" ;;
	blocks)
		start_nbdkit --filter=blocksize-policy file "$f" \
			blocksize-minimum=4K blocksize-preferred=4K \
			blocksize-maximum=64K blocksize-error-policy=error
		;;
	lying_trim)
		start_nbdkit eval get_size="stat -Lc %s $f" \
			pread="dd if=$f skip=\$4 count=\$3 bs=64k \
iflag=skip_bytes,count_bytes status=none" \
			pwrite="dd of=$f seek=\$4 bs=64k conv=notrunc \
oflag=seek_bytes status=none" \
			can_write=true can_trim=true trim=true
		;;
	keeps_space)
		start_nbdkit --filter=nozero file "$f" zeromode=notrim
		;;
	nbd_server)
		start_nbd_server "disk=$f" -- "flush = true" "trim = true" &&
			URI=$(uri disk)
		;;
	*) return 1 ;;
	esac
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
	case $1 in
	tools) echo "${matrix_tools[@]}" ;;
	sources) echo "${matrix_sources[@]}" ;;
	servers) echo "${matrix_servers[@]}" ;;
	tool) "tool_$2" "$3" "$4" ;;
	source) matrix_source "$2" "$3" ;;
	*)
		echo "usage: matrix.sh tools | sources | servers |" \
			"tool NAME SOURCE DESTINATION | source NAME FILE" >&2
		exit 2
		;;
	esac
fi
