#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# The space that a file takes, as stat and du tell it, and the programs that
# copy by it: they must leave out holes, and never data.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdkit-filter:noextents nbdkit-filter:log \
	nbdkit-filter:delay nbdkit-plugin:data rsync tar copy \
	helper:seekmap

blocks()
{
	stat -c %b "$1"
}

blocks_are()
{
	[ "$(blocks "$1")" = "$2" ]
}

# scanned FILE BLOCKS DESCRIPTION: they are known soon after the first open.
scanned()
{
	head -c 1 "$1" >/dev/null
	ok "wait_until 10 blocks_are '$1' $2" "$3: $2" ||
		diag "blocks: $(blocks "$1")"
}

# ------------------------------------------------------------------ st_blocks

# NAME SIZE BEFORE AFTER: before the first open, and after the scan.
table="
empty 104857600 204799 1
dense 1048576 2047 2048
half 1048576 2047 1024
data512 512 1 1
data511 511 1 1
data1 1 1 1
hole1 1 1 1
data1000 1000 1 1
data1025 1025 1 2
max 9223372036854775807 18014398509481982 -
none 0 0 0
"
head -c 1M /dev/urandom >"$T/dense"
truncate -s 512K "$T/half"
head -c 512K /dev/urandom >>"$T/half"
operands=()
while read -r name size _; do
	case $name in
	empty | hole1) args=("memory" "$size") ;;
	dense) args=(file "$T/dense") ;;
	half) args=(file "$T/half") ;;
	max) args=("null" "$size") ;;
	none) args=(memory 0) ;;
	data*) args=(pattern "$size") ;;
	*) continue ;;
	esac
	start_nbdkit "${args[@]}" || bail "nbdkit ${args[*]}"
	operands+=("$name=$URI")
done <<<"$table"
mnt "${operands[@]}" || bail "mount"
while read -r name size before after; do
	[ -n "$name" ] || continue
	is "$(stat -c '%s %b %o' "$MNT/$name")" "$size $before 1048576" \
		"$name before it is opened"
done <<<"$table"
while read -r name size before after; do
	[ -n "$name" ] && [ "$after" != - ] || continue
	scanned "$MNT/$name" "$after" "$name after that"
done <<<"$table"
is "$(du -B512 "$MNT/empty" "$MNT/dense" "$MNT/half" | cut -f 1 | tr '\n' ' ')" \
	"1 2048 1024 " "du shows it"
is "$(ls -s --block-size=512 "$MNT/half" | cut -d ' ' -f 1)" 1024 \
	"ls -s shows it"
# The last known one is kept.
sleep 1.2
is "$(blocks "$MNT/half")" 1024 "also when it is old"
umnt "$MNT"

# Without block status all is allocated.
for args in "--no-sr memory 1M" "--filter=noextents memory 1M" \
	"-o memory 1M"; do
	# shellcheck disable=SC2086
	start_nbdkit $args || bail "nbdkit $args"
	mnt disk="$URI" || bail "mount"
	scanned "$MNT/disk" 2048 "$args"
	umnt "$MNT"
	stop_server
done
mnt --no-extents [ nbdkit memory 1M ] || bail "mount"
scanned "$MNT/nbd" 2048 "--no-extents"
umnt "$MNT"

# The scan is in nobody's way, and stat does not wait for it.
next_nbdkit
start_nbdkit --filter=log --filter=delay memory 20G delay-extents=400ms \
	logfile="$REQUESTS" || bail "nbdkit"
mnt disk="$URI" || bail "mount"
F=$MNT/disk
exec {fd}<"$F"
is "$(blocks "$F")" $(((20 << 21) - 1)) "while it is scanned: a guess"
ok "wait_until 20 blocks_are '$F' 1" "20 GiB: then the truth"
exec {fd}<&-
umnt "$MNT"
stop_server
is "$(awk '
	$4 == "Extents" { if (++n > max) max = n }
	$4 == "...Extents" { n-- }
	END { print max }' "$REQUESTS")" 1 "one question at a time"

# The server is left politely, also with a question under way: it has errors
# to tell, or dies, when it must answer somebody who has gone.
next_nbdkit
start_nbdkit --filter=log --filter=delay memory 20G delay-extents=300ms \
	logfile="$REQUESTS" || bail "nbdkit"
mnt disk="$URI" || bail "mount"
exec {fd}<"$MNT/disk"
exec {fd}<&-
asked()
{
	grep -q ' Extents ' "$REQUESTS"
}
ok "wait_until 10 asked" "a scan has begun"
ok "umnt '$MNT'" "unmounted during the scan"
# Where it was in the way of an answer, the server says so by then.
sleep 0.5
is "$(cat "$SERVER_LOG")" "" "unmounted during the scan: the server can answer"
ok "kill -0 $SERVER_PID" "unmounted during the scan: it lives"
stop_server

# A server that takes longer for an answer than the answer is believed.

# slow_map DELAY OPTIONS...: of a disk with holes
slow_map()
{
	local what="answers take $1"
	next_nbdkit
	start_nbdkit --filter=log --filter=delay data \
		'( "x" @+131071 )*8' size=4M "delay-extents=$1" \
		logfile="$REQUESTS" || bail "nbdkit"
	shift
	mnt "$@" disk="$URI" || bail "mount"
	is "$(extents "$MNT/disk" | grep -c ^hole)" 8 "$what $*: the true map"
	n=$(requests Extents | wc -l)
	umnt "$MNT"
}
slow_map 1200ms
ok "[ $n -le 2 ]" "by $n questions"
stop_server
# Each question anew: 8 extents of data and of holes, three calls for each
# and two for the next, and those of the same millisecond.
slow_map 20ms --extent-timeout=0
ok "[ $n -le 60 ]" "by $n questions"
: >"$REQUESTS"
run "$NBDFS_COPY" "$URI" "$T/slow"
is "$STATUS" 0 "copied"
is "$(requests Read | wc -l)" 8 "without its holes"
stop_server

# ----------------------------------------------------------- programs, sparse

size=$((16 << 20))
truncate -s $size "$T/disk"
for at in 0 9 10 15; do
	head -c 256K /dev/urandom |
		dd of="$T/disk" bs=1M seek=$at conv=notrunc status=none
done
data=$((1 << 20))

# sparse_copy FILE DESCRIPTION: equal, and with the holes.
sparse_copy()
{
	local used
	ok "cmp '$1' '$T/disk'" "$2: equal"
	used=$(($(blocks "$1") * 512))
	ok "[ $used -ge $data ] && [ $used -le $((data + 1000000)) ]" \
		"$2: takes $used bytes of $size"
	rm -f "$1"
}

for mode in "before the scan" "after the scan" "--cache=kernel"; do
	next_nbdkit
	start_nbdkit --filter=log file "$T/disk" logfile="$REQUESTS" ||
		bail "nbdkit"
	args=()
	[ "$mode" != --cache=kernel ] || args=("$mode")
	mnt "${args[@]}" disk="$URI" || bail "mount"
	F=$MNT/disk
	if [ "$mode" = "after the scan" ]; then
		scanned "$F" $((data / 512)) "scanned"
	fi
	run cp "$F" "$T/copy"
	sparse_copy "$T/copy" "cp, $mode"
	run cp --sparse=always "$F" "$T/copy"
	sparse_copy "$T/copy" "cp --sparse=always, $mode"
	run tar -C "$MNT" -cSf "$T/tar" disk
	ok "[ $(stat -c %s "$T/tar") -lt $((data + 100000)) ]" \
		"tar -cS leaves holes out, $mode"
	tar -C "$T" --transform=s,disk,copy, -xSf "$T/tar"
	sparse_copy "$T/copy" "tar -cS, $mode"
	run rsync -S "$F" "$T/copy"
	sparse_copy "$T/copy" "rsync -S, $mode"
	umnt "$MNT"
	stop_server
	read=0
	while read -r _ _ count; do
		read=$((read + count))
	done < <(requests Read)
	ok "[ $read -le $((5 * data)) ]" \
		"$mode: the server was asked for data alone ($read)"
done

# What is not known to be a hole is stored.
start_nbdkit --filter=noextents file "$T/disk" || bail "nbdkit"
mnt disk="$URI" || bail "mount"
tar -C "$MNT" -cSf "$T/tar" disk
ok "[ $(stat -c %s "$T/tar") -ge $data ]" "tar -cS without extents"
tar -C "$T" --transform=s,disk,copy, -xSf "$T/tar"
ok "cmp '$T/copy' '$T/disk'" "tar -cS without extents: equal"
run cp "$MNT/disk" "$T/copy"
ok "cmp '$T/copy' '$T/disk'" "cp without extents: equal"
umnt "$MNT"
stop_server
done_testing
