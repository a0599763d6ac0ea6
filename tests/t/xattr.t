#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What a person can ask about a file: user.nbd.*, SIGUSR1, nbdfs --list.
. "$(dirname "$0")/../lib.sh"

requires fuse nbdkit nbdkit-filter:log nbdkit-filter:exportname \
	nbdkit-plugin:memory getfattr setfattr rsync

head -c 1000000 /dev/urandom >"$T/disk"
get() { getfattr --only-values -n "user.nbd.$1" "$F"; }
stat_of() { get stats | tr ' ' '\n' | sed -n "s/^$1=//p"; }

start_nbdkit --filter=log file "$T/disk" logfile="$T/log" || bail "nbdkit"
mnt disk="$URI" || bail "mount"
F=$MNT/disk
is "$(get size)" 1000000 "user.nbd.size"
is "$(get export)" "" "user.nbd.export"
like "$(get uri)" "^nbd[+]unix:" "user.nbd.uri"
run cmp "$F" "$T/disk"
is "$STATUS" 0 "the file is read"
like "$(get flags)" "^rw,flush,fua" "user.nbd.flags"
like "$(get block-sizes)" "minimum=1 " "user.nbd.block-sizes"
is "$(stat_of errors)" 0 "no errors are counted"
ok "[ $(stat_of read-bytes) -ge 1000000 ]" "bytes read are counted"
like "$(get extents)" "data=1000000 .*unknown=0" "user.nbd.extents"
run getfattr -n user.nbd.nothing "$F"
isnt "$STATUS" 0 "another attribute is not there"
is "$(getfattr -d -m - "$F" 2>&1)" "" "none is listed"
run_ok -n "cp -a takes none along" cp -a "$F" "$T/copy"
is "$(getfattr -d -m - "$T/copy" 2>&1)" "" "the copy has none"
run_ok -n "rsync -aX" rsync -aX "$F" "$T/copy2"
run_ok -n "rsync -aX --inplace onto the file" rsync -aX --inplace -I "$T/copy" "$F"
run setfattr -n user.nbd.size -v 1 "$F"
isnt "$STATUS" 0 "they cannot be set"
umnt "$MNT"

mnt --xattrs disk="$URI" || bail "mount"
F=$MNT/disk
is "$(getfattr -d -m - "$F" 2>/dev/null | grep -c '^user.nbd.')" 8 \
	"--xattrs lists all"
kill -USR1 "$MNT_PID"
for _ in $(seq 50); do
	grep -q "disk: reads=" "$MNT_LOG" && break
	sleep 0.1
done
ok "grep -q 'disk: reads=' '$MNT_LOG'" "SIGUSR1 logs the statistics"
umnt "$MNT"

# The kernel must not ask for an attribute at each write.
mnt -d disk="$URI" || bail "mount"
F=$MNT/disk
run_ok -n "20 writes" dd if="$T/disk" of="$F" bs=50000 conv=notrunc status=none
asked=$(grep -c GETXATTR "$MNT_LOG")
ok "[ $asked -le 2 ]" "they ask for at most two attributes ($asked)"
umnt "$MNT"
stop_server

run "$NBDFS" --list "[" nbdkit --filter=exportname memory 3M exportname=a \
	exportname=b exportname-list=explicit exportdesc=fixed:text "]"
is "$STATUS" 0 "--list"
like "$OUT" "a .* 3145728  rw.*text" "tells name, size, mode, description"
is "$(echo "$OUT" | grep -c 3145728)" 2 "of each export"
run "$NBDFS" --list
is "$STATUS" 2 "--list wants a source"
run "$NBDFS" --list "nbd+unix:///?socket=$T/nothing"
is "$STATUS" 1 "--list of a server that is not there"
is "$(echo "$ERR" | wc -l)" 1 "is one line"

done_testing
