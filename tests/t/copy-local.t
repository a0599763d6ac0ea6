#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Files, block devices and pipes as ends of nbdfs-copy: what is created, what
# is refused, how zeroes are made, and the system calls that all this takes.

# shellcheck disable=SC2002,SC2034,SC2094,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy strace

cd "$T" || exit 1
copy=$NBDFS_COPY

# A source of 1 MiB: data, hole, data to the end.
truncate -s 1M src
head -c 100000 /dev/urandom | dd of=src conv=notrunc status=none
head -c 65536 /dev/urandom |
	dd of=src bs=64k seek=15 conv=notrunc status=none

# traced FILE ARGS...: what nbdfs-copy ARGS did to FILE is in "calls", the
# bytes left out, F for the descriptor. INJECT is what strace makes fail.
traced()
{
	local file inject=()
	file=$(realpath -m "$1")
	shift
	[ -z "$INJECT" ] || inject=(-e "inject=$INJECT")
	rm -f trace.*
	# Leaks cannot be looked for under strace.
	ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 LSAN_OPTIONS='' \
		timeout -k 5 60 strace -ff -y -qq -s 0 -o trace "${inject[@]}" \
		"$copy" "$@" 2>err
	STATUS=$?
	ERR=$(<err)
	cat trace.* | awk -v file="<$file" '
	BEGIN { FS = "(" }
	$1 !~ /^(pread64|pwrite64|preadv2|ftruncate|fallocate|ioctl|fsync|lseek)$/ { next }
	!index($0, file) || /BLKGETSIZE64|BLKSSZGET/ { next }
	{
		gsub(/""[.]*/, "...")
		gsub(/[0-9]+<[^>]*>+/, "F")
		gsub(/FALLOC_FL_/, "")
		gsub(/ +/, " ")
		print
	}' >calls
}

# call NAME: those of one name.
call()
{
	grep "^$1(" calls
}

# ------------------------------------------------------- files: what happens

run_ok -n "a new file" "$copy" src new
ok "cmp src new" "has the bytes"
is "$(stat -c %b new)" "$(stat -c %b src)" "and the holes"
is "$(stat -c %a new)" 644 "and is made as the umask says"

head -c 3000000 /dev/zero | tr '\0' x >larger
run_ok -n "over a larger file" "$copy" src larger
ok "cmp src larger" "nothing of it is left"
head -c 1000 /dev/zero | tr '\0' x >smaller
run_ok -n "options after the operands" "$copy" src smaller --no-extents -S 0
ok "cmp src smaller" "over a smaller file"
is $(($(stat -c %b smaller) >= 2048)) 1 "-S 0 --no-extents: no hole at all"

: >nothing
cp larger emptied
run_ok -n "an empty source" "$copy" nothing emptied
is "$(stat -c %s emptied)" 0 "makes an empty file"

echo precious >precious
run_fails "$copy" no-such-file precious
is "$(<precious)" precious "without a source the destination is not touched"
like "$ERR" "^nbdfs-copy: no-such-file: No such file or directory$" \
	"one line says what is wrong"
run_fails "$copy" no-such-file not-made
ok "[ ! -e not-made ]" "nor made"
ln src hardlink
cp src copy-of-src
run_fails "$copy" src hardlink
like "$ERR" "is the source itself" "a file is not copied onto itself"
ok "cmp src copy-of-src" "and not emptied"
run_fails "$copy" src .
run_fails "$copy" . new
run_fails "$copy" src no-such-folder/x
run_fails "$copy" src ''
is "$ERR" "nbdfs-copy: '': No such file or directory" "a name is missing"
for name in http://host/disk nbd:host/disk; do
	run_fails "$copy" $name new
	like "$ERR" "^nbdfs-copy: $name: neither a file nor an NBD URI" \
		"a URI of another kind"
done

# ------------------------------------------------------------------ streams

cat src | "$copy" - piped
ok "cmp src piped" "from a pipe to a file"
is $(($(stat -c %b piped) < 1000)) 1 "zeroes become holes"
{ printf ''; } | "$copy" - piped
is "$(stat -c %s piped)" 0 "from an empty pipe"
(head -c 700000 src; head -c 1000000 /dev/zero) | "$copy" - piped
is "$(stat -c %s piped)" 1700000 "zeroes at the end count"
"$copy" src - | cmp - src
ok $? "to a pipe"
"$copy" src - >redirected
ok "cmp src redirected" "to a redirected file"
(echo before; "$copy" src -; echo after) >appended
(echo before; cat src; echo after) | cmp - appended
ok $? "to the middle of a redirected file"
echo before >appended2
"$copy" src - >>appended2
(echo before; cat src) | cmp - appended2
ok $? "to a file that is appended to"
head -c 64M /dev/urandom >wide
for format in raw vmdk vmdk-stream; do
	("$copy" --threads=4 --destination-format=$format wide -; echo after) \
		>followed
	is "$(tail -c 6 followed)" after "what is written after it ($format)"
	truncate -s -6 followed
	"$copy" --source-format="${format%-stream}" followed - | cmp - wide
	ok $? "is behind all of it"
done
(head -c 5000 >/dev/null; "$copy" - rest) <src
cmp <(tail -c +5001 src) rest
ok $? "from the middle of a file"
cp src itself
(head -c 5000 >/dev/null; "$copy" - itself) <itself 2>err
is $? 1 "and not into that file"
like "$(<err)" "itself: is the source itself" "which is said"
(head -c 5000 >/dev/null; timeout 5 "$copy" - -) <itself >>itself 2>err
is $? 1 "nor behind it"
ok "cmp src itself" "it is what it was"
mkfifo fifo
cat src >fifo &
run_ok -n "from a named pipe" "$copy" fifo from-fifo
ok "cmp src from-fifo" "gives its bytes"
run_ok "$copy" src /dev/null
run_ok -n "from a device without contents" "$copy" /dev/null from-null
is "$(stat -c %s from-null)" 0 "nothing"
run_ok -n "a file that has contents and no size" "$copy" /proc/filesystems proc
ok "[ -s proc ] && cmp /proc/filesystems proc" "is read to its end"
"$copy" - proc </proc/filesystems
ok "cmp /proc/filesystems proc" "also as standard input"
file=/sys/class/net/lo/mtu
if [ -r $file ]; then
	run_ok -n "a file that is shorter than its size" "$copy" $file sys
	ok "cmp $file sys" "is read to its end"
fi
run_fails "$copy" --map /proc/filesystems
truncate -s 8M long
"$copy" long - 2>/dev/null | head -c 1000 >/dev/null
is "${PIPESTATUS[0]}" 1 "a reader that goes away is an error"
"$copy" src - >/dev/full 2>err
isnt $? 0 "a full device is an error"
like "$(<err)" "No space left" "that is named"

# ------------------------------------------------------------- system calls

# Where files are in memory, and where they are on a disk.
places=("$T")
if [ -d /dev/shm ] && [ -w /dev/shm ]; then
	shm=$(mktemp -d /dev/shm/nbdfs-test.XXXXXX)
	on_exit rm -rf "$shm"
	places+=("$shm")
fi
if [ "$(id -u)" = 0 ] && command -v mkfs.xfs >/dev/null; then
	truncate -s 320M xfs.img
	mkfs.xfs -q xfs.img
	mkdir xfs
	if mount -o loop xfs.img xfs 2>/dev/null; then
		on_exit umount xfs
		places+=("$T/xfs")
	fi
fi

data="pwrite64(F, ..., 102400, 0) = 102400
pwrite64(F, ..., 65536, 983040) = 65536"
for place in "${places[@]}"; do
	type=$(stat -f -c %T "$place")
	file=$place/traced
	traced "$file" src "$file"
	is "$STATUS:$(sort calls)" "0:ftruncate(F, 1048576) = 0
$data" "$type: the size once, then the data" || diag "$ERR"

	traced "$file" --flush src "$file"
	is "$(head -n 2 calls; call pwrite64 | sort; call fsync)" \
"ftruncate(F, 0) = 0
ftruncate(F, 1048576) = 0
$data
fsync(F) = 0" "$type: over an old file, and safe"

	rm "$file"
	traced "$file" --allocated src "$file"
	is "$(call fallocate)" \
		"fallocate(F, KEEP_SIZE, 102400, 880640) = 0" \
		"$type: --allocated"
	is $(($(stat -c %b "$file") >= 2048)) 1 "$type: takes all its space"
	ok "cmp src '$file'" "$type: is right"

	cp src "$place/again"
	traced "$place/again" "$place/again" null:
	is "$(call lseek)" "lseek(F, 0, SEEK_DATA) = 0
lseek(F, 0, SEEK_HOLE) = 102400
lseek(F, 102400, SEEK_DATA) = 983040
lseek(F, 983040, SEEK_HOLE) = 1048576" "$type: holes are looked for"
	is "$(awk '/^pread/ { n += $NF } END { print n }' calls)" 167936 \
		"$type: and not read"
done

# What cannot be done is not tried again; what only failed is.
truncate -s 3M holey
for i in 0 1 2; do
	head -c 4096 /dev/urandom |
		dd of=holey bs=1M seek=$i conv=notrunc status=none
done
zeroes="pwrite64(F, ..., 1044480, 4096) = 1044480
pwrite64(F, ..., 1044480, 1052672) = 1044480
pwrite64(F, ..., 1044480, 2101248) = 1044480"
INJECT=fallocate:error=EOPNOTSUPP traced "$T/nofall" --allocated --synchronous \
	holey nofall
is "$(call fallocate | sed 's/ = .*//' | sort -u | wc -l)" 2 \
	"each way that is missing is tried once" || sed 's/^/# /' calls
is "$(call pwrite64 | grep 1044480 | sort)" "$(sort <<<"$zeroes")" \
	"then zeroes are written"
ok "cmp holey nofall" "and are right"
rm nofall
INJECT=fallocate:error=EINVAL traced "$T/nofall" --allocated holey nofall
is "$(call fallocate | sed 's/ = .*//' | sort -u | wc -l)" 9 \
	"after another error all are tried again" || sed 's/^/# /' calls
ok "cmp holey nofall" "with the same result"
rm nofall
INJECT=fallocate:error=ENOSPC traced "$T/nofall" --allocated holey nofall
is "$STATUS" 1 "no space is an error"
like "$ERR" "nofall: cannot zero at offset [0-9]+: No space left" \
	"that says where"
INJECT=pwrite64:error=EIO traced "$T/nofall" src nofall
is "$STATUS" 1 "a failing disk is an error"
like "$ERR" "^nbdfs-copy: nofall: cannot write at offset [0-9]+: Input/output" \
	"that says where"
head -c 3M /dev/urandom >shrinks
(sleep 0.3; truncate -s 100000 shrinks) &
run_fails "$copy" --rate=1M shrinks nofall
shorter="became shorter while it was copied: it had"
like "$ERR" "^nbdfs-copy: shrinks: $shorter 3145728 bytes, and has 100000\$" \
	"a file that becomes shorter is an error"
truncate -s 3M shrinks
head -c 700k /dev/urandom | dd of=shrinks conv=notrunc status=none
(sleep 0.3; truncate -s 2M shrinks) &
run_fails "$copy" --rate=1M shrinks nofall
like "$ERR" "^nbdfs-copy: shrinks: $shorter" \
	"also where only a hole is missing" || cmp shrinks nofall
head -c 700k /dev/urandom >grows
(sleep 0.3; cat src >>grows) &
run_ok -n "a file that becomes longer" "$copy" --rate=1M grows grown
is "$(stat -c %s grown)" 716800 "is copied as long as it was"
like "$ERR" "^nbdfs-copy: warning: grows: became longer" "with a warning"
INJECT=lseek:error=EINVAL traced "$T/src" src nofall
is "$STATUS" 0 "a file system that cannot tell holes is read"
ok "cmp src nofall" "and is right"
is "$(call lseek | wc -l)" 1 "it is asked once"

# ------------------------------------------------------------ block devices

if [ "$(id -u)" = 0 ] && losetup -f >/dev/null 2>&1; then
	head -c 2M /dev/zero | tr '\0' x >disk
	loop=$(losetup -f --show disk)
	on_exit losetup -d "$loop"
	{
		head -c 4096 /dev/zero
		traced "$loop" --flush src -
	} 1<>"$loop"
	is "$STATUS:$(call fsync)" "0:fsync(F) = 0" \
		"the middle of a block device is flushed"
	head -c 2M /dev/zero | tr '\0' x >"$loop"
	traced "$loop" src "$loop"
	is "$STATUS:$(sort calls)" \
"0:fallocate(F, KEEP_SIZE|PUNCH_HOLE, 102400, 880640) = 0
$data" "a block device: punched and written" || diag "$ERR"
	sync "$loop"
	ok "cmp -n 1048576 src disk" "the bytes are there"
	is "$(tail -c 1048576 disk | tr -d x | wc -c)" 0 "its tail is left"
	is $(($(stat -c %b disk) <= 2048 + 400)) 1 "its backing has a hole"

	INJECT=fallocate:error=EOPNOTSUPP traced "$loop" src "$loop"
	is "$(call ioctl)" "ioctl(F, BLKZEROOUT, [102400, 880640]) = 0" \
		"then BLKZEROOUT" || sed 's/^/# /' calls
	ok "cmp -n 1048576 src $loop" "is right"
	traced "$loop" --allocated src "$loop"
	is "$(call fallocate)" \
	"fallocate(F, KEEP_SIZE|ZERO_RANGE, 102400, 880640) = 0" \
		"--allocated: zeroes that keep their space"

	# Neither end on a sector.
	cp src unaligned
	truncate -s 1000001 unaligned
	fallocate -p -o 5000 -l 900000 unaligned
	head -c 2M /dev/zero | tr '\0' x >disk
	blockdev --flushbufs "$loop"
	run_ok "$copy" unaligned "$loop"
	cat "$loop" >got
	ok "cmp -n 1000001 unaligned got" "a size off the sectors"
	is "$(tail -c +1000002 got | tr -d x | wc -c)" 0 "and its tail is left"

	head -c 2097153 /dev/urandom >toolarge
	cp disk before
	run_fails "$copy" toolarge "$loop"
	like "$ERR" "$loop: too small" "too small a device is refused"
	ok "cmp disk before" "before anything is written"
	(cat toolarge; echo) | "$copy" - "$loop" 2>err
	is $? 1 "a pipe that does not end in time is an error"
	like "$(<err)" "longer than its 2097152 bytes" "that says so"
	run_ok -n "from a block device" "$copy" "$loop" from
	ok "cmp $loop from" "every byte"
	run_fails "$copy" "$loop" "$loop"
	like "$ERR" "is the source itself" "a device not onto itself"
else
	diag "no loop devices: left out"
fi

done_testing
