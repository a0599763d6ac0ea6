#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What goes over the wire for a read, and what does not: zeroes, connections,
# the largest export that there can be.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdkit-filter:log nbdkit-filter:stats \
	nbdkit-filter:multi-conn nbdkit-filter:delay nbdkit-plugin:pattern \
	helper:fileops

ops=$NBDFS_HELPERS/fileops

# ------------------------------------------------------------------- zeroes

# An answer about extents that takes long may make it quicker to read than to
# ask again: so each of these is the first that happens to its image.
for how in "cmp -n $((300 << 20)) - /dev/zero" \
	"dd of=/dev/null bs=1M iflag=direct status=none" \
	"dd of=/dev/null bs=7777 status=none"; do
	next_nbdkit
	start_nbdkit --filter=stats memory 300M statsfile="$STATS" ||
		bail "nbdkit"
	mnt --extent-timeout=1000 disk="$URI" || bail "mount"
	# shellcheck disable=SC2086
	timeout 60 $how <"$MNT/disk"
	is "$?" 0 "300 MiB of zeroes: $how"
	umnt "$MNT"
	stop_server
	is "$(stats read)" 0 "no read on the wire"
	isnt "$(stats extents)" 0 "but questions about extents"
done

# A hole is believed for as long as the option says: another client may write.
truncate -s 8M "$T/disk"
start_nbdkit file "$T/disk" || bail "nbdkit"
for mode in "" --cache=kernel; do
	# shellcheck disable=SC2086
	mnt --extent-timeout=0.5 $mode disk="$URI" || bail "mount"
	fallocate -p -l 8M "$T/disk"
	"$ops" "open:r:$MNT/disk" data:0 read:0:4096 "touch:$T/read" \
		"await:$T/written" sleep:600 read:1M:4096 data:0 hole:2M \
		>"$T/out" &
	job=$!
	wait_until 10 test -e "$T/read"
	head -c 1M /dev/zero | tr '\0' '\7' | dd of="$T/disk" bs=1M seek=1 \
		conv=notrunc status=none
	: >"$T/written"
	wait $job
	is "$(tr '\n' , <"$T/out")" "open 0,data ENXIO,read 4096 00,\
read 4096 07,data 1048576,hole 2097152," \
		"holes are believed for a time only ${mode:+($mode)}"
	rm "$T/read" "$T/written"
	umnt "$MNT"
done
stop_server

# Both kinds in one read: only the data is asked for.
truncate -s 8M "$T/disk"
for at in 1000000 3000000 3100000 7999999; do
	head -c 30000 /dev/urandom |
		dd of="$T/disk" bs=30000 seek=$at oflag=seek_bytes \
			conv=notrunc status=none
done
next_nbdkit
start_nbdkit --filter=log file "$T/disk" logfile="$REQUESTS" || bail "nbdkit"
mnt disk="$URI" || bail "mount"
ok "cmp '$T/disk' '$MNT/disk'" "data and holes"
dd if="$MNT/disk" of="$T/out" bs=8M iflag=direct status=none
ok "cmp '$T/disk' '$T/out'" "data and holes in one read"
run "$ops" "open:r:$MNT/disk" read:990000:1M
umnt "$MNT"
stop_server
requests Read | while read -r _ offset count; do
	echo "$((offset)) $((offset + count))"
done >"$T/reads"
# What the file system of this machine calls data, is.
"$NBDFS_HELPERS/seekmap" "$T/disk" | awk '
	$1 == "data" { print $2, $2 + $3 }' >"$T/data"
is "$(awk '
	NR == FNR { from[NR] = $1; to[NR] = $2; n = NR; next }
	{
		for (i = 1; i <= n; i++)
			if ($1 >= from[i] && $2 <= to[i])
				next
		print
	}' "$T/data" "$T/reads")" "" "each read lies in data"
isnt "$(wc -l <"$T/reads")" 0 "there were some"

# ------------------------------------------------- the largest that there is

max=9223372036854775807
start_nbdkit pattern $max || bail "nbdkit"
mnt disk="$URI" || bail "mount"
F=$MNT/disk
is "$(stat -c %s "$F")" $max "2^63 - 1 bytes"
# A pattern of offsets, 8 bytes each, of which the last lacks one. The kernel
# takes no request that reaches beyond 2^63 - 1.
is "$(dd if="$F" bs=31 count=1 skip=$((max - 31)) iflag=skip_bytes status=none |
	od -An -tx1 -w8 -v)" " 7f ff ff ff ff ff ff e0
 7f ff ff ff ff ff ff e8
 7f ff ff ff ff ff ff f0
 7f ff ff ff ff ff ff" "the far end is read"
is "$(dd if="$F" bs=13 count=3 iflag=skip_bytes skip=$((1 << 62)) status=none |
	od -An -tx1 -w8 -v | head -n 4)" " 40 00 00 00 00 00 00 00
 40 00 00 00 00 00 00 08
 40 00 00 00 00 00 00 10
 40 00 00 00 00 00 00 18" "and the middle"
is "$(tail -c 3 "$F" | od -An -tx1)" " ff ff ff" "tail finds the end"
is "$("$ops" "open:r:$F" read:9223372036854775806:1 \
	read:9223372036854775807:0 size | cut -d ' ' -f 1-2 | tr '\n' ,)" \
	"open 0,read 1,read 0,size $max," "the last byte"
# The same through pages, whose last one cannot be whole.
umnt "$MNT"
mnt --cache=kernel disk="$URI" || bail "mount"
is "$(dd if="$MNT/disk" bs=7 count=1 skip=$((max - 7)) iflag=skip_bytes status=none |
	od -An -tx1)" " 7f ff ff ff ff ff ff" "--cache=kernel: the far end"
umnt "$MNT"
stop_server

# -------------------------------------------------------------- connections

head -c 4M /dev/urandom >"$T/disk"

# used: on how many connections reads came.
used()
{
	awk '$4 == "Read" { print $3 }' "$REQUESTS" | sort -u | wc -l
}

# busy FILE: many readers at once, of different parts.
busy()
{
	local i pids=()
	for i in $(seq 0 15); do
		dd if="$1" bs=64K skip=$((i * 4)) count=4 status=none \
			>"$T/part$i" &
		pids+=($!)
	done
	wait "${pids[@]}"
	for i in $(seq 0 15); do
		cat "$T/part$i"
	done | cmp - "$T/disk"
}

while read -r want desc args; do
	mode=auto
	[ "$desc" != without ] || mode=disable
	next_nbdkit
	start_nbdkit --filter=log --filter=multi-conn --filter=delay file \
		"$T/disk" multi-conn-mode=$mode rdelay=30ms \
		logfile="$REQUESTS" || bail "nbdkit"
	# shellcheck disable=SC2086
	mnt $args disk="$URI" || bail "mount"
	ok "busy '$MNT/disk'" "16 readers, $desc $args"
	n=$(used)
	# How many it takes to keep the server busy is not said.
	ok "[ $n -le $want ] && [ $n -ge $((want > 1 ? 2 : 1)) ]" \
		"on $n of $want connections"
	umnt "$MNT"
	stop_server
	ok "[ $(grep -c ' Preconnect ' "$REQUESTS") -le $want ]" "and no more"
done <<END
4 multi-conn
2 multi-conn -C 2
1 multi-conn -C 1
3 multi-conn --connections=3
1 without -C 4
END

# Each connection takes so many requests.
next_nbdkit
start_nbdkit --filter=log --filter=delay file "$T/disk" rdelay=30ms \
	logfile="$REQUESTS" || bail "nbdkit"
mnt -C 2 --requests=2 disk="$URI" || bail "mount"
ok "busy '$MNT/disk'" "--requests=2"
umnt "$MNT"
stop_server
is "$(awk '
	$3 !~ /^connection=/ { next }
	$4 == "Read" { if (++n[$3] > max) max = n[$3] }
	$4 == "...Read" { n[$3]-- }
	END { print max }' "$REQUESTS")" 2 "two on each connection at a time"
done_testing
