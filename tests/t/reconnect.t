#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Servers of three kinds that die and come back in the middle of cp and dd: the
# right bytes and no error, or EIO where something acknowledged may be lost.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit qemu-nbd nbd-server
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

new_and_old 16

# A request that was sent twice keeps its range for a second: with a small
# --write-behind, not many of them are on their way.
for kind in nbdkit qemu-nbd nbd-server; do
	cp "$T/old" "$DISK"
	serve $kind
	mnt --timeout=10 --reconnect=10 --read-ahead=2M --write-behind=1M \
		disk="$WHERE" || bail "mount of $kind"
	F=$MNT/disk

	take cp "$F" "$T/pipe"
	is "$STATUS $ERR" "0 " "$kind dies while cp reads"
	ok "cmp '$T/got' '$T/old'" "$kind: the bytes are right"

	die
	back
	ok "cmp '$F' '$T/old'" "$kind dies while nobody looks"

	feed cp "$T/pipe" "$F"
	like "$STATUS $ERR" "^1 cp: .*: Input/output error\$" \
		"$kind dies while cp writes: what was not flushed may be lost"

	feed dd if="$T/pipe" of="$F" bs=256K iflag=fullblock oflag=sync \
		conv=notrunc status=none
	is "$STATUS $ERR" "0 " "$kind dies while dd writes with O_SYNC"
	ok "cmp '$DISK' '$T/new'" "$kind: the bytes have arrived"
	ok "cmp '$F' '$T/new'" "$kind: and are read back"

	ok "umnt '$MNT'" "$kind: unmounted"
	stop_server
done

# Through the page cache reads come few at a time, so that the server dies when
# a connection more is just being made.
cp "$T/old" "$DISK"
serve nbdkit
mnt --timeout=10 --reconnect=10 --read-ahead=2M --cache=kernel \
	disk="$WHERE" || bail "mount"
for i in 1 2 3; do
	take cp "$MNT/disk" "$T/pipe"
	is "$STATUS $ERR" "0 " "the server dies while cp reads pages ($i)"
done
ok "cmp '$T/got' '$T/old'" "the bytes are right"
ok "umnt '$MNT'" "unmounted"
done_testing
