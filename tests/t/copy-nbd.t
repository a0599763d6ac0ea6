#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# NBD servers as ends of nbdfs-copy: the exact requests, zeroes and space,
# block status that is slow or fails, lost connections, comparing, limits.

# shellcheck disable=SC2002,SC2034,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy nbdkit nbdkit-plugin:file nbdkit-filter:log nbdkit-filter:delay \
	nbdkit-filter:error nbdkit-filter:noextents nbdkit-filter:nozero \
	nbdkit-filter:blocksize-policy nbdkit-filter:checkwrite \
	nbdkit-filter:cache

cd "$T" || exit 1
copy=$NBDFS_COPY

# 4 MiB: 1 MiB and 100 KiB of data, a hole, 64 KiB of data at the end.
truncate -s 4M src
head -c $((1048576 + 102400)) /dev/urandom | dd of=src conv=notrunc status=none
head -c 65536 /dev/urandom |
	dd of=src bs=64k seek=63 conv=notrunc status=none
head -c 4M /dev/zero | tr '\0' x >old

# logged ARGS...: a server that notes its requests.
logged()
{
	next_nbdkit
	start_nbdkit "$@" logfile="$REQUESTS"
}

# ----------------------------------------------------------- exact requests

cp old disk
logged --filter=log file disk
run_ok -n "file to server" "$copy" src "$URI"
is "$(requests Read Write Zero Trim Flush | sed 's/ fast=.*//' | sort)" \
"Write 0x0 0x80000 fua=0
Write 0x100000 0x19000 fua=0
Write 0x3f0000 0x10000 fua=0
Write 0x80000 0x80000 fua=0
Zero 0x119000 0x2d7000 trim=1 fua=0" "what the server sees" ||
	requests | sed 's/^/# /'
ok "cmp src disk" "is right"

: >"$REQUESTS"
run_ok -n "once more, with --flush" "$copy" --flush src "$URI"
is "$(requests Zero Trim Flush)" "Flush" \
	"what is zero already is not zeroed, all is flushed"

: >"$REQUESTS"
run_ok "$copy" --allocated --no-extents src "$URI"
is "$(requests Zero | wc -l)" 0 "--allocated writes what it read"
is "$(stat -c %b disk)" 8192 "and all space is taken"
: >"$REQUESTS"
run_ok "$copy" --allocated src "$URI"
is "$(requests Zero Trim | sed 's/ fast=.*//')" "Zero 0x119000 0x2d7000 trim=0 fua=0" \
	"--allocated: zeroes that keep their space" ||
	requests | sed 's/^/# /'
is "$(stat -c %b disk)" 8192 "which they do"
ok "cmp src disk" "is right"

: >"$REQUESTS"
run_ok "$copy" --destination-is-zero src "$URI"
is "$(requests Zero Trim Extents | wc -l)" 0 \
	"--destination-is-zero: not a word about zeroes"
: >"$REQUESTS"
run_ok "$copy" -S 0 --no-extents --request-size=64K src "$URI"
is "$(requests Write | awk '{ print $3 }' | sort | uniq -c | xargs)" \
	"64 0x10000" "a request size that is set is exact"

: >"$REQUESTS"
run_ok -n "server to null:" "$copy" "$URI" null: --request-size=1M
is "$(requests Read | sort)" \
"Read 0x0 0x100000
Read 0x100000 0x100000
Read 0x200000 0x100000
Read 0x300000 0x100000" "everything is read, now that all is data"

cp src disk2
logged --filter=log file disk2
run_ok "$copy" "$URI" null:
is "$(requests Read | sort)" "Read 0x0 0x80000
Read 0x100000 0x19000
Read 0x3f0000 0x10000
Read 0x80000 0x80000" "holes are not read"
is "$(count_requests Extents)" 1 "and asked for once"
: >"$REQUESTS"
run_ok "$copy" --no-extents "$URI" got
is "$(count_requests Extents)" 0 "--no-extents does not ask"
is "$(count_requests Read)" 8 "and reads everything"
ok "cmp src got" "is right"
is "$(stat -c %b got)" "$(stat -c %b src)" "zeroes are found all the same"
: >"$REQUESTS"
run_ok "$copy" --synchronous --no-extents "$URI" got
is "$(requests Read | awk '{ print $2 }' | xargs)" \
	"0x0 0x100000 0x200000 0x300000" "--synchronous: one after the other"

# ---------------------------------------------------------------- read-only

next_nbdkit
start_nbdkit -r file src || bail "nbdkit"
run_fails "$copy" got "$URI"
like "$ERR" "^nbdfs-copy: nbd.unix:.*: the export is read-only$" \
	"what cannot be written is named"

# ------------------------------------------------------------------- limits

logged --filter=log --filter=delay --filter=noextents file src rdelay=20ms
run_ok "$copy" -R 2 -C 1 --request-size=64K "$URI" got
awk '/Read id/ && !/\.\.\.Read/ { n++; if (n > max) max = n }
	/\.\.\.Read/ { n-- } END { print max }' "$REQUESTS" >most
is "$(<most)" 2 "-R bounds the requests in flight"
ok "cmp src got" "is right"
: >"$REQUESTS"
run_ok "$copy" --queue-size=256K --request-size=64K "$URI" got
awk '/Read id/ && !/\.\.\.Read/ { n++; if (n > max) max = n }
	/\.\.\.Read/ { n-- } END { print max }' "$REQUESTS" >most
is "$(<most)" 4 "--queue-size bounds the bytes in flight"

begin=$(date +%s%N)
run_ok "$copy" --rate=4M "$URI" null:
ms=$((($(date +%s%N) - begin) / 1000000))
ok "[ $ms -ge 800 ] && [ $ms -le 4000 ]" "--rate: 4 MiB in about a second"

# A server with blocks, and with small requests.
cp old disk3
start_nbdkit --filter=blocksize-policy file disk3 blocksize-minimum=4096 \
	blocksize-maximum=65536 blocksize-error-policy=error
head -c 3000001 src >odd
run_ok -n "to a server with blocks" "$copy" odd "$URI"
ok "cmp -n 3000001 odd disk3 && cmp -i 3000001 old disk3" \
	"its tail is left, also inside a block"

# ------------------------------------------------------------------- zeroes

for zeromode in none emulate; do
	cp old disk4
	start_nbdkit --filter=nozero file disk4 zeromode=$zeromode
	run_ok "$copy" src "$URI"
	ok "cmp src disk4" "zeroes arrive: zeromode=$zeromode"
done
# Only zeroes may be written where there are zeroes.
start_nbdkit --filter=checkwrite file src
run_ok -n "data where data belongs" "$copy" src "$URI"

next_nbdkit
start_nbdkit --filter=error file src error=EIO error-extents-rate=100%
run_ok -n "block status that fails" "$copy" "$URI" got
ok "cmp src got" "is no reason to read zeroes"
is "$(stat -c %b got)" "$(stat -c %b src)" "nor to lose holes"

# -------------------------------------------------------- errors and retries

truncate -s 64M many
for ((i = 0; i < 64; i += 4)); do
	head -c 1M /dev/urandom |
		dd of=many bs=1M seek=$i conv=notrunc status=none
done
next_nbdkit
start_nbdkit --filter=error file many error=EIO error-pread-rate=20%
run_ok -n "reads that fail are tried again" "$copy" --retries=20 "$URI" got
ok "cmp many got" "until they are right"
next_nbdkit
start_nbdkit --filter=error file many error=EIO error-pread-rate=100%
run_fails "$copy" --retries=1 "$URI" got
like "$ERR" "cannot read at offset [0-9]+: Input/output error" \
	"but not for ever"
is "$(wc -l <<<"$ERR")" 1 "one line says so" || diag "$ERR"
cp old disk5
next_nbdkit
start_nbdkit --filter=error file disk5 error=ENOSPC error-pwrite-rate=100%
run_fails "$copy" src "$URI"
like "$ERR" "cannot write at offset [0-9]+: No space left" \
	"a full server is an error at once"
is "$(wc -l <<<"$ERR")" 1 "one line says so"
next_nbdkit
start_nbdkit --filter=error file disk5 error=ENOSPC error-zero-rate=100%
truncate -s "$(stat -c %s disk5)" hole
run_fails "$copy" hole "$URI"
like "$ERR" "^[^()]*: cannot zero at offset [0-9]+: No space left on device$" \
	"and so are zeroes for which it has no room"

# A socket is not a file, although it has a name.
next_nbdkit
start_nbdkit file src
for way in "$SOCK out" "src $SOCK"; do
	# shellcheck disable=SC2086
	run_fails "$copy" $way
	is "$ERR" "nbdfs-copy: $SOCK: is a socket; its server is \
nbd+unix:///?socket=$SOCK" "a socket is no file"
done

# A server that dies in the middle, and comes back.
next_nbdkit
start_nbdkit --filter=delay file many rdelay=50ms
"$copy" --rate=16M --retries=4 "$URI" got 2>err &
pid=$!
sleep 0.4
kill_server
rm -f "$SOCK"
sock=$SOCK
sleep 0.3
spawn "$SERVER_LOG" nbdkit -f -U "$sock" file many
wait $pid
is $? 0 "a connection is made again" || sed 's/^/# /' err
ok "cmp many got" "and nothing is lost"

next_nbdkit
start_nbdkit --filter=delay file many rdelay=50ms
"$copy" --rate=16M --retries=0 "$URI" got 2>err &
pid=$!
sleep 0.4
kill_server
wait $pid
is $? 1 "--retries=0: a lost connection is an error"
is "$(wc -l <err)" 1 "of one line" || sed 's/^/# /' err

# Written, never flushed, and gone with the server: copied again.
dies_while_written()
{
	next_nbdkit
	start_nbdkit memory 64M
	"$copy" --rate=16M "--retries=$1" many "$URI" 2>err &
	pid=$!
	sleep 0.4
	kill_server
	rm -f "$SOCK"
	spawn "$SERVER_LOG" nbdkit -f -U "$SOCK" memory 64M
	wait $pid
}
dies_while_written 4
is $? 0 "what a server lost is written again" || sed 's/^/# /' err
run_ok "$copy" "$URI" got
ok "cmp many got" "all of it"
dies_while_written 0
is $? 1 "--retries=0: or the copy has failed"

# ---------------------------------------------------------------- comparing

cp old disk6
start_nbdkit file disk6
run_ok "$copy" --verify src "$URI"
# A disk that forgets: one byte is wrong when it is read again.
cat >liar <<-'END'
	case $1 in
	get_size) stat -c %s disk6 ;;
	can_write) exit 0 ;;
	pwrite)
		dd of=disk6 bs=64k seek=$4 oflag=seek_bytes conv=notrunc \
			status=none
		if [ "$4" = 1048576 ]; then
			printf x | dd of=disk6 bs=1 seek=1048577 \
				conv=notrunc status=none
		fi
		;;
	pread) dd if=disk6 bs=64k skip=$4 count=$3 \
		iflag=skip_bytes,count_bytes,fullblock status=none ;;
	*) exit 2 ;;
	esac
END
chmod +x liar
cp old disk6
if start_nbdkit sh liar; then
	run "$copy" --verify src "$URI"
	is "$STATUS" 1 "--verify finds a byte that is wrong"
	like "$ERR" "differs from the source at offset 1048577" \
		"and says where"
fi

# --------------------------------------------------------- size and slowness

truncate -s 5M larger
run_fails "$copy" larger "$URI"
like "$ERR" "too small: 4194304 bytes, the source has 5242880" \
	"too small a server is refused"
run_fails "$copy" "nbd+unix:///?socket=$T/nowhere" new
ok "[ ! -e new ]" "a server that is not there: nothing is made"

start_nbdkit --filter=delay memory 100G delay-extents=10ms
begin=$(date +%s%N)
run_ok -n "100 GiB of nothing" "$copy" "$URI" nothing
ms=$((($(date +%s%N) - begin) / 1000000))
diag "$ms ms"
ok "[ $ms -le 2000 ]" "take no time, although block status is slow"
is "$(stat -c '%s %b' nothing)" "107374182400 0" "and no space"
rm nothing

# Memory: 512 MiB of data, whatever the depth.
if command -v python3 >/dev/null; then
	start_nbdkit pattern 512M
	peak=$(python3 - "$copy" "$URI" <<-'END'
		import os, resource, subprocess, sys
		subprocess.run([sys.argv[1], sys.argv[2], "null:"], check=True)
		print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
	END
	)
	diag "peak: $peak KiB"
	if nm "$copy" 2>/dev/null | grep -q "__[at]san_init"; then
		pass "memory: not measured under a sanitizer"
	else
		ok "[ $peak -le 32768 ]" "16 MiB beside the queue are enough"
	fi
fi

# ------------------------------------------------- whose error it is

# One zero range fails once while another, and some writes, are under way: that
# one is sent again.
truncate -s 16M holes
head -c 2M /dev/urandom | dd of=holes bs=1M seek=6 conv=notrunc status=none
head -c 16M /dev/zero | tr '\0' x >disk9
start_nbdkit eval thread_model="echo parallel" \
	get_size="stat -Lc %s $T/disk9" \
	pread="dd if=$T/disk9 skip=\$4 count=\$3 bs=64k status=none \
		iflag=skip_bytes,count_bytes" \
	can_write="exit 0" pwrite="dd of=$T/disk9 seek=\$4 conv=notrunc \
		bs=64k oflag=seek_bytes status=none" \
	can_zero="exit 0" zero="if [ \$4 = 0 ]; then sleep 0.5
		elif mkdir $T/failed; then echo EIO once >&2; exit 1; fi
		fallocate -zno \$4 -l \$3 $T/disk9"
run_ok -n "a zero range that fails once" "$copy" holes "$URI"
ok "[ -d failed ]" "did so"
ok "cmp holes disk9" "and is zero in the end"
rmdir failed
cp old disk9
run_fails "$copy" --retries=0 src "$URI"
like "$ERR" "cannot zero at offset 1150976: Input" "it is named, if it stays so"

# ------------------------------------------------------------- subprocesses

run_ok -n "both ends are run by it" "$copy" [ nbdkit file src ] got -v
ok "cmp src got" "is right"
cp old disk7
run_ok "$copy" [ nbdkit -r file src ] [ nbdkit file disk7 ]
ok "cmp src disk7" "from one to the other"
cp old disk7
run_ok "$copy" src [ nbdkit --filter=cache file disk7 ]
ok "cmp src disk7" "a server that ends with the copy is flushed before"
run_fails "$copy" [ no-such-server ] got
run_fails "$copy" [ false ] got

# ------------------------------------------------------------------ threads

start_nbdkit file many
run_ok -n "-T 4" "$copy" -T 4 "$URI" got
ok "cmp many got" "is right"
head -c 64M /dev/zero | tr '\0' x >disk8
start_nbdkit file disk8
run_ok "$copy" --threads=3 -C 3 --verify --flush many "$URI"
ok "cmp many disk8" "in the other direction"
next_nbdkit
start_nbdkit --filter=error file many error=EIO error-pread-rate=100%
run_fails "$copy" -T 4 --retries=0 "$URI" got
is "$(wc -l <<<"$ERR")" 1 "one line says so" || diag "$ERR"

done_testing
