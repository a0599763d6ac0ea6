#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# A mount's life: what is said when it cannot begin, background and
# foreground, pid file, signals, what is left behind.

# shellcheck source=tests/lib.sh
# shellcheck disable=SC2119
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdkit-filter:exportname nbdkit-filter:log \
	nbdkit-filter:delay helper:fileops

M=$T/m
mkdir "$M"

# -------------------------------------------------------------- mistakes

# says STATUS REGEX ARGS...: one line on stderr, and nothing is mounted.
says()
{
	local want=$1 regex=$2
	shift 2
	run "$NBDFS" "$@"
	is "$STATUS" "$want" "status $want: nbdfs $*"
	like "$ERR" "^nbdfs: $regex" "and says why"
	case $want in
	1) is "$(wc -l <<<"$ERR")" 1 "in one line" ;;
	2) is "$(wc -l <<<"$ERR")" 2 "in one line and a hint" ;;
	esac
	is "$OUT" "" "and nothing on stdout"
	ok "! mounted '$M'" "and does not mount"
}

start_nbdkit --filter=exportname --filter=log memory 8M exportname=a \
	exportname=b exportname-list=explicit exportname-strict=true \
	logfile="$T/log" || bail "no server"

says 2 "a source and a mount point"
says 2 "unknown option --nonsense" --nonsense "$URI" "$M"
says 2 "unknown mount option nonsense" -o nonsense "$URI" "$M"
says 2 "--connections=x: not a number" -C x "$URI" "$M"
says 1 "$T/none: No such file" "$URI" "$T/none"
says 1 "'': No such file" "$URI" ""
says 1 "/dev/null: neither a folder nor a regular file" "$URI" /dev/null
says 1 ".*no such socket" "nbd+unix:///?socket=$T/none" "$M"
says 1 ".*connection refused" nbd://127.0.0.1:1/ "$M"
says 1 ".*has no export 'c'.*'a', 'b'" "$(uri c)" "$M"
says 1 ".*not an NBD URI" http://localhost/ "$M"
says 1 ".*cannot run" [ "$T/none" ] "$M"
says 1 ".*nosuchplugin" [ nbdkit nosuchplugin ] "$M"
says 1 "cannot write $T/none/pid" -P "$T/none/pid" "$URI" "$M"
for foreground in "" -f; do
	: >"$T/file"
	run "$NBDFS" $foreground "$URI" "$T/file"
	is "$STATUS" 1 "two exports on one file: status 1 $foreground"
	like "$ERR" "^nbdfs: .* one export only, but there are 2" "and why"
done

first=$URI first_sock=$SOCK first_pid=$SERVER_PID
start_nbdkit --filter=delay memory 1M delay-open=60 || bail "no server"
silent=$URI
URI=$first SOCK=$first_sock SERVER_PID=$first_pid
began=$SECONDS
says 1 ".*no answer within 2 s" --timeout=2 "$silent" "$M"
ok "[ $((SECONDS - began)) -le 6 ]" "a silent server is given up"

# ---------------------------------------------------------------- printing

run_ok -n "--help" "$NBDFS" --help
like "$OUT" "^Usage: nbdfs \[OPTIONS\] SOURCE... MOUNTPOINT" "says how"
for option in $("$NBDFS" --dump-options | cut -f1); do
	like "$OUT" "--$option" "--help has --$option"
done
is "$ERR" "" "nothing on stderr"
run_ok -n "-V" "$NBDFS" -V
like "$OUT" "^nbdfs [0-9]+\.[0-9]+" "says the version"
if [ -c /dev/full ]; then
	"$NBDFS" --help >/dev/full 2>"$T/err"
	is $? 1 "help that cannot be written is an error"
fi

# -------------------------------------------------------------- background

cd "$T" || exit 1
run_ok -n "to the background" "$NBDFS" -P rel.pid "$(uri a)" m
is "$OUT$ERR" "" "without a word"
ok "mounted '$M'" "mounted when it returns"
ok "[ -s '$T/rel.pid' ]" "the pid file is there when it returns"
pid=$(<"$T/rel.pid")
MNT_PID=$pid
is "$(readlink "/proc/$pid/cwd")" / "it does not stay in the folder"
is "$(ls "$M")" a "it serves"
is "$(readlink "/proc/$pid/fd/0" "/proc/$pid/fd/1" "/proc/$pid/fd/2" |
	sort -u)" /dev/null "it leaves the terminal"
isnt "$(ps -o sid= -p "$pid" | tr -d ' ')" "$(ps -o sid= -p $$ | tr -d ' ')" \
	"it has a session of its own"
is "$(awk '/Max core file size/ { print $5 }' "/proc/$pid/limits")" 0 \
	"no core files"
like "$(awk -v mp="$M" '$5 == mp' /proc/self/mountinfo)" \
	" - fuse.nbdfs nbd\+unix:///a\?socket=$SOCK " \
	"/proc/mounts says what and where from"
run_ok -n "fusermount3 -u" fusermount3 -u "$M"
ok "wait_until 10 _gone $pid" "and it ends"
ok "[ ! -e '$T/rel.pid' ]" "the pid file is gone"

# Nothing inherited but the standard files.
exec 9</dev/null
run_ok -n "mounted once more" "$NBDFS" -P "$T/pid" "$(uri a)" "$M"
exec 9<&-
pid=$(<"$T/pid")
ok "! readlink /proc/$pid/fd/* | grep -qv 'null\|fuse\|anon\|socket:'" \
	"no inherited descriptor is left"

# --------------------------------------------------------------- signals

for signal in TERM INT HUP; do
	mounted "$M" || "$NBDFS" -P "$T/pid" "$(uri a)" "$M"
	pid=$(<"$T/pid")
	dd if=/dev/urandom of="$T/want" bs=64K count=5 status=none
	exec 8<>"$M/a"
	dd if="$T/want" bs=64K conv=notrunc status=none >&8
	kill -$signal "$pid"
	ok "wait_until 10 _gone $pid" "SIG$signal ends it, with an open file"
	ok "! mounted '$M'" "SIG$signal: unmounted"
	ok "[ ! -e '$T/pid' ]" "SIG$signal: no pid file"
	exec 8>&-
	mnt "$(uri a)"
	ok "cmp -n 327680 '$MNT/a' '$T/want'" "SIG$signal: nothing is lost"
	umnt
done
like "$(tail -n 40 "$T/log" | grep -o 'Flush\|Disconnect' | tail -n 2 | xargs)" \
	"Disconnect" "the server is left politely"

# Pages that only the kernel knows of are written at the end. (Closing a file
# would write them, so nobody else has it open.)
mnt "$(uri a)"
"$NBDFS_HELPERS/fileops" "open:rw:$MNT/a" map:0:64K mapwrite:122 \
	"touch:$T/dirty" "await:$T/go" >"$T/ops.out" 2>&1 &
job=$!
wait_until 10 test -e "$T/dirty"
kill -TERM "$MNT_PID"
ok "wait_until 10 _gone $MNT_PID" "SIGTERM with a dirty mapping"
is "$(xargs <"$T/ops.out")" "open 0 map 0 mapwrite 65536" \
	"which there was"
: >"$T/go"
wait $job
mnt "$(uri a)"
is "$(head -c 65536 "$MNT/a" | tr -d '\172' | wc -c)" 0 \
	"its pages are written"
umnt

# A busy reader does not keep it.
mnt "$(uri a)"
(while cat "$MNT/a"; do :; done >/dev/null 2>&1) &
job=$!
sleep 0.3
kill -TERM "$MNT_PID"
ok "wait_until 10 _gone $MNT_PID" "SIGTERM with a busy reader"
wait $job
ok "! mounted '$MNT'" "unmounted"

# ---------------------------------------------------- a server of its own

run_ok -n "a server by socket activation" "$NBDFS" -P "$T/pid" \
	[ nbdkit memory 1M ] "$M"
pid=$(<"$T/pid")
child=$(pgrep -P "$pid")
ok "[ -n '$child' ]" "it is the daemon's child"
fusermount3 -u "$M"
ok "wait_until 10 _gone $pid" "unmounted, it ends"
ok "wait_until 10 _gone ${child:-1}" "and the server too"
run_ok -n "once more" "$NBDFS" -P "$T/pid" [ nbdkit memory 1M ] "$M"
pid=$(<"$T/pid")
child=$(pgrep -P "$pid")
kill -KILL "$pid"
ok "wait_until 10 _gone ${child:-1}" "SIGKILL: the server does not survive"
run "$NBDFS" "$(uri a)" "$M"
is "$STATUS" 1 "on a dead mount: status 1"
like "$ERR" "^nbdfs: .*left over" "and says what it is"
fusermount3 -u "$M"

# Started, but interrupted before it is ready.
mkdir "$T/tmp"
export TMPDIR=$T/tmp
for foreground in "" -f; do
	# shellcheck disable=SC2086
	"$NBDFS" $foreground --timeout=30 \
		[ nbdkit -P "$T/kpid" --filter=delay memory 1M delay-open=61 ] "$M" \
		2>"$T/err" &
	job=$!
	wait_until 5 pgrep -f "$T/kpid" >/dev/null
	sleep 0.2
	kill -TERM $job
	ok "wait_until 5 _gone $job" "a signal while it starts ends it"
	wait $job
	is $? 1 "with status 1"
	is "$(<"$T/err")" "nbdfs: interrupted" "and one line"
	ok "wait_until 5 eval '! pgrep -f \"$T/kpid\"'" "and its server"
	is "$(find "$T/tmp" -mindepth 1)" "" "and leaves nothing behind"
done
unset TMPDIR

# -------------------------------------------------------------- foreground

mnt -v -P "$T/pid" "$(uri a)"
is "$(<"$T/pid")" "$MNT_PID" "-f: the pid file"
ok "umnt" "-f: status 0 at the end"
ok "[ ! -e '$T/pid' ]" "-f: no pid file"
mnt -d "$(uri a)"
ls "$MNT" >/dev/null
umnt
like "$(<"$MNT_LOG")" "LOOKUP|OPENDIR" "-d: tells what happens"

# ------------------------------------------------------------------- file

mnt_file "$(uri a)"
ok "[ -f '$MNT' ]" "on a file: a file"
is "$(stat -c '%s %a' "$MNT")" "8388608 600" "with the size of the export"
run_ok -n "written" dd if="$T/want" of="$MNT" bs=64K conv=notrunc status=none
ok "cmp -n 327680 '$MNT' '$T/want'" "and read"
run_ok -n "truncated" truncate -s 0 "$MNT"
ok "cmp -n 8388608 '$MNT' /dev/zero" "reads as zero"
is "$(ls -d "$MNT")" "$MNT" "ls knows it"
ok "umnt" "unmounted"
ok "[ -f '$MNT' ] && [ ! -s '$MNT' ]" "the file below is as it was"

done_testing
