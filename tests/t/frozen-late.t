#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Commands that a frozen server still has: it does them when it goes on, long
# after they were sent again on another connection. Nothing newer may be
# overwritten by them.
#
# nbd-server has a process for each connection; only that one is frozen.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbd-server
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

head -c $((4 * MiB)) /dev/urandom >"$T/old"

# block BYTE: what the block at 0 is to be.
block()
{
	head -c $((64 * 1024)) /dev/zero | tr '\0' "\\$1" >"$T/block"
	cmp -n $((64 * 1024)) "$DISK" "$T/block"
}

# begin ARGS...: a mount that has one connection, which is frozen.
begin()
{
	cp "$T/old" "$DISK"
	serve nbd-server
	# In its first moments it may leave a connection alone for long.
	local try
	for try in 1 2 3 4 5; do
		mnt -C 1 "$@" disk="$WHERE" && break
	done
	mounted "$MNT" || bail "mount, try $try"
	F=$MNT/disk
	cmp -n $((64 * 1024)) "$F" "$DISK" || fail "reads"
	read -ra old < <(everyone | tail -n +2)
	kill -STOP "${old[@]}"
}

end()
{
	ok "umnt '$MNT'" "unmounted"
	stop_server
}

# ops OPERATION...: in the background.
ops()
{
	"$ops" "$@" >"$T/steps" 2>&1 &
	pid=$!
}

said()
{
	wait_until 20 _gone $pid
	wait $pid
	is "$(tr '\n' ';' <"$T/steps")" "$1" "$2"
	sleep 0.3
}

# -------------------------------------------------------- sent once more

begin --timeout=1 --reconnect=20
ops "open:rw,sync:$F" write:0:64K:1 write:0:64K:2
sleep 3.5
ok "! _gone $pid" "the second write waits for the first one's ghost"
kill -CONT "${old[@]}"
said "open 0;write 65536;write 65536;" "two writes to one place"
ok "block 2" "the second is the last"
end

# ------------------------------------------------------------ given up

begin --timeout=1 --reconnect=5
ops "open:rw,sync:$F" write:0:64K:1 fsync close
kill -KILL "$SERVER_PID"
wait_until 5 _gone "$SERVER_PID"
rm -f "$SOCK"
said "open 0;write EIO;fsync 0;close 0;" "a write that is given up: EIO"
back
wait_until 10 cmp -s -n 65536 "$F" "$DISK"
ops "open:rw,sync:$F" write:1M:64K:3 write:0:64K:2
sleep 1
like "$(<"$T/steps")" "write 65536" "a write elsewhere is done"
ok "! _gone $pid" "the next one waits"
kill -CONT "${old[@]}"
said "open 0;write 65536;write 65536;" "it is done then"
ok "block 2" "and is the last"
end

# ---------------------------------------------------------- not for ever

begin --timeout=1 --reconnect=1
ops "open:rw,sync:$F" write:0:64K:1 write:0:64K:2
said "open 0;write 65536;write 65536;" "one that never goes on"
kill -KILL "${old[@]}"
ok "block 2" "the second is the last"
end
done_testing
