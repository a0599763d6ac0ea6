#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# nbdfs-copy --map: a picture of a source's extents, and all of them as JSON.

# shellcheck disable=SC2119 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy nbdkit qemu-nbd qemu-img qemu-io nbdkit-plugin:data \
	nbdkit-plugin:eval nbdkit-filter:error nbdkit-filter:delay

map()
{
	run "$NBDFS_COPY" --map "$@"
}

# runs: the JSON in OUT, "type start length" a line.
runs()
{
	sed -nE 's/^\{ "start": ([0-9]+), "length": ([0-9]+), "type": "([a-z]+)" \},?$/\3 \1 \2/p' \
		<<<"$OUT"
}

# ---------------------------------------------------------------------- JSON

# Data, space that is zero, holes; also holes that are short, at the end and
# at odd places, and runs that the server tells in pieces.
# shellcheck disable=SC2016
start_nbdkit eval get_size='echo 1M' pread='head -c $3 /dev/zero' \
	can_extents=true extents='
	echo "0 8192"; echo "8192 4096 zero"; echo "12288 4096 zero"
	echo "16384 512 hole,zero"; echo "16896 7680"; echo "24576 8192 hole"
	echo "32768 1015807 hole,zero"; echo "1048575 1"' || bail "nbdkit"
map --json "$URI"
is "$STATUS $ERR" "0 " "a map"
is "$(runs)" "data 0 8192
zero 8192 8192
hole 16384 512
data 16896 15872
hole 32768 1015807
data 1048575 1" "all runs, neighbours that differ"
is "$(head -n 1 <<<"$OUT")$(tail -n 1 <<<"$OUT")" "[]" "an array"
if command -v jq >/dev/null; then
	is "$(jq 'map(.length) | add' <<<"$OUT")" 1048576 "that a parser takes"
else
	is "$(grep -c '},$' <<<"$OUT")" 5 "with commas between"
fi
map "$URI"
like "$OUT" "zero +8 KiB +0.8%  in 1 run, the longest 8 KiB" "zero is counted"
like "$OUT" "hole +992.5 KiB +96.9%  in 2 runs, the longest 992.0 KiB" \
	"holes are"
like "$OUT" "half, - zero, \. hole" "and explained"
stop_server

# A server that answers in small pieces.
# shellcheck disable=SC2016
map --json [ nbdkit eval get_size='echo 64K' pread='head -c $3 /dev/zero' \
	can_extents=true extents='echo "$4 4096"' ]
is "$(runs)" "data 0 65536" "what was told in pieces is one run"

# ------------------------------------------------------------------- picture

# 77 characters, of which each is 64 KiB.
truncate -s $((77 * 65536)) "$T/disk"
dd if=/dev/urandom of="$T/disk" bs=64K count=2 conv=notrunc status=none
dd if=/dev/urandom of="$T/disk" bs=4K seek=$((16 * 10)) count=1 conv=notrunc \
	status=none
dd if=/dev/urandom of="$T/disk" bs=4K seek=$((16 * 76)) count=15 \
	conv=notrunc status=none
dots()
{
	printf '%*s' "$1" '' | tr ' ' .
}
bar="[##$(dots 8)+$(dots 65)#]"
start_nbdkit file "$T/disk" || bail "nbdkit"
for source in "$T/disk" "$URI"; do
	map "$source"
	is "$(sed -n 2p <<<"$OUT")" "$bar" "the bar of $source"
	is "$(awk 'NR > 1 { if (length > n) n = length } END { print n <= 80 }' \
		<<<"$OUT")" 1 "it fits"
	like "$OUT" "a character is 64 KiB" "and has a scale"
	is "$(sed -nE 's/^(data|hole) +([0-9.]+ .iB) .* in ([0-9]+) runs.*/\1 \2 \3/p' \
		<<<"$OUT")" "data 192 KiB 3
hole 4.6 MiB 3" "totals"
	is "$(sed -n '/Largest/,$p' <<<"$OUT" | sed -E 's/ +/ /g')" \
		"Largest runs:
hole 4.1 MiB at 659456
hole 512 KiB at 131072
data 128 KiB at 0
data 60 KiB at 4980736
data 4 KiB at 655360" "the largest runs"
done
map --json "$URI"
is "$(runs)" "data 0 131072
hole 131072 524288
data 655360 4096
hole 659456 4321280
data 4980736 61440
hole 5042176 4096" "the same in JSON"
stop_server

# As wide as the terminal.
if command -v script >/dev/null; then
	for width in 40 100 3; do
		script -qec "stty cols $width; $NBDFS_COPY --map $T/disk" \
			"$T/typescript" </dev/null >/dev/null 2>&1
		bar=$(tr -d '\r' <"$T/typescript" | grep '^\[[#+.]')
		want=$((width - 1))
		[ $width -ge 20 ] || want=19
		is ${#bar} $want "$width columns"
	done
fi

# Small and empty sources.
: >"$T/none"
map "$T/none"
is "$STATUS $OUT" "0 $T/none: 0 B (0 bytes)" "nothing"
map --json "$T/none"
is "$STATUS $(tr -d '\n' <<<"$OUT")" "0 []" "nothing, JSON"
printf abc >"$T/three"
map "$T/three"
is "$(sed -n 2p <<<"$OUT")" "[###]" "three bytes"

# The largest disk there is, without a byte of data in a picture's cell.
if nbdkit --dump-plugin file >/dev/null && [ -n "$NBDFS_TEST_FULL" ]; then
	map [ nbdkit memory 1T ]
	is "$(sed -n 2p <<<"$OUT")" "[$(dots 77)]" "an empty disk of 1 TiB"
fi

# ------------------------------------------------------------------- bitmaps

qemu-img create -q -f qcow2 "$T/disk.qcow2" 8M
qemu-img bitmap --add -g 64k "$T/disk.qcow2" b0
qemu-io -c "write -P 1 1M 64k" -c "write -z 2M 64k" "$T/disk.qcow2" \
	>"$T/qemu-io.log"
map --json --dirty=b0 [ qemu-nbd -r -f qcow2 -B b0 "$T/disk.qcow2" ]
is "$(runs)" "clean 0 1048576
dirty 1048576 65536
clean 1114112 983040
dirty 2097152 65536
clean 2162688 6225920" "what a bitmap marks"
map --dirty=b0 [ qemu-nbd -r -f qcow2 -B b0 "$T/disk.qcow2" ]
like "$OUT" "dirty +128 KiB +1.6%  in 2 runs" "as a picture"

# -------------------------------------------------------- what cannot be told

map [ nbdkit --no-sr memory 1M ]
is "$STATUS $(sed -n 2p <<<"$OUT")" \
	"0 It does not tell where it has holes: all counts as data." \
	"a server without block status"
map --json [ nbdkit --no-sr memory 1M ]
is "$(runs)" "data 0 1048576" "JSON"
map --no-extents "$T/disk"
like "$OUT" "data .* 100.0%  in 1 run" "--no-extents"
start_nbdkit --filter=error memory 1M error-extents=EIO \
	error-extents-rate=100% || bail "nbdkit"
map "$URI"
like "$STATUS $(wc -l <<<"$ERR") $ERR" \
	"^1 1 nbdfs-copy: nbd.*: cannot tell the extents at offset 0: Input/" \
	"an error"
stop_server
run bash -c "echo abc | '$NBDFS_COPY' --map -"
is "$STATUS $ERR" "1 nbdfs-copy: standard input: what is read like a pipe has no map" "a pipe"
map "$T/nosuch"
is "$STATUS $ERR" "1 nbdfs-copy: $T/nosuch: No such file or directory" \
	"no such file"
for args in "" "$T/disk $T/none" "--verify $T/disk" "null:"; do
	# shellcheck disable=SC2086
	map $args
	is "$STATUS" 2 "wrong: --map $args"
done
is "$(stat -c %s "$T/none")" 0 "nothing was copied"
run bash -c "'$NBDFS_COPY' --map '$T/disk' >/dev/full"
like "$STATUS $ERR" "^1 nbdfs-copy: standard output" "a full disk is told"

# Interrupted while the server thinks.
start_nbdkit --filter=delay memory 1M delay-extents=20 || bail "nbdkit"
"${_launcher[@]}" "$NBDFS_COPY" --map "$URI" >"$T/map.out" 2>&1 &
pid=$!
sleep 1
kill -INT $pid
wait_until 5 _gone $pid
wait $pid
is $? 130 "interrupted"
stop_server

done_testing
