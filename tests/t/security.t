#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What the programs keep to themselves: how they are built, what they inherit,
# what others can read of them.

# shellcheck disable=SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse copy nbdkit nbdkit-plugin:memory readelf getfattr

# ------------------------------------------------------------------ hardening

for program in "$NBDFS" "$NBDFS_COPY"; do
	name=$(basename "$program")
	readelf -hldW "$program" >"$T/elf"
	ok "grep -q 'Type: *DYN' '$T/elf'" "$name: position-independent"
	ok "grep -q GNU_RELRO '$T/elf'" "$name: tables are read-only"
	ok "grep -qE 'BIND_NOW|Flags:.*NOW' '$T/elf'" "$name: bound at start"
	ok "grep -q 'GNU_STACK.* RW ' '$T/elf'" "$name: no code on the stack"
	readelf -sW "$program" >"$T/symbols"
	ok "grep -q __stack_chk_fail '$T/symbols'" "$name: guarded stacks"
	# Sanitizers look for themselves, without it.
	grep -qE '__(asan|tsan)_init' "$T/symbols" ||
		ok "grep -qE ' __[a-z]+_chk(@|$)' '$T/symbols'" \
			"$name: copies that are checked"
	ok "! grep -qE ' (sprintf|strcpy|strcat|strtok|gets|atoi|atol)(@|$)' \
		'$T/symbols'" "$name: none of the functions that never are"
	ok "! grep -qE 'R(UN)?PATH' '$T/elf'" "$name: libraries of the system"
done

# ----------------------------------------------------------------- inherited

start_nbdkit memory 1M || bail "nbdkit"
: >"$T/secret"
mkdir "$T/m"
"$NBDFS" -P "$T/pid" "disk=$URI" "$T/m" 9<"$T/secret" 8<"$T/secret" ||
	bail "mount"
pid=$(<"$T/pid")
is "$(readlink "/proc/$pid/fd"/* | grep -c "$T/secret")" 0 \
	"nothing that was open stays open"
is "$(readlink "/proc/$pid/cwd")" / "no folder is kept busy"
is "$(awk '/Max core file size/ { print $5, $6 }' "/proc/$pid/limits")" "0 0" \
	"no core files"
like "$(getfattr -n user.nbd.uri --only-values "$T/m/disk" 2>/dev/null)" \
	"^nbd.unix:" "the URI can be asked for"
fusermount3 -u "$T/m"
wait_until 10 test ! -e "/proc/$pid"

mkfifo "$T/fifo"
spawn "$T/copy.log" "$NBDFS_COPY" "$URI" "$T/fifo"
copy_pid=$SPAWNED
no_cores()
{
	[ "$(awk '/Max core file size/ { print $5, $6 }' \
		"/proc/$copy_pid/limits")" = "0 0" ]
}
ok "wait_until 5 no_cores" "nor of nbdfs-copy"
kill "$copy_pid"

# ------------------------------------------------------------------- secrets

# A password where none belongs, and files with keys.
secret=s3cret
for uri in "nbd://user:$secret@localhost:1/x" \
	"nbds://user@localhost:1/x?tls-psk-file=/$secret"; do
	run_fails -n "refused" "$NBDFS" -v "$uri" "$T/m"
	unlike "$OUT$ERR" "$secret" "nbdfs tells no secret"
	run_fails -n "refused" "$NBDFS_COPY" -v "$uri" null:
	unlike "$OUT$ERR" "$secret" "nbdfs-copy tells no secret"
	run_fails -n "refused" "$NBDFS" --list "$uri"
	unlike "$OUT$ERR" "$secret" "nbdfs --list tells no secret"
done
mnt "disk=nbd+unix://user:$secret@/?socket=$SOCK" ||
	mnt "disk=nbd+unix://user@/?socket=$SOCK"
ok "! grep -q $secret /proc/self/mountinfo" "none in the list of mounts"
ok "! getfattr -d -m - '$MNT/disk' 2>/dev/null | grep -q $secret" \
	"none in the attributes"
umnt "$MNT"
stop_server

done_testing
