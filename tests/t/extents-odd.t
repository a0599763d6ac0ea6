#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Servers whose answers about extents are odd, wrong, late or errors: data is
# never taken for a hole, and what is read is right.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdkit-plugin:eval nbdkit-filter:extentlist \
	nbdkit-filter:error nbdkit-filter:delay xfs_io \
	helper:oddextents helper:seekmap helper:fileops

ops=$NBDFS_HELPERS/fileops

# What oddextents has: 64 KiB of data, 64 KiB of zeroes, and so on.
for ((i = 0; i < 8; i++)); do
	echo "data $((i * 131072)) 65536"
	echo "hole $((i * 131072 + 65536)) 65536"
done >"$T/right"
echo "data 0 1048576" >"$T/data"

# odd NAME [OPTIONS...]: mounted as $F.
odd()
{
	local name=$1
	shift
	_next_server odd
	spawn "$SERVER_LOG" "$NBDFS_HELPERS/oddextents" "$SOCK" "$name"
	SERVER_PID=$SPAWNED
	_await_server "oddextents $name" grep -qs ready "$SERVER_LOG"
	mnt "$@" disk="$URI" || bail "mount"
	F=$MNT/disk
}

even()
{
	umnt "$MNT"
	stop_server
}

# What is read, from a server whose extents are right.
odd right --no-extents
cp "$F" "$T/contents"
even
is "$(stat -c %s "$T/contents")" 1048576 "the image"
is "$(tr -d '\0' <"$T/contents" | wc -c)" 524288 "half of it is data"

# --------------------------------------------------------------------- late
#
# What takes its time goes on behind the other tests.

# late NAME COMMAND...: in the background, at most 30 s. Its output, status
# and milliseconds are in files.
late()
{
	local name=$1
	shift
	(
		began=$(date +%s%N)
		timeout -k 1 30 "$@" >"$T/$name.out" 2>&1
		echo $? >"$T/$name.status"
		echo $((($(date +%s%N) - began) / 1000000)) >"$T/$name.ms"
	) &
	late_pids+=($!)
}
late_pids=()
late_mounts=()

odd slow
late slow "$ops" "open:r:$F" data:0
late_mounts+=("$MNT")
odd slow
# As far as it comes: the first time that it learns more it could be wrong.
late map timeout 7 "$NBDFS_HELPERS/seekmap" "$F"
late_mounts+=("$MNT")
start_nbdkit null 9223372036854775807 || bail "nbdkit"
mnt disk="$URI" || bail "mount"
late huge "$ops" "open:r:$MNT/disk" data:0
late_mounts+=("$MNT")
start_nbdkit -r --filter=extentlist null 9223372036854775807 \
	extentlist=<(echo "0 9223372036854775807 0") || bail "nbdkit"
mnt disk="$URI" || bail "mount"
late killed timeout -s TERM 0.5 "$ops" "open:r:$MNT/disk" hole:0
late_mounts+=("$MNT")
odd no-extents
late no-extents cmp "$F" "$T/contents"
late_mounts+=("$MNT")
odd stalls --timeout=0.5
late stalls cmp "$F" "$T/contents"
late_mounts+=("$MNT")
odd stalls
late stalled "$ops" "open:r:$F" data:0
late_mounts+=("$MNT")

# --------------------------------------------------- right, but unexpected

while read -r mode map desc; do
	odd "$mode"
	run extents "$F"
	is "$ERR$(cat "$T/.out")" "$(cat "$T/$map")" "$mode: $desc"
	ok "cmp '$F' '$T/contents'" "$mode: contents"
	even
done <<END
right	right	as it should be
split	right	each status repeated, for pieces of 512 bytes
short	right	answers for 1000 bytes at a time
long	right	answers that are longer than the question
beyond	right	answers that go on behind the end
flags	right	all unknown flags are set
inverse	right	a hole that is not zero is data, zeroes that take space a hole
END

# ------------------------------------------------------------------- wrong

# safe MAP: no byte that is not zero lies in a hole, and all is covered.
safe()
{
	local kind start len end=0
	while read -r kind start len; do
		[ "$start" = "$end" ] || return 1
		end=$((start + len))
		[ "$kind" = data ] ||
			cmp -s -n "$len" -i "$start:0" "$T/pieces" /dev/zero ||
			return 1
	done <"$1"
	[ $end = 1048576 ]
}

# Blocks of which only a part is zero.
for mode in unaligned blocks; do
	odd "$mode" --no-extents
	cp "$F" "$T/pieces"
	even
	odd "$mode"
	run extents "$F"
	is "$ERR" "" "$mode: the answers of lseek agree with each other"
	ok "safe '$T/.out'" "$mode: no data is called a hole"
	ok "cmp '$F' '$T/pieces'" "$mode: contents"
	even
done

# seeks: what the four seeks at 0 and in the middle gave, errors in short.
seeks()
{
	timeout 20 "$ops" "open:r:$1" data:0 hole:0 data:70000 hole:70000 |
		sed 1d | awk '{ print $2 }' | tr '\n' ' '
}

eio="EIO EIO EIO EIO "
data="0 1048576 70000 1048576 "
while read -r mode want; do
	odd "$mode"
	is "$(seeks "$F")" "${!want}" "$mode: lseek"
	ok "cmp '$F' '$T/contents'" "$mode: but reads are right"
	ok "[ $(stat -c %b "$F") -ge 2047 ]" "$mode: nothing is called free"
	run cp "$F" "$T/copy"
	ok "[ $STATUS != 0 ] || cmp '$T/copy' '$T/contents'" \
		"$mode: cp copies, or says that it cannot"
	even
done <<END
empty-extent	eio
no-chunk	eio
other-context	eio
eio		eio
einval		eio
eoverflow	eio
unknown-error	eio
enotsup		data
END
odd late-eio
like "$(seeks "$F")" "^(0 65536 |EIO EIO )" \
	"late-eio: an error after an answer: either"
ok "cmp '$F' '$T/contents'" "late-eio: contents"
even

# An error that goes away.
start_nbdkit --filter=error memory 1M error=EIO error-extents-rate=100% \
	error-file="$T/inject" || bail "nbdkit"
: >"$T/inject"
mnt disk="$URI" || bail "mount"
exec {fd}<"$MNT/disk"
is "$(seeks "$MNT/disk")" "$eio" "errors of the server: EIO, not ENXIO"
rm "$T/inject"
is "$(extents "$MNT/disk")" "hole 0 1048576" "and the map when they are gone"
exec {fd}<&-
even

# ------------------------------------------------------------ kinds of zero

# By the flags of NBD: 1 is a hole, 2 is zero. Only zero counts.
start_nbdkit -r --filter=extentlist null 64K extentlist=<(printf '%s\n' \
	"0 16K 0" "16K 16K 1" "32K 16K 2" "48K 16K 3") || bail "nbdkit"
mnt disk="$URI" || bail "mount"
is "$(extents "$MNT/disk" | tr '\n' ,)" "data 0 32768,hole 32768 32768," \
	"hole without zero is data, zero without hole is a hole"
even

# What a server calls a hole, and is not zero, is read.
start_nbdkit eval get_size='echo 256K' can_extents=true \
	pread='head -c $3 /dev/zero | tr "\0" X' \
	extents='echo "$4 $3 1"' || bail "nbdkit"
mnt disk="$URI" || bail "mount"
cp "$MNT/disk" "$T/copy"
is "$(tr -d X <"$T/copy" | wc -c) $(wc -c <"$T/copy")" "0 262144" \
	"cp reads holes whose contents the server does not tell"
even

# -------------------------------------------------------------------- late

wait "${late_pids[@]}"

# took NAME: milliseconds
took()
{
	cat "$T/$1.ms"
}

# A seek asks for two seconds at most. What it has not learnt is data.
ok "[ $(took slow) -ge 1500 ] && [ $(took slow) -lt 10000 ]" \
	"SEEK_DATA asks for about 2 s ($(took slow) ms)"
reached=$(awk '$1 == "data" { print $2 }' "$T/slow.out")
ok "[ '$reached' -gt 0 ] && [ '$reached' -lt 1048576 ]" \
	"and answers how far it has come: $reached"
# What has been called data is data to the next seek: cp would not go on.
like "$(<"$T/map.status") $(sed '/^data\|^hole/d' "$T/map.out")" "^(124|0) $" \
	"the answers of lseek agree with each other"

# Where extended headers exist, there is a true answer at once.
like "$(tail -n 1 "$T/huge.out")" "^data ([0-9]+|ENXIO)$" \
	"2^63 - 1 bytes: SEEK_DATA has an answer"
ok "[ $(took huge) -lt 10000 ]" "2^63 - 1 bytes: in time ($(took huge) ms)"
at=$(awk '$1 == "data" { print $2 }' "$T/huge.out")
ok "[ '$at' = ENXIO ] || [ '$at' -gt $((1 << 40)) ]" \
	"2^63 - 1 bytes: it has come as far as $at"

# SEEK_HOLE has no such limit, but a signal ends it.
is "$(<"$T/killed.status")" 124 "2^63 - 1 bytes of data: SEEK_HOLE goes on"
ok "[ $(took killed) -lt 5000 ]" "until it is told to end ($(took killed) ms)"

# Reads do without what is never told.
is "$(<"$T/no-extents.status") $(<"$T/no-extents.out")" "0 " \
	"no-extents: malformed answers, but reads are right"
ok "[ $(took no-extents) -lt 10000 ]" "in time ($(took no-extents) ms)"
is "$(<"$T/stalls.status") $(<"$T/stalls.out")" "0 " \
	"stalls: answers that never come, but reads are right"
ok "[ $(took stalls) -lt 10000 ]" "in time ($(took stalls) ms)"
like "$(tail -n 1 "$T/stalled.out")" "^data (0|EIO)$" \
	"stalls: SEEK_DATA knows nothing"
ok "[ $(took stalled) -lt 10000 ]" "and says so in time ($(took stalled) ms)"
for MNT in "${late_mounts[@]}"; do
	umnt "$MNT"
done
done_testing
