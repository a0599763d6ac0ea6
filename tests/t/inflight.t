#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What is on its way at the same time: no request waits on our side for the
# answer to another one.

# shellcheck disable=SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit nbdkit-filter:log nbdkit-filter:delay \
	nbdkit-filter:noextents

readers=4 reads=25

# Requests that reached the server while `readers` - 1 others were there.
together()
{
	awk -v n="$readers" '/ (Read|Write) id/ && !/\.\.\.(Read|Write)/ {
		if (++now == n) at_once++
	}
	/\.\.\.(Read|Write) id/ { now-- }
	END { print at_once + 0 }' "$REQUESTS"
}

# Each has one request in flight, again and again, at a place of its own.
all_at_once()
{
	local i jobs=() bad=0
	for ((i = 0; i < readers; i++)); do
		"$@" "$((i * 1000))" &
		jobs+=($!)
	done
	for i in "${jobs[@]}"; do
		wait "$i" || bad=1
	done
	return $bad
}

read_some()
{
	timeout 60 dd if="$MNT/disk" of=/dev/null bs=4k count="$reads" \
		skip="$1" iflag=direct status=none
}

write_some()
{
	timeout 60 dd if=/dev/zero of="$MNT/disk" bs=4k count="$reads" \
		seek="$1" oflag=direct conv=notrunc status=none
}

# Most of the time all are there: not at the start, nor when one is late.
check()
{
	local n
	n=$(together)
	ok "[ $n -ge $((reads / 2)) ]" "$1: all in flight together ($n times)"
}

for tls in "" psk; do
	more=()
	if [ "$tls" ]; then
		echo "alice:00112233445566778899aabbccddeeff" >"$T/psk"
		chmod 600 "$T/psk"
		more=(--tls=require --tls-psk="$T/psk")
	fi
	next_nbdkit
	start_nbdkit "${more[@]}" --filter=log --filter=noextents \
		--filter=delay memory 64M rdelay=20ms wdelay=20ms \
		logfile="$REQUESTS" || bail "nbdkit"
	[ -z "$tls" ] ||
		URI="nbds+unix://alice@/?socket=${URI#*socket=}&tls-psk-file=$T/psk"
	mnt -C 1 --read-ahead=0 disk="$URI" || bail "mount"
	all_at_once read_some
	is "$?" 0 "reads on one connection ${tls:+with TLS}"
	check "reads"
	: >"$REQUESTS"
	all_at_once write_some
	is "$?" 0 "direct writes on one connection"
	check "writes"
	umnt "$MNT"
	stop_server
done

done_testing
