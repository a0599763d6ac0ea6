#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Servers that freeze for longer than --timeout, and go on: other connections
# are tried, and late answers do no harm. Commands that may take their time.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:interrupted nbdkit nbdkit-filter:delay
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

head -c $((16 * MiB)) /dev/urandom >"$T/new"
head -c $((16 * MiB)) /dev/urandom >"$T/old"

# ------------------------------------------------------------- it goes on

# frozen_for SECONDS COMMAND...: starts with the server frozen. Sets STATUS and
# ERR, and WAITED if it was still there when the server went on.
frozen_for()
{
	local pid seconds=$1
	shift
	freeze
	timeout -k 5 60 "$@" >"$T/err" 2>&1 &
	pid=$!
	sleep "$seconds"
	WAITED=
	_gone $pid || WAITED=yes
	thaw
	wait $pid
	STATUS=$?
	ERR=$(<"$T/err")
}

cp "$T/old" "$DISK"
serve nbdkit
mnt --timeout=1 --reconnect=20 disk="$WHERE" || bail "mount"
F=$MNT/disk
run_ok -n "reads" cmp -n "$MiB" "$F" "$DISK"
frozen_for 2 cmp "$F" "$DISK"
is "$WAITED $STATUS $ERR" "yes 0 " "a reader waits, and goes on"
like "$(<"$MNT_LOG")" "connection given up: no answer" "on another connection"
frozen_for 2 dd if="$T/new" of="$F" bs=1M oflag=sync conv=notrunc status=none
is "$WAITED $STATUS $ERR" "yes 0 " "so does a writer, O_SYNC"
ok "cmp '$DISK' '$T/new'" "the bytes are right"
frozen_for 0.7 dd if="$T/old" of="$F" bs=1M conv=notrunc,fsync status=none
is "$STATUS $ERR" "0 " "no longer than --timeout: nothing happens"
ok "cmp '$DISK' '$T/old'" "the bytes are right"
for op in read write fsync close punch hole; do
	frozen_for 0.8 "$NBDFS_HELPERS/interrupted" 10:10 $op "$F" </dev/null
	like "$STATUS ${ERR#ready?}" "^0 $op [0-9]+ [0-9]+\$" \
		"$op with a signal every 10 ms: no EINTR"
done
is "$(grep -c "given up: no answer" "$MNT_LOG")" \
	"$(grep -c "given up" "$MNT_LOG")" "nothing else is said"
ok "umnt '$MNT'" "unmounted"
stop_server

# ------------------------------------------------------ and takes its time

# A flush and a zero may take longer than a read.
cp "$T/old" "$DISK"
serve nbdkit --filter=delay delay-zero=1500ms delay-close=0
mnt --timeout=1 --reconnect=20 disk="$WHERE" || bail "mount"
F=$MNT/disk
run_ok -n "zeroing that takes longer than --timeout" fallocate -p -l 1M "$F"
ok "cmp -n $MiB '$DISK' /dev/zero" "it is done"
unlike "$(<"$MNT_LOG")" "given up" "and nothing is given up"
ok "umnt '$MNT'" "unmounted"
stop_server

done_testing
