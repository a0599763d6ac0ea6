#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# The folder and its files: names, attributes, what can be done with them, and
# how they follow the server's list.

# shellcheck source=tests/lib.sh
# Names here are tame.
# shellcheck disable=SC2119,SC2011,SC2012
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdkit-filter:exportname helper:fileops helper:seekmap \
	fallocate

ops=$NBDFS_HELPERS/fileops
# A time that is not now.
THEN="2001-02-03 04:05:06.123456789"

# steps WANTED DESCRIPTION OPERATION...: of fileops, on one line.
steps()
{
	local want=$1 desc=$2
	shift 2
	run "$ops" "$@"
	is "$(xargs <<<"$OUT")" "$want" "$desc"
}

# ------------------------------------------------------------- attributes

printf '%s' one >"$T/disk"
truncate -s 1000001 "$T/disk"
start_nbdkit --filter=exportname file "$T/disk" exportname=a exportname=b \
	exportname-list=explicit || bail "no server"
mnt "$(uri)" || bail "no mount"
F=$MNT/a

is "$(ls "$MNT" | xargs)" "a b" "both exports are there"
is "$(ls -a "$MNT" | xargs)" ". .. a b" "and the folder itself"
is "$(stat -c '%s %o %h %F %a %u %g' "$F")" \
	"1000001 1048576 1 regular file 600 $(id -u) $(id -g)" "stat of a file"
is "$(stat -c '%h %F %a %u %g' "$MNT")" \
	"2 directory 755 $(id -u) $(id -g)" "stat of the folder"
isnt "$(stat -c %i "$F")" "$(stat -c %i "$MNT/b")" "files have numbers"
inode=$(stat -c %i "$F")
is "$(stat -f -c '%S %s %b %f %a %l' "$F")" "4096 4096 0 0 0 255" "statfs"
ok "df '$MNT' >/dev/null" "df"
ok "[ $(stat -c %b "$F") -ge 1 ]" "never without blocks"

run_ok chmod 640 "$F"
run_ok chown 12:34 "$F"
run_ok touch -d "$THEN" "$F"
is "$(stat -c '%a %u %g %y' "$F")" "640 12 34 ${THEN} +0000" "all of it is kept"
sleep 1.2
ls -l "$MNT" >/dev/null
is "$(stat -c '%a %u %g %i' "$F")" "640 12 34 $inode" "for longer, too"
is "$(stat -c '%a %u %g' "$MNT/b")" "600 $(id -u) $(id -g)" \
	"the other file has its own"
run_ok chown "$(id -u):$(id -g)" "$F"
run_ok chmod 700 "$MNT"
run_ok touch -d "$THEN" "$MNT"
is "$(stat -c '%a %y' "$MNT")" "700 ${THEN} +0000" "and so has the folder"
run_ok chmod 755 "$MNT"

cat "$F" >/dev/null
is "$(stat -c %y "$F")" "${THEN} +0000" "reading does not touch the mtime"
steps "open 0 close 0" "opened to write" "open:rw:$F" close
is "$(stat -c %y "$F")" "${THEN} +0000" "nor does opening to write"
for op in write:0:4K:1 "map:0:4K mapwrite:1 unmap" truncate:0 punch:0:4K \
	zero:0:4K; do
	touch -d "$THEN" "$F"
	# shellcheck disable=SC2086
	"$ops" "open:rw:$F" $op close >/dev/null
	isnt "$(stat -c %y "$F")" "${THEN} +0000" "the mtime follows: $op"
done
touch -d "$THEN" "$MNT/b"
steps "open 0 open 0 copy 4096" "copy_file_range" "open:r:$F" slot:1 \
	"open:rw:$MNT/b" copy:0:0:0:4K
isnt "$(stat -c %y "$MNT/b")" "${THEN} +0000" "so does a copy's"

# cp -p sets the time before it closes; so do some with mappings.
head -c 8192 /dev/urandom >"$T/new"
touch -d "$THEN" "$T/new"
run_ok -n "cp -p" cp -p "$T/new" "$F"
is "$(stat -c %y "$F")" "${THEN} +0000" "a time that was set stays"

# ---------------------------------------------- what files do not do

steps "open 0 write ENOSPC write 1 write ENOSPC" "writing at the end" \
	"open:rw:$F" write:1000001:1:5 write:1000000:10:5 write:2000000:1:5
steps "open 0 read 0 read 1 05" "reading at the end" \
	"open:r:$F" read:1000001:10 read:1000000:10
is "$(stat -c %s "$F")" 1000001 "the size is what it was"
steps "open 0 truncate 0 truncate EFBIG size 1000001" "truncate" \
	"open:rw:$F" truncate:1000001 truncate:1000002 size
steps "open 0 alloc 0 alloc EFBIG" "fallocate" "open:rw:$F" \
	alloc:0:1000001 alloc:1:1000001
run_fails -n "fallocate -n beyond the end" fallocate -n -o 1M -l 1 "$F"
like "$ERR" "File too large" "is EFBIG"
run_ok -n "fallocate -n inside" fallocate -n -l 1000001 "$F"
steps "open 0 punch 0 punch 0 zero EFBIG" "punch and zero at the end" \
	"open:rw:$F" punch:999000:10000 punch:2000000:4096 zero:999000:10000
run_ok -n "fallocate -z -n, clipped" fallocate -z -n -o 1000000 -l 1M "$F"
run_fails -n "fallocate -c" fallocate -c -o 0 -l 4096 "$F"
run_fails -n "fallocate -i" fallocate -i -o 0 -l 4096 "$F"
is "$(stat -c %s "$F")" 1000001 "the size is still what it was"

# refused COMMAND...: each is EPERM, whatever the tool is.
refused()
{
	run "$@"
	isnt "$STATUS" 0 "refused: $*"
	like "$ERR" "not permitted" "and that is EPERM"
}
refused touch "$MNT/new"
refused mkdir "$MNT/new"
refused mkfifo "$MNT/new"
refused ln -s a "$MNT/new"
refused ln "$F" "$MNT/new"
refused mv "$F" "$MNT/new"
refused mv "$F" "$MNT/b"
refused rm "$F"
run_fails rmdir "$MNT/a"
run_fails ls "$MNT/none"
like "$ERR" "No such file" "what is not there is ENOENT"
run_fails ls "$MNT/a/b"
like "$ERR" "Not a directory" "a file is no folder"

# Never ENOSYS, which the kernel would remember.
steps "open 0 punch 0 write 4096 fsync 0 data 0 hole 4096" \
	"seeking works at last" "open:rw:$F" punch:0:1M write:0:4K:7 fsync \
	data:0 hole:0
ok "umnt" "unmounted"

# ------------------------------------------------------------- read-only

for how in -r "-o ro"; do
	# shellcheck disable=SC2086
	mnt $how "$(uri)"
	F=$MNT/a
	is "$(stat -c %a "$F")" 400 "$how: mode 400"
	steps "open EROFS open 0 read 3 07" "$how: open" "open:rw:$F" slot:1 \
		"open:r:$F" read:0:3
	run_fails -n "$how: truncate" truncate -s 0 "$F"
	run_fails -n "$how: chmod" chmod 600 "$F"
	like "$ERR" "Read-only" "$how: is EROFS"
	umnt
done
stop_server

start_nbdkit -r memory 1M || bail "no server"
mnt "$URI"
is "$(stat -c %a "$MNT/nbd")" 400 "a read-only export: mode 400"
steps "open EROFS open 0 truncate EINVAL" "it cannot be opened to write" \
	"open:rw:$MNT/nbd" slot:1 "open:r:$MNT/nbd" truncate:0
run_fails -n "nor truncated by its path" \
	python3 -c "import os; os.truncate('$MNT/nbd', 0)"
like "$ERR" "Read-only" "that is EROFS"
ok "chmod 444 '$MNT/nbd'" "but its mode can be changed"
umnt
stop_server

# ---------------------------------------------------------- who owns it

start_nbdkit memory 1M || bail "no server"
mnt -o uid=12,gid=34,umask=137 "$URI"
is "$(stat -c '%a %u %g' "$MNT/nbd")" "600 12 34" "-o uid=,gid=,umask="
is "$(stat -c '%a %u %g' "$MNT")" "640 12 34" "for the folder, too"
umnt
mnt -o uid=root --umask=277 "$URI"
is "$(stat -c '%a %u' "$MNT/nbd")" "400 0" "a user by name, and --umask"
umnt
umask 277
mnt "$URI"
umask 022
is "$(stat -c %a "$MNT/nbd")" 400 "the umask of the process counts"
umnt

# --------------------------------------------------------- on truncation

for what in keep deny; do
	mnt --on-truncate=$what "$URI"
	F=$MNT/nbd
	"$ops" "open:rw:$F" write:0:4K:7 fsync >/dev/null
	case $what in
	keep) want="open 0 truncate 0 truncate 0 size 1048576 read 4096 07" ;;
	deny) want="open 0 truncate EPERM truncate 0 size 1048576 read 4096 07" ;;
	esac
	steps "$want" "--on-truncate=$what" "open:rw:$F" truncate:0 \
		truncate:1048576 size read:0:4K
	umnt
done
stop_server

# ----------------------------------------------------------- many exports

names=()
for i in $(seq 1 600); do
	names+=("exportname=disk-$(printf %04d "$i")")
done
start_nbdkit --filter=exportname memory 1M "${names[@]}" \
	exportname-list=explicit || bail "no server"
mnt "$URI"
is "$(ls "$MNT" | wc -l)" 600 "600 exports"
is "$(ls "$MNT" | sort -u | sed -n '1p;$p' | xargs)" "disk-0001 disk-0600" \
	"each by its name"
is "$(find "$MNT" -type f | sort | uniq -d | wc -l)" 0 "none twice"
began=$(date +%s%N)
ls -l "$MNT" >"$T/ls"
ms=$((($(date +%s%N) - began) / 1000000))
ok "[ $ms -lt 1000 ]" "ls -l of them is quick ($ms ms)"
is "$(grep -c '^-rw------- 1 .* 1048576 ' "$T/ls")" 600 "with their sizes"
is "$(stat -f -c %c "$MNT")" 600 "statfs counts them"
umnt
stop_server

# ---------------------------------------- exports that come and go

mkdir "$T/disks"
truncate -s 1M "$T/disks/one" "$T/disks/two"
start_nbdkit file dir="$T/disks" || bail "no server"
mnt --list-timeout=0.5 "$URI"
is "$(ls "$MNT" | xargs)" "one two" "a folder of disks"
one=$(stat -c %i "$MNT/one")
chmod 640 "$MNT/one"
truncate -s 2M "$T/disks/three"
run_ok -n "a new one is found by its name" wait_until 5 test -e "$MNT/three"
is "$(stat -c %s "$MNT/three")" 2097152 "with its size"
rm "$T/disks/two"
sleep 1.7
is "$(ls "$MNT" | xargs)" "one three" "one that is gone is gone"
exec 8<"$MNT/three"
rm "$T/disks/three"
sleep 1.7
is "$(ls "$MNT" | xargs)" "one" "also one that is open"
ok "cmp -n 2097152 /dev/zero - <&8" "but it can still be read"
exec 8<&-
is "$(stat -c '%i %a' "$MNT/one")" "$one 640" \
	"the others keep numbers and modes"

# A server that is gone: what is known stays, and nothing hangs.
kill_server
sleep 0.6
began=$SECONDS
is "$(ls "$MNT" | xargs)" "one" "a dead server's list stays"
ok "! ls '$MNT/other' 2>/dev/null" "and other names are not there"
ok "[ $((SECONDS - began)) -le 5 ]" "soon"
umnt

start_nbdkit file dir="$T/disks" || bail "no server"
mnt --list-timeout=0.1 "$URI"
kill -STOP "$SERVER_PID"
sleep 0.3
began=$(date +%s%N)
is "$(timeout 20 ls "$MNT" | xargs)" "one" "a frozen server's list"
ms=$((($(date +%s%N) - began) / 1000000))
ok "[ $ms -ge 1000 ] && [ $ms -le 2700 ]" "takes two seconds ($ms ms)"
kill -CONT "$SERVER_PID"
umnt

done_testing
