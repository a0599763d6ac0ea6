#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Servers that stay away for longer than --reconnect, and are back then; that
# come back as something else; that take connections and say nothing; and that
# are our own children.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops helper:badserver nbdkit qemu-nbd \
	nbdkit-filter:blocksize-policy nbdkit-filter:nozero \
	nbdkit-filter:noextents nbdkit-filter:noparallel
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

head -c $((16 * MiB)) /dev/urandom >"$T/new"
head -c $((16 * MiB)) /dev/urandom >"$T/old"
EIO="Input/output error"

reads()
{
	timeout -k 5 20 dd if="$1" of=/dev/null bs=1M count=1 iflag=direct \
		status=none
}

# ------------------------------------------------------------- it stays away

cp "$T/old" "$DISK"
serve nbdkit
mnt --timeout=5 --reconnect=1 disk="$WHERE" || bail "mount"
F=$MNT/disk
exec 4<"$F"
run_ok -n "reads" cmp -n "$MiB" "$F" "$DISK"
die
start_clock
run reads "$F"
ms=$(since)
like "$STATUS $ERR" "^1 .*: $EIO\$" "--reconnect is over: EIO"
ok "[ $ms -ge 500 ] && [ $ms -lt 5000 ]" "in its time ($ms ms)"
start_clock
run stat "$F"
ok "[ $STATUS = 0 ] && [ $(since) -lt 500 ]" "stat needs no server"
run_ok -n "nor does ls" ls -l "$MNT"
back
ok "wait_until 10 reads '$F' 2>/dev/null" "it is back: reads"
run_ok -n "and writes" dd if="$T/new" of="$F" bs=1M conv=notrunc,fsync \
	status=none
ok "cmp '$DISK' '$T/new'" "the right bytes"
ok "cmp - '$DISK' <&4" "a file that was open is still good"
die
reads "$F" &
pid=$!
sleep 0.3
back
wait $pid
is $? 0 "the next time it is away for a moment: that is waited for"
die
run dd if="$T/old" of="$F" bs=1M count=1 conv=notrunc,fsync status=none
like "$STATUS $ERR" "^1 .*: $EIO\$" "a write that cannot be sent: EIO"
back
ok "wait_until 10 reads '$F' 2>/dev/null" "it is back again"

# -------------------------------------------------------- it is something else

# other DESCRIPTION COMMAND...: the server comes back as COMMAND makes it.
other()
{
	local what=$1 n
	shift
	n=$(wc -l <"$MNT_LOG")
	die
	"$@"
	run reads /proc/self/fd/4
	like "$STATUS $ERR" "^1 .*: $EIO\$" "$what: EIO"
	like "$(tail -n +$((n + 1)) "$MNT_LOG")" \
		"export '' is not what it was: its size, flags or block" \
		"$what: it is said"
}

smaller()
{
	truncate -s 8M "$DISK"
	back
}

larger()
{
	truncate -s 32M "$DISK"
	back
}

other "a smaller size" smaller
other "a larger size" larger
truncate -s 16M "$DISK"
other "read-only" back -r
other "other block sizes" back --filter=blocksize-policy \
	blocksize-minimum=4096 blocksize-error-policy=error
other "no zeroing" back --filter=nozero
other "one connection only" back --filter=noparallel serialize=connections
die
back
ok "wait_until 10 cmp -s '$F' '$DISK'" "what it was: reads"
exec 4<&-

# Who opens it gets the same answer.
die
smaller
run reads "$F"
like "$STATUS $ERR" "^1 .*: $EIO\$" "another size, opened: EIO"
die
cp "$T/old" "$DISK"
back
ok "wait_until 10 cmp -s '$F' '$T/old'" "reads again"

# ------------------------------------------------- it takes connections, only

die
spawn "$T/mute.log" "$NBDFS_HELPERS/badserver" "$SOCK" silent
mute=$SPAWNED
wait_until 10 grep -q ready "$T/mute.log"
start_clock
run reads "$F"
ms=$(since)
like "$STATUS $ERR" "^1 .*: $EIO\$" "a server that never greets: EIO"
ok "[ $ms -lt 15000 ]" "in its time ($ms ms)"
stop_server "$mute"
rm -f "$SOCK"
back
ok "wait_until 10 cmp -s '$F' '$T/old'" "back: reads"
ok "umnt '$MNT'" "unmounted"
stop_server

# ------------------------------------------------------------- our own child

mnt --timeout=5 --reconnect=30 [ nbdkit -f memory 8M ] ||
	bail "mount of a command"
F=$(echo "$MNT"/*)
run_ok -n "a server of our own" cmp -n $((8 * MiB)) "$F" /dev/zero
SERVER_PID=$MNT_PID
read -ra children < <(everyone | tail -n +2)
kill -KILL "${children[@]}"
start_clock
run reads "$F"
like "$STATUS $ERR" "^1 .*: $EIO\$" "it dies: EIO"
run dd if="$T/new" of="$F" bs=1M count=1 conv=notrunc,fsync status=none
like "$STATUS $ERR" "^1 .*: $EIO\$" "and EIO to who writes"
ok "[ $(since) -lt 5000 ]" "without waiting for it to come back"
like "$(<"$MNT_LOG")" "\[ nbdkit ... \].*(ended|closed)" "which is said"
ok "umnt '$MNT'" "unmounted"
done_testing
