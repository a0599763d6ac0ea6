#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Certificates: a server whose certificate is wrong, or would not be checked,
# is not used, at the start and when a lost connection is made again.

# shellcheck disable=SC2119 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse qemu-nbd copy nbdkit certtool python3 helper:nbdlist

nbdlist=$NBDFS_HELPERS/nbdlist
# Where libnbd looks by itself: nothing that is ours.
export HOME=$T/home
mkdir "$HOME"
[ ! -e /etc/pki/libnbd/ca-cert.pem ] || skip "/etc/pki/libnbd is in use"

# make_ca NAME HOST ADDRESS: a CA, and a server's certificate by it.
make_ca()
{
	mkdir "$T/$1"
	(
		cd "$T/$1" || exit
		certtool --generate-privkey --key-type=ecdsa \
			--outfile ca-key.pem
		certtool --generate-self-signed --load-privkey ca-key.pem \
			--outfile ca-cert.pem --template <(printf '%s\n' \
			cn="$1" ca cert_signing_key expiration_days=2)
		certtool --generate-privkey --key-type=ecdsa \
			--outfile server-key.pem
		certtool --generate-certificate --load-privkey server-key.pem \
			--load-ca-certificate ca-cert.pem \
			--load-ca-privkey ca-key.pem \
			--outfile server-cert.pem --template <(printf '%s\n' \
			"cn=$2" "dns_name=$2" "ip_address=$3" \
			tls_www_server signing_key encryption_key \
			expiration_days=2)
	) >"$T/$1.certtool.log" 2>&1
	mkdir "$T/$1-only"
	cp "$T/$1/ca-cert.pem" "$T/$1-only" || bail "certtool"
}

make_ca right localhost 127.0.0.1
make_ca wrong localhost 127.0.0.1
make_ca other elsewhere 127.0.0.2
mkdir "$T/nothing"

# opens DESCRIPTION URI
opens()
{
	run "$nbdlist" "$2"
	is "$STATUS $(cut -f 2 <<<"$OUT")" "0 1048576" "$1" || diag "$ERR"
}

# refused DESCRIPTION REGEX URI: one line, from each program.
refused()
{
	run "$NBDFS" "$3" "$T/nothing"
	like "$STATUS $(wc -l <<<"$ERR") $ERR" "^1 1 nbdfs: nbds.*: $2\$" "$1"
	run "$NBDFS_COPY" "$3" null:
	like "$STATUS $(wc -l <<<"$ERR") $ERR" \
		"^1 1 nbdfs-copy: nbds.*: $2\$" "$1: nbdfs-copy"
}

start_nbdkit --tcp --tls=require --tls-certificates="$T/right" memory 1M ||
	bail "nbdkit"
tls=${URI/nbd:/nbds:}

not_valid="the server's certificate is not valid .*\(tls-certificates=\)"
opens "the right CA" "$tls?tls-certificates=$T/right-only"
opens "~ is the user's folder" "$tls?tls-certificates=~/../right-only"
opens "by name" \
	"${tls/127.0.0.1/localhost}?tls-certificates=$T/right-only"
refused "the wrong CA" "$not_valid" "$tls?tls-certificates=$T/wrong-only"
refused "a folder without a CA" ".*no CA's certificate, ca-cert.pem, in .*" \
	"$tls?tls-certificates=$T/nothing"
refused "no such folder" ".*no CA's certificate, ca-cert.pem, in .*" \
	"$tls?tls-certificates=$T/nosuch"
# A new libnbd goes by the system's CAs, which ours is none of.
refused "no folder" "(cannot check the server's certificate: name .*|$not_valid)" \
	"$tls"
opens "verify-peer=no" "$tls?tls-verify-peer=no"
opens "verify-peer=no, the wrong CA" \
	"$tls?tls-certificates=$T/wrong-only&tls-verify-peer=no"

# Where libnbd looks for users: nothing for root, who has /etc.
if [ "$(id -u)" != 0 ]; then
	mkdir -p "$HOME/.pki/libnbd"
	cp "$T/wrong/ca-cert.pem" "$HOME/.pki/libnbd"
	refused "the user's folder has the wrong CA" "$not_valid" "$tls"
	cp "$T/right/ca-cert.pem" "$HOME/.pki/libnbd"
	opens "the user's folder has the right CA" "$tls"
elif command -v setpriv >/dev/null; then
	mkdir -p "$HOME/.config/pki/libnbd"
	cp "$T/right/ca-cert.pem" "$HOME/.config/pki/libnbd"
	chmod 755 "$T"
	cp "$nbdlist" "$T/nbdlist"
	run setpriv --reuid 65534 --clear-groups "$T/nbdlist" "$tls"
	is "$STATUS" 0 "the user's folder has the right CA" || diag "$ERR"
	cp "$T/wrong/ca-cert.pem" "$HOME/.config/pki/libnbd"
	run setpriv --reuid 65534 --clear-groups "$T/nbdlist" "$tls"
	like "$STATUS $ERR" "^1 .*$not_valid" \
		"the user's folder has the wrong CA"
fi

# -------------------------------------------------- the CA is gone meanwhile

mnt --reconnect 1 --extent-timeout 0 "$tls?tls-certificates=$T/right-only" ||
	bail "mount"
run_ok -n "read" dd if="$MNT/nbd" of=/dev/null bs=64K count=1 status=none
port=${URI##*:}
stop_server
rm "$T/right-only/ca-cert.pem"
spawn "$T/again.log" nbdkit -f -i 127.0.0.1 -p "${port%/}" -P "$T/again.pid" \
	--tls=require --tls-certificates="$T/right" memory 1M
wait_until 10 test -s "$T/again.pid" || bail "nbdkit"
run_fails -n "no connection without the CA's certificate" \
	dd if="$MNT/nbd" of=/dev/null bs=64K count=1 status=none
cp "$T/right/ca-cert.pem" "$T/right-only"
run_ok -n "with it again" \
	dd if="$MNT/nbd" of=/dev/null bs=64K count=1 status=none
ok "umnt '$MNT'" "unmounted"
kill "$SPAWNED"

# ------------------------------------------------------------ without a host

start_nbdkit --tls=require --tls-certificates="$T/right" memory 1M ||
	bail "nbdkit"
# shellcheck disable=SC2153
sock="nbds+unix:///?socket=$SOCK"
refused "a socket" "(.*without a host name: use a key .*|$not_valid)" "$sock"
refused "a socket, the wrong CA" \
	"(.*without a host name: use a key .*|$not_valid)" \
	"$sock&tls-certificates=$T/wrong-only"
opens "a socket that is trusted" "$sock&tls-verify-peer=no"
stop_server

# -------------------------------------------------------------- another host

start_nbdkit --tcp --tls=require --tls-certificates="$T/other" memory 1M ||
	bail "nbdkit"
refused "another host" "$not_valid" \
	"${URI/nbd:/nbds:}?tls-certificates=$T/other-only"
stop_server

# ------------------------------------------------------------------- no key

head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$T/key"
echo "alice:$(<"$T/key")" >"$T/psk"
start_nbdkit --tls=require --tls-psk="$T/psk" memory 1M || bail "nbdkit"
refused "a key is wanted" \
	"the server ended the TLS handshake: it may want a key .*" \
	"nbds+unix:///?socket=$SOCK&tls-verify-peer=no"
stop_server

# ------------------------------------- a connection that is good, and then not

# proxy.py LISTEN SERVER HOW: the first connection goes wrong after a while, in
# the middle of a record; all others are left alone.
cat >"$T/proxy.py" <<'END'
import os, socket, sys, threading, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(64)
def pass_on(src, dst, limit):
    sent = 0
    while data := src.recv(10000):
        sent += len(data)
        if limit and sent > limit:
            if sys.argv[3] == "garbage":
                dst.sendall(os.urandom(100000))
            elif sys.argv[3] == "bit":
                dst.sendall(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
                continue
            elif sys.argv[3] == "stall":
                time.sleep(30)
            break
        dst.sendall(data)
    for s in src, dst:
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
limit = 300000
while True:
    client, _ = listener.accept()
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[2])
    threading.Thread(target=pass_on, args=(client, server, 0), daemon=True).start()
    threading.Thread(target=pass_on, args=(server, client, limit), daemon=True).start()
    limit = 0
END

head -c 1M /dev/urandom >"$T/disk"
# nbdkit 1.32 may abort when a TLS connection ends in the middle of an answer.
mkdir "$T/keys"
cp "$T/psk" "$T/keys/keys.psk"
start_qemu_nbd "$T/disk" --tls-creds=tls --object \
	"tls-creds-psk,id=tls,endpoint=server,dir=$T/keys" || bail "qemu-nbd"
for how in garbage bit stall close; do
	proxy=$T/$how.sock
	spawn "$T/$how.log" python3 "$T/proxy.py" "$proxy" "$SOCK" "$how"
	wait_until 10 test -S "$proxy"
	uri="nbds+unix://alice@/?socket=$proxy&tls-psk-file=$T/psk"
	mnt -v -C 1 --timeout=1 --reconnect=10 disk="$uri" || bail "mount"
	run_ok -n "$how in the middle of reading" cmp "$MNT/disk" "$T/disk"
	umnt "$MNT"
	like "$(<"$MNT_LOG")" ": connected" "by another connection"
	kill "$SPAWNED"
	wait_until 5 _gone "$SPAWNED"
	rm -f "$proxy"
	spawn "$T/$how.log" python3 "$T/proxy.py" "$proxy" "$SOCK" "$how"
	wait_until 10 test -S "$proxy"
	run_ok -n "$how: nbdfs-copy" "$NBDFS_COPY" -C 1 --timeout=1 \
		--retries=2 "$uri" "$T/copy"
	run_ok -n "$how: the bytes are right" cmp "$T/copy" "$T/disk"
	kill "$SPAWNED"
	wait_until 5 _gone "$SPAWNED"
done
stop_server

done_testing
