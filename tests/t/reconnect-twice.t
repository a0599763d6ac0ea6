#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What a server has answered and then forgets with its death, while nobody has
# counted it as written yet: because the server before it had died of the same
# command, or because it is a part of something larger. fsync is silent only
# where the bytes are there.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit nbdkit-filter:cache nbdkit-filter:rate \
	nbdkit-filter:blocksize-policy nbdkit-filter:nozero nbdkit-plugin:eval
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

head -c $((8 * MiB)) /dev/urandom >"$T/old"

# begin ARGS...: the server, which forgets what is not flushed.
begin()
{
	cp "$T/old" "$DISK"
	serve nbdkit "$@" --filter=cache
	mnt -C 1 --reconnect=10 disk="$WHERE" || bail "mount"
	F=$MNT/disk
	cmp -n 4096 "$F" "$DISK" || fail "reads"
}

end()
{
	ok "umnt '$MNT'" "unmounted"
	stop_server
}

# has BYTE LENGTH: the file behind the server begins so.
has()
{
	cmp -n "$2" "$DISK" <(head -c "$2" /dev/zero | tr '\0' "\\$1")
}

# The second one has answered, and has not been believed yet.
twice()
{
	sleep 0.2
	die
	back
	sleep 0.6
	die
	back
}

# In the middle of what takes two seconds.
halfway()
{
	sleep 1
	die
	back
}

MEANWHILE=twice
begin
freeze
steps "open 0;write 1048576;fsync 0;close 0;" "two servers die of a write" \
	"open:rw:$F" write:0:1M:1 "touch:$T/here" fsync close
ok "has 1 $MiB" "and it is there"
freeze
steps "open 0;aiowrite 65536;fsync 0;close 0;" "of one that is waited for" \
	"open:rw,direct:$F" "touch:$T/here" aiowrite:0:64K:2 fsync close
ok "has 2 65536" "and it is there"
freeze
steps "open 0;punch 0;fsync 0;close 0;" "of zeroes" \
	"open:rw:$F" punch:0:1M "touch:$T/here" fsync close
ok "has 0 $MiB" "and they are there"
end

slow=(--filter=rate rate=8M burstiness=0.1)
small=(--filter=blocksize-policy blocksize-minimum=1 blocksize-preferred=4K
	blocksize-maximum=64K blocksize-error-policy=error)

MEANWHILE=halfway
begin "${slow[@]}" "${small[@]}"
steps "open 0;write 2097152;fsync 0;close 0;" \
	"a server dies of a part of a write" \
	"open:rw:$F" write:0:2M:3 "touch:$T/here" fsync close
ok "has 3 $((2 * MiB))" "and all is there"
end
begin "${slow[@]}" --filter=nozero "${small[@]}"
steps "open 0;punch 0;fsync 0;close 0;" \
	"of a part of zeroes that are written" \
	"open:rw:$F" punch:0:2M "touch:$T/here" fsync close
ok "has 0 $((2 * MiB))" "and all is there"
end

# A flush that takes long, and means another server than the write did: the
# write says so, which is enough.
slow_flush()
{
	rm -f "$T/sync.sock"
	spawn "$T/sync.log" nbdkit -f -U "$T/sync.sock" eval \
		get_size="stat -Lc %s $DISK" can_write=true can_flush=true \
		can_fua="echo none" flush="sleep 1" \
		pread="dd if=$DISK skip=\$4 count=\$3 bs=64k status=none \
			iflag=skip_bytes,count_bytes" \
		pwrite="dd of=$DISK seek=\$4 conv=notrunc bs=64k \
			oflag=seek_bytes status=none"
	SERVER_PID=$SPAWNED
	wait_until 10 test -S "$T/sync.sock"
}

slow_flush_dies()
{
	sleep 0.5
	SOCK='' die
	slow_flush
}

MEANWHILE=slow_flush_dies
slow_flush
mnt -C 1 disk="nbd+unix:///?socket=$T/sync.sock" || bail "mount"
F=$MNT/disk
steps "open 0;write EIO;fsync 0;write 65536;fsync 0;close 0;" \
	"O_SYNC: the flush reached another server than the write" \
	"open:rw,sync:$F" "touch:$T/here" write:0:64K:5 fsync write:0:64K:6 \
	fsync close
steps "open 0;zero EIO;fsync 0;close 0;" "so with zeroes" \
	"open:rw,sync:$F" "touch:$T/here" zero:0:64K fsync close
# What was written before, without waiting, may be lost as well: that is told by
# an fsync, and the write with RWF_DSYNC does not stand for it.
steps "open 0;write 65536;dsync EIO;write EIO;fsync EIO;write 65536;fsync 0;\
close 0;" "an earlier write, then RWF_DSYNC" \
	"open:rw:$F" write:0:64K:7 "touch:$T/here" dsync:64K:64K:5 \
	write:0:64K:8 fsync write:0:64K:9 fsync close
steps "open 0;truncate 0;write EIO;fsync EIO;fsync 0;close 0;" \
	"a truncation, then O_SYNC" \
	"open:rw,sync:$F" truncate:64K "touch:$T/here" write:0:64K:5 fsync \
	fsync close
ok "umnt '$MNT'" "unmounted"
stop_server
done_testing
