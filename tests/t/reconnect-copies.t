#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Copies inside of a mount whose servers die and come back, and fio, which
# looks at each byte.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit fio
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

head -c $((16 * MiB)) /dev/urandom >"$T/new"
head -c $((16 * MiB)) /dev/urandom >"$T/old"

two nbdkit
mnt --timeout=10 --reconnect=10 --read-ahead=2M a="$A" b="$B" || bail "mount"

# One copy_file_range after the other, so that there is something to kill.
copy()
{
	local i
	for i in $(seq 0 15); do
		"$ops" slot:1 "open:r:$MNT/a" slot:0 "open:rw:$MNT/b" \
			"copy:1:${i}M:${i}M:1M" fsync || return
		sleep 0.03
	done >"$T/copies" 2>&1
	! grep -q E "$T/copies"
}
export -f copy
export ops MNT T

dying A bash -c copy
is "$STATUS" 0 "copy_file_range, the source dies: nothing to see"
ok "cmp '$T/disk.b' '$T/new'" "the bytes are right"
cp "$T/old" "$T/disk.b"
dying B bash -c copy
ok "[ $STATUS = 0 ] || grep -q EIO '$T/copies'" \
	"the destination dies: nothing, or EIO"
run_ok -n "cat, once more" bash -c "cat '$MNT/a' >'$MNT/b'"
ok "cmp '$T/disk.b' '$T/new'" "the bytes are right"

# What the program had written before is not forgotten by a copy that goes on.
lose_b()
{
	use A
	freeze
	touch "$T/go"
	sleep 0.3
	use B
	die
	back
	keep_pid B
	sleep 0.2
	use A
	thaw
}
MEANWHILE=lose_b steps "open 0;open 0;write 1048576;copy EIO;fsync EIO;fsync 0;\
copy 1048576;fsync 0;close 0;close 0;" \
	"the destination dies during a copy: fsync tells of earlier writes" \
	slot:1 "open:r:$MNT/a" slot:0 "open:rw:$MNT/b" write:8M:1M:1 \
	sleep:300 "${dies[@]}" copy:1:0:0:1M fsync fsync copy:1:0:0:1M fsync \
	close slot:1 close

# -------------------------------------------------------------------- fio

# With O_SYNC nothing is lost; fio compares what it reads with what it wrote.
BEGUN="sleep 0.5"
dying "B B" fio --name=v --filename="$MNT/b" --size=8M --bs=32k --rw=randwrite \
	--ioengine=psync --sync=1 --verify=crc32c --do_verify=1 \
	--rate_iops=150 --verify_fatal=1 --verify_state_save=0 \
	--output="$T/fio"
is "$STATUS $ERR" "0 " "fio writes and verifies, the server dies twice" ||
	diag "$(tail -n 20 "$T/fio")"
dying B fio --name=v --filename="$MNT/b" --size=8M --bs=32k --rw=randread \
	--ioengine=psync --sync=1 --verify=crc32c --do_verify=1 \
	--rate_iops=150 --verify_fatal=1 --verify_state_save=0 \
	--output="$T/fio"
is "$STATUS $ERR" "0 " "and while it verifies"
ok "umnt '$MNT'" "unmounted"
stop_both
done_testing
