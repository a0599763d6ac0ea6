#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# nbdfs-copy from and to servers that break the protocol, in every scenario of
# the helper evilnbd: the right bytes and status 0, or status 1 and one clear
# line, soon and in bounded memory. Never status 0 and something else. And what
# it says of each error that a server may tell.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy helper:evilnbd python3

E=$T/evil
mkdir "$E"
spawn "$T/evil.log" "$NBDFS_HELPERS/evilnbd" "$E"
wait_until 10 grep -q ready "$T/evil.log" || bail "evilnbd"

# Reads lines "NAME FROM TO"; leaves in FOLDER/NAME the status, the milliseconds
# and the most memory it had, in KiB, and in FOLDER/NAME.err what it said.
cat >"$T/copies.py" <<'END'
import os, sys, threading, time
folder, *command = sys.argv[1:]
lock = threading.Lock()
null = os.open("/dev/null", os.O_RDWR)
def run(name, src, dst):
    err = os.open(f"{folder}/{name}.err", os.O_CREAT | os.O_WRONLY)
    begin = time.monotonic()
    pid = os.posix_spawnp(command[0], command + [src, dst], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, null, 0),
                      (os.POSIX_SPAWN_DUP2, null, 1),
                      (os.POSIX_SPAWN_DUP2, err, 2)])
    killer = threading.Timer(60, os.kill, (pid, 9))
    killer.start()
    _, status, usage = os.wait4(pid, 0)
    killer.cancel()
    os.close(err)
    with open(f"{folder}/{name}", "w") as f:
        print(os.waitstatus_to_exitcode(status),
              int((time.monotonic() - begin) * 1000), usage.ru_maxrss, file=f)
def work():
    while True:
        with lock:
            line = sys.stdin.readline()
        if not line:
            return
        run(*line.split())
threads = [threading.Thread(target=work) for _ in range(12)]
for t in threads: t.start()
for t in threads: t.join()
END

SANITIZED=
! grep -qaE '__(asan|tsan)_init' "$NBDFS_COPY" || SANITIZED=1

address()
{
	case $1 in
	tls-*) echo "nbds+unix:///?socket=$E/$1&tls-verify-peer=no" ;;
	*) echo "nbd+unix:///?socket=$E/$1" ;;
	esac
}

run_ok -n "a good server" "$NBDFS_COPY" "$(address good)" "$T/ref"
is "$(stat -c %s "$T/ref")" 1048576 "and its size"
# Zeroes where the servers have data, and the other way round.
{
	head -c 512K /dev/zero
	head -c 512K "$T/ref"
} >"$T/new"

# judged NAME WAY: what came of it, where that is not as it should be.
judged()
{
	local status ms kb lines text file=$T/out/$1.$2
	read -r status ms kb <"$file"
	lines=$(wc -l <"$file.err")
	text=$(head -n 1 "$file.err")
	case $status in
	0) [ "$lines" = 0 ] || echo "$2: success, and says: $text" ;;
	1)
		[ "$lines" = 1 ] || echo "$2: $lines lines: $text"
		[[ $text == "nbdfs-copy: "?* ]] || echo "$2: unclear: $text"
		;;
	*) echo "$2: status $status: $text" ;;
	esac
	[ -n "$SANITIZED" ] || [ "$kb" -lt 204800 ] || echo "$2: $kb KiB"
	[ "$ms" -lt 30000 ] || echo "$2: $ms ms"
	# Other sizes than usual hold other bytes after the usual ones.
	if [ "$2 $status" = "from 0" ] && [[ $1 != size-* ]]; then
		cmp -s "$file.raw" "$T/ref" || echo "from: wrong bytes"
	fi
}

mapfile -t names < <("$NBDFS_HELPERS/evilnbd" -l | sort)
ok "[ ${#names[@]} -gt 100 ]" "${#names[@]} scenarios"
mkdir "$T/out"
# A size without an end takes as long as it takes.
for name in "${names[@]}"; do
	[ "$name" = size-2^63-1 ] ||
		echo "$name.from $(address "$name") $T/out/$name.from.raw"
done >"$T/from"
for name in "${names[@]}"; do
	[ "$name" = size-2^63-1 ] ||
		echo "$name.to $T/new $(address "$name")"
done >"$T/to"
for way in from to; do
	timeout -k 5 120 python3 "$T/copies.py" "$T/out" "$NBDFS_COPY" \
		--flush --retries=0 --timeout=1 <"$T/$way"
done
for name in "${names[@]}"; do
	[ -e "$T/out/$name.to" ] || continue
	read -r from from_ms _ <"$T/out/$name.from"
	read -r to to_ms _ <"$T/out/$name.to"
	is "$(judged "$name" from; judged "$name" to)" "" \
		"$name ($from, $to; $from_ms ms, $to_ms ms)"
done

# ------------------------------------------------------- what a server says

# says NAME WAY TEXT: status 1 and this line; no TEXT: status 0.
says()
{
	local status
	read -r status _ <"$T/out/$1.$2"
	if [ -z "$3" ]; then
		is "$status" 0 "$1, $2: well"
	else
		like "$status $(<"$T/out/$1.$2.err")" \
			"^1 nbdfs-copy: nbd[^ ]*/$1: $3\$" "$1, $2: its words"
	fi
}

text=(
	[1]="Operation not permitted"
	[5]="Input/output error"
	[12]="Cannot allocate memory"
	[22]="Invalid argument"
	[28]="No space left on device"
	[75]="the server finds each request too long"
	[95]="Operation not supported"
	[108]="Input/output error \(nbd.*: the server is shutting down\)"
	[999]="Invalid argument"
)
while read -r name number; do
	t=${text[number]}
	says "read-errno-$name" from "cannot read at offset [0-9]+: $t"
	says "read-errno-$name" to ""
	says "write-errno-$name" from ""
	says "write-errno-$name" to "cannot write at offset [0-9]+: $t"
	says "flush-errno-$name" from ""
	[ "$name" = overflow ] || says "flush-errno-$name" to "cannot flush: $t"
	says "status-errno-$name" from ""
	[ "$name" = shutdown ] || # what was not flushed is lost with it
		says "status-errno-$name" to ""
	says "zero-errno-$name" from ""
	case $name in
	inval | overflow | notsup | unknown) t= ;; # zeroes are written
	shutdown) t="cannot zero at offset [0-9]+: Input/output error" ;;
	*) t="cannot zero at offset [0-9]+: $t" ;;
	esac
	says "zero-errno-$name" to "$t"
done <<'END'
perm 1
io 5
nomem 12
inval 22
nospc 28
overflow 75
notsup 95
shutdown 108
unknown 999
END
for what in read write zero; do
	says "$what-too-long" from ""
	says "$what-too-long" to ""
	run_ok -n "$what-too-long: read again" \
		"$NBDFS_COPY" --no-extents "$(address "$what-too-long")" \
		"$T/again"
	run_ok -n "the bytes are right" cmp "$T/again" "$T/new"
done
done_testing
