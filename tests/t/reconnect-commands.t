#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# A server that dies in the middle of a command, of each kind, and is back at
# once.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit nbdkit-plugin:eval \
	nbdkit-filter:blocksize-policy
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

size=$((8 * MiB))
head -c $size /dev/urandom >"$DISK"

# Scripts are children of the server. One that finds its order to die kills it.
hook="if [ -e $T/die.\$op ]; then rm $T/die.\$op; kill -9 \$PPID; sleep 1; fi"
dd="dd status=none"
plugin=(eval get_size="echo $size"
	pread="op=pread; $hook; $dd if=$DISK skip=\$4 count=\$3 \
		iflag=skip_bytes,count_bytes"
	pwrite="op=pwrite; $hook; $dd of=$DISK seek=\$4 conv=notrunc \
		oflag=seek_bytes"
	zero="op=zero; $hook; fallocate -z -o \$4 -l \$3 $DISK"
	flush="op=flush; $hook"
	extents="op=extents; $hook; echo 0 $size"
	can_write="exit 0" can_zero="exit 0" can_flush="exit 0"
	can_extents="exit 0" can_multi_conn="exit 0" can_fua="echo native")

# keep SOCKET ARGS...: starts it again whenever it is gone.
cat >"$T/keep" <<'END'
sock=$1
shift
trap 'kill $pid; exit' TERM
while :; do
	rm -f "$sock"
	nbdkit -f -U "$sock" "$@" &
	pid=$!
	wait $pid
done
END

keep()
{
	SOCK=$T/kept.$1.sock
	shift
	spawn "$T/kept.log" bash "$T/keep" "$SOCK" "$@" "${plugin[@]}"
	SERVER_PID=$SPAWNED
	wait_until 10 test -S "$SOCK"
	mnt --timeout=10 --reconnect=20 disk="$(uri)" || bail "mount"
	F=$MNT/disk
}

# does OP WANTED DESCRIPTION OPERATION...: fileops, where the server dies at
# the first OP.
does()
{
	local op=$1 want=$2 what=$3
	shift 3
	touch "$T/die.$op"
	run timeout -k 5 30 "$ops" "$@"
	is "${OUT//$'\n'/;};" "$want" "$op: $what"
	ok "[ ! -e '$T/die.$op' ]" "$op: it has died"
	rm -f "$T/die.$op"
}

# bytes OFFSET LENGTH BYTE: the disk has that.
bytes()
{
	cmp -n "$2" -i "$1:0" "$DISK" <(head -c "$2" /dev/zero | tr '\0' "\\$3")
}

keep 1
does pread "open 0;read 65536 mixed at 1;close 0;" "read" \
	"open:r,direct:$F" read:1M:64K close
does extents "open 0;data 0;hole $size;close 0;" "seek" \
	"open:r:$F" data:0 hole:0 close
does pwrite "open 0;write 65536;fsync 0;close 0;" \
	"a write that was not answered is done again" \
	"open:rw:$F" write:0:64K:1 fsync close
ok "bytes 0 65536 1" "it is there"
does pwrite "open 0;write 65536;fsync 0;close 0;" "O_SYNC" \
	"open:rw,sync:$F" write:0:64K:2 fsync close
ok "bytes 0 65536 2" "it is there"
does pwrite "open 0;aiowrite 65536;fsync 0;close 0;" "O_DIRECT" \
	"open:rw,direct:$F" aiowrite:0:64K:3 fsync close
ok "bytes 0 65536 3" "it is there"
does zero "open 0;punch 0;fsync 0;read 65536 00;close 0;" "punch" \
	"open:rw:$F" punch:0:64K fsync read:0:64K close
ok "bytes 0 65536 0" "it is there"
does zero "open 0;zero 0;close 0;" "at close" \
	"open:rw:$F" zero:64K:64K close
ok "bytes 0 131072 0" "it is there"
does flush "open 0;write 65536;fsync EIO;fsync 0;close 0;" \
	"what was answered before may be lost" \
	"open:rw:$F" write:0:64K:4 fsync fsync close
does flush "open 0;write 65536;close EIO;" "at close" \
	"open:rw:$F" write:0:64K:5 close
does flush "open 0;punch 0;dupclose EIO;fsync EIO;close 0;" "zeroes" \
	"open:rw:$F" punch:64K:64K dupclose fsync close
does pread "open 0;copy 65536;fsync 0;close 0;" "copy_file_range" \
	"open:rw:$F" copy:0:1M:2M:64K fsync close
ok "cmp -n 65536 -i 1M:2M '$DISK' '$DISK'" "it is right"
does pwrite "open 0;copy 65536;fsync 0;close 0;" "copy_file_range" \
	"open:rw:$F" copy:0:1M:3M:64K fsync close
ok "cmp -n 65536 -i 1M:3M '$DISK' '$DISK'" "it is right"

# Of a truncation, sent by the last close.
touch "$T/die.zero"
run "$ops" "open:rw:$F" truncate:0 close
is "$OUT" "open 0
truncate 0
close 0" "a truncation"
ok "wait_until 10 test ! -e '$T/die.zero'" "it has died of what that left"
ok "umnt '$MNT'" "unmounted"
ok "bytes 0 $size 0" "all is zero"
stop_server

# Parts of blocks: the rest is read first.
head -c $size /dev/urandom >"$DISK"
cp "$DISK" "$T/want"
plugin+=(blocksize-minimum=4096 blocksize-error-policy=error)
keep 2 --filter=blocksize-policy
does pread "open 0;write 100;fsync 0;close 0;" "the rest of a block" \
	"open:rw:$F" write:1000:100:7 fsync close
does pwrite "open 0;write 100;fsync 0;close 0;" "a block of which a part is" \
	"open:rw:$F" write:9000:100:7 fsync close
does pread "open 0;punch 0;fsync 0;close 0;" "a hole in a block" \
	"open:rw:$F" punch:20500:1000 fsync close
for at in 1000 9000; do
	head -c 100 /dev/zero | tr '\0' '\7' |
		dd of="$T/want" bs=1 seek=$at conv=notrunc status=none
done
fallocate -p -o 20500 -l 1000 "$T/want"
ok "cmp '$DISK' '$T/want'" "nothing else has changed"
ok "umnt '$MNT'" "unmounted"
done_testing
