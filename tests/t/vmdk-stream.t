#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# streamOptimized VMDK images as one sees them who cannot seek: from one marker
# to the next. And what they cost: memory, also where the reader is slow or the
# image a bomb.

# shellcheck disable=SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy qemu-img nbdkit nbdkit-plugin:file nbdkit-filter:delay

cd "$T" || exit 1
copy=$NBDFS_COPY
walk=$NBDFS_HELPERS/vmdkwalk

# walked IMAGE GRAINS TABLES
walked()
{
	run_ok -n "$1: from marker to marker" "$walk" "$1"
	is "$OUT" "$2 $3" "$1: $2 grains, $3 tables"
}

# peak FILE COMMAND...: KiB of its memory, at most.
peak()
{
	local file=$1
	shift
	"$NBDFS_HELPERS/measure" -o "$file" "$@" && cut -d' ' -f5 "$file"
}

# --------------------------------------------------------------- the markers

: >empty
"$copy" --destination-format=vmdk-stream empty empty.vmdk
walked empty.vmdk 0 0
# qemu-img 7.2 opens no disk of no bytes, its own neither.
run_ok -n "a disk of no bytes is read" "$copy" empty.vmdk back
is "$(stat -c %s back)" 0 "nothing"
truncate -s 5G holes
"$copy" --destination-format=vmdk-stream holes holes.vmdk
walked holes.vmdk 0 0
run_ok -n "and of holes" qemu-img compare -q -f raw -F vmdk holes holes.vmdk
printf x | dd of=holes bs=1 seek=5000000001 conv=notrunc status=none
printf x | dd of=holes bs=64K seek=511 conv=notrunc status=none
printf x | dd of=holes bs=64K seek=512 conv=notrunc status=none
"$copy" --destination-format=vmdk-stream holes holes.vmdk
walked holes.vmdk 3 3
head -c 70000100 /dev/urandom >dense
"$copy" --destination-format=vmdk-stream dense dense.vmdk
walked dense.vmdk 1069 3

# A server that answers in any order, and a reader that is slow.
start_nbdkit --filter=delay file dense rdelay=2ms || bail "nbdkit"
# shellcheck disable=SC2216
"$copy" --request-size=16K -R 64 -C 4 --destination-format=vmdk-stream \
	"$URI" - | { sleep 1; cat; } >piped.vmdk
stop_server
walked piped.vmdk 1069 3
run_ok -n "the same bytes" qemu-img compare -q -f vmdk -F vmdk \
	dense.vmdk piped.vmdk
head -c 33554432 /dev/zero >zeroes
"$copy" --allocated --destination-format=vmdk-stream zeroes zeroes.vmdk
walked zeroes.vmdk 512 1
"$copy" -S 0 --no-extents --destination-format=vmdk-stream zeroes zeroes.vmdk
walked zeroes.vmdk 0 0
"$copy" --compression-level=1 --destination-format=vmdk-stream "$copy" 1.vmdk
"$copy" --compression-level=9 --destination-format=vmdk-stream "$copy" 9.vmdk
ok "[ $(stat -c %s 9.vmdk) -lt $(stat -c %s 1.vmdk) ]" "the level matters"

# The walk itself sees what is wrong.
head -c -512 dense.vmdk >cut.vmdk
run_fails -n "without an end" "$walk" cut.vmdk
run_fails -n "nor is it read" "$copy" cut.vmdk null:
like "$ERR" "cut.vmdk: incomplete VMDK" "it says why"

# ---------------------------------------------------------------- the memory

if nm "$copy" 2>/dev/null | grep -q "__[at]san_init"; then
	pass "memory: not measured under a sanitizer"
else
	head -c 200M /dev/urandom >large
	of=$(peak p1 sh -c "'$copy' --destination-format=vmdk-stream large - |
		{ sleep 2; cat >/dev/null; }")
	ok "[ ${of:-999999} -lt 65536 ]" "into a slow pipe: ${of:-?} KiB"
	"$copy" --destination-format=vmdk-stream large large.vmdk
	of=$(peak p2 "$copy" large.vmdk null:)
	ok "[ ${of:-999999} -lt 65536 ]" "and read: ${of:-?} KiB"
	rm -f large large.vmdk
fi

# A grain that is whole and well, but inflates to far more than a grain.
if perl -MCompress::Zlib -e 1 2>/dev/null; then
	for size in 65537 1048576 33554432; do
		cp dense.vmdk bomb.vmdk
		perl -MCompress::Zlib -e '
			my $z = compress("\0" x $ARGV[0]);
			print pack("V", length($z)), $z' $size |
			dd of=bomb.vmdk bs=1 seek=65544 conv=notrunc status=none
		run_fails -n "$size bytes in a grain" "$copy" bomb.vmdk null:
		like "$ERR" "cannot read 65536 bytes at offset 0|damaged" \
			"it is refused"
	done
else
	pass "bombs: not tested without Compress::Zlib"
fi

done_testing
