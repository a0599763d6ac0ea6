#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# A server that cannot read some sectors: what lies beside them is read all
# the same, and what lies in them is an error, never other bytes.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdkit-filter:ddrescue nbdkit-filter:error helper:fileops

ops=$NBDFS_HELPERS/fileops
bad=$((3 * 1024 * 1024 + 20480))	# the sector
head -c 4M /dev/urandom >"$T/disk"

# A request that touches it fails as a whole.
printf '%s\n' "0x0 + 1" "0x0 $bad +" "$bad 512 -" \
	"$((bad + 512)) $(($(stat -c %s "$T/disk") - bad - 512)) +" >"$T/map"
start_nbdkit --filter=ddrescue file "$T/disk" ddrescue-mapfile="$T/map" ||
	bail "nbdkit"

# good FILE OFFSET: its size, if it is what the disk has from there on.
good()
{
	local size
	size=$(stat -c %s "$1")
	cmp -s -i "0:$2" -n "$size" "$1" "$T/disk" && echo "$size"
}

for mode in "" --read-ahead=0 --cache=kernel; do
	name=${mode:-as it comes}
	# shellcheck disable=SC2086
	mnt $mode disk="$URI" || bail "mount"
	F=$MNT/disk

	# In order, so that it is read ahead.
	run dd if="$F" bs=64K status=none
	isnt "$STATUS" 0 "$name: reading all of it fails"
	like "$ERR" "Input/output error" "$name: with EIO"
	n=$(good "$T/.out" 0)
	# What is asked in one piece may be given up in one piece, or to the
	# page where it is bad.
	ok "[ ${n:-0} -ge $((bad / 65536 * 65536)) ] && [ $n -le $bad ]" \
		"$name: what lies before has been read ($n of $bad)"
	run cmp -i $((bad + 4096)) "$F" "$T/disk"
	is "$STATUS" 0 "$name: and what lies behind can be"

	dd if="$F" bs=4096 skip=$((bad / 4096 - 1)) count=1 status=none >"$T/a"
	dd if="$F" bs=4096 skip=$((bad / 4096 + 1)) count=1 status=none >"$T/b"
	is "$(good "$T/a" $((bad - 4096))) $(good "$T/b" $((bad + 4096)))" \
		"4096 4096" "$name: the pages beside it"
	if [ "$mode" != --cache=kernel ]; then
		is "$("$ops" "open:r:$F" read:$((bad - 512)):512 \
			read:$bad:512 read:$((bad + 512)):512 \
			read:$((bad + 511)):1 read:$((bad - 1)):1 |
			cut -d ' ' -f 1-2 | tr '\n' ,)" \
			"open 0,read 512,read EIO,read 512,read EIO,read 1," \
			"$name: the sectors beside it"
		# As disks do it: first the good bytes.
		"$ops" "open:r:$F" read:$((bad - 300000)):600000 \
			read:$((bad / 4096 * 4096)):4096 >"$T/ops"
		n=$(awk 'NR == 2 { print $2 }' "$T/ops")
		ok "[ '$n' != EIO ] && [ '$n' -ge $((300000 - 4096)) ] && [ '$n' -le 300000 ]" \
			"$name: a read over it ends before it ($n of 300000)"
		is "$(sed -n 3p "$T/ops")" "read EIO" \
			"$name: the next one fails"
		dd if="$F" bs=600000 skip=$((bad - 300000)) count=1 \
			iflag=skip_bytes status=none >"$T/a"
		is "$(good "$T/a" $((bad - 300000)))" "$n" \
			"$name: these bytes are the right ones"
	fi
	# How people save what can be saved.
	run dd if="$F" of="$T/saved" bs=4096 conv=noerror,sync status=none
	is "$(cmp -l "$T/saved" "$T/disk" | awk -v bad=$bad '
		$1 > bad - bad % 4096 && $1 <= bad - bad % 4096 + 4096 { n++ }
		END { print (n > 3000), (n == NR) }')" "1 1" \
		"$name: all but a page is saved"
	umnt "$MNT"
done
stop_server

# ------------------------------------------------------ errors that come, go

start_nbdkit --filter=error file "$T/disk" error=EIO error-pread-rate=100% \
	error-file="$T/inject" || bail "nbdkit"
mnt disk="$URI" || bail "mount"
F=$MNT/disk
: >"$T/inject"
run cat "$F"
isnt "$STATUS" 0 "all reads fail"
like "$ERR" "Input/output error" "with EIO"
is "$(stat -c %s "$F")" "$(stat -c %s "$T/disk")" "the file is still there"
rm "$T/inject"
run cmp "$F" "$T/disk"
is "$STATUS" 0 "and is read when the server has recovered"
is "$(kill -0 "$MNT_PID" && echo alive)" alive "nbdfs lives"
umnt "$MNT"
stop_server

start_nbdkit --filter=error file "$T/disk" error=EIO error-pread-rate=60% ||
	bail "nbdkit"
mnt disk="$URI" || bail "mount"
dd if="$MNT/disk" of="$T/saved" bs=4K conv=noerror,sync status=none 2>"$T/dd"
# Each piece is right, or it is what dd puts for it.
is "$(cmp -l "$T/saved" "$T/disk" | awk '$2 != 0' | wc -l)" 0 \
	"six requests of ten fail: no read gives other bytes"
umnt "$MNT"
stop_server

for error in ENOSPC EINVAL EPERM; do
	start_nbdkit --filter=error file "$T/disk" error=$error \
		error-pread-rate=100% || bail "nbdkit"
	mnt disk="$URI" || bail "mount"
	run head -c 1000 "$MNT/disk"
	is "$STATUS $(stat -c %s "$T/.out")" "1 0" "$error: no bytes" ||
		diag "$ERR"
	umnt "$MNT"
	stop_server
done
done_testing
