#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# A server that says it is shutting down (ESHUTDOWN), and is not gone: it is
# asked again for as long as --reconnect says, not too often, also while it
# answers others.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse copy helper:fileops nbdkit nbdkit-plugin:eval

ops=$NBDFS_HELPERS/fileops
bad=$T/shutting-down

# server ARGS...: refuses what a file named by the command says.
server()
{
	local no='echo ESHUTDOWN bye >&2; exit 1'
	head -c 4M /dev/zero | tr '\0' A >"$T/disk"
	: >"$T/opens"
	start_nbdkit eval get_size="echo 4M" \
		open="echo >>$T/opens" can_write="exit 0" can_flush="exit 0" \
		can_zero="exit 0" \
		pread="[ ! -e $bad.read ] || { $no; }; dd if=$T/disk skip=\$4 \
			count=\$3 iflag=skip_bytes,count_bytes status=none" \
		pwrite="[ ! -e $bad.write ] || { $no; }; dd of=$T/disk \
			seek=\$4 conv=notrunc oflag=seek_bytes status=none" \
		zero="[ ! -e $bad.write ] || { $no; }; dd if=/dev/zero \
			of=$T/disk seek=\$4 count=\$3 conv=notrunc \
			iflag=count_bytes oflag=seek_bytes status=none" \
		flush="[ ! -e $bad.flush ] || { $no; }" \
		can_extents="exit 0" \
		extents="[ ! -e $bad.status ] || { $no; }; echo 0 4M" \
		"$@" || bail "nbdkit"
	mnt --timeout=10 --reconnect=8 disk="$URI" || bail "mount"
	F=$MNT/disk
}

opens()
{
	wc -l <"$T/opens"
}

# later NAME OPERATION...: fileops, meanwhile.
later()
{
	local name=$1
	shift
	timeout -k 5 60 "$ops" "$@" >"$T/$name" 2>&1 &
	pids+=($!)
}

said()
{
	tr '\n' ';' <"$T/$1"
}

# ---------------------------------------------------------- for six seconds

server
touch "$bad.read" "$bad.write" "$bad.flush" "$bad.status"
pids=()
later read "open:r:$F" read:3M:64K close
later write "open:rw:$F" write:0:64K:1 fsync close
later direct "open:rw,direct:$F" write:1M:64K:1 close
later zero "open:rw:$F" punch:2M:64K close
later seek "open:r:$F" hole:3M close
timeout -k 5 60 "$NBDFS_COPY" "$URI" "$T/copy" >"$T/copied" 2>&1 &
copy_pid=$!
sleep 6
rm "$bad".*
wait "${pids[@]}"
wait "$copy_pid"
is "$? $(<"$T/copied")" "0 " "nbdfs-copy waits as long as it takes"
is "$(said read)" "open 0;read 65536 41;close 0;" "so does a read"
like "$(said write)" "open 0;write 65536;fsync (0|EIO;)" "and a write"
like "$(said direct)" "open 0;write 65536;close 0;" "that is direct, too"
like "$(said zero)" "open 0;punch 0;close (0|EIO);" "and zeroes"
is "$(said seek)" "open 0;hole 4194304;close 0;" "and a seek"
ok "[ $(opens) -lt 40 ]" "$(opens) connections in all"
run_ok -n "all is well" dd if="$T/disk" of="$F" bs=1M conv=notrunc,fsync \
	status=none
umnt "$MNT"
stop_server

# ---------------------------------------------- reads are answered meanwhile

server can_multi_conn="exit 0"
touch "$bad.write"
pids=()
before=$(opens)
later write "open:rw:$F" write:0:64K:1 fsync close
end=$((SECONDS + 3)) reads=0
while [ $SECONDS -lt $end ]; do
	dd if="$F" of="$T/read" iflag=direct bs=64K count=1 skip=16 \
		status=none || fail "a read"
	reads=$((reads + 1))
done
n=$(($(opens) - before))
rm "$bad.write"
wait "${pids[@]}"
like "$(said write)" "open 0;write 65536;fsync (0|EIO;)" \
	"a write waits, and others read"
ok "[ $reads -gt 0 ]" "$reads reads"
ok "[ $n -lt 20 ]" "$n connections"
umnt "$MNT"
stop_server
done_testing
