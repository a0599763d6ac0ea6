#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Signals: programs with timers notice nothing, programs that are stuck get
# EINTR after half a second, a copy ends at once, and what is killed dies.

# shellcheck source=tests/lib.sh
# shellcheck disable=SC2119
. "$(dirname "$0")/../lib.sh"
requires fuse helper:interrupted helper:fileops nbdkit nbdkit-filter:delay \
	nbdkit-filter:exportname

int=$NBDFS_HELPERS/interrupted

_stopped()
{
	! cut -d')' -f2- "/proc/$SERVER_PID"/task/*/stat | grep -qv '^ T'
}

# Its threads stop one after the other.
freeze()
{
	kill -STOP "$SERVER_PID"
	wait_until 5 _stopped
}

thaw()
{
	kill -CONT "$SERVER_PID"
}

_answered()
{
	[ "$(wc -l <"$T/int.out")" -ge 2 ]
}

# stuck AFTER OPERATION FILE...: the server freezes when the program is ready;
# sets OUT to "OPERATION RESULT" and MS to how long it took.
stuck()
{
	local job result
	rm -f "$T/fifo"
	mkfifo "$T/fifo"
	: >"$T/int.out"
	timeout -k 1 30 "$int" "$@" <"$T/fifo" >"$T/int.out" 2>&1 &
	job=$!
	exec 7>"$T/fifo"
	wait_until 10 grep -q ready "$T/int.out" || diag "$(<"$T/int.out")"
	freeze
	echo >&7
	exec 7>&-
	wait_until 20 _answered
	# Its end closes the files, and that waits again.
	thaw
	wait $job
	result=$(tail -n 1 "$T/int.out")
	OUT=${result% *}
	MS=${result##* }
}

# between LOW HIGH DESCRIPTION: MS is.
between()
{
	ok "[ '$MS' -ge $1 ] && [ '$MS' -le $2 ]" "$3 ($MS ms)"
}

# -------------------------------------------------------------- stuck

start_nbdkit --filter=exportname data '0x61*67108864' \
	exportname=a exportname=b exportname=c exportname-list=explicit ||
	bail "no server"
mnt --read-ahead=0 "$(uri)" || bail "no mount"
F=$MNT/a

# The signal comes after 100 ms; patience lasts for 500 more.
for op in read write fsync close punch; do
	stuck 100 $op "$F"
	is "$OUT" "$op EINTR" "$op from a frozen server, interrupted"
	between 590 3000 "$op: after a while"
done

stuck 100 truncate "$F"
is "$OUT" "truncate 0" "truncate needs no server"
between 0 90 "truncate: at once"

stuck 100 open "$MNT/b"
is "$OUT" "open EINTR" "open, where there is no connection yet"
between 590 3000 "open: after a while"

# With nothing in the way, everything goes on.
# All exports are the same disk, which has been truncated.
ok "cmp -n 1048576 '$MNT/c' /dev/zero" "after all that, reading works"
run_ok -n "and so does writing" dd if=/dev/zero of="$F" bs=1M count=1 \
	conv=notrunc,fsync status=none

# -------------------------------------------------------------- killed

dd if="$MNT/c" of=/dev/null bs=1M count=1 status=none
freeze
dd if="$MNT/c" of=/dev/null bs=1M skip=20 status=none &
pid=$!
sleep 0.3
ok "! _gone $pid" "a reader waits for a frozen server"
began=$(date +%s%N)
kill -KILL $pid
ok "wait_until 3 _gone $pid" "killed, it is dead"
ms=$((($(date +%s%N) - began) / 1000000))
wait $pid 2>/dev/null
ok "[ $ms -lt 1500 ]" "soon ($ms ms)"
thaw
ok "umnt '$MNT'" "unmounted"
stop_server

# ---------------------------------------------------------------- timers

# Each request is slow, but not stuck: a timer's signals are not its end.
start_nbdkit --filter=exportname --filter=delay data '0x61*4194304' \
	rdelay=150ms wdelay=150ms delay-extents=150ms delay-zero=150ms \
	exportname=a exportname=b exportname-list=explicit || bail "no server"
mnt --read-ahead=0 --extent-timeout=0 "$(uri)" || bail "no mount"
F=$MNT/a
for op in read write fsync punch; do
	run "$int" 10:10 $op "$F"
	like "$(tail -n 1 <<<"$OUT")" "^$op (1048576|0) [0-9]+$" \
		"$op with a signal every 10 ms"
done
run "$int" 10:10 hole "$F"
like "$(tail -n 1 <<<"$OUT")" "^hole [0-9]+ [0-9]+$" \
	"a seek with a signal every 10 ms"
ok "umnt '$MNT'" "unmounted"
stop_server

# ---------------------------------------------------------------- copies

start_nbdkit --filter=exportname data '0x61*67108864' \
	exportname=a exportname=b exportname-list=explicit || bail "no server"
mnt "$(uri)" || bail "no mount"
stuck 100 copy "$MNT/a" "$MNT/b"
is "$OUT" "copy EINTR" "a copy that has not begun, interrupted"
between 90 450 "copy: at once"
run_ok -n "the daemon is well" stat "$MNT/a"
ok "umnt '$MNT'" "unmounted"
stop_server

start_nbdkit --filter=exportname --filter=delay data '0x61*268435456' \
	rdelay=150ms wdelay=150ms exportname=a exportname=b \
	exportname-list=explicit || bail "no server"
mnt "$(uri)" || bail "no mount"
run "$int" 700 copy "$MNT/a" "$MNT/b"
OUT=$(tail -n 1 <<<"$OUT")
MS=${OUT##* }
like "$OUT" "^copy [1-9][0-9]* [0-9]+$" "a copy under way gives what it has"
between 690 900 "copy: at once"
count=$(cut -d' ' -f2 <<<"$OUT")
ok "[ '$count' -lt 268435456 ]" "which is not all ($count)"
ok "cmp -n '$count' '$MNT/a' '$MNT/b'" "and right"
ok "umnt '$MNT'" "unmounted"
stop_server

# ----------------------------------------------------- unmounting, frozen

start_nbdkit memory 64M || bail "no server"
mnt --timeout=3 "$URI" || bail "no mount"
dd if=/dev/zero of="$MNT/nbd" bs=1M count=4 conv=notrunc status=none
freeze
began=$SECONDS
ok "umnt '$MNT'" "a mount of a frozen server unmounts, and nbdfs ends"
ok "[ $((SECONDS - began)) -le 12 ]" "soon ($((SECONDS - began)) s)"
thaw
stop_server

start_nbdkit memory 64M || bail "no server"
mnt --timeout=3 "$URI" || bail "no mount"
head -c 1 "$MNT/nbd" >/dev/null
freeze
dd if=/dev/zero of="$MNT/nbd" bs=1M count=4 conv=notrunc status=none \
	2>/dev/null &
writer=$!
sleep 0.3
ok "! _gone $writer" "a writer waits for a frozen server"
began=$SECONDS
kill -TERM "$MNT_PID"
ok "wait_until 20 _gone $MNT_PID" "SIGTERM ends it too, with an open file"
ok "[ $((SECONDS - began)) -le 12 ]" "soon ($((SECONDS - began)) s)"
ok "! mounted '$MNT'" "and unmounts"
ok "wait_until 3 _gone $writer" "and the writer does not hang"
wait $writer
thaw

# What a copy had not sent when it was interrupted is not sent later, over what
# has been written since.
start_nbdkit data '0x61*1048576' || bail "no server"
source_uri=$URI
start_nbdkit memory 1M || bail "no server"
mnt a="$source_uri" b="$URI" || bail "no mount"
timeout -k 1 30 "$NBDFS_HELPERS/fileops" slot:1 "open:r:$MNT/a" slot:0 \
	"open:rw:$MNT/b" read:0:4K "touch:$T/ready" "await:$T/frozen" \
	write:0:1M:1 sleep:100 alarm:200 copy:1:0:0:1M write:0:1M:2 \
	"touch:$T/done" fsync read:0:1M close >"$T/out" 2>&1 &
job=$!
wait_until 10 test -e "$T/ready"
freeze
touch "$T/frozen"
wait_until 10 test -e "$T/done"
thaw
wait $job
is "$(tr '\n' ';' <"$T/out")" "open 0;open 0;read 4096 00;write 1048576;\
copy EINTR;write 1048576;fsync 0;read 1048576 02;close 0;" \
	"a copy that was interrupted leaves newer bytes alone"
umnt

done_testing
