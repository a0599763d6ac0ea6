#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# A server that is frozen: whatever a program waits for, once it is killed it
# is dead at once, however many files it has open.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit nbdkit-filter:exportname
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"


head -c $((32 * MiB)) /dev/zero | tr '\0' a >"$DISK"
truncate -s 64M "$DISK"
KIND=nbdkit
start_nbdkit --filter=exportname file "$DISK" exportname=a exportname=b \
	exportname=c exportname-list=explicit || bail "no server"
mnt --timeout=60 --read-ahead=0 --extent-timeout=0 "$(uri)" || bail "no mount"
F=$MNT/a

# killed WAITS DESCRIPTION OPERATION... [-- OPERATION...]: those after -- with
# the server frozen. WAITS: 1 if the program must hang before it is killed.
killed()
{
	local waits=$1 what=$2 pid before=()
	shift 2
	while [ $# -gt 0 ] && [ "$1" != -- ]; do
		before+=("$1")
		shift
	done
	shift
	rm -f "$T/here" "$T/go"
	"$ops" "${before[@]}" "${dies[@]}" "$@" >"$T/steps" 2>&1 &
	pid=$!
	wait_until 20 test -e "$T/here" || diag "did not come so far"
	freeze
	touch "$T/go"
	sleep 0.3
	if [ "$waits" = 1 ]; then
		ok "! _gone $pid" "$what: hangs"
	fi
	start_clock
	kill -KILL $pid 2>/dev/null
	wait_until 10 _gone $pid
	ms=$(since)
	wait $pid 2>/dev/null
	ok "[ $ms -lt 1000 ]" "$what, killed: dead ($ms ms)" ||
		diag "$(<"$T/steps")"
	thaw
}

killed 1 "read" "open:r:$F" -- read:0:1M
killed 1 "a page of a mapping" "open:r:$F" map:1M:64K -- mapread
killed 1 "write, O_SYNC" "open:rw,sync:$F" -- write:0:1M:97
killed 1 "write, until memory is full" "open:rw:$F" -- \
	write:0:16M:97 write:16M:16M:97 write:0:16M:97 write:16M:16M:97 \
	write:0:16M:97 write:16M:16M:97 write:0:16M:97 write:16M:16M:97
killed 1 "fsync" "open:rw:$F" write:0:1M:97 -- fsync
killed 1 "close" "open:rw:$F" write:0:1M:97 -- close
killed 0 "a program that has written" "open:rw:$F" -- write:0:1M:97 sleep:9999
killed 0 "one that has written two files" slot:1 "open:rw:$MNT/b" slot:0 \
	"open:rw:$F" -- write:0:64K:97 slot:1 write:1M:64K:97 sleep:9999
killed 0 "a mapping that was written to" "open:rw:$F" map:0:64K -- \
	mapwrite:97 sleep:9999
killed 1 "msync" "open:rw:$F" map:0:64K -- mapwrite:97 msync
killed 1 "punch, O_SYNC" "open:rw,sync:$F" -- punch:0:64K
killed 0 "punch" "open:rw:$F" -- punch:0:64K sleep:9999
killed 0 "truncate" "open:rw:$F" -- truncate:1M sleep:9999
killed 1 "lseek" "open:r:$F" -- data:32M
killed 1 "copy_file_range" slot:1 "open:r:$MNT/b" slot:0 "open:rw:$F" -- \
	copy:1:8M:0:8M
killed 0 "stat" "open:r:$F" -- size blocks sleep:9999

# Not open yet: these connect, or look at the list.
killed 1 "open" -- "open:r:$MNT/c"
killed 0 "open with O_TRUNC" -- "open:rw,trunc:$MNT/c"
freeze
sleep 5.5 # the list is believed for so long
ls -l "$MNT" >"$T/ls" 2>&1 &
pid=$!
sleep 0.3
kill -KILL $pid
ok "wait_until 3 _gone $pid" "ls, killed: dead"
wait $pid 2>/dev/null
thaw
ok "umnt '$MNT'" "unmounted"
ok "[ '$(stat -c %s "$DISK")' = $((64 * MiB)) ]" "the disk is there"
stop_server
done_testing
