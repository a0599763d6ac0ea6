#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Large images, and such with very many extents: what is asked of the server,
# read and waited for is in proportion to what there is, not to the size.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit qemu-nbd nbdkit-filter:log nbdkit-filter:stats \
	nbdkit-plugin:data nbdkit-plugin:sparse-random helper:seekmap \
	helper:fileops

ops=$NBDFS_HELPERS/fileops

# bytes_read: in all requests so far.
bytes_read()
{
	awk '$4 == "Read" { sub(/count=/, "", $7); print $7 }' "$REQUESTS" |
		(
			sum=0
			while read -r n; do
				sum=$((sum + n))
			done
			echo $sum
		)
}

# ---------------------------------------------------------- 65,000 extents

next_nbdkit
start_nbdkit --filter=log data '( "x" @+131071 )*32500' size=5G \
	logfile="$REQUESTS" || bail "nbdkit"
mnt --extent-timeout=1000 disk="$URI" || bail "mount"
F=$MNT/disk
run extents "$F"
# The plugin keeps pages of 32 KiB.
is "$ERR$(awk '
	{ n[$1]++; len[$1] += $3 }
	END { printf "%d %.0f %d %.0f", n["data"], len["data"], n["hole"],
		len["hole"] }' "$T/.out")" \
	"32500 1064960000 32500 $(((5 << 30) - 1064960000))" \
	"65,000 extents are found"
n=$(count_requests Extents)
ok "[ $n -le 40 ]" "by $n questions"
is "$(count_requests Read)" 0 "and no read"
blocks=$((1064960000 / 512))
blocks_are()
{
	[ "$(stat -c %b "$F")" = "$1" ]
}
ok "wait_until 10 blocks_are $blocks" "st_blocks is known: $(stat -c %b "$F")"
is "$("$ops" "open:r:$F" data:3000000000 hole:3000000000 read:2999975936:64K |
	cut -d ' ' -f 1-2 | tr '\n' ,)" \
	"open 0,data 3000000000,hole 3000008704,read 65536," \
	"seeks from the middle"
umnt "$MNT"
stop_server

# ------------------------------------------------------ 1 TiB, 1000 extents

tib=$((1 << 40))
awk 'BEGIN {
	srand(5)
	for (i = 0; i < 1000; i++)
		printf "@%.0f ( %d )*4096 ", (i * 1040 + int(rand() * 1000)) * \
			1048576, i % 255 + 1
}' >"$T/data"
next_nbdkit
start_nbdkit --filter=log data data="$(<"$T/data")" size=$tib \
	logfile="$REQUESTS" || bail "nbdkit"
mnt --read-ahead=0 disk="$URI" || bail "mount"
began=$(date +%s%N)
run cp "$MNT/disk" "$T/copy"
ms=$((($(date +%s%N) - began) / 1000000))
is "$STATUS" 0 "cp of 1 TiB in which 1000 x 4 KiB are data ($ms ms)"
is "$(stat -c %s "$T/copy")" $tib "all of it"
# The plugin tells of pages of 32 KiB.
read=$(bytes_read)
ok "[ $read -ge 4096000 ] && [ $read -le $((1000 * 32768)) ]" \
	"reads only the extents: $read bytes"
n=$(count_requests Extents)
ok "[ $n -le 1500 ]" "asks for extents $n times"
ok "[ $(($(stat -c %b "$T/copy") * 512)) -le $((1000 * 65536)) ]" \
	"leaves holes"
# The bytes, by looking at where they are.
sum=$(extents "$T/copy" | awk '$1 == "data" { print $2, $3 }' |
	while read -r start len; do
		dd if="$T/copy" bs=64K skip="$start" count="$len" \
			iflag=skip_bytes,count_bytes status=none
	done | tr -d '\0' | cksum)
is "$sum" "$(awk 'BEGIN {
	for (i = 0; i < 1000; i++)
		for (j = 0; j < 4096; j++)
			printf "%c", i % 255 + 1 }' | cksum)" \
	"the right bytes, in the right order"
rm "$T/copy"
umnt "$MNT"
mnt disk="$URI" || bail "mount"
: >"$REQUESTS"
run cp "$MNT/disk" "$T/copy"
read=$(bytes_read)
ok "[ $read -le $((2 * 1000 * 32768)) ]" \
	"reading ahead reads no holes either: $read bytes"
rm "$T/copy"
umnt "$MNT"
stop_server

# ------------------------------------------------------------- 6 GiB, empty

truncate -s 6G "$T/empty"
start_qemu_nbd "$T/empty" || bail "qemu-nbd"
mnt disk="$URI" || bail "mount"
began=$(date +%s%N)
run cp "$MNT/disk" "$T/copy"
ms=$((($(date +%s%N) - began) / 1000000))
is "$STATUS $(stat -c '%s %b' "$T/copy")" "0 $((6 << 30)) 0" \
	"cp of 6 GiB without data: $ms ms"
# It takes 16 s to read this.
ok "[ $ms -lt 3000 ]" "in no time"
rm "$T/copy"
umnt "$MNT"
stop_server

for options in "" "--cache=kernel"; do
	next_nbdkit
	start_nbdkit --filter=stats file "$T/empty" statsfile="$STATS" ||
		bail "nbdkit"
	# shellcheck disable=SC2086
	mnt $options disk="$URI" || bail "mount"
	run cp "$MNT/disk" "$T/copy"
	is "$STATUS" 0 "cp of 6 GiB from nbdkit $options"
	run cp --sparse=always "$MNT/disk" "$T/copy"
	run tar -C "$MNT" -cSf "$T/tar" disk
	is "$STATUS" 0 "tar -cS of it"
	run qemu-img convert -f raw -O qcow2 "$MNT/disk" "$T/q"
	is "$STATUS" 0 "qemu-img convert of it"
	umnt "$MNT"
	stop_server
	is "$(stats read)" 0 "nothing is read"
	n=$(stats extents)
	ok "[ $n -gt 0 ] && [ $n -le 200 ]" "extents are asked $n times"
done

# ------------------------------------------- short extents: asked by degrees

# largest_question: bytes of the largest question about extents so far.
largest_question()
{
	local n most=0
	while read -r _ _ n _; do
		[ $((n)) -le $most ] || most=$((n))
	done < <(requests Extents)
	echo $most
}

next_nbdkit
start_nbdkit --filter=log sparse-random 3G percent=50 runlength=4096 seed=3 \
	logfile="$REQUESTS" || bail "nbdkit"
mnt --extent-timeout=1 disk="$URI" || bail "mount"
exec {fd}<"$MNT/disk"
"$ops" "open:r:$MNT/disk" data:0 >/dev/null
# The background scan, too, has had its answers, and they are stale.
sleep 4
: >"$REQUESTS"
"$ops" "open:r:$MNT/disk" data:0 hole:0 >/dev/null
exec {fd}<&-
n=$(largest_question)
ok "[ $n -gt 0 ] && [ $n -le $((1 << 28)) ]" \
	"of stale short extents only the next are asked about: $n bytes"
umnt "$MNT"
stop_server

# ------------------------------------------------------- huge, and just there

start_nbdkit --filter=log null 9223372036854775807 || bail "nbdkit"
mnt disk="$URI" || bail "mount"
began=$(date +%s%N)
stat "$MNT/disk" >/dev/null
ls -l "$MNT" >/dev/null
exec {fd}<"$MNT/disk"
head -c 1000000 <&$fd >/dev/null
stat -L "/proc/self/fd/$fd" >/dev/null
exec {fd}<&-
ms=$((($(date +%s%N) - began) / 1000000))
ok "[ $ms -lt 2000 ]" "2^63 - 1 bytes: stat, open, read at once ($ms ms)"
rss=$(awk '$1 == "VmRSS:" { print $2 }' "/proc/$MNT_PID/status")
ok "umnt '$MNT'" "and ended at once"
ok "[ $rss -lt 100000 ]" "in $rss KiB of memory"
stop_server

done_testing
