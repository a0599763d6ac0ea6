#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# VMDK images, written and read: qemu-img is the judge. Both kinds, all sizes;
# what the file system sees; images that are cut off or damaged.

# shellcheck disable=SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy qemu-img nbdkit nbdkit-plugin:file nbdkit-filter:delay strace

cd "$T" || exit 1
copy=$NBDFS_COPY

# check RAW IMAGE: accepted, and equal to the raw file.
check()
{
	run_ok -n "$2: qemu-img check" qemu-img check -q -f vmdk "$2"
	run_ok -n "$2: the contents" qemu-img compare -q -f raw -F vmdk \
		"$1" "$2"
}

# data FILE SIZE: a dense file.
data()
{
	head -c "$2" /dev/urandom >"$1"
}

# --------------------------------------------------------------------- sizes

for size in 512 65536 66048 100000 33554432 33620480; do
	data raw "$size"
	cp raw padded
	truncate -s $(((size + 511) / 512 * 512)) padded
	for kind in vmdk vmdk-stream; do
		rm -f disk.vmdk back
		run_ok -n "$size bytes to $kind" "$copy" --verify \
			--destination-format=$kind raw disk.vmdk
		check padded disk.vmdk
		run_ok "$copy" disk.vmdk back
		ok "cmp padded back" "and back"
	done
	for kind in monolithicSparse streamOptimized; do
		rm -f theirs.vmdk back
		qemu-img convert -q -f raw -O vmdk -o subformat=$kind padded \
			theirs.vmdk || bail "qemu-img"
		run_ok -n "from qemu-img's $kind" "$copy" theirs.vmdk back
		ok "cmp padded back" "all bytes are right"
	done
done

: >empty
run_ok -n "a disk of no bytes" "$copy" empty none.vmdk
run_ok -n "and back" "$copy" none.vmdk back
is "$(stat -c %s back)" 0 "nothing"

# ------------------------------------------------------- sparse, fragmented

truncate -s 5G sparse
data piece 3000000
dd if=piece of=sparse bs=1M seek=1000 conv=notrunc status=none
printf x | dd of=sparse bs=1 seek=5000000001 conv=notrunc status=none
# Pieces that share grains with holes, and with each other.
truncate -s 64M pieces
for i in $(seq 0 97 16000); do
	dd if=piece of=pieces bs=4096 skip=$((i % 700)) seek="$i" \
		count=$((i % 5 + 1)) conv=notrunc status=none
done
for disk in sparse pieces; do
	for kind in vmdk vmdk-stream; do
		rm -f disk.vmdk
		run_ok -n "$disk to $kind" "$copy" --verify \
			--destination-format=$kind $disk disk.vmdk
		check $disk disk.vmdk
		ok "[ $(stat -c %s disk.vmdk) -lt 50000000 ]" "holes take nothing"
		run_ok "$copy" disk.vmdk back
		ok "cmp $disk back" "and back"
		"$copy" --map --json disk.vmdk >map
		ok "grep -q '\"zero\": *true' map || grep -q hole map" \
			"its holes are known"
	done
done

# Requests smaller than a grain, many at a time, from a server that answers in
# any order; zeroes are found inside of grains.
start_nbdkit --filter=delay file pieces rdelay=1ms || bail "nbdkit"
for with in "--request-size=4K -R 64" "--request-size=32K -S 512" \
	"--request-size=1M --no-extents -S 0" "--synchronous" "--allocated"; do
	rm -f disk.vmdk
	# shellcheck disable=SC2086
	run_ok -n "server to vmdk $with" "$copy" $with "$URI" disk.vmdk
	check pieces disk.vmdk
done
is "$(qemu-img map -f vmdk --output=json disk.vmdk | grep -c '"data": false')" \
	0 "--allocated: no grain is missing"
run_ok -n "server to vmdk-stream --allocated" "$copy" --allocated \
	--destination-format=vmdk-stream --compression-level=1 "$URI" all.vmdk
check pieces all.vmdk
cp pieces target
stop_server
data target 67108864
start_nbdkit file target || bail "nbdkit"
run_ok -n "vmdk to server" "$copy" disk.vmdk "$URI"
ok "cmp pieces target" "its zeroes were written too"
stop_server

# Grains that are there, gone to zero, and never were.
qemu-img create -q -f vmdk -o subformat=monolithicSparse,zeroed_grain=on \
	two.vmdk 64M
qemu-io -f vmdk -c "write -P 7 1M 3M" -c "write -z 2M 1M" two.vmdk >io ||
	bail "qemu-io"
is "$(od -An -tu4 -j4 -N4 two.vmdk | tr -d ' ')" 2 "an image of version 2"
qemu-img convert -q -f vmdk -O raw two.vmdk want || bail "qemu-img"
rm -f back
run_ok -n "with zeroed grains" "$copy" two.vmdk back
ok "cmp want back" "all bytes are right"

# ------------------------------------------------------------------- a pipe

# shellcheck disable=SC2094
"$copy" --destination-format=vmdk-stream pieces - | cat >piped.vmdk
check pieces piped.vmdk
is "$(tail -c 512 piped.vmdk | tr -d '\0' | wc -c)" 0 "the end of the stream"
is "$(tail -c 1024 piped.vmdk | head -c 4)" KDMV "the footer"
is "$(tail -c 1536 piped.vmdk | head -c 16 | od -An -tx1 | tr -d ' ')" \
	"01000000000000000000000003000000" "and its marker"
is "$(dd if=piped.vmdk bs=1 skip=4 count=8 status=none | od -An -tx1 |
	tr -d ' ')" "0300000001000300" "version 3, compressed, with markers"

run_fails -n "vmdk to a pipe" sh -c "'$copy' --destination-format=vmdk pieces - |
	cat >/dev/null; exit \${PIPESTATUS:-1}"
"$copy" --destination-format=vmdk pieces - 2>err | cat >/dev/null
like "$(cat err)" "standard output: only a VMDK image of the kind vmdk-stream" \
	"says why"
run_fails -n "vmdk from a pipe" sh -c \
	"cat disk.vmdk | '$copy' --source-format=vmdk - null:"
like "$ERR" "is read from a file, not a pipe" "says why"
run_fails -n "a source of unknown size" sh -c "cat pieces | '$copy' - x.vmdk"
like "$ERR" "must be known before" "says why"

# ------------------------------------------------------- what is done to it

rm -f disk.vmdk
ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 LSAN_OPTIONS='' \
	strace -f -y -e trace=ftruncate,fstat,newfstatat,statx,fsync,pwrite64 -o trace \
	"$copy" --flush pieces disk.vmdk
is "$?" 0 "traced"
# The source's size may be asked for.
grep -v '/pieces>' trace | sed 's/\(([0-9]*\)<[^>]*>/\1/' >of-disk
grep -n 'pwrite64([0-9]*, "KDMV' of-disk | head -n 1 | cut -d: -f1 >first
sed -n "$(cat first),\$p" of-disk >after
is "$(grep -cE 'ftruncate|fstat\(|statx|newfstatat\([0-9]+, ""' after)" 0 \
	"the size is neither set nor asked for"
is "$(grep -c 'fsync(.*= 0' after)" 2 "two flushes"
# Between the directories and the first flush there are grains only.
sed '/fsync/q' after | grep 'pwrite64([0-9]*, ' | tail -n +5 |
	sed 's/.*, \([0-9]*\), [0-9]*\( <unf.*\|) *= .*\)$/\1/' |
	awk '{ if ($1 % 65536) bad++ } END { print (NR > 5), bad + 0 }' >whole
is "$(cat whole)" "1 0" "whole grains are written"

# One that is complete does not.
run "$copy" disk.vmdk null:
is "$STATUS:$ERR" "0:" "a complete one is read without a warning"

# Broken off: it says so.
start_nbdkit --filter=delay file pieces rdelay=300ms || bail "nbdkit"
spawn log "$copy" --request-size=64K -R 1 -C 1 "$URI" cut.vmdk
wait_until 20 test -s cut.vmdk
sleep 1
kill -9 "$SPAWNED"
wait "$SPAWNED" 2>/dev/null
stop_server
run "$copy" cut.vmdk null:
is "$STATUS" 0 "one that was broken off is read"
like "$ERR" "warning: cut.vmdk: .* not closed properly" "with a warning"
"$copy" --destination-format=vmdk-stream pieces whole.vmdk
head -c 1000000 whole.vmdk >cut.vmdk
run_fails "$copy" cut.vmdk null:
like "$ERR" "cut.vmdk: incomplete VMDK: it has no footer" "a stream that is cut"

# -------------------------------------------------------------- what is not

run_fails -n "a raw file called vmdk" sh -c "cp pieces x.vmdk; '$copy' x.vmdk null:"
like "$ERR" "x.vmdk: not a VMDK image" "says so"
cp disk.vmdk looks.raw
run_ok -n "a raw disk that looks like one" "$copy" looks.raw back
ok "cmp disk.vmdk back" "stays raw"
run_ok -n "and is one where that is said" "$copy" --source-format=vmdk \
	looks.raw back
ok "cmp pieces back" "then"
for kind in monolithicFlat twoGbMaxExtentSparse twoGbMaxExtentFlat; do
	qemu-img create -q -f vmdk -o subformat=$kind many.vmdk 8M
	run_fails "$copy" many.vmdk null:
	like "$ERR" "many.vmdk: VMDK of type '$kind'" "$kind is refused by name"
	rm -f many*
done
qemu-img create -q -f vmdk -b disk.vmdk -F vmdk child.vmdk
run_fails "$copy" child.vmdk null:
like "$ERR" "child.vmdk: .*changes to another one" "as is one with a parent"
run_fails -n "an unknown format" "$copy" --source-format=qcow2 pieces null:
like "$ERR" "must be one of raw.vmdk.vmdk-stream" "says which there are"
run_fails -n "a server has no format" "$copy" --source-format=vmdk \
	nbd://localhost null:
like "$ERR" "--source-format: what is not a file is always raw" "says so"
run_fails "$copy" --adapter-type=floppy pieces x.vmdk
truncate -s $(((2 << 40) + 512)) huge
: >never.vmdk
run_fails "$copy" huge never.vmdk
like "$ERR" "holds 2 TiB at most" "more than 2 TiB"
is "$(stat -c %s never.vmdk)" 0 "nothing was written"
truncate -s $((2 << 40)) huge
run_ok -n "2 TiB" "$copy" huge huge.vmdk
is "$(qemu-img info huge.vmdk | grep -c '2199023255552 bytes')" 1 "are right"
"$copy" --adapter-type=lsilogic pieces x.vmdk
like "$(tr -d '\0' <x.vmdk | head -c 2000)" 'adapterType = "lsilogic"' \
	"the adapter"

# ------------------------------------------------------------------ damaged

# poke FILE OFFSET BYTES...: little-endian, in hexadecimal.
poke()
{
	local file=$1 at=$2
	shift 2
	# shellcheck disable=SC2059
	printf "$(printf '\\x%s' "$@")" |
		dd of="$file" bs=1 seek="$at" conv=notrunc status=none
}

number()
{
	od -An -t"u$3" -j "$2" -N "$3" "$1" | tr -d ' '
}

rm -f good.vmdk
"$copy" pieces good.vmdk
directory=$(($(number good.vmdk 56 8) * 512))
table=$(($(number good.vmdk "$directory" 4) * 512))
while read -r what at bytes; do
	cp good.vmdk bad.vmdk
	# shellcheck disable=SC2086
	poke bad.vmdk "$at" $bytes
	run_fails -n "damaged: $what" "$copy" bad.vmdk null:
	like "$ERR" "bad.vmdk: .*(damaged|unknown|not a VMDK)" "$ERR"
done <<END
magic 0 00
version 4 04
text 73 0d
no-entries 44 00 00 00 00
too-many-entries 44 00 04 00 00
grain-no-power 20 81
grain-huge 20 00 00 00 00 00 00 00 80
grain-tiny 20 01
capacity 12 ff ff ff ff ff ff ff ff
directory-outside 56 ff ff ff ff
directory-far 56 00 00 00 00 00 00 00 80
table-outside $directory ff ff ff 7f
grain-outside $table ff ff ff 7f
grain-in-the-header $table 01 00 00 00
grain-in-the-tables $table 16 00 00 00
no-description 28 00 00
description-outside 28 ff ff ff ff ff ff ff 7f
END
# Two grains in one place.
cp good.vmdk bad.vmdk
dd if=good.vmdk bs=1 skip="$table" count=4 status=none |
	dd of=bad.vmdk bs=1 seek="$((table + 2044))" conv=notrunc status=none
run_fails -n "damaged: grains on each other" "$copy" bad.vmdk null:
like "$ERR" "cannot read .*: the VMDK image is damaged" "says so"

# The first grain of a stream follows its header.
for what in "65536 01" "65544 ff ff ff 7f" "65544 00 00 00 00" "65550 ff ff" \
	"66000 ff ff ff ff ff"; do
	cp whole.vmdk bad.vmdk
	# shellcheck disable=SC2086
	poke bad.vmdk $what
	run_fails -n "damaged stream: $what" "$copy" bad.vmdk null:
	like "$ERR" "the VMDK image is damaged" "says so"
done
# One that inflates to more than a grain.
bomb=$(perl -MCompress::Zlib -e 'print unpack("H*", compress("\0" x (64 << 20)))' 2>/dev/null)
if [ "$bomb" ]; then
	cp whole.vmdk bad.vmdk
	perl -e 'print pack("V", length($ARGV[0]) / 2), pack("H*", substr($ARGV[0], 0, 400))' \
		"$bomb" | dd of=bad.vmdk bs=1 seek=65544 conv=notrunc status=none
	run_fails -n "a grain that inflates to too much" "$copy" bad.vmdk null:
else
	pass "not tested without Compress::Zlib"
fi

done_testing
