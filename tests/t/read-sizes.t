#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Reading gives the bytes of the server, whatever the size of the image, of
# its blocks, and of the reads, and however it is read.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdkit-plugin:file nbdkit-filter:blocksize-policy \
	nbdkit-filter:log xfs_io helper:fileops

ops=$NBDFS_HELPERS/fileops
RANDOM=$$

mkdir "$T/disks"
sizes=(1 511 512 513 1000 4095 4097 65537 1048577 3333333)
head -c 3333333 /dev/urandom >"$T/random"
for size in "${sizes[@]}"; do
	head -c "$size" "$T/random" >"$T/disks/d$size"
done
# With holes that begin and end anywhere.
cp "$T/random" "$T/disks/holes"
fallocate -p -o 5000 -l 300000 "$T/disks/holes"
fallocate -p -o 1000001 -l 1000 "$T/disks/holes"
fallocate -p -o 2000003 -l 1200000 "$T/disks/holes"

# some_reads NAME: in pieces of odd sizes from odd places.
some_reads()
{
	local file=$MNT/$1 want=$T/disks/$1 size bs skip count i
	size=$(stat -c %s "$want")
	for i in 1 9 4 6; do
		bs=$((RANDOM * RANDOM % (i * 40000) + 1))
		skip=$((RANDOM * RANDOM % size))
		count=$((RANDOM % 20 + 1))
		dd if="$file" bs=$bs skip=$skip count=$count status=none \
			iflag=skip_bytes >"$T/got" || return 1
		dd if="$want" bs=$bs skip=$skip count=$count status=none \
			iflag=skip_bytes >"$T/want"
		if ! cmp "$T/got" "$T/want"; then
			echo "bs=$bs skip=$skip count=$count"
			return 1
		fi
	done
}

# over_the_end NAME: what lies there is nothing, and no error.
over_the_end()
{
	local size
	size=$(stat -c %s "$T/disks/$1")
	[ "$("$ops" "open:r:$MNT/$1" read:$((size - 1)):100 "read:$size:100" \
		"read:$((size + 4096)):1" read:1000000M:1 |
		cut -d ' ' -f 1-2 | tr '\n' ,)" = \
		"open 0,read 1,read 0,read 0,read 0," ]
}

# mapped NAME: the bytes of a shared mapping, and the zeroes behind its end.
mapped()
{
	local size end from
	size=$(stat -c %s "$T/disks/$1")
	end=$(((size + 15) / 16 * 16))
	from=$((end < 20000 ? 0 : end - 20000))
	xfs_io -r -c "mmap -r 0 $end" -c "mread -v $from $((end - from))" \
		"$MNT/$1" | sed 's/^[0-9a-f]*: *//; s/   *.*//; s/ //g' |
		tr -d '\n' >"$T/got"
	{
		tail -c +$((from + 1)) "$T/disks/$1"
		head -c $((end - size)) /dev/zero
	} | od -An -v -tx1 | tr -d ' \n' >"$T/want"
	cmp "$T/got" "$T/want"
}

# direct NAME: by O_DIRECT, as aligned as programs do it, and not.
direct()
{
	local bs
	for bs in 4096 1M 7777; do
		dd if="$MNT/$1" bs=$bs iflag=direct status=none |
			cmp - "$T/disks/$1" || return 1
	done
}

# each WHAT NAME...: it holds for each of them.
each()
{
	local what=$1 name bad=''
	shift
	for name; do
		"$what" "$name" >"$T/why" 2>&1 || bad="$bad $name: $(<"$T/why")"
	done
	is "$bad" "" "${mode:-as it comes}: $what"
}

whole()
{
	cmp "$MNT/$1" "$T/disks/$1" && cmp "$T/disks/$1" <(cat "$MNT/$1")
}

size_is_right()
{
	[ "$(stat -c %s "$MNT/$1")" = "$(stat -c %s "$T/disks/$1")" ]
}

start_nbdkit file dir="$T/disks" || bail "nbdkit"
names=$(ls "$T/disks")
for mode in "" --cache=kernel "-C 1 --read-ahead=0" --no-extents \
	"--requests=1 --read-ahead=100K"; do
	# shellcheck disable=SC2086
	mnt $mode "$URI" || bail "mount"
	# shellcheck disable=SC2086
	for what in size_is_right whole some_reads over_the_end mapped direct; do
		each $what $names
	done
	names="d513 d1048577 holes"
	is "$(cat "$MNT_LOG")" "" "${mode:-as it comes}: nothing to say"
	umnt "$MNT"
done

# Everything at once, from one image: each reader gets what it asked for.
mnt "$URI" || bail "mount"
pids=()
for i in 1 2 3 4 5 6; do
	dd if="$MNT/holes" bs=$((i * 9999)) status=none |
		cmp - "$T/disks/holes" &
	pids+=($!)
	xfs_io -r -c "pread -q -b 4000 $((i * 400000)) 400000" "$MNT/holes" &
	pids+=($!)
done
bad=0
for i in "${pids[@]}"; do
	wait "$i" || bad=$((bad + 1))
done
is "$bad" 0 "many readers of one image"
umnt "$MNT"
stop_server

# ------------------------------------------------------------ block sizes

# The server refuses what is not as it wants it.
head -c $((256 * 4096)) "$T/random" >"$T/disks/blocks"
next_nbdkit
start_nbdkit --filter=log --filter=blocksize-policy file "$T/disks/blocks" \
	blocksize-minimum=4K blocksize-preferred=16K blocksize-maximum=64K \
	blocksize-error-policy=error logfile="$REQUESTS" || bail "nbdkit"
for mode in "4K to 64K" "4K to 64K, --cache=kernel" "4K to 64K, no reading \
ahead"; do
	case $mode in
	*kernel) args=(--cache=kernel) ;;
	*ahead) args=(--read-ahead=0) ;;
	*) args=() ;;
	esac
	mnt "${args[@]}" blocks="$URI" || bail "mount"
	for what in size_is_right whole some_reads over_the_end mapped direct; do
		each $what blocks
	done
	is "$("$ops" "open:r,direct:$MNT/blocks" read:4095:2 read:1:1 \
		read:65535:65538 | cut -d ' ' -f 1-2 | tr '\n' ,)" \
		"open 0,read 2,read 1,read 65538," "$mode: odd direct reads"
	umnt "$MNT"
done
requests Read | while read -r _ offset count; do
	[ $((offset % 4096)) = 0 ] && [ $((count % 4096)) = 0 ] &&
		[ $((count)) -le 65536 ] || echo "$offset $count"
done >"$T/bad-requests"
is "$(cat "$T/bad-requests")" "" "only what the server wants was asked"
ok "[ $(count_requests Read) -gt 16 ]" "something was"
stop_server

# The end of the image is no multiple of its blocks.
for size in 100000 4095 65537; do
	head -c $size "$T/random" >"$T/disks/odd"
	start_nbdkit --filter=blocksize-policy file "$T/disks/odd" \
		blocksize-minimum=512 blocksize-maximum=32K || bail "nbdkit"
	mode="blocks of 512, size $size"
	mnt odd="$URI" || bail "mount"
	for what in size_is_right whole over_the_end direct; do
		each $what odd
	done
	umnt "$MNT"
	stop_server
done
done_testing
