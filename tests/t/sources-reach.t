#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Mounting by every way to reach a server, and what is said when there is
# none: one line, and a status.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit qemu-nbd nbd-server nbdinfo openssl psktool certtool \
	helper:badserver nbdkit-filter:log nbdkit-filter:exportname

# An odd size, so that a byte that is lost at the end is seen.
head -c 1234567 /dev/urandom >"$T/disk"
size=1234567
# What qemu-nbd has of it.
cp "$T/disk" "$T/disk512"
truncate -s $(((size + 511) / 512 * 512)) "$T/disk512"
mkdir "$T/empty"
: >"$T/file"

# serves DESCRIPTION FILE ARGS...: a mount with these has this one file.
serves()
{
	local desc=$1 want=$2 name
	shift 2
	if ! mnt "$@"; then
		fail "$desc"
		return 1
	fi
	name=$(ls "$MNT")
	ok "cmp '$MNT/$name' '$want'" "$desc: as $name"
	ok "umnt '$MNT'" "$desc: unmounted"
}

# --------------------------------------------------------------- protocols

start_nbdkit --tcp file "$T/disk" || bail "nbdkit"
serves "TCP" "$T/disk" "$URI"
serves "TCP by the name of the host" "$T/disk" "${URI/127.0.0.1/localhost}"
stop_server
start_nbdkit file "$T/disk" || bail "nbdkit"
serves "a unix socket" "$T/disk" "$URI"
serves "NAME=URI" "$T/disk" a-name="$URI"
mnt_file "$URI" || bail "mount"
is "$(stat -c '%F %s' "$MNT")" "regular file $size" \
	"over a file: it is the export"
ok "cmp '$MNT' '$T/disk'" "over a file: contents"
ok "umnt '$MNT'" "over a file: unmounted"
is "$(stat -c %s "$MNT")" 0 "over a file: the old file is back"
stop_server

serves "a server of our own" "$T/disk" [ nbdkit file "$T/disk" ]
serves "options after it" "$T/disk" [ nbdkit -r file "$T/disk" ] -r
serves "qemu-nbd" "$T/disk512" [ qemu-nbd -f raw "$T/disk" ]
serves "qemu-nbd -t" "$T/disk512" [ qemu-nbd -t -f raw -e 8 "$T/disk" ]
# The second open file needs what the first one has, or a connection more.
mnt [ qemu-nbd -r -f raw "$T/disk" ] || bail "mount"
ok "cmp '$MNT/nbd' '$MNT/nbd'" "qemu-nbd for one client: opened twice"
sleep 0.2
ok "cmp '$MNT/nbd' '$T/disk512'" "qemu-nbd for one client: opened later again"
umnt "$MNT"

serves "oldstyle" "$T/disk" [ nbdkit -o file "$T/disk" ]
serves "newstyle that is not fixed" "$T/disk" \
	[ nbdkit --mask-handshake=0 file "$T/disk" ]
serves "no structured replies" "$T/disk" [ nbdkit --no-sr file "$T/disk" ]
start_nbdkit -o file "$T/disk" || bail "nbdkit"
serves "oldstyle, with a name that it does not hear" "$T/disk" "$(uri x)"
stop_server
start_nbd_server --tcp d="$T/disk" || bail "nbd-server"
serves "nbd-server" "$T/disk" "$URI"
serves "nbd-server, by name" "$T/disk" "$(uri d)"
stop_server

# vsock: this machine may have no way to talk to itself by it. Then the error
# must show that it was tried, and the socket waited for an answer.
vsock=nbd+vsock://1:$((RANDOM + 10000))
_next_server vsock
spawn "$SERVER_LOG" nbdkit -f --vsock -p "${vsock##*:}" -P "$_server_pidfile" \
	file "$T/disk"
SERVER_PID=$SPAWNED
wait_until 5 _server_is_up test -s "$_server_pidfile"
if timeout 1 nbdinfo --size "$vsock/" >/dev/null 2>&1; then
	serves "vsock" "$T/disk" "$vsock/"
else
	run "$NBDFS" --timeout=0.5 "$vsock/x" "$T/empty"
	like "$STATUS $(wc -l <<<"$ERR") $ERR" \
		"^1 1 nbdfs: ${vsock/+/\\+}/x: (no answer within 0\\.5 s|[A-Z].*)$" \
		"vsock: no answer here"
	run "$NBDFS" --timeout=0.5 "${vsock/1:/:}/x" "$T/empty"
	like "$STATUS $(wc -l <<<"$ERR") $ERR" "^1 1 nbdfs: nbd\+vsock://:" \
		"vsock: not without a number"
fi
stop_server

# --------------------------------------------------------------------- TLS

psktool -u alice -p "$T/psk" >/dev/null 2>&1
psktool -u alice -p "$T/psk-other" >/dev/null 2>&1
start_nbdkit --tls=require --tls-psk="$T/psk" file "$T/disk" || bail "nbdkit"
tls="nbds+unix://alice@/?socket=$SOCK"
serves "TLS with a shared key" "$T/disk" "$tls&tls-psk-file=$T/psk"
mnt "$tls&tls-psk-file=$T/psk" || bail "mount"
cmp -n 100 "$MNT/nbd" "$T/disk"
is "$?" 0 "TLS: read in a part"
(
	cd "$T/empty" || exit
	dd if="$MNT/nbd" of="$T/out" bs=64K status=none iflag=direct
)
ok "cmp '$T/out' '$T/disk'" "TLS: direct reads"
umnt "$MNT"
run "$NBDFS" "$tls&tls-psk-file=$T/psk-other" "$T/empty"
like "$STATUS $(wc -l <<<"$ERR") $ERR" "^1 1 nbdfs: nbds\+unix://" \
	"another key: one line"
stop_server
start_nbdkit --tcp --tls=require --tls-psk="$T/psk" file "$T/disk"
serves "TLS with a shared key over TCP" "$T/disk" \
	"${URI/nbd:\/\//nbds://alice@}?tls-psk-file=$T/psk"
stop_server

# A folder relative to where nbdfs is started: it is a daemon afterwards.
mkdir "$T/pki"
(
	cd "$T/pki" || exit
	certtool --generate-privkey --key-type=ecdsa --outfile ca-key.pem
	certtool --generate-self-signed --load-privkey ca-key.pem \
		--outfile ca-cert.pem --template <(printf '%s\n' cn=ca ca \
		cert_signing_key expiration_days=2)
	for who in server client; do
		certtool --generate-privkey --key-type=ecdsa \
			--outfile $who-key.pem
		certtool --generate-certificate --load-privkey $who-key.pem \
			--load-ca-certificate ca-cert.pem \
			--load-ca-privkey ca-key.pem --outfile $who-cert.pem \
			--template <(printf '%s\n' cn=localhost \
			dns_name=localhost ip_address=127.0.0.1 tls_www_server \
			tls_www_client signing_key encryption_key \
			expiration_days=2)
	done
) >"$T/certtool.log" 2>&1
start_nbdkit --tcp --tls=require --tls-certificates="$T/pki" \
	--tls-verify-peer file "$T/disk" || bail "nbdkit"
tls=${URI/nbd:/nbds:}
serves "TLS with certificates" "$T/disk" "$tls?tls-certificates=$T/pki"
cd "$T" || bail "no $T"
mnt_daemon "$tls?tls-certificates=pki" || bail "mount"
ok "cmp '$MNT/nbd' '$T/disk'" "TLS: a relative folder, from a daemon"
umnt "$MNT"
cd "$ROOT" || bail "no $ROOT"
run "$NBDFS" "$URI" "$T/empty"
like "$STATUS $(wc -l <<<"$ERR") $ERR" \
	"^1 1 nbdfs: $URI: the server requires TLS" "without TLS: one line"
stop_server

# ------------------------------------------------------- connecting is late

# One export: the connection that asked for it becomes its first.
next_nbdkit
start_nbdkit --filter=log file "$T/disk" logfile="$REQUESTS" || bail "nbdkit"
mnt -C 1 "$URI" || bail "mount"
{
	stat "$MNT/nbd"
	ls -l "$MNT"
	df "$MNT/nbd"
	head -c 1 "$MNT/nbd"
	head -c 1 "$MNT/nbd"
} >/dev/null
is "$(grep -c ' Preconnect ' "$REQUESTS")" 1 "-C 1: one connection does all"
umnt "$MNT"
stop_server

# ------------------------------------------------------------------- errors

# refuses STATUS DESCRIPTION REGEX ARGS...: STATUS 1 goes with one line, the
# others may say a second one; and nothing is mounted or left running.
refuses()
{
	local want=$1 desc=$2 regex=$3 lines
	shift 3
	run "$NBDFS" "$@"
	lines=$(wc -l <<<"$ERR")
	[ "$want" != 2 ] || ERR=$(head -n 1 <<<"$ERR")
	[ "$want" != 2 ] || [ "$lines" != 2 ] || lines=1
	like "$STATUS $lines $ERR" "^$want 1 nbdfs: $regex$" "$desc"
	[ -z "$OUT" ] || fail "$desc: nothing is said on stdout"
}

two=(--filter=exportname memory 1M exportname=a exportname=b
	exportname-list=explicit exportname-strict=true)
start_nbdkit "${two[@]}" || bail "nbdkit"
u=nbd\\+unix
refuses 1 "a wrong name" "server $u.*/c\?.* has no export 'c'; it offers: 'a', 'b'" \
	"$(uri c)" "$T/empty"
refuses 1 "two exports over a file" ".*" "$URI" "$T/file"
refuses 1 "NAME=URI that means two" \
	".*which export is 'x' to be\?.*'a', 'b'" x="$URI" "$T/empty"
refuses 1 "one name for two" ".*x.*" x="$(uri a)" x="$(uri b)" "$T/empty"
refuses 1 "no mount point" ".*/none: No such file or directory" "$URI" \
	"$T/none"
refuses 1 "a mount point that is neither" "/dev/null: .*" "$(uri a)" /dev/null
refuses 1 "one good server, one bad" \
	"nbd\+unix:///a\?socket=.*: no such socket" "$(uri a)" \
	"nbd+unix:///a?socket=$T/none" "$T/empty"
stop_server
refuses 1 "no socket" "$u.*: (no such socket|connection refused)" "$URI" \
	"$T/empty"
port=$(free_port)
refuses 1 "refused" "nbd://127.0.0.1:$port/: connection refused" \
	"nbd://127.0.0.1:$port/" "$T/empty"
refuses 1 "no URI" "'http://x/' is not an NBD URI.*" http://x/ "$T/empty"
refuses 1 "a server that does not start" \
	"server \[ nbdkit \.\.\. \] ended .*No such file or directory" \
	[ nbdkit file "$T/none" ] "$T/empty"
refuses 1 "no such program" "cannot run 'no-such-server': .*" \
	[ no-such-server ] "$T/empty"

# Who does not answer is given up; also where one of several does not.
for mode in silent drip info-stalls; do
	_next_server bad
	spawn "$SERVER_LOG" "$NBDFS_HELPERS/badserver" "$SOCK" "$mode"
	SERVER_PID=$SPAWNED
	_await_server badserver grep -q ready "$SERVER_LOG"
	began=$(date +%s%N)
	refuses 1 "$mode: given up" "$u.*: no answer within 0\.5 s" --timeout=0.5 \
		"$URI" [ nbdkit memory 1M ] "$T/empty"
	ms=$((($(date +%s%N) - began) / 1000000))
	# As often as it takes, on a machine that has much to do.
	ok "[ $ms -ge 450 ] && [ $ms -lt 10000 ]" "$mode: soon ($ms ms)"
	stop_server
done

u=nbd://127.0.0.1:$port/
refuses 2 "nothing" ".*needed"
refuses 2 "no mount point" ".*needed" "$u"
refuses 2 "an unknown option" "unknown option --none" --none "$u" "$T/empty"
refuses 2 "an unknown letter" "unknown option -Z" -Z "$u" "$T/empty"
refuses 2 "an unknown mount option" "unknown mount option none" -o none "$u" \
	"$T/empty"
refuses 2 "no number" "--connections=x: .*" --connections=x "$u" "$T/empty"
refuses 2 "too many" "--connections=65: .*" -C 65 "$u" "$T/empty"
refuses 2 "no size" "--read-ahead=1X: .*" --read-ahead=1X "$u" "$T/empty"
refuses 2 "too large" "--read-ahead=99999999T: .*" \
	--read-ahead=99999999T "$u" "$T/empty"
refuses 2 "no value" "option --timeout needs a value" "$u" "$T/empty" --timeout
refuses 2 "none of the choices" "--cache=all: .*" --cache=all "$u" "$T/empty"
refuses 2 "no end" '"\[" without.*' [ nbdkit memory 1M "$T/empty"
refuses 2 "no beginning" '"\]" without.*' nbdkit ] "$T/empty"
refuses 2 "nothing in brackets" '"\[ \]" without.*' [ ] "$T/empty"

ok "! mounted '$T/empty' && ! mounted '$T/file'" "none of them mounted anything"
is "$(stat -c %s "$T/file")" 0 "the file is what it was"
done_testing
