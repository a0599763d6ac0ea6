#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Dirty bitmaps: a file beside the export whose data is what the bitmap marks,
# with the export's bytes; and an incremental backup by nbdfs-copy --dirty.

# shellcheck disable=SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse copy qemu-nbd qemu-img qemu-io nbdkit helper:seekmap

context=qemu:dirty-bitmap
disk=$T/disk.qcow2

# Marks that are data, zero, trimmed, of one block, in a hole, at the end.
qemu-img create -q -f qcow2 "$disk" 64M
qemu-io -c "write -P 1 0 8M" -c "write -P 2 32M 4M" "$disk" >"$T/qemu-io.log"
qemu-img convert -O raw "$disk" "$T/full"
qemu-img bitmap --add -g 64k "$disk" b0
qemu-img bitmap --add -g 64k "$disk" "a/b%"
qemu-io -c "write -P 3 1M 64k" -c "write -z 4M 128k" -c "discard 33M 64k" \
	-c "write -P 4 40M 1M" -c "write -P 5 65472k 64k" "$disk" >>"$T/qemu-io.log"
qemu-img convert -O raw "$disk" "$T/now"
size=$((64 << 20))
marks="hole 0 1048576
data 1048576 65536
hole 1114112 3080192
data 4194304 131072
hole 4325376 30277632
data 34603008 65536
hole 34668544 7274496
data 41943040 1048576
hole 42991616 24051712
data 67043328 65536"
marked=$((65536 + 131072 + 65536 + 1048576 + 65536))

# start OPTION...: 8 clients, read-only.
start()
{
	start_qemu_nbd "$disk" -f qcow2 -r "$@" || bail "qemu-nbd"
}

# ---------------------------------------------------------------- the mount

start -B b0
mnt -o meta-context=$context:b0 "$URI" || bail "mount"
is "$(ls -x "$MNT")" "nbd  nbd@b0" "a file beside the export"
is "$(stat -c '%s %a' "$MNT/nbd@b0")" "$size 400" "as large, read-only"
is "$(extents "$MNT/nbd@b0")" "$marks" "its data is what is marked"
is "$(($(stat -c %b "$MNT/nbd@b0") * 512))" $marked "and its blocks"
like "$(extents "$MNT/nbd")" "^data 0 4194304.hole 4194304 131072.data" \
	"the export has its own extents"
ok "cmp '$MNT/nbd@b0' '$T/now'" "its bytes are the export's"
ok "cmp '$MNT/nbd' '$T/now'" "the export's are too"
run_ok -n "a copy that does not ask for extents" \
	cp --sparse=never "$MNT/nbd@b0" "$T/copy"
ok "cat '$MNT/nbd@b0' >'$T/out' && cmp '$T/out' '$T/now'" "cat has all of it"
# What is not marked, after it is known not to be.
dd if="$MNT/nbd@b0" of="$T/out" bs=64K skip=32 count=1 status=none
ok "cmp -n 65536 '$T/out' '$T/now' 0 2M" "a part that is not marked"
run_fails -n "it cannot be written" \
	dd if=/dev/zero of="$MNT/nbd@b0" count=1 conv=notrunc status=none
like "$ERR" "Read-only file system" "for it is read-only"

# A server that comes again has it, or it does not matter.
stop_server
sock=$SOCK
spawn "$T/again.log" qemu-nbd -t -e 8 -r -k "$sock" -f qcow2 -B b0 \
	--pid-file "$T/again.pid" "$disk"
wait_until 15 test -s "$T/again.pid" || bail "qemu-nbd"
is "$(extents "$MNT/nbd@b0")" "$marks" "the same after a reconnection"
ok "cmp '$MNT/nbd@b0' '$T/now'" "and the bytes"
ok "umnt '$MNT'" "unmounted"
kill "$SPAWNED"

# Inside the mount: it is copied as it reads. The destination has the bitmap
# too, or it would not be mounted.
qemu-img create -q -f qcow2 "$T/to.qcow2" 64M
qemu-img bitmap --add --disable "$T/to.qcow2" b0
start -B b0
from=$URI
start_qemu_nbd "$T/to.qcow2" -f qcow2 -B b0 || bail "qemu-nbd"
mnt -o meta-context=$context:b0 "from=$from" "to=$URI" || bail "mount"
run_ok -n "copy_file_range" "$NBDFS_COPY" "$MNT/from@b0" "$MNT/to"
ok "cmp '$MNT/to' '$T/now'" "copy_file_range has all of it"
is "$(extents "$MNT/to@b0")" "hole 0 $size" "nothing is marked there"
ok "umnt '$MNT'" "unmounted"
stop_server

start -x disk -B "a/b%"
mnt -o meta-context="$context:a/b%" "x=$(uri disk)" || bail "mount"
is "$(ls -x "$MNT")" "x  x@a%2Fb%25" "NAME=URI, and a bitmap with an odd name"
is "$(extents "$MNT/x@a%2Fb%25")" "$marks" "it is the bitmap"
ok "umnt '$MNT'" "unmounted"
run "$NBDFS" --list -o meta-context="$context:a/b%" "$(uri)"
is "$(awk 'NR > 1 { print $1 }' <<<"$OUT")" "disk
disk@a%2Fb%25" "it is in the list"
stop_server

# One client at a time: each file on its own.
spawn "$T/one.log" qemu-nbd -t -e 1 -r -k "$T/one.sock" -f qcow2 -B b0 \
	--pid-file "$T/one.pid" "$disk"
wait_until 15 test -s "$T/one.pid" || bail "qemu-nbd"
mnt -o meta-context=$context:b0 "nbd+unix:///?socket=$T/one.sock" ||
	bail "mount"
is "$(extents "$MNT/nbd@b0")" "$marks" "from a server with one client"
ok "umnt '$MNT'" "unmounted"
kill "$SPAWNED"

# ------------------------------------------------------------------ errors

# refused DESCRIPTION REGEX ARGS...
refused()
{
	local desc=$1 regex=$2
	shift 2
	run timeout 30 "$NBDFS" "$@" "$T"
	like "$STATUS $ERR" "^$regex" "$desc"
}

start -B b0
refused "no such bitmap" "1 nbdfs: .*: it has no dirty bitmap 'b1'\$" \
	-o meta-context=$context:b1 "$URI"
stop_server
start_nbdkit memory 1M || bail "nbdkit"
refused "a server without bitmaps" "1 nbdfs: .*: it has no dirty bitmap 'b0'\$" \
	-o meta-context=$context:b0 "$URI"
refused "something else" "2 nbdfs: --meta-context=base:allocation: not of the form" \
	-o meta-context=base:allocation "$URI"
refused "no name" "2 nbdfs: --meta-context=$context:: not of the form" \
	-o meta-context=$context: "$URI"
refused "without extents" "2 nbdfs: --meta-context and --no-extents exclude" \
	--no-extents -o meta-context=$context:b0 "$URI"
run "$NBDFS_COPY" --dirty=b0 "$URI" "$T/full"
like "$STATUS $ERR" "^1 .*: it has no dirty bitmap 'b0'\$" \
	"nbdfs-copy: a server without bitmaps"
stop_server
start_nbdkit --filter=exportname memory 1M exportname=a exportname=b \
	exportname-list=explicit || bail "nbdkit"
refused "several exports, none with it" \
	"1 nbdfs: .*: no export has a dirty bitmap 'b0'\$" \
	-o meta-context=$context:b0 "$URI"
stop_server

# ------------------------------------------------------- incremental backup

# bytes DISK: read, written and made zero, as --json has it.
bytes()
{
	sed -E 's/.*bytes_read": ([0-9]+).*written": ([0-9]+).*zeroed": ([0-9]+).*/\1 \2 \3/' \
		<<<"$OUT"
}

# The clean parts differ from the disk: they must stay as they are.
cp "$T/full" "$T/old"
qemu-io -f raw -c "write -P 9 20M 1M" -c "write -P 9 4M 64k" "$T/old" \
	>>"$T/qemu-io.log"
cp "$T/now" "$T/want"
qemu-io -f raw -c "write -P 9 20M 1M" "$T/want" >>"$T/qemu-io.log"
cp "$T/old" "$T/backup"
run_ok -n "an incremental backup to a file" "$NBDFS_COPY" --json --dirty=b0 \
	[ qemu-nbd -r -f qcow2 -B b0 "$disk" ] "$T/backup"
ok "cmp '$T/backup' '$T/want'" "what is marked is new, the rest as it was"
is "$(bytes)" "$marked $((65536 * 2 + 1048576)) $((65536 * 3))" \
	"no more than that was read and written"
cp "$T/full" "$T/backup"
run_ok -n "with threads, compared" "$NBDFS_COPY" --verify -T 4 -C 4 \
	--dirty=b0 [ qemu-nbd -e 8 -r -f qcow2 -B b0 "$disk" ] "$T/backup"
ok "cmp '$T/backup' '$T/now'" "a full backup brought up to date"

# To a server, and a larger image; the zeroes arrive.
start -B b0
source=$URI
cp "$T/old" "$T/backup"
truncate -s 65M "$T/backup"
next_nbdkit
start_nbdkit --filter=log file "$T/backup" logfile="$REQUESTS" || bail "nbdkit"
run_ok -n "to a server" "$NBDFS_COPY" --flush --dirty=b0 "$source" "$URI"
ok "cmp -n $size '$T/backup' '$T/want'" "all is there"
is "$(stat -c %s "$T/backup")" $((65 << 20)) "the larger image keeps its size"
sum=0
for n in $(requests Write | awk '{ print $3 }'); do
	sum=$((sum + n))
done
is $sum \
	$((65536 * 2 + 1048576)) "only data that is marked was written"
stop_server

# Whatever is wrong with the destination, it is not touched.
rm -f "$T/none"
run_fails -n "no destination" "$NBDFS_COPY" --dirty=b0 "$source" "$T/none"
ok "[ ! -e '$T/none' ]" "none was made"
echo short >"$T/small"
run_fails -n "one that is too small" \
	"$NBDFS_COPY" --dirty=b0 "$source" "$T/small"
is "$(<"$T/small")" short "it is as it was"
run_fails -n "a pipe" "$NBDFS_COPY" --dirty=b0 "$source" -
run_fails -n "a file as source" "$NBDFS_COPY" --dirty=b0 "$T/now" "$T/backup"
for with in --no-extents --destination-is-zero; do
	run "$NBDFS_COPY" --dirty=b0 $with "$source" "$T/backup"
	is "$STATUS" 2 "not with $with"
done

done_testing
