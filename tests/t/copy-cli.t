#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# The command line of nbdfs-copy: options, messages, exit statuses, progress,
# the summary, Ctrl-C.

# shellcheck disable=SC2002,SC2034,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy nbdkit python3

cd "$T" || exit 1
copy=$NBDFS_COPY
truncate -s 8M src
head -c 1M /dev/urandom | dd of=src conv=notrunc status=none

# ------------------------------------------------------------------ options

run_ok "$copy" --help
like "$OUT" "^Usage: nbdfs-copy \[OPTIONS\] SOURCE DESTINATION" "help"
run_ok "$copy" --version
like "$OUT" "^nbdfs-copy [0-9]+\.[0-9]" "version"
run_ok "$copy" --dump-options
missing=
for option in allocated connections destination-is-zero target-is-zero flush \
	no-extents progress request-size queue-size requests sparse synchronous \
	threads verbose version help verify retries timeout rate json; do
	grep -qw -e "$option" <<<"$OUT" || missing+=" $option"
done
is "$missing" "" "every option is there"

# usage WORD... -- PATTERN: refused, with status 2 and that message.
usage()
{
	local args=()
	while [ "$1" != --- ]; do
		args+=("$1")
		shift
	done
	run "$copy" "${args[@]}"
	like "$STATUS $(head -n 1 <<<"$ERR")" "^2 nbdfs-copy: .*$2" \
		"usage: ${args[*]}"
}

usage --- "a source and a destination"
usage src --- "a source and a destination"
usage src a b --- "too many"
usage --nonsense src null: --- "unknown option --nonsense"
usage src null: --request-size=1000 --- "request-size=1000"
usage src null: --request-size=5000 --- "power of two"
usage src null: --request-size=64M --- "request-size=64M"
usage src null: -S 1000 --- "power of two"
usage src null: -S 256 --- "power of two"
usage src null: -R 0 --- "requests=0"
usage src null: -C 0 --- "connections=0"
usage src null: --queue-size=x --- "queue-size=x"
usage src null: --progress=x --- "progress=x"
usage src null: -p=x --- "progress=x: not a file descriptor"
usage null: new --- "only be the destination"
usage src [ --- "without"
usage src null: --verify --- "read back"
ok "[ ! -e new ]" "nothing was made"
cat src | "$copy" --verify - new 2>err
is $? 1 "--verify cannot read a pipe again"
ok "[ ! -e new ]" "and says so before anything is made"

for option in -S0 -S4096 --sparse=1M -R8 --requests=1 -C2 --connections=100 \
	-T0 -T1 --threads=7 --queue-size=1 --queue-size=1G \
	--request-size=4096 --request-size=32M -v --flush --synchronous \
	--no-extents --allocated --target-is-zero --retries=0 --rate=1T; do
	rm -f new
	if ! run "$copy" "$option" src new || ! cmp src new; then
		fail "option $option"
		diag "$STATUS $ERR"
	fi
done
pass "options that are right"

# ------------------------------------------------------------------ summary

run_ok "$copy" --json src new
is "$(python3 -c 'import json, sys
s = json.loads(sys.argv[1])
print(s["bytes_read"], s["bytes_written"], s["bytes_zeroed"],
	s["bytes_skipped"], 0 <= s["seconds"] < 10)' "$OUT")" \
	"1048576 1048576 0 7340032 True" "--json counts"
"$copy" --json src - 2>json | cmp - src
ok $? "not among the data"
ok "python3 -m json.tool json >/dev/null" "but beside it"
run "$copy" --json no-such-file new
is "$STATUS:$OUT" "1:" "no summary of what failed"
run "$copy" --json src /dev/full
is "$STATUS:$OUT" "1:" "wherever it failed"
"$copy" --json src new >/dev/full 2>err
is $? 1 "a summary that cannot be written is an error"

# ----------------------------------------------------------------- progress

"$copy" --progress=5 src new 5>lines
is "$(sort -u lines | grep -vxE '[0-9]+/100')" "" "lines of N/100"
is "$(tail -n 1 lines)" "100/100" "to the end"
head -c 2M /dev/urandom >slow
mv lines all-lines
"$copy" -p=5 src new 5>lines
ok "cmp lines all-lines" "-p=FD is the same"
"$copy" --progress=5 --rate=2M slow new 5>lines
ok "[ $(wc -l <lines) -ge 3 ]" "in steps"
is "$(sort -n lines | cmp - lines)" "" "that grow"
"$copy" --progress=5 no-such-file new 5>lines 2>/dev/null
is "$(cat lines)" "" "none of what failed"

# On a terminal: a line that is drawn again, and gone at the end.
cat >terminal <<'END'
import os, pty, sys
out = b""
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    try:
        data = os.read(fd, 4096)
    except OSError:
        break
    if not data:
        break
    out += data
status = os.waitpid(pid, 0)[1]
sys.stdout.write(repr(out.decode()))
sys.exit(os.waitstatus_to_exitcode(status))
END
run_ok -n "on a terminal" python3 terminal "$copy" -p --rate=2M slow new
like "$OUT" "KiB of 2 MiB, [0-9]+%, .*/s" "size, percent, rate"
like "$OUT" "0:0[0-9] left" "time left"
like "$OUT" " +\\\\r'\$" "the line is cleared"

# ------------------------------------------------------------------- Ctrl-C

# interrupted SIGNAL ARGS...: sets STATUS, ERR, MS.
interrupted()
{
	local signal=$1 begin pid
	shift
	env --default-signal=INT,TERM "$copy" "$@" >/dev/null 2>err &
	pid=$!
	sleep 0.5
	begin=$(date +%s%N)
	kill "-$signal" $pid
	wait $pid
	STATUS=$?
	MS=$((($(date +%s%N) - begin) / 1000000))
	ERR=$(<err)
}

# ---------------------------------------------- without the standard files

# What is meant for people must not go where their numbers went.
head -c 3000000 /dev/urandom >src
start_nbdkit file src
# Sockets get other numbers each time.
all='<&- >&- 2>&-'
for closed in '<&-' '>&-' '2>&-' "$all" "$all" "$all" "$all" "$all"; do
	rm -f new
	(eval "\"\$copy\" -v --retries=0 \"\$URI\" new $closed") 2>/dev/null
	is $? 0 "a copy with $closed"
	ok "cmp src new" "has the bytes"
done
"$copy" --json src new >&- 2>err
is $? 1 "a summary that cannot be written is an error"
"$copy" - new <&- 2>err
is $? 1 "so is standard input that is closed"
"$copy" src - >&- 2>err
is $? 1 "and standard output"
run_fails "$copy" nbd://me:pass@word@127.0.0.1:1/ new
unlike "$ERR" word "no part of a password is shown"

interrupted INT --rate=1M slow new
is "$STATUS" 130 "SIGINT ends a copy"
like "$ERR" "^nbdfs-copy: interrupted: [0-9.]+ [KM]iB of 2 MiB copied$" \
	"which says how far it came"
ok "[ $MS -lt 500 ]" "at once" || diag "$MS ms"
interrupted TERM --rate=1M slow new
is "$STATUS" 143 "SIGTERM, too"
mkfifo fifo
exec 7<>fifo
interrupted INT fifo new
is "$STATUS" 130 "while it waits for a pipe to have something"
ok "[ $MS -lt 500 ]" "at once" || diag "$MS ms"
interrupted INT slow fifo
is "$STATUS" 130 "while it waits for a pipe to have room"
ok "[ $MS -lt 500 ]" "at once" || diag "$MS ms"
exec 7>&-
start_nbdkit --filter=delay memory 8M rdelay=60 delay-extents=60
interrupted INT "$URI" new
is "$STATUS" 130 "while a server is silent"
ok "[ $MS -lt 3000 ]" "soon" || diag "$MS ms"
interrupted INT [ nbdkit --filter=delay --filter=noextents memory 8M \
	rdelay=60 ] new
is "$STATUS" 130 "and one that it runs itself"

done_testing
