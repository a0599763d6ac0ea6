#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What people do with disks: partition them, make file systems, mount these,
# write from several programs, append, copy again.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fileops nbdkit qemu-nbd nbdkit-filter:log sfdisk \
	mkfs.ext4 e2fsck rsync

ops=$NBDFS_HELPERS/fileops
D=$T/disk
SIZE=$((64 * 1024 * 1024))

# --------------------------------------------------------------- file systems

# loop_on FILE: a loop device; LOOP is its name.
loop_on()
{
	LOOP=$(losetup --show -f "$1" 2>"$T/losetup.err") || return
	on_exit losetup -d "$LOOP"
}

loop_works()
{
	[ "$(id -u)" = 0 ] || return
	truncate -s 1M "$T/try"
	loop_on "$T/try" && losetup -d "$LOOP"
}

# disk_life WHAT: a whole one, on $F, which $D backs.
disk_life()
{
	local loop space
	run_ok -n "$1: mkfs.ext4" mkfs.ext4 -q -F "$F"
	run_ok -n "$1: e2fsck of the file" e2fsck -fn "$F"
	if ! loop_works; then
		pass "$1: # SKIP no loop devices here"
		return
	fi
	ok "loop_on '$F'" "$1: losetup"
	loop=$LOOP
	mkdir -p "$T/fs"
	run_ok -n "$1: mount" mount "$loop" "$T/fs"
	on_exit eval "! mounted '$T/fs' || umount '$T/fs'"
	run cp -r "$ROOT/engine" "$ROOT/tests" "$T/fs/"
	is "$STATUS" 0 "$1: files are written"
	head -c 20M /dev/urandom >"$T/fs/big"
	sync -f "$T/fs/big"
	space=$(stat -c %b "$D")
	cp "$T/fs/big" "$T/big"
	rm "$T/fs/big"
	# What is deleted is free after the journal says so.
	sync -f "$T/fs"
	run_ok -n "$1: fstrim" fstrim "$T/fs"
	head -c 3M "$T/big" >"$T/fs/small"
	run_ok -n "$1: umount" umount "$T/fs"
	run_ok -n "$1: losetup -d" losetup -d "$loop"
	ok "[ $(stat -c %b "$D") -lt $((space - 30000)) ]" \
		"$1: fstrim gives space back"
	run_ok -n "$1: e2fsck" e2fsck -fn "$F"
	ok "umnt '$MNT'" "$1: unmounted"
	run_ok -n "$1: e2fsck of what the server has" e2fsck -fn "$D"
	ok "loop_on '$D'" "$1: losetup of that"
	run_ok -n "$1: mount of that" mount -o ro "$LOOP" "$T/fs"
	ok "diff -r '$ROOT/engine' '$T/fs/engine'" "$1: the files are there"
	ok "cmp '$T/fs/small' <(head -c 3M '$T/big')" "$1: also the last one"
	umount "$T/fs"
	losetup -d "$LOOP"
}

old_data()
{
	rm -f "$D"
	head -c $SIZE /dev/urandom >"$D"
}

old_data
start_qemu_nbd "$D" --discard=unmap || bail "qemu-nbd"
mnt disk="$URI" || bail "mount"
F=$MNT/disk
disk_life qemu-nbd
! mounted "$MNT" || umnt "$MNT"
stop_server

old_data
start_nbdkit file "$D" || bail "nbdkit"
mnt --cache=kernel disk="$URI" || bail "mount"
F=$MNT/disk
disk_life nbdkit
! mounted "$MNT" || umnt "$MNT"

# Partitions are written by the sector.
mnt disk="$URI" || bail "mount"
F=$MNT/disk
printf '%s\n' "label: gpt" "start=2048, size=20480, name=one" "name=two" \
	>"$T/parts"
ok "sfdisk -q '$F' <'$T/parts' >'$T/sfdisk.out' 2>&1" "sfdisk"
is "$(sfdisk -d "$F" | grep -c name=)" 2 "sfdisk finds two partitions"
umnt "$MNT"
is "$(sfdisk -d "$D" | grep -c name=)" 2 "and so it does on the server's side"
stop_server

# ------------------------------------------------------------ appending

SIZE=$((4 * 1024 * 1024 + 777))
old_data
cp "$D" "$T/old"
next_nbdkit
start_nbdkit --filter=log file "$D" logfile="$REQUESTS" || bail "nbdkit"
mnt disk="$URI" || bail "mount"
F=$MNT/disk

run bash -c 'echo more >>"$1"' - "$F"
isnt "$STATUS" 0 "nothing can be appended"
like "$ERR" "No space left" "because there is no space"
run "$ops" "open:w,append:$F" append:1:1 write:0:4K:1
is "$(tr '\n' ';' <<<"$OUT")" "open 0;append ENOSPC;write ENOSPC;" \
	"an appending handle writes nowhere else"
run "$ops" "open:rw:$F" write:4194304:1M:7 write:$SIZE:1:7 write:5M:0:0 \
	write:1T:1:1
ok "umnt '$MNT'" "unmounted"
run cmp "$D" "$T/old"
is "$(cmp -l "$D" "$T/old" | awk '$1 <= 4194304' | wc -l)" 0 \
	"only the end has changed"
ok "cmp -s -i 4194304:0 -n 777 '$D' <(head -c 777 /dev/zero | tr '\\0' '\\7')" \
	"a write over the end is cut there"

# ------------------------------------------------------- several writers

# Each of four programs writes every fourth piece; pieces end in the middle
# of blocks and pages.
writers()
{
	local i p piece=$1 pids=() list bad=0
	for i in 0 1 2 3; do
		list=()
		for ((p = i * piece; p + piece <= SIZE; p += 4 * piece)); do
			list+=("write:$p:$piece:$((i + 65))")
		done
		timeout 60 "$ops" "open:$2:$F" "${list[@]}" >/dev/null &
		pids+=($!)
	done
	for p in "${pids[@]}"; do
		wait "$p" || bad=1
	done
	return $bad
}

# pattern PIECE: what they leave.
pattern()
{
	local i piece=$1
	for i in A B C D; do
		head -c "$piece" /dev/zero | tr '\0' "$i"
	done >"$T/four"
	for ((i = 0; i < SIZE / (4 * piece); i++)); do
		cat "$T/four"
	done >"$T/want"
}

for mode in rw rw,direct rw,sync; do
	mnt disk="$URI" || bail "mount"
	F=$MNT/disk
	ok "writers 7013 $mode" "four programs write at once ($mode)"
	pattern 7013
	ok "cmp -n $(stat -c %s "$T/want") '$T/want' '$F'" \
		"all of it is seen ($mode)"
	umnt "$MNT"
	ok "cmp -n $(stat -c %s "$T/want") '$T/want' '$D'" \
		"all of it has arrived ($mode)"
done
stop_server

start_nbdkit --filter=blocksize-policy memory 4M blocksize-minimum=64K \
	blocksize-preferred=64K blocksize-maximum=1M \
	blocksize-error-policy=error || bail "nbdkit"
SIZE=$((4 * 1024 * 1024))
mnt disk="$URI" || bail "mount"
F=$MNT/disk
ok "writers 7013 rw" "four programs write to the same large blocks"
pattern 7013
ok "cmp -n $(stat -c %s "$T/want") '$T/want' '$F'" "none of it is lost"
umnt "$MNT"
mnt disk="$URI"
F=$MNT/disk
ok "cmp -n $(stat -c %s "$T/want") '$T/want' '$F'" "also on the server"
umnt "$MNT"
stop_server

# ---------------------------------------------------- what a directory refuses

SIZE=$((1024 * 1024))
old_data
cp "$D" "$T/old"
next_nbdkit
start_nbdkit --filter=log file "$D" logfile="$REQUESTS" || bail "nbdkit"
mnt disk="$URI" || bail "mount"
F=$MNT/disk
head -c $SIZE /dev/urandom >"$T/other"

run_fails -n "rm" rm -f "$F"
run_fails -n "mv onto it" mv "$T/other" "$F"
run_fails -n "mv within" mv "$F" "$MNT/else"
run_fails -n "install" install "$T/other" "$F"
run_fails -n "ln" ln "$F" "$MNT/else"
run_fails -n "ln -s" ln -s disk "$MNT/else"
run_fails -n "mkdir" mkdir "$MNT/dir"
run_fails -n "a new file" cp "$T/other" "$MNT/new"
run_fails -n "mkfifo" mkfifo "$MNT/fifo"
like "$ERR" "not permitted" "and that is EPERM"
run_fails -n "rsync without --inplace" rsync -I "$T/other" "$F"
run_fails -n "tar -x without --overwrite" \
	bash -c 'tar -C "$1" --transform=s,other,disk, -cf - other |
		tar -C "$2" -xf -' - "$T" "$MNT"
is "$(ls "$MNT")" disk "the directory is as it was"
ok "cmp '$T/old' '$D'" "and so is the disk"
[ -e "$T/other" ] || head -c $SIZE /dev/urandom >"$T/other"

# --------------------------------------------------------- attributes, twice

touch -d 2001-02-03 "$T/other"
chmod 640 "$T/other"
run_ok -n "rsync -a --inplace" rsync -a --inplace "$T/other" "$F"
is "$(stat -c '%a %Y' "$F")" "$(stat -c '%a %Y' "$T/other")" \
	"mode and time are kept"
before=$(count_requests Write)
run_ok -n "rsync -a --inplace once more" \
	rsync -a --inplace -i "$T/other" "$F"
is "$OUT" "" "has nothing to say"
is "$(count_requests Write)" "$before" "and sends nothing"
printf x | dd of="$F" conv=notrunc status=none
ok "[ $(stat -c %Y "$F") -ge $(($(date +%s) - 60)) ]" \
	"a write brings the time up to date"
touch -d 2001-02-03 "$F"
truncate -s 100 "$F"
ok "[ $(stat -c %Y "$F") -ge $(($(date +%s) - 60)) ]" "so does a truncation"
touch -d 2001-02-03 "$F"
fallocate -p -l 100 "$F"
ok "[ $(stat -c %Y "$F") -ge $(($(date +%s) - 60)) ]" "and a punch"
run_ok -n "flock" flock -n "$F" true
run_ok -n "df" df "$F"
is "$(stat -f -c %S "$F")" 4096 "the block size is 4096"
umnt "$MNT"

mnt -r disk="$URI" || bail "mount"
F=$MNT/disk
is "$(stat -c %a "$F")" 400 "read-only: nobody may write"
run "$ops" "open:rw:$F"
like "$OUT" "open (EROFS|EACCES)" "read-only: it cannot be opened to write"
run truncate -s 0 "$F"
isnt "$STATUS" 0 "read-only: nor be truncated"
run_ok -n "read-only: but read" cmp "$F" "$D"
umnt "$MNT"
stop_server
done_testing
