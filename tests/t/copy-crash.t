#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# nbdfs-copy between servers that die and come back: source, destination, one
# after the other.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy nbdkit qemu-nbd nbd-server
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

head -c $((16 * MiB)) /dev/urandom >"$T/new"
head -c $((16 * MiB)) /dev/urandom >"$T/old"

# What the destination had not flushed may be lost: it is written again.
for kind in nbdkit qemu-nbd nbd-server; do
	two $kind
	variants=("B A")
	[ $kind != nbdkit ] || variants+=(A B)
	for which in "${variants[@]}"; do
		cp "$T/old" "$T/disk.b"
		dying "$which" "$NBDFS_COPY" --rate=20M --retries=9 --flush \
			"$A" "$B"
		is "$STATUS $ERR" "0 " "$kind, nbdfs-copy, $which dies"
		ok "cmp '$T/disk.b' '$T/new'" "$kind: the bytes are right"
	done
	stop_both
done

two nbdkit
cp "$T/old" "$T/disk.b"
dying B "$NBDFS_COPY" --rate=20M --retries=0 "$A" "$B"
like "$STATUS $ERR" "^1 nbdfs-copy: .*" "--retries=0: an error"
is "$(wc -l <"$T/err")" 1 "in one line"
COPY=$T/out
dying A "$NBDFS_COPY" --rate=20M --retries=0 "$A" "$T/out"
like "$STATUS $ERR" "^1 nbdfs-copy: .*" "and for a source"
is "$(wc -l <"$T/err")" 1 "in one line"

stop_both
done_testing
