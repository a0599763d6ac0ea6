#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# nbdfs-copy with files of a mount: the mount itself copies where both ends are
# its own, and a file of fixed size is used like a device.

# shellcheck disable=SC2002,SC2034,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy fuse nbdkit nbdkit-plugin:file nbdkit-filter:error strace

cd "$T" || exit 1
copy=$NBDFS_COPY

mkdir disks
truncate -s 8M disks/a
head -c 3000000 /dev/urandom |
	dd of=disks/a bs=64k seek=5 conv=notrunc status=none
for name in b c d; do
	head -c 8M /dev/zero | tr '\0' x >disks/$name
done
truncate -s 9M disks/larger
truncate -s 1M disks/small
start_nbdkit file dir=disks
mnt "$URI" || bail "no mount"
MNT_A=$MNT

# traced ARGS...: CALLS are the system calls that copy.
traced()
{
	rm -f trace.*
	ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 LSAN_OPTIONS="" \
		timeout -k 5 60 strace -ff -qq -s 0 -o trace \
		-e trace=copy_file_range,pread64,preadv2,pwrite64,fallocate \
		"$copy" "$@" 2>err
	STATUS=$?
	ERR=$(<err)
	CALLS=$(cat trace.* | grep -v '\\177ELF' |
		awk -F '(' '$1 !~ /pread64/ || /1048576|262144/ { print $1 }' |
		sort | uniq -c | awk '{ print $2 ":" $1 }' | xargs)
}

traced --json "$MNT/a" "$MNT/b" >json
is "$STATUS:$CALLS" "0:copy_file_range:1" "the mount copies by itself" ||
	diag "$ERR"
ok "cmp disks/a $MNT/b" "every byte"
like "$(<json)" '"bytes_written": 8388608' "and says so"
ok "cmp disks/a disks/b" "and at the server"

rm -f trace.*
ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 LSAN_OPTIONS="" \
	strace -ff -qq -o trace -e inject=copy_file_range:error=EXDEV \
	-e trace=copy_file_range "$copy" "$MNT/a" "$MNT/c" 2>err
is $? 0 "where the kernel cannot" || sed 's/^/# /' err
ok "cmp disks/a $MNT/c" "it is read and written"

traced --allocated "$MNT/a" "$MNT/d"
is "$STATUS" 0 "--allocated"
unlike "$CALLS" "copy_file_range" "is done by our own engine"
ok "cmp disks/a $MNT/d" "and right"

run_fails "$copy" "$MNT/larger" "$MNT/d"
like "$ERR" "d: too small: 8388608 bytes, the source has 9437184" \
	"a file of the mount does not grow"
ok "cmp disks/a $MNT/d" "and is left as it was"
run_ok -n "to a larger file" "$copy" disks/a "$MNT/larger"
ok "cmp -n 8388608 disks/a $MNT/larger" "of the mount"
is "$(tail -c 1M "$MNT/larger" | tr -d '\0' | wc -c)" 0 \
	"what lies behind reads as zero"
run_ok "$copy" "$MNT/a" got
ok "cmp disks/a got" "from the mount to a file"
is "$(stat -c %b got)" "$(stat -c %b disks/a)" "with its holes"
head -c 1M /dev/urandom >onto
run_ok "$copy" --verify --flush onto "$MNT/small"
ok "cmp onto disks/small" "from a file to the mount"
run_fails "$copy" "$URI" got
like "$ERR" "several exports .*: say which one" "one export, not several"
run_fails "$copy" "$MNT/a" "$MNT/a"
like "$ERR" "is the source itself" "not onto itself"

umnt
is $? 0 "the mount ends well"

# What the mount could not write it says when the file is closed.
cp disks/b disk
start_nbdkit --filter=error file disk error=ENOSPC error-pwrite-rate=100% \
	error-file="$T/inject"
mnt disk="$URI" || bail "no mount"
head -c 512K /dev/urandom >small
touch inject
run_fails "$copy" small "$MNT/disk"
# Where the first half has failed already, the second one is not taken.
like "$ERR" "disk: cannot (close|write at offset 262144): No space left" \
	"a late error fails the copy"
run_fails "$copy" --flush small "$MNT/disk"
like "$ERR" "disk: cannot (flush|write at offset 262144): No space left" \
	"with --flush, too"
run_fails bash -c "cat small | '$copy' - '$MNT/disk'"
run_fails bash -c "cat small | '$copy' - - 1<>'$MNT/disk'"
like "$ERR" "standard output: cannot close: No space left" "in order, too"
rm inject
run_ok -n "and then it fits" "$copy" small "$MNT/disk"
umnt
ok "cmp -n 524288 small disk" "and is there"
done_testing
