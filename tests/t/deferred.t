#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# A write that fails after it was acknowledged is reported: by close without
# being consumed, by fsync once; until then further writes fail at once. So is
# a flush.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit nbdkit-filter:error

ops=$NBDFS_HELPERS/fileops
bad=$T/inject

# server WHAT ERROR: requests of this kind fail so while $bad exists.
server()
{
	rm -f "$bad"
	head -c 8M /dev/zero | tr '\0' A >"$T/disk"
	start_nbdkit --filter=error file "$T/disk" error="$2" \
		"error-$1-rate=100%" error-file="$bad" || bail "nbdkit"
}

# steps WANTED OPERATION...: what fileops says, the lines joined.
steps()
{
	local want=$1 what=$2
	shift 2
	run "$ops" "$@"
	is "$(tr '\n' ';' <<<"$OUT")" "$want" "$what"
	rm -f "$bad"
}

server pwrite ENOSPC
mnt disk="$URI" || bail "mount"
F=$MNT/disk

steps "open 0;write 4096;dupclose ENOSPC;dupclose ENOSPC;fsync ENOSPC;\
fsync 0;close 0;" "close reports and keeps, fsync reports and forgets" \
	"open:rw:$F" "touch:$bad" write:0:4K:1 dupclose dupclose \
	"remove:$bad" fsync fsync close

steps "open 0;write 4096;write ENOSPC;write ENOSPC;fsync ENOSPC;write 4096;\
fsync 0;close 0;" "writes fail until fsync has said why" \
	"open:rw:$F" "touch:$bad" write:0:4K:1 sleep:500 \
	"remove:$bad" write:64K:4K:2 write:0:4K:2 fsync write:0:4K:3 \
	fsync close
ok "cmp -n 4096 '$T/disk' <(head -c 4096 /dev/zero | tr '\\0' '\\3')" \
	"and the write after it is there"

steps "open 0;write 4096;child 0;child 0;fsync ENOSPC;fsync 0;close 0;" \
	"a child that exits does not swallow it" \
	"open:rw:$F" "touch:$bad" write:0:4K:1 child child "remove:$bad" \
	fsync fsync close

steps "open 0;write 4096;fsync ENOSPC;write 4096;fsync ENOSPC;close 0;" \
	"as long as writes fail, each fsync fails" \
	"open:rw:$F" "touch:$bad" write:0:4K:1 fsync write:8K:4K:1 fsync close

steps "open 0;write 4096;close ENOSPC;" "the last close reports it" \
	"open:rw:$F" "touch:$bad" write:0:4K:1 close

steps "open 0;write ENOSPC;fsync 0;close 0;" "O_SYNC: the write itself fails" \
	"open:rw,sync:$F" "touch:$bad" write:0:4K:1 "remove:$bad" fsync close

steps "open 0;write ENOSPC;fsync 0;close 0;" \
	"O_DIRECT: the write itself fails" \
	"open:rw,direct:$F" "touch:$bad" write:0:4K:1 "remove:$bad" fsync close

steps "open 0;dsync ENOSPC;fsync 0;close 0;" \
	"RWF_DSYNC: the write itself fails" \
	"open:rw:$F" "touch:$bad" dsync:0:4K:1 "remove:$bad" fsync close

steps "open 0;write 4096;fsync ENOSPC;close 0;open 0;write 4096;close 0;" \
	"a new handle begins without an error" \
	"open:rw:$F" "touch:$bad" write:0:4K:1 fsync "remove:$bad" close \
	"open:rw:$F" write:0:4K:1 close

steps "open 0;map 0;mapwrite 4096;msync ENOSPC;" \
	"msync says that a mapped page could not be written" \
	"open:rw:$F" "touch:$bad" map:0:4K mapwrite:5 msync

touch "$bad"
run cp "$F" "$T/copy"
rm "$bad"
is "$STATUS" 0 "reading goes on"
: >"$bad"
run cp "$T/copy" "$F"
is "$STATUS" 1 "cp exits with 1"
like "$ERR" "No space left" "and says why"
run dd if="$T/copy" of="$F" bs=1M conv=notrunc status=none
is "$STATUS" 1 "dd exits with 1"
run dd if="$T/copy" of="$F" bs=4M count=1 conv=notrunc,fsync status=none
is "$STATUS" 1 "dd conv=fsync exits with 1"
run tar -C "$T" --transform="s,^copy\$,disk," -cf "$T/a.tar" copy
run tar -C "$MNT" --overwrite -xf "$T/a.tar"
isnt "$STATUS" 0 "tar fails"
run rsync --inplace -I "$T/copy" "$F"
isnt "$STATUS" 0 "rsync fails"
rm "$bad"
run_ok -n "all is well again" cp "$T/copy" "$F"
ok "umnt '$MNT'" "unmounted"
ok "cmp '$T/copy' '$T/disk'" "the bytes of the last cp are there"
stop_server

# ----------------------------------------------------------------- zeroes

server zero EIO
mnt disk="$URI" || bail "mount"
F=$MNT/disk
steps "open 0;truncate 0;fsync EIO;" "zeroes that fail are reported by fsync" \
	"open:rw:$F" "touch:$bad" truncate:0 fsync
steps "open 0;punch 0;close EIO;" "a punch that fails, by close" \
	"open:rw:$F" "touch:$bad" punch:1M:1M close
run fallocate -z -l 1M "$F"
is "$STATUS" 0 "and then they can be sent"
umnt "$MNT"
stop_server

# ------------------------------------------------------------------ flush

# A server that could not flush may not have what it had answered, and the next
# flush may well succeed: all who may have written it are told.
head -c 8M /dev/zero | tr '\0' A >"$T/disk"
start_nbdkit eval get_size="stat -Lc %s $T/disk" \
	pread="dd if=$T/disk skip=\$4 count=\$3 iflag=skip_bytes,count_bytes \
		status=none" \
	pwrite="dd of=$T/disk seek=\$4 conv=notrunc oflag=seek_bytes \
		status=none" \
	can_write="exit 0" can_zero="exit 0" can_flush="exit 0" zero="exit 0" \
	can_fua="echo none" \
	flush="echo >>$T/flushes; [ ! -e $bad ] || { echo EIO bad >&2; exit 1; }"
mnt disk="$URI" || bail "mount"
F=$MNT/disk
writers=(slot:2 "open:r:$F" slot:1 "open:rw:$F" slot:0 "open:rw:$F")

flushes()
{
	wc -l <"$T/flushes"
}

steps "open 0;open 0;open 0;write 4096;fsync EIO;fsync 0;fsync EIO;fsync 0;\
fsync 0;close 0;close 0;" "fsync that fails: other writers hear, no reader" \
	"${writers[@]}" write:0:4K:1 "touch:$bad" fsync "remove:$bad" \
	slot:2 fsync slot:1 fsync fsync slot:0 fsync close slot:1 close
steps "open 0;open 0;open 0;write 4096;write 4096;fsync EIO;fsync EIO;fsync 0;\
write 4096;close 0;write EIO;close EIO;" "and nothing else, until they have" \
	"${writers[@]}" write:0:4K:1 slot:1 write:4K:4K:1 "touch:$bad" slot:2 \
	fsync "remove:$bad" slot:0 fsync fsync write:0:4K:1 close slot:1 \
	write:4K:4K:1 close
: >"$T/flushes"
steps "open 0;write 4096;fsync EIO;fsync EIO;fsync 0;fsync 0;close 0;" \
	"what was not flushed is flushed by the next fsync" \
	"open:rw:$F" write:0:4K:1 "touch:$bad" fsync fsync "remove:$bad" fsync \
	fsync close
is "$(flushes)" 3 "and not by the one after it"
steps "open 0;write 4096;dupclose EIO;dupclose EIO;write EIO;fsync EIO;fsync 0;\
write 4096;close 0;" "close that fails, with the flush, does not forget" \
	"open:rw:$F" write:0:4K:1 "touch:$bad" dupclose "remove:$bad" dupclose \
	write:0:4K:2 fsync fsync write:0:4K:1 close
steps "open 0;open 0;open 0;write 4096;close EIO;write EIO;fsync EIO;fsync 0;\
close 0;close 0;" "the last close of one is heard by the other" \
	"${writers[@]}" write:0:4K:1 "touch:$bad" close "remove:$bad" \
	slot:1 write:0:4K:1 fsync fsync close slot:2 close
steps "open 0;open 0;punch 0;close EIO;fsync EIO;fsync 0;close 0;" \
	"zeroes, too" slot:1 "open:rw:$F" slot:0 "open:rw:$F" punch:1M:1M \
	"touch:$bad" close "remove:$bad" slot:1 fsync fsync close
steps "open 0;write 4096;dsync EIO;write EIO;fsync EIO;fsync 0;close 0;" \
	"RWF_DSYNC does not speak for what was written before" \
	"open:rw:$F" write:0:4K:1 "touch:$bad" dsync:4K:4K:1 "remove:$bad" \
	write:0:4K:1 fsync fsync close
steps "open 0;open 0;write EIO;write 4096;punch EIO;punch 0;close 0;write EIO;\
fsync EIO;close 0;" "what O_SYNC does fails itself; that is all" \
	slot:1 "open:rw:$F" slot:0 "open:rw,sync:$F" \
	"touch:$bad" write:0:4K:1 "remove:$bad" write:0:4K:1 \
	"touch:$bad" punch:1M:4K "remove:$bad" punch:1M:4K close \
	slot:1 write:0:4K:1 fsync close
ok "umnt '$MNT'" "unmounted"
like "$(<"$MNT_LOG")" "disk: flush failed: Input/output error" "it is logged"
stop_server

# ------------------------------------------------------------------ reads

server pread EIO
mnt disk="$URI" || bail "mount"
F=$MNT/disk
steps "open 0;read EIO;read 4096 41;" "a read that fails, and then does not" \
	"open:r:$F" "touch:$bad" read:0:4K "remove:$bad" read:0:4K
umnt "$MNT"
stop_server

server extents EIO
mnt disk="$URI" || bail "mount"
F=$MNT/disk
steps "open 0;data EIO;hole EIO;read 1 41;" "block status that fails is EIO" \
	"touch:$bad" "open:r:$F" data:0 hole:0 read:0:1
umnt "$MNT"
stop_server
done_testing
