#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What fsync and close say when a server has died and is back: EIO once, on
# every file that may have written, where something acknowledged may be lost;
# nothing where all was safe.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit nbdkit-filter:fua
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

head -c $((16 * MiB)) /dev/urandom >"$DISK"
serve nbdkit
mnt --timeout=10 --reconnect=10 disk="$WHERE" || bail "mount"
F=$MNT/disk
written=("sleep:300") # sent and answered

steps "open 0;write 1048576;fsync EIO;fsync 0;close 0;" \
	"answered, not flushed: fsync says so, once" \
	"open:rw:$F" write:0:1M:1 "${written[@]}" "${dies[@]}" \
	fsync fsync close
steps "open 0;write 1048576;fdatasync EIO;fdatasync 0;write 4096;close 0;" \
	"so does fdatasync; then all is well" \
	"open:rw:$F" write:0:1M:1 "${written[@]}" "${dies[@]}" \
	fdatasync fdatasync write:0:4K:1 close
steps "open 0;write 1048576;dupclose EIO;child 0;dupclose EIO;write EIO;\
punch EIO;truncate EIO;fsync EIO;write 4096;fsync 0;close 0;" \
	"close says it, and does not forget; nothing is written until fsync" \
	"open:rw:$F" write:0:1M:1 "${written[@]}" "${dies[@]}" dupclose \
	child dupclose write:0:4K:2 punch:0:4K truncate:0 fsync \
	write:0:4K:1 fsync close
steps "open 0;write 1048576;close EIO;open 0;fsync 0;close 0;" \
	"who opens it later has nothing to do with it" \
	"open:rw:$F" write:0:1M:1 "${written[@]}" "${dies[@]}" close \
	"open:rw:$F" fsync close
steps "open 0;punch 0;dupclose EIO;fsync EIO;close 0;" \
	"zeroes, sent when idle, too" \
	"open:rw:$F" punch:1M:1M sleep:3600 "${dies[@]}" dupclose fsync close
steps "open 0;write 1048576;fsync 0;fsync 0;close 0;" \
	"what was flushed is safe" \
	"open:rw:$F" write:2M:1M:2 fsync "${dies[@]}" fsync close
steps "open 0;write 1048576;close 0;open 0;fsync 0;close 0;" \
	"what was closed was flushed" \
	"open:rw:$F" write:2M:1M:2 close "open:rw:$F" "${dies[@]}" fsync close
steps "open 0;write 1048576;fsync 0;close 0;" "what O_SYNC wrote is safe" \
	"open:rw,sync:$F" write:3M:1M:3 "${dies[@]}" fsync close
steps "open 0;dsync 1048576;fsync 0;close 0;" "so is what RWF_DSYNC did" \
	"open:rw:$F" dsync:3M:1M:3 "${dies[@]}" fsync close
steps "open 0;open 0;open 0;write 1048576;fsync EIO;fsync EIO;fsync EIO;\
fsync 0;close 0;close 0;close 0;" "every file that writes is told" \
	slot:1 "open:rw:$F" slot:2 "open:rw,trunc:$F" slot:0 "open:rw:$F" \
	write:4M:1M:4 "${written[@]}" "${dies[@]}" fsync slot:1 fsync slot:2 \
	fsync fsync close slot:1 close slot:0 close
cp "$T/disk" "$T/before"
steps "open 0;open 0;write 1048576;fsync 0;fsync EIO;close 0;close 0;" \
	"a reader is not" slot:1 "open:r:$F" slot:0 "open:rw:$F" \
	write:4M:1M:4 "${written[@]}" "${dies[@]}" slot:1 fsync slot:0 fsync \
	close slot:1 close
steps "open 0;read 1048576 04;read 1048576 04;close 0;" "who reads reads on" \
	"open:r:$F" read:4M:1M "${dies[@]}" read:4M:1M close
steps "open 0;map 0;mapwrite 8192;data 4194304;mapwrite 8192;msync EIO;msync 0;\
mapread 8192 08;unmap 0;close 0;" "a mapping lives on; msync says it" \
	"open:rw:$F" map:5M:8K mapwrite:7 data:0 "${written[@]}" "${dies[@]}" \
	mapwrite:8 msync msync mapread unmap close

# Marked, not sent: nothing is lost when the server dies.
steps "open 0;punch 0;read 1048576 00;fsync 0;close 0;" \
	"zeroes that were not sent yet survive" \
	"open:rw:$F" punch:6M:1M "${dies[@]}" read:6M:1M fsync close
ok "cmp -n $MiB -i $((6 * MiB)):0 '$DISK' /dev/zero" "and are sent"
steps "open 0;truncate 0;read 1048576 00;close 0;" \
	"so do those of a truncation" \
	"open:rw:$F" truncate:0 "${dies[@]}" read:8M:1M close
ok "wait_until 10 cmp -s -n $((16 * MiB)) '$DISK' /dev/zero" \
	"and are sent by the last close"
ok "cmp '$F' '$DISK'" "all is as it should be"
ok "umnt '$MNT'" "unmounted"
stop_server

# Without FUA, a flush after each write does the same.
serve nbdkit --filter=fua
mnt --timeout=10 --reconnect=10 disk="$WHERE" || bail "mount"
F=$MNT/disk
steps "open 0;write 1048576;fsync 0;close 0;" \
	"O_SYNC is safe where the server has no FUA" \
	"open:rw,sync:$F" write:3M:1M:3 "${dies[@]}" fsync close
steps "open 0;write 1048576;aiowrite 4096;fsync EIO;close 0;" \
	"a direct write alone is not" \
	"open:rw,direct:$F" write:3M:1M:3 aiowrite:0:4K:1 "${dies[@]}" fsync \
	close
ok "umnt '$MNT'" "unmounted"
done_testing
