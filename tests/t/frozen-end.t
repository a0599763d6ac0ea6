#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# The end of a mount whose server is frozen, gone or slow: in time, and saying
# what could not be written; but not before a slow server has got everything.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit nbdkit-filter:delay nbdkit-filter:nozero
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

head -c $((16 * MiB)) /dev/urandom >"$T/old"

# ends BY DESCRIPTION: with a file that was written.
ends()
{
	cp "$T/old" "$DISK"
	serve nbdkit
	mnt --timeout=2 --reconnect=60 disk="$WHERE" || bail "mount"
	"$ops" "open:rw:$MNT/disk" "touch:$T/here" \
		"await:$T/go" write:0:1M:1 punch:2M:1M "$3" >"$T/steps" 2>&1 &
	pid=$!
	wait_until 20 test -e "$T/here"
	${4:-freeze}
	touch "$T/go"
	sleep 0.3
	start_clock
	$1
	wait_until 20 _gone "$MNT_PID"
	ms=$(since)
	ok "[ $ms -lt 4500 ]" "$2: it ends ($ms ms)"
	ok "! mounted '$MNT'" "$2: and the mount is gone"
	like "$(<"$MNT_LOG")" \
		"disk: .* up to 1048576 bytes of data and 1 zero ranges were" \
		"$2: what could not be written is said"
	[ "$3" = fsync ] || kill -KILL $pid 2>/dev/null
	ok "wait_until 5 _gone $pid" "$2: nobody hangs"
	wait $pid 2>/dev/null
	rm -f "$T/here" "$T/go"
	kill -KILL "$SERVER_PID" 2>/dev/null
	wait "$SERVER_PID" 2>/dev/null
	rm -f "$SOCK"
}

unmount()
{
	kill -KILL $pid 2>/dev/null
	wait_until 5 _gone $pid
	fusermount3 -u "$MNT"
}

terminate()
{
	kill -TERM "$MNT_PID"
}

ends unmount "fusermount3, frozen" sleep:9999
ends terminate "SIGTERM, frozen" sleep:9999
ends terminate "SIGTERM, frozen, somebody waits" fsync
ends unmount "fusermount3, the server is gone" sleep:9999 die
ends terminate "SIGTERM, the server is gone" sleep:9999 die

# A third signal waits for nothing; but while pages were still being written
# the process could not be killed, and everybody with it.
cp "$T/old" "$DISK"
serve nbdkit
mnt --write-behind=0 disk="$WHERE" || bail "mount"
timeout 60 "$ops" "open:rw:$MNT/disk" map:0:1M "touch:$T/mapped" \
	"await:$T/still" mapwrite:0x45 data:0 >"$T/steps" 2>&1 &
pid=$!
wait_until 20 test -e "$T/mapped"
freeze
touch "$T/still"
sleep 0.5
start_clock
kill -TERM "$MNT_PID"
kill -INT "$MNT_PID"
kill -HUP "$MNT_PID"
wait_until 20 _gone "$MNT_PID"
ok $? "three signals, frozen: ended"
ms=$(since)
ok "[ $ms -lt 2500 ]" "at once ($ms ms)"
wait $pid
die
fusermount3 -uqz "$MNT"

# --------------------------------------------------------------- only slow

# Zeroes are written, a megabyte at a time, which takes longer than --timeout
# in all.
cp "$T/old" "$DISK"
serve nbdkit --filter=nozero --filter=delay wdelay=300ms
mnt --timeout=0.7 disk="$WHERE" || bail "mount"
: >"$MNT/disk"
start_clock
ok "umnt '$MNT'" "a server that is slow"
ms=$(since)
ok "[ $ms -gt 700 ]" "takes its time ($ms ms)"
ok "cmp -n $((16 * MiB)) '$DISK' /dev/zero" "and gets everything"
unlike "$(<"$MNT_LOG")" "not written" "nothing else is said"
stop_server
done_testing
