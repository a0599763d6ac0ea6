#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Pages: who keeps a file mapped sees what others do to it, dirty pages are
# data to whoever looks for data, and truncation neither kills a reader nor is
# undone by pages written before it.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops helper:seekmap helper:aiopages helper:truncmany nbdkit \
	nbdkit-filter:blocksize-policy nbdkit-filter:delay fallocate

ops=$NBDFS_HELPERS/fileops
D=$T/disk
SIZE=$((4 * 1024 * 1024))

# Old data, behind the back of the mount; what was late is sent before.
fill()
{
	[ -z "$F" ] || run "$ops" "open:rw:$F" fsync close
	head -c $SIZE /dev/zero | tr '\0' A >"$T/old"
	dd if="$T/old" of="$D" bs=1M conv=notrunc status=none
}

# is_zero FILE [OFFSET LENGTH]
is_zero()
{
	cmp -s -i "${2:-0}:0" -n "${3:-$SIZE}" "$1" /dev/zero
}

lines()
{
	tr '\n' ';' <"$1"
}

# reader WANTED COMMAND...: a process that keeps the first MiB mapped and asks
# for nothing else reads it before and after a command of somebody else.
reader()
{
	local want=$1 job
	shift
	rm -f "$T/ready" "$T/go"
	fill
	timeout 60 "$ops" "open:r:$F" map:0:1M mapread "touch:$T/ready" \
		"await:$T/go" mapread >"$T/reader.out" 2>&1 &
	job=$!
	if ! wait_until 20 test -e "$T/ready"; then
		fail "the reader does not get ready: $*"
		return
	fi
	run "$@"
	[ "$STATUS" = 0 ] || diag "status $STATUS of $*: $ERR"
	: >"$T/go"
	wait $job
	is "$(lines "$T/reader.out")" "open 0;map 0;mapread 1048576 41;$want" \
		"$options: a mapped reader after $(basename "$1") ${*:2:2}"
}

# Opening a file has the kernel drop its pages. So the same again by a process
# that has it open for long.
# waiting_reader WANTED OPERATION...: of fileops.
waiting_reader()
{
	local want=$1 job other
	shift
	rm -f "$T/ready" "$T/go" "$T/opened"
	fill
	timeout 60 "$ops" "open:rw:$F" "touch:$T/opened" "await:$T/ready" \
		"$@" "touch:$T/go" >"$T/other.out" 2>&1 &
	other=$!
	timeout 60 "$ops" "await:$T/opened" "open:r:$F" map:0:1M mapread \
		"touch:$T/ready" "await:$T/go" mapread >"$T/reader.out" 2>&1 &
	job=$!
	wait $job $other
	is "$(lines "$T/reader.out")" "open 0;map 0;mapread 1048576 41;$want" \
		"$options: a mapped reader after $*"
}

# An open and a close, no more.
truncating_open() { : >"$F"; }

zeroes="mapread 1048576 00;"

readers()
{
	reader "$zeroes" truncating_open
	reader "$zeroes" truncate -s 0 "$F"
	reader "$zeroes" "$ops" "open:w:$F" truncate:0 close
	reader "$zeroes" fallocate -p -l 1M "$F"
	reader "$zeroes" fallocate -z -l 1M "$F"
	reader "mapread 1048576 mixed at 4097;" fallocate -p -o 4097 -l 4M "$F"
	reader "mapread 1048576 mixed at 5000;" truncate -s 5000 "$F"
	reader "$zeroes" dd if=/dev/zero of="$F" bs=1M count=1 conv=notrunc \
		status=none
	reader "mapread 1048576 42;" "$ops" "open:rw:$F" write:0:1M:0x42
	reader "mapread 1048576 42;" "$ops" "open:rw:$F" map:0:1M \
		mapwrite:0x42
	reader "mapread 1048576 42;" "$ops" "open:rw:$F" write:1M:1M:0x42 \
		slot:1 "open:rw:$F" copy:0:1M:0:1M
}

waiting_readers()
{
	waiting_reader "$zeroes" truncate:0
	waiting_reader "$zeroes" punch:0:1M
	waiting_reader "$zeroes" zero:0:1M
	waiting_reader "mapread 1048576 mixed at 5000;" truncate:5000
	waiting_reader "mapread 1048576 mixed at 4097;" punch:4097:3M
	waiting_reader "mapread 1048576 42;" write:0:1M:0x42
	waiting_reader "mapread 1048576 42;" write:1M:1M:0x42 slot:1 \
		"open:rw:$F" copy:0:1M:0:1M
}

# A writer with dirty pages, and somebody else who then truncates: the pages
# are older than the truncation.
dirty_truncated()
{
	local job
	rm -f "$T/ready" "$T/go"
	fill
	timeout 60 "$ops" "open:rw:$F" map:0:1M mapwrite:0x42 \
		"touch:$T/ready" "await:$T/go" mapread unmap close \
		>"$T/writer.out" 2>&1 &
	job=$!
	wait_until 20 test -e "$T/ready" ||
		fail "the writer does not get ready"
	run "$@"
	is "$STATUS" 0 "$options: $(basename "$1") under a dirty mapping"
	# The kernel lets the pages go only after it has been answered.
	sleep 0.3
	: >"$T/go"
	wait $job
	is "$(lines "$T/writer.out")" \
		"open 0;map 0;mapwrite 1048576;${zeroes}unmap 0;close 0;" \
		"$options: the writer sees zeroes"
	ok "wait_until 10 is_zero '$F' 0 1048576" "$options: so does the file"
}

dirty()
{
	dirty_truncated truncating_open
	dirty_truncated truncate -s 0 "$F"
	dirty_truncated fallocate -p -l 1M "$F"
	dirty_truncated "$ops" "open:rw:$F" truncate:0 fsync close

	# The same without an open in between, and without time to settle.
	fill
	run "$ops" "open:rw:$F" slot:1 "open:rw:$F" slot:0 map:0:1M \
		mapwrite:0x42 slot:1 truncate:0 slot:0 mapread unmap slot:1 \
		close slot:0 close
	is "$(tr '\n' ';' <<<"$OUT")" "open 0;open 0;map 0;\
mapwrite 1048576;truncate 0;${zeroes}unmap 0;close 0;close 0;" \
		"$options: dirty pages are zero as soon as truncate returns"
	ok "wait_until 10 is_zero '$D'" "$options: and do not come back"

	fill
	run "$ops" "open:rw:$F" map:0:1M slot:1 "open:rw:$F" map:512K:64K \
		slot:0 mapwrite:0x42 truncate:0 slot:1 mapwrite:0x43 slot:0 \
		msync unmap slot:1 unmap close slot:0 close
	head -c $SIZE /dev/zero >"$T/want"
	head -c 64K /dev/zero | tr '\0' C |
		dd of="$T/want" bs=512K seek=1 conv=notrunc status=none
	ok "wait_until 10 cmp -s '$T/want' '$D'" \
		"$options: what is written by the mapping right after it stays"

	# Pages made dirty after it are younger.
	fill
	run "$ops" "open:rw:$F" map:0:64K mapwrite:0x42 truncate:0 sleep:300 \
		mapwrite:0x43 msync unmap close
	ok "cmp -s -n 65536 '$F' <(head -c 64K /dev/zero | tr '\\0' C)" \
		"$options: what is mapped and written later stays"
	ok "is_zero '$F' 65536 $((SIZE - 65536))" "$options: the rest is zero"
}

# Dirty pages that only the kernel knows are data all the same.
seeks()
{
	local job
	rm -f "$T/ready" "$T/go"
	fill
	run_ok -n "$options: an empty disk" truncate -s 0 "$F"
	timeout 60 "$ops" "open:rw:$F" map:1M:64K mapwrite:0x42 \
		"touch:$T/ready" "await:$T/go" unmap close \
		>"$T/writer.out" 2>&1 &
	job=$!
	wait_until 20 test -e "$T/ready" ||
		fail "the writer does not get ready"
	run "$ops" "open:r:$F" data:0 hole:1M data:2M
	like "$(tr '\n' ';' <<<"$OUT")" \
		"^open 0;data 1048576;hole 1[0-9]*;data ENXIO;$" \
		"$options: a seek finds dirty pages"
	# Opening had the kernel write them. Without that:
	run "$ops" "open:r:$F" slot:1 "open:rw:$F" slot:2 "open:rw:$F" \
		map:3M:4K mapwrite:0x42 slot:0 data:2M slot:1 punch:3M:4K \
		slot:0 data:2M
	is "$(tail -n 3 <<<"$OUT" | tr '\n' ';')" \
		"data 3145728;punch 0;data ENXIO;" \
		"$options: also when nothing has been opened since"
	run cp --sparse=auto "$F" "$T/copy"
	head -c $SIZE /dev/zero >"$T/want"
	head -c 64K /dev/zero | tr '\0' B |
		dd of="$T/want" bs=1M seek=1 conv=notrunc status=none
	ok "cmp '$T/want' '$T/copy'" "$options: cp copies them"
	: >"$T/go"
	wait $job
	ok "cmp '$T/want' '$F'" "$options: and they stay"
	run "$ops" "open:rw:$F" truncate:0 map:3M:4K mapwrite:0x42 slot:1 \
		"open:rw:$F" copy:0:3M:1M:4K read:1M:4K
	like "$OUT" "read 4096 42" "$options: copy_file_range copies them"
}

coherence()
{
	fill
	run "$ops" "open:rw:$F" map:8K:8K mapread write:12K:4K:0x42 mapread \
		mapwrite:0x43 read:0:12K read:8K:8K punch:12K:1M mapread \
		slot:1 "open:r,direct:$F" read:8K:4K slot:0 mapwrite:0x44 \
		slot:1 read:8K:8K aioread:8K:8K slot:0 unmap read:8K:8K
	is "$(tr '\n' ';' <<<"$OUT")" "open 0;map 0;mapread 8192 41;\
write 4096;mapread 8192 mixed at 4096;mapwrite 8192;\
read 12288 mixed at 8192;read 8192 43;punch 0;\
mapread 8192 mixed at 4096;open 0;read 4096 43;mapwrite 8192;read 8192 44;\
aioread 8192 44;unmap 0;read 8192 44;" \
		"$options: mappings, reads and writes agree"
	fill
	run "$ops" "open:rw:$F" map:1000:3M mapwrite:0x45 unmap close
	ok "cmp -s -i 1000:0 -n $((3 << 20)) '$D' \
		<(head -c 3M /dev/zero | tr '\\0' E)" \
		"$options: without msync the server has it after the close"
}

# Asynchronous reads, and appending, right after a truncation.
truncated()
{
	fill
	run "$ops" "open:r,direct:$F" slot:1 "open:rw,trunc:$F" slot:0 \
		aioread:0:64K size slot:1 aioread:1M:64K aiowrite:0:64K:7 \
		truncate:0 aioread:0:64K size
	is "$(tr '\n' ';' <<<"$OUT")" "open 0;open 0;aioread 65536 00;\
size $SIZE;aioread 65536 00;aiowrite 65536;truncate 0;aioread 65536 00;\
size $SIZE;" "$options: asynchronous reads after a truncation"
	fill
	run "$ops" "open:rw,append,trunc:$F" append:4K:7 read:0:1M \
		truncate:0 append:1:7 size
	is "$(tr '\n' ';' <<<"$OUT")" "open 0;append ENOSPC;\
read 1048576 00;truncate 0;append ENOSPC;size $SIZE;" \
		"$options: nothing is appended to a truncated file"
}

F=
: >"$D"
fill
start_nbdkit file "$D" || bail "nbdkit"
for options in --cache=direct --cache=kernel; do
	mnt $options disk="$URI" || bail "mount"
	F=$MNT/disk
	readers
	waiting_readers
	dirty
	seeks
	coherence
	truncated
	ok "umnt '$MNT'" "$options: unmounted"
done

# More files than there are helpers.
mkdir "$T/many"
truncate -s 256K "$T/many/"{1..40}
start_nbdkit file dir="$T/many" || bail "nbdkit"
mnt -C1 "$URI" || bail "mount"
run_ok -n "many files are mapped and truncated at once" \
	timeout 20 "$NBDFS_HELPERS/truncmany" 12 "$MNT"/*
is "$OUT" "done" "and none has old bytes"
ok "umnt '$MNT'" "unmounted"
stop_server

# Writes that take their time, since a block has to be read for each.
start_nbdkit --filter=blocksize-policy --filter=delay memory 1M wdelay=1ms \
	blocksize-minimum=4K blocksize-preferred=4K blocksize-maximum=1M ||
	bail "nbdkit"
for options in --cache=direct --cache=kernel; do
	mnt $options disk="$URI" || bail "mount"
	run timeout 20 "$NBDFS_HELPERS/aiopages" "$MNT/disk" 2
	is "$OUT" "stale 0" "$options: asynchronous writes, $ERR"
	ok "umnt '$MNT'" "$options: unmounted"
done
stop_server

# A size of no round number: writes end in a page that is mapped and dirty.
start_nbdkit memory 1049353 || bail "nbdkit"
for options in --cache=direct --cache=kernel; do
	mnt $options disk="$URI" || bail "mount"
	F=$MNT/disk
	run "$ops" "open:rw:$F" map:1048576:777 mapwrite:1 write:1049353:8K:7 \
		mapread read:1048576:777 mapwrite:2 write:1049343:8K:2 \
		mapread read:1048576:777 msync read:1048576:777
	is "$(tr '\n' ';' <<<"$OUT")" "open 0;map 0;mapwrite 777;write ENOSPC;\
mapread 777 01;read 777 01;mapwrite 777;write 10;mapread 777 02;\
read 777 02;msync 0;read 777 02;" "$options: a write over the end"
	ok "umnt '$MNT'" "$options: unmounted"
done
done_testing
