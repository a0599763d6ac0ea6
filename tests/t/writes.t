#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What a server sees of writes: how many, how large, when, and what makes them
# durable.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit nbdkit-filter:log nbdkit-filter:delay \
	nbdkit-filter:fua nbdkit-filter:blocksize-policy perl

ops=$NBDFS_HELPERS/fileops

# server ARGS...: nbdkit with a log, mounted with the options in MOUNT.
server()
{
	next_nbdkit
	start_nbdkit --filter=log "$@" logfile="$REQUESTS" || bail "nbdkit"
	# shellcheck disable=SC2086
	mnt $MOUNT disk="$URI" || bail "mount"
	F=$MNT/disk
}

ended()
{
	ok "umnt '$MNT'" "$1: unmounted"
	stop_server
}

# names OPERATION...: of the requests so far, on one line.
names()
{
	requests "$@" | awk '{ printf "%s%s ", $1, /fua=1/ ? "+fua" : "" }'
}

# ----------------------------------------------------------- small writes

server memory 8M
head -c 1M /dev/urandom >"$T/small"
run_ok -n "dd bs=512" dd if="$T/small" of="$F" bs=512 conv=notrunc status=none
ok "[ $(count_requests Write) -le 40 ]" \
	"2048 small writes arrive as few large ones" ||
	diag "they are $(count_requests Write)"
ok "cmp -n 1048576 '$T/small' '$F'" "with the right bytes"
ended "small writes"

# ---------------------------------------------------------------- durability

server memory 1M
run "$ops" "open:rw:$F" dsync:0:4K:1 "touch:$T/x" close
is "$(names Write Flush)" "Write+fua " "RWF_DSYNC: one write with FUA"
ended "RWF_DSYNC"

server memory 1M
run "$ops" "open:rw,sync:$F" write:0:4K:1 write:8K:4K:1 close
is "$(names Write Flush)" "Write+fua Write+fua " "O_SYNC: all writes with FUA"
ended "O_SYNC"

server --filter=fua memory 1M
run "$ops" "open:rw,dsync:$F" write:0:4K:1 "touch:$T/x"
is "$(names Write Flush)" "Write Flush " \
	"O_DSYNC without FUA: a flush follows the write"
ended "O_DSYNC"

server memory 1M
run "$ops" "open:rw:$F" write:0:4K:1 fsync fsync close
is "$(names Write Flush)" "Write Flush " \
	"fsync: a flush after the write, and none where nothing was written"
ended "fsync"

server memory 1M
run "$ops" "open:rw:$F" write:0:4K:1 close
is "$(names Write Flush)" "Write Flush " "close: a flush after the write"
run "$ops" "open:rw:$F" read:0:4K close
run "$ops" "open:r:$F" read:0:4K close
is "$(count_requests Flush)" 1 "close of a file that was only read: none"
ended "close"

server memory 1M
run "$ops" "open:rw:$F" punch:0:64K fsync close
is "$(names Write Zero Trim Flush)" "" \
	"a punch where there are zeroes already sends nothing"
run "$ops" "open:rw:$F" write:0:64K:1 fsync punch:0:64K fsync close
is "$(names Write Zero Trim Flush)" "Write Flush Zero Flush " \
	"a punch is flushed, too"
ended "punch"

# ------------------------------------------------------------------- waiting

# took COMMAND...: milliseconds.
took()
{
	local start
	start=$(date +%s%N)
	"$@" >/dev/null
	echo $((($(date +%s%N) - start) / 1000000))
}

server --filter=delay memory 8M wdelay=500ms
run "$ops" "open:rw:$F" write:0:64K:1 read:0:64K data:0 "touch:$T/told"
is "$(sed 2,3d <<<"$OUT" | tail -n 1)" "data 0" \
	"a write is seen before the server has it"
ms=$(took "$ops" "open:rw:$F" write:0:1M:1 write:1M:1M:1 write:2M:1M:1 \
	write:3M:1M:1 close)
ok "[ $ms -ge 500 ] && [ $ms -lt 1900 ]" \
	"writes are behind, side by side, until the close" || diag "$ms ms"
ended "write-behind"

MOUNT=--write-behind=0
server --filter=delay memory 8M wdelay=300ms
ms=$(took "$ops" "open:rw:$F" write:0:64K:1 write:64K:64K:1 write:1M:64K:1)
ok "[ $ms -ge 900 ]" "--write-behind=0: each write waits" || diag "$ms ms"
ended "--write-behind=0"

# Not more than this on its way: the third write must wait for the first.
MOUNT="--write-behind=128K"
server --filter=delay memory 8M wdelay=400ms
ms=$(took "$ops" "open:rw:$F" write:0:64K:1 write:1M:64K:1 write:2M:64K:1 \
	write:3M:64K:1 "touch:$T/x" sleep:0)
ok "[ $ms -ge 400 ]" "--write-behind is a bound" || diag "$ms ms"
ended "--write-behind=128K"
MOUNT=

# ---------------------------------------------------------------- block sizes

server --filter=blocksize-policy memory 4M blocksize-minimum=4K \
	blocksize-preferred=4K blocksize-maximum=64K \
	blocksize-error-policy=error
run "$ops" "open:rw:$F" write:4096:8192:1 close
is "$(requests Read)" "" "whole blocks are written without reading"
run "$ops" "open:rw:$F" write:20000:1M:2 close
run "$ops" "open:rw:$F" write:6000:10:3 close
is "$(requests Read | awk '{ print $2, $3 }' | tail -n 1)" "0x1000 0x1000" \
	"of a block that is written in part the rest is read"
run "$ops" "open:r:$F" read:5999:1 read:6000:10 read:6010:1 read:19999:1 \
	read:20000:1M
is "$(tr '\n' ';' <<<"$OUT")" "open 0;read 1 01;read 10 03;read 1 01;\
read 1 00;read 1048576 02;" "and everything is where it should be"
ok "[ $(requests Write | awk '{ print length($3) }' | sort -n |
	tail -n 1) -le 7 ]" "no request is longer than 64 KiB"
ended "block sizes"

# ------------------------------------------------------------------ memory

# Short writes far from each other take much more than their bytes.
start_nbdkit --filter=delay memory 1G wdelay=5ms || bail "nbdkit"
mnt --write-behind=1M disk="$URI" || bail "mount"
before=$(awk '/VmHWM/ { print $2 }' "/proc/$MNT_PID/status")
run_ok -n "40000 writes of one byte" perl -e 'open F, "+<", $ARGV[0] or die;
	for (1 .. 40000) {
		sysseek F, $_ * 9000, 0 and syswrite F, "x" or die;
	}
	close F or die' "$MNT/disk"
peak=$(($(awk '/VmHWM/ { print $2 }' "/proc/$MNT_PID/status") - before))
if nm "$NBDFS" 2>/dev/null | grep -q "__[at]san_init"; then
	pass "memory: not measured under a sanitizer"
else
	ok "[ $peak -le 32768 ]" "take $peak KiB of memory"
fi
is "$(head -c 9001 "$MNT/disk" | tail -c 1)" x "and are there"
ended "memory"
done_testing
