#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Zeroes are marked at once and sent late: nothing is written twice, nothing
# is zeroed that is zero already, and nothing that should be zero is left.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit nbdkit-filter:log nbdkit-filter:nozero \
	nbdkit-filter:noextents nbdkit-filter:delay fallocate

ops=$NBDFS_HELPERS/fileops
D=$T/disk
SIZE=$((8 * 1024 * 1024))

head -c $SIZE /dev/urandom >"$T/old"
head -c $SIZE /dev/urandom >"$T/dense"
# Data at 1 M (1 M of it) and at 5 M (512 K), holes around.
truncate -s $SIZE "$T/sparse"
head -c 1M /dev/urandom | dd of="$T/sparse" bs=1M seek=1 conv=notrunc status=none
head -c 512K /dev/urandom |
	dd of="$T/sparse" bs=512K seek=10 conv=notrunc status=none

# server FILTER|PARAMETER...: over old data, with a log.
server()
{
	local arg filters=() parameters=()
	for arg; do
		case $arg in
		--*) filters+=("$arg") ;;
		*) parameters+=("$arg") ;;
		esac
	done
	cp --sparse=never "$T/old" "$D"
	next_nbdkit
	start_nbdkit --filter=log "${filters[@]}" file "$D" \
		logfile="$REQUESTS" "${parameters[@]}" || bail "nbdkit"
}

# served MOUNT-OPTIONS...: mounted as $F.
served()
{
	mnt "$@" disk="$URI" || bail "mount"
	F=$MNT/disk
}

ended()
{
	ok "umnt '$MNT'" "$1: unmounted"
	stop_server
}

# sum OPERATION...: bytes in these requests.
sum()
{
	local total=0 len
	while read -r _ _ len _; do
		total=$((total + len))
	done < <(requests "$@")
	echo $total
}

# ranges OPERATION...: "offset length" of what these requests cover, merged.
ranges()
{
	local off len start='' end=
	while read -r off len; do
		if [ -n "$start" ] && [ "$off" -le "$end" ]; then
			[ $((off + len)) -le "$end" ] || end=$((off + len))
			continue
		fi
		[ -z "$start" ] || echo "$start $((end - start))"
		start=$off end=$((off + len))
	done < <(requests "$@" | while read -r _ off len _; do
		echo "$((off)) $((len))"
	done | sort -n)
	[ -z "$start" ] || echo "$start $((end - start))"
}

# want FILE SIZE: the contents, with zeroes up to SIZE.
same()
{
	cp "$1" "$T/want"
	truncate -s $SIZE "$T/want"
	cmp "$T/want" "$D"
}

# ------------------------------------------------- what is then overwritten

head -c 64M /dev/urandom >"$T/big"
cp --sparse=never "$T/big" "$D"
next_nbdkit
start_nbdkit --filter=log file "$D" logfile="$REQUESTS" || bail "nbdkit"
# So that it is not the same already.
dd if=/dev/urandom of="$D" bs=1M count=64 conv=notrunc status=none
served
run_ok -n "cp of 64 MiB of data" cp "$T/big" "$F"
ended "64 MiB"
is "$(sum Write)" $((64 << 20)) "64 MiB are written, once"
is "$(count_requests Zero Trim)" 0 "and nothing is zeroed"
ok "cmp '$T/big' '$D'" "the server has it"
rm "$T/big" "$D"

server
served
run_ok -n "cp of data" cp "$T/dense" "$F"
ended "cp of data"
is "$(sum Write)" $SIZE "all is written once"
is "$(count_requests Zero Trim)" 0 "and nothing zeroed"

server
served
cat "$T/dense" >"$F"
is "$?" 0 "cat a > b"
ended "cat a > b"
is "$(count_requests Zero Trim)" 0 "cat a > b zeroes nothing"
ok "cmp '$T/dense' '$D'" "and leaves the right bytes"

server
served
{
	/bin/true
	cat "$T/dense"
} >"$F"
is "$?" 0 "{ true; cat a; } > b"
ended "{ true; cat a; } > b"
is "$(count_requests Zero Trim)" 0 "{ true; cat a; } > b zeroes nothing"
ok "cmp '$T/dense' '$D'" "and leaves the right bytes"

server
served
head -c 3000000 "$T/dense" >"$T/short"
cat "$T/short" >"$F"
ended "a short one"
is "$(ranges Zero Trim)" "3000000 $((SIZE - 3000000))" \
	"only what is not overwritten is zeroed"
is "$(sum Write)" 3000000 "the rest is written once"
ok "same '$T/short'" "a short one leaves the right bytes"

# ---------------------------------------------------- what is zero already

rm -f "$D"
truncate -s $SIZE "$D"
next_nbdkit
start_nbdkit --filter=log file "$D" logfile="$REQUESTS" || bail "nbdkit"
served
run_ok -n "cp of a sparse file onto a fresh disk" cp "$T/sparse" "$F"
ended "a fresh disk"
is "$(count_requests Zero Trim)" 0 "a fresh disk is not zeroed"
is "$(sum Write)" $((1536 * 1024)) "only data is written"
ok "cmp '$T/sparse' '$D'" "a fresh disk gets the right bytes"

server
served
run_ok -n "cp of a sparse file over old data" cp "$T/sparse" "$F"
ended "over old data"
is "$(ranges Zero Trim | tr '\n' ,)" \
	"0 1048576,2097152 3145728,5767168 2621440," \
	"exactly the holes are zeroed"
is "$(sum Zero Trim)" $((SIZE - 1536 * 1024)) "each of them once"
is "$(sum Write)" $((1536 * 1024)) "exactly the data is written"
ok "cmp '$T/sparse' '$D'" "the server has data and zeroes"

server
served
run_ok -n "truncate -s 0" truncate -s 0 "$F"
run_ok -n "fsync" "$ops" "open:rw:$F" fsync
before=$(sum Zero)
is "$before" $SIZE "all is zeroed"
run_ok -n "truncate -s 0 again" truncate -s 0 "$F"
run_ok -n "fsync again" "$ops" "open:rw:$F" fsync
is "$(sum Zero)" "$before" "the second time there is nothing to do"
ended "truncate twice"

# ------------------------------------------------------------- at what time

server
served
run "$ops" "open:rw:$F" truncate:0 read:0:64K dupclose "touch:$T/marked" \
	"await:$T/seen" write:1M:1M:7 fsync &
job=$!
wait_until 20 test -e "$T/marked"
is "$(count_requests Zero)" 0 "closing a duplicate sends no zeroes yet"
: >"$T/seen"
wait $job
is "$(ranges Zero | tr '\n' ,)" "0 1048576,2097152 $((SIZE - 2097152))," \
	"fsync sends what is left"
rm "$T/marked" "$T/seen"
ended "late"

server
served
: >"$F"
ok "wait_until 10 same /dev/null" "an opened, truncated, closed file is zeroed"
cp --sparse=never "$T/old" "$T/again"
dd if="$T/again" of="$F" bs=1M conv=notrunc status=none
run_ok -n "punch" fallocate -p -o 1000001 -l 2000003 "$F"
dd if=/dev/zero of="$T/again" bs=2000003 count=1 seek=1000001 \
	oflag=seek_bytes conv=notrunc status=none
ok "cmp '$T/again' '$D'" "a punch is there when the program has ended"
ended "at close"

# A server that takes its time: what has been closed is there all the same.
server --filter=delay wdelay=300ms delay-zero=300ms
served
cp "$T/old" "$T/want"
run "$ops" "open:rw:$F" write:1M:64K:7 close
ok "cmp -s -i 1048576:0 -n 65536 '$D' \
	<(head -c 64K /dev/zero | tr '\0' '\7')" "close waits for writes"
run "$ops" "open:rw:$F" map:2M:64K mapwrite:7 unmap close
ok "cmp -s -i 2097152:0 -n 65536 '$D' \
	<(head -c 64K /dev/zero | tr '\0' '\7')" "and for mapped pages"
run_ok -n "punch on a slow server" fallocate -p -o 4M -l 1M "$F"
ok "cmp -s -i 4194304:0 -n 1048576 '$D' /dev/zero" "and for a punch"
run "$ops" "open:rw:$F" truncate:6M fsync
ok "cmp -s -i 6291456:0 -n 2097152 '$D' /dev/zero" "fsync for a truncation"
run truncate -s 5M "$F"
ok "umnt '$MNT'" "unmounted with zeroes on their way"
ok "cmp -s -i 5242880:0 -n 3145728 '$D' /dev/zero" \
	"the end of nbdfs waits for those"
stop_server

# ------------------------------------------------------- with and without space

server
served
# Whole blocks, on both sides, so that space can be counted.
full=$(stat -c %b "$D")
run_ok -n "fallocate -z" fallocate -z -o 1M -l 2M "$F"
is "$(stat -c %b "$D")" "$full" "zeroing keeps the space"
like "$(requests Zero)" "trim=0" "by a command that says so"
run_ok -n "fallocate -p" fallocate -p -o 4M -l 2M "$F"
now=$(stat -c %b "$D")
# The map of the backing file takes a block now and then.
ok "[ $now -ge $((full - 4096 - 16)) ] && [ $now -le $((full - 4096 + 16)) ]" \
	"punching gives it back"
ended "space"

# Nothing but writes can make zeroes here.
for filters in "--filter=nozero" "--filter=nozero --filter=noextents"; do
	# shellcheck disable=SC2086
	server $filters
	served
	run_ok -n "fallocate -z, $filters" fallocate -z -l 7000001 "$F"
	ended "$filters"
	cp "$T/old" "$T/want"
	dd if=/dev/zero of="$T/want" bs=7000001 count=1 conv=notrunc status=none
	ok "cmp '$T/want' '$D'" "zeroed by writes, $filters"
done

rm -f "$D"
truncate -s 9G "$D"
for at in 0 4095 4097 8191 9215; do
	head -c 1M /dev/urandom |
		dd of="$D" bs=1M seek=$at conv=notrunc status=none
done
printf X | dd of="$D" conv=notrunc status=none
next_nbdkit
start_nbdkit --filter=log file "$D" logfile="$REQUESTS" || bail "nbdkit"
served
run_ok -n "truncate of 9 GiB" truncate -s 1 "$F"
ended "9 GiB"
ok "[ $(stat -c %b "$D") -le 24 ]" "but for a block all of it is given back"
is "$(head -c 4096 "$D" | tr -d '\0')" X "the first byte stays"
is "$(sum Write)" 0 "without a write"
rm "$D"

# ------------------------------------------------------------------- options

server
served --on-truncate=keep
: >"$F"
is "$?" 0 "--on-truncate=keep: open with O_TRUNC"
run_ok -n "--on-truncate=keep: truncate" truncate -s 100 "$F"
ended "keep"
ok "cmp '$T/old' '$D'" "--on-truncate=keep leaves all"

server
served --on-truncate=deny
run_fails -n "--on-truncate=deny: truncate" truncate -s 100 "$F"
run_fails -n "--on-truncate=deny: cp" cp "$T/short" "$F"
run_ok -n "--on-truncate=deny: truncate to its size" truncate -s $SIZE "$F"
run_ok -n "--on-truncate=deny: dd conv=notrunc" dd if="$T/short" of="$F" \
	bs=1M conv=notrunc status=none
ended "deny"

server
served --detect-zeroes
run_ok -n "--detect-zeroes: a sparse file, byte by byte" \
	dd if="$T/sparse" of="$F" bs=1M conv=notrunc status=none
ended "--detect-zeroes"
is "$(sum Write)" $((1536 * 1024)) "--detect-zeroes: data is written"
is "$(ranges Zero | tr '\n' ,)" \
	"0 1048576,2097152 3145728,5767168 2621440," \
	"--detect-zeroes: zeroes are zero commands"
ok "cmp '$T/sparse' '$D'" "--detect-zeroes: the right bytes"

done_testing
