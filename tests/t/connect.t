#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Reaching servers and listing what they offer: all protocols, all servers,
# servers that run as a child, and servers that lie, stall or never end.

. "$(dirname "$0")/../lib.sh"
requires nbdkit qemu-nbd qemu-img nbd-server helper:nbdlist helper:badserver
requires nbdkit-filter:exportname nbdkit-filter:delay

nbdlist=$NBDFS_HELPERS/nbdlist
TAB=$'\t'
# Folders of children are to be seen.
mkdir "$T/tmp"
export TMPDIR=$T/tmp
unset XDG_RUNTIME_DIR

list()
{
	run "$nbdlist" "$@"
}

# lists DESCRIPTION LINES ARGS...: status 0 and these lines (names only where
# there is no tab in LINES).
lists()
{
	local desc=$1 want=$2 got
	shift 2
	list "$@"
	got=$OUT
	[[ $want == *$TAB* ]] || got=$(cut -f 1 <<<"$OUT" | grep -v '^caps$')
	is "status $STATUS: $got" "status 0: $want" "$desc" || diag "$ERR"
}

# fails DESCRIPTION REGEX ARGS...: status 1 and one line on stderr.
fails()
{
	local desc=$1 regex=$2
	shift 2
	list "$@"
	like "$STATUS $(wc -l <<<"$ERR") $ERR" "^1 1 nbdlist: $regex\$" "$desc"
}

# within SECONDS: the last command took no longer than that.
began=
within()
{
	local ms=$((($(date +%s%N) - began) / 1000000))
	ok "[ $ms -le $(($1 * 1000)) ]" "${2:-in time} ($ms ms)"
}
start_clock()
{
	began=$(date +%s%N)
}

mib=1048576
caps="min=1 pref=4096 max=33554432"
many=(exportname-list=explicit exportname-strict=true)
two=(--filter=exportname memory 1M exportname=a exportname=b "${many[@]}")

# ---------------------------------------------------------------- protocols

all="$caps multi flush fua zero fast trim"
# From some version on nbdkit tells the block sizes of memory.
told=$all
if nbdkit memory --dump-plugin | grep -qx has_block_size=1; then
	told=${all/pref=4096/pref=32768}
fi
lists "a child, fixed newstyle" \
	"${TAB}$mib${TAB}rw${TAB}
caps${TAB}${TAB}size=$mib $told status${TAB}" -k [ nbdkit memory 1M ]
lists "without structured replies there is no status" \
	"${TAB}$mib${TAB}rw${TAB}
caps${TAB}${TAB}size=$mib $told${TAB}" -k [ nbdkit --no-sr memory 1M ]
lists "oldstyle" \
	"${TAB}$mib${TAB}rw${TAB}
not listed
caps${TAB}${TAB}size=$mib $all${TAB}" -k [ nbdkit -o memory 1M ]
lists "newstyle that is not fixed" \
	"${TAB}$mib${TAB}rw${TAB}
not listed
caps${TAB}${TAB}size=$mib $all${TAB}" -k [ nbdkit --mask-handshake=0 memory 1M ]
lists "oldstyle, opened by any name" \
	"caps${TAB}x${TAB}size=$mib $all${TAB}" -e x [ nbdkit -o memory 1M ]
lists "read-only" "${TAB}$mib${TAB}ro${TAB}" [ nbdkit -r memory 1M ]
lists "a size that is no multiple of anything" \
	"${TAB}1000001${TAB}rw${TAB}" [ nbdkit memory 1000001 ]
lists "the largest size" "${TAB}9223372036854775807${TAB}ro${TAB}" \
	[ nbdkit pattern 9223372036854775807 ]
lists "block sizes" \
	"caps${TAB}x${TAB}size=$mib min=4096 pref=65536 max=131072 multi flush \
fua zero fast trim status${TAB}" -e x [ nbdkit --filter=blocksize-policy \
	memory 1M blocksize-minimum=4096 blocksize-preferred=64K \
	blocksize-maximum=128K ]
lists "the same connection works again and again" \
	"$(printf "caps\t\tsize=$mib $told status\t\n%.0s" 1 2 3)" -n 3 -e '' \
	[ nbdkit memory 1M ]

# ------------------------------------------------------------------ exports

lists "two exports" "a
b" -k [ nbdkit "${two[@]}" ]
lists "one of two" "caps${TAB}b${TAB}size=$mib $told status${TAB}" -e b \
	[ nbdkit "${two[@]}" ]
fails "a wrong name tells what there is" \
	"server \[ nbdkit \.\.\. \] has no export 'c'; it offers: 'a', 'b'" \
	-e c [ nbdkit "${two[@]}" ]
fails "a wrong name, where nothing can be listed" \
	".*: the server closed the connection when asked for export 'c'" \
	-e c [ nbdkit --mask-handshake=0 "${two[@]}" ]

start_nbdkit "${two[@]}"
lists "the URI names one" "b" -k "$(uri b)"
lists "an escape in the URI" "a" "$(uri %61)"
fails "the URI names a wrong one" \
	"server nbd\+unix:///c\?socket=$SOCK has no export 'c'; .*'a', 'b'" \
	"$(uri c)"
fails "NAME=URI must mean one" \
	".*: which export is 'disk' to be\? The server offers: 'a', 'b'" \
	"disk=$(uri)"
lists "NAME=URI with an export" "b" "disk=$(uri b)"
stop_server

start_nbdkit --filter=exportname memory 1M exportname=only "${many[@]}"
lists "NAME=URI means the only one" "only" "disk=$(uri)"
stop_server
start_nbdkit --filter=exportname memory 1M exportname= exportname=a "${many[@]}"
lists "NAME=URI means the default one" "" "disk=$(uri)"
stop_server

names=()
for i in $(seq 500); do
	names+=("exportname=$(printf 'e%04d' "$i")")
done
start_nbdkit --tcp --filter=exportname memory 1M "${names[@]}" "${many[@]}"
start_clock
list "$URI"
within 2 "500 exports"
is "$(grep -c "^e[0-9]*${TAB}$mib${TAB}rw" <<<"$OUT")" 500 "all have a size"
fails "a wrong name among 500" \
	".* has no export 'x'; it offers: 'e0001', .*, \.\.\. \(500 in all\)" \
	-e x "$URI"
stop_server

# Answers that are slow to come, from a server that has them one by one.
mkdir "$T/files"
truncate -s 1M "$T"/files/f{1,2,3}{0,1,2,3,4,5,6,7}
list -t 20 [ nbdkit --filter=delay file dir="$T/files" delay-open=30ms ]
is "$(grep -c "$mib${TAB}rw" <<<"$OUT")" 24 "slow answers, all of them"

mkdir "$T/empty"
lists "a server without any export" "" [ nbdkit file dir="$T/empty" ]

# ------------------------------------------------------------------ servers

truncate -s 1M "$T/disk"
start_qemu_nbd "$T/disk" -x disk -D "a disk of mine"
lists "qemu-nbd with a description" \
	"disk${TAB}$mib${TAB}rw${TAB}a disk of mine" "$(uri)"
lists "the description of one" \
	"disk${TAB}$mib${TAB}rw${TAB}a disk of mine" "$(uri disk)"
fails "qemu-nbd, a wrong name" ".* has no export 'x'; it offers: 'disk'" \
	"$(uri x)"
stop_server
lists "qemu-nbd that ends with its client: one connection does all" \
	"${TAB}$mib${TAB}rw${TAB}
caps${TAB}${TAB}size=$mib $caps flush fua zero fast trim status${TAB}" \
	-k [ qemu-nbd -f raw "$T/disk" ]
qemu-img create -q -f qcow2 "$T/q" 1M
qemu-img bitmap --add "$T/q" bm
lists "a dirty bitmap as well" \
	"caps${TAB}${TAB}size=$mib $caps flush fua zero fast trim status${TAB}" \
	-e '' -m qemu:dirty-bitmap:bm [ qemu-nbd -f qcow2 -B bm "$T/q" ]
fails "a bitmap that there is not" \
	".*: it has no dirty bitmap 'x'" \
	-e '' -m qemu:dirty-bitmap:x [ qemu-nbd -f qcow2 -B bm "$T/q" ]

truncate -s 2M "$T/two"
start_nbd_server one="$T/disk" two="$T/two"
lists "nbd-server tells no size before it is connected to" \
	"one${TAB}$mib${TAB}rw${TAB}
two${TAB}$((2 * mib))${TAB}rw${TAB}" "$(uri)"
fails "nbd-server, a wrong name" \
	".* has no export 'x'; it offers: 'one', 'two'" "$(uri x)"
stop_server

# It writes its answers in pieces, each waiting for an acknowledgement.
sections=()
for i in $(seq 100); do
	sections+=("x$i=$T/disk")
done
start_nbd_server --tcp "${sections[@]}"
start_clock
list "$URI"
within 3 "100 exports of nbd-server over TCP"
is "$(grep -c "$mib${TAB}rw" <<<"$OUT")" 100 "all have a size"
stop_server

# ---------------------------------------------------------------------- TLS

key=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
echo "alice:$key" >"$T/psk"
start_nbdkit --tls=require --tls-psk="$T/psk" memory 1M
tls=nbds+unix://alice@/
lists "TLS by a pre-shared key" "" "$tls?socket=$SOCK&tls-psk-file=$T/psk"
cd "$T" || bail "no $T"
lists "relative paths" "" "$tls?socket=${SOCK##*/}&tls-psk-file=psk"
cd "$ROOT" || bail "no $ROOT"
fails "the server requires TLS" \
	".*: the server requires TLS: use nbds:// or nbds\+unix://" "$(uri)"
fails "another user" ".*bob was not found in PSK file" \
	"nbds+unix://bob@/?socket=$SOCK&tls-psk-file=$T/psk"
fails "no key file" ".*No such file or directory" \
	"$tls?socket=$SOCK&tls-psk-file=$T/none"
fails "no credentials" ".*: the server ended the TLS handshake: .*key.*" \
	"$tls?socket=$SOCK&tls-verify-peer=no"
stop_server
start_nbdkit memory 1M
fails "the server has no TLS" ".*: the server does not offer TLS" \
	"$tls?socket=$SOCK&tls-psk-file=$T/psk"
stop_server

requires openssl
mkdir "$T/pki"
{
	openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca \
		-keyout "$T/pki/ca-key.pem" -out "$T/pki/ca-cert.pem"
	for who in server client; do
		openssl req -newkey rsa:2048 -nodes -subj /CN=localhost \
			-keyout "$T/pki/$who-key.pem" -out "$T/pki/$who.csr"
		openssl x509 -req -days 2 -in "$T/pki/$who.csr" \
			-extfile <(echo "subjectAltName=IP:127.0.0.1") \
			-CA "$T/pki/ca-cert.pem" -CAkey "$T/pki/ca-key.pem" \
			-CAcreateserial -out "$T/pki/$who-cert.pem"
	done
} >"$T/openssl.log" 2>&1
start_nbdkit --tcp --tls=require --tls-certificates="$T/pki" \
	--tls-verify-peer memory 1M
lists "TLS by certificates" "" \
	"${URI/nbd:/nbds:}?tls-certificates=$T/pki"
mkdir "$T/pki2"
cp "$T/pki/ca-cert.pem" "$T/pki2"
fails "without a certificate of ours" ".*" \
	"${URI/nbd:/nbds:}?tls-certificates=$T/pki2"
stop_server

# ------------------------------------------------------------------- errors

port=$(free_port)
fails "connection refused" "nbd://127.0.0.1:$port/x: connection refused" \
	"nbd://127.0.0.1:$port/x"
fails "no secrets in messages" \
	"nbds://alice@127.0.0.1:$port/x: connection refused" \
	"nbds://alice:sesame@127.0.0.1:$port/x?tls-psk-file=$T/psk"
fails "no socket" ".*: no such socket" "nbd+unix:///?socket=$T/none"
fails "a folder" ".*: there is something else than a socket" \
	"nbd+unix:///?socket=$T"
fails "no host" "nbd://none.invalid: the host is not found: .*" \
	nbd://none.invalid
fails "a URI that is none" "nbd://bad host: this is not a valid URI" \
	"nbd://bad host"
fails "no program" "cannot run '$T/none': No such file or directory" \
	[ "$T/none" ]
fails "a child that ends says why" \
	"server \[ nbdkit \.\.\. \] ended with status 1 before answering: \
nbdkit: error: .*/none: No such file or directory" [ nbdkit file "$T/none" ]
fails "a child that says nothing" \
	"server \[ false \] ended with status 1 before answering" [ false ]
fails "a child that is killed" \
	"server \[ sh \.\.\. \] was ended by signal 9 before answering" \
	[ sh -c 'kill -9 $$' ]
start_clock
fails "a child that does not answer" "\[ sleep \.\.\. \]: no answer within 1 s" \
	-t 1 [ sleep 100 ]
within 3
run_ok -n "what a child prints is passed on" "$nbdlist" -d [ sh -c \
	'echo hello; exec nbdkit memory 1M' ]
like "$ERR" "^log: sh: hello" "with its name"

spawn "$T/killed.log" "$nbdlist" -t 60 [ sleep 1000 ]
pid=$SPAWNED
has_child()
{
	child=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null)
	[ -n "$child" ] && grep -q sleep "/proc/${child% }/comm"
}
wait_until 10 has_child
kill_server "$pid"
ok "wait_until 5 _gone ${child% }" "a child ends when we are killed"
rm -rf "$T"/tmp/nbdfs-*

# ------------------------------------------------------------ hostile servers

# bad MODE: starts one.
bad()
{
	_next_server bad
	: >"$SERVER_LOG"
	spawn "$SERVER_LOG" "$NBDFS_HELPERS/badserver" "$SOCK" "$1"
	SERVER_PID=$SPAWNED
	_await_server "badserver $1" grep -q ready "$SERVER_LOG"
	start_clock
}

late="nbd\+unix:.*: no answer within 2 s"
for mode in silent drip info-stalls info-endless; do
	bad $mode
	fails "$mode: given up" "$late" -t 2 "$(uri)"
	within 4
	stop_server
done

port=$(free_port)
: >"$T/bad.log"
spawn "$T/bad.log" "$NBDFS_HELPERS/badserver" "$port" silent
wait_until 5 grep -q ready "$T/bad.log"
start_clock
fails "silent over TCP: given up" "nbd://127.0.0.1:$port: no answer within 1 s" \
	-t 1 "nbd://127.0.0.1:$port"
within 3
start_clock
fails "cancelled" "nbd://127.0.0.1:$port: given up" -t 60 -c 300 \
	"nbd://127.0.0.1:$port"
within 3

bad info-endless
fails "cancelled, although it is never silent" ".*: given up" -t 60 -c 300 \
	"$(uri)"
within 4
stop_server

closed=".*: the server closed the connection"
while read -r mode regex; do
	bad "$mode"
	fails "$mode" "$regex" -t 5 "$(uri)"
	stop_server
done <<END
garbage .*: server did not send expected NBD magic
close $closed
list-half $closed
all-refused .*: the server's policy forbids it
info-refused .*: export '[ab]': the server's policy forbids it
one-question $closed
too-large .*: export 'a': its size is above 2\^63 - 1 bytes
END

while read -r mode want; do
	bad "$mode"
	list -t 5 -k "$(uri)"
	is "$STATUS $(grep -v ^caps <<<"$OUT" | tr '\n\t' ' ,')" "0 $want " \
		"$mode"
	stop_server
done <<END
good a,$mib,rw,text b,$mib,rw,text
one one,$mib,rw,text
list-same x,$mib,rw,
list-too-long a,$mib,rw, b,$mib,rw,
list-refused ,$mib,rw, not listed
list-close ,$mib,rw, not listed
info-size-0 a,$mib,rw,text b,$mib,rw,text c,$mib,rw,text
info-close a,$mib,rw,text b,0,?,text c,$mib,rw,text
largest a,9223372036854775807,rw,text
END

# nbdkit takes 32 questions a connection, or more where it has told a list.
bad info-few
list "$(uri)"
is "$STATUS $(grep -c "$mib${TAB}rw" <<<"$OUT")" "0 8" \
	"few answers for each connection"
stop_server

bad info-b-stalls
list -t 3 "$(uri)"
is "$STATUS $(tr '\n\t' ' ,' <<<"$OUT")" \
	"0 a,$mib,rw,text b,0,?,text c,$mib,rw,text d,$mib,rw,text " \
	"one export that hangs does not hide the others"
within 5
stop_server

for mode in list-endless list-huge-names; do
	bad $mode
	list -t 20 "$(uri)"
	is "$STATUS" 0 "$mode: cut off"
	within 20
	n=$(wc -l <<<"$OUT")
	ok "[ $n -gt 1000 ] && [ $n -le 16384 ]" "$n exports are taken"
	stop_server
done

bad hostile-names
list "$(uri)"
is "$STATUS $(wc -l <<<"$OUT")" "0 8" "hostile names, each once"
fails "in a message they are harmless" \
	".*; it offers: '', '\.', '\.\.', '\.\./x', 'a', 'c d\?\[31m', '\?\?'" \
	-e x "$(uri)"
stop_server

is "$(ls "$T/tmp")" "" "no folder is left behind"
done_testing
