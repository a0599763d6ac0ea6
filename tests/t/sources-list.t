#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# A mount of all that a server lists: many exports, names that are hostile,
# and lists that change.

# shellcheck disable=SC2012,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse nbdkit qemu-nbd nbd-server helper:badserver
requires nbdkit-filter:exportname nbdkit-filter:log nbdkit-plugin:file

mib=1048576
many=(exportname-list=explicit exportname-strict=true)

# opened: how often a client came to the server so far.
opened()
{
	grep -c ' Preconnect ' "$REQUESTS"
}

# data_connections: to which exports, one a line, other than to ask for sizes.
# Those who only ask leave at once, and have no transaction.
data_connections()
{
	awk '
	$4 == "Connect" { name[$3] = substr($5, 8) }
	$4 == "Disconnect" && $5 == "transactions=0" { delete name[$3] }
	END { for (c in name) print name[c] }' "$REQUESTS" | sort
}

# -------------------------------------------------------------- 500 exports

names=()
for i in $(seq 500); do
	names+=("exportname=$(printf 'e%04d' "$i")")
done
next_nbdkit
start_nbdkit --filter=log --filter=exportname memory 1M "${names[@]}" \
	"${many[@]}" logfile="$REQUESTS" || bail "nbdkit"
# The list is believed for long: what follows is about the files.
mnt --list-timeout=1000 "$URI" || bail "mount"
ok "[ $(opened) -le 2 ]" "one connection tells of 500 exports"
before=$(opened)
run ls -l "$MNT"
is "$STATUS $(grep -c "^-rw------- 1 .* $mib .* e[0-9]*$" <<<"$OUT")" "0 500" \
	"ls -l shows 500 files"
is "$(ls "$MNT" | md5sum)" "$(printf 'e%04d\n' {1..500} | md5sum)" \
	"each name once"
is "$(du -s --apparent-size -B1M "$MNT" | cut -f 1)" 500 "du adds them up"
run_fails -n "a file that there is not" stat "$MNT/e0501"
is "$(opened)" "$before" "which takes no connection to any of them"
run cmp -n 4096 "$MNT/e0123" /dev/zero
is "$STATUS" 0 "one is read"
is "$(($(opened) - before)) $(data_connections | tr '\n' ' ')" "1 e0123 " \
	"which connects to that one, once"
ok "umnt '$MNT'" "unmounted"
# What is left of it is in the log.
stop_server
is "$(grep -c ' Disconnect ' "$REQUESTS")" \
	"$(grep -c ' Connect ' "$REQUESTS")" "the server was left politely"

# ----------------------------------------------------------- a list changes

mkdir "$T/dir"
truncate -s 1000 "$T/dir/stays"
truncate -s 2000 "$T/dir/goes"
start_nbdkit file dir="$T/dir" || bail "nbdkit"
mnt --list-timeout=0.2 "$URI" || bail "mount"
is "$(ls "$MNT" | tr '\n' ' ')" "goes stays " "the list at first"
# Open files outlive their place in the list.
exec {fd}<"$MNT/goes"
truncate -s 3000 "$T/dir/new"
head -c 500 /dev/urandom >>"$T/dir/stays"
mv "$T/dir/goes" "$T/goes"

listed()
{
	[ "$(stat -c '%n %s' "$MNT"/* | sed 's,.*/,,' | tr '\n' ,)" = "$1" ]
}
ok "wait_until 10 listed 'new 3000,stays 1500,'" \
	"what is new appears, what is gone disappears, sizes change" ||
	diag "$(ls -l "$MNT")"
ok "wait_until 10 test ! -e '$MNT/goes'" "what is gone cannot be found either"
ok "cmp '$MNT/new' '$T/dir/new' && cmp '$MNT/stays' '$T/dir/stays'" \
	"and all of it can be read"
is "$(head -c 100 <&$fd | tr '\0' . | wc -c)" 100 "an open file stays readable"
exec {fd}<&-
mv "$T/goes" "$T/dir/goes"
ok "wait_until 10 listed 'goes 2000,new 3000,stays 1500,'" \
	"an export comes back"

# A server that is away keeps its entries.
kill_server
sleep 0.3
is "$(ls "$MNT" | tr '\n' ' ')" "goes new stays " \
	"the list stays when the server is gone"
umnt "$MNT"

mkdir "$T/dir2"
: >"$T/dir2/a"
start_nbdkit file dir="$T/dir2" || bail "nbdkit"
mnt --list-timeout=1000 "$URI" || bail "mount"
ls "$MNT" >/dev/null
: >"$T/dir2/b"
sleep 0.3
is "$(ls "$MNT" | tr '\n' ' ')" "a " "--list-timeout: the list is believed"
umnt "$MNT"
rm "$T"/dir2/*
mnt "$URI"
is "$?" 0 "a server without any export can be mounted"
is "$(ls -A "$MNT" | wc -l)" 0 "as an empty folder"
: >"$T/dir2/later"
ok "wait_until 15 test -e '$MNT/later'" "an export that comes later is seen"
umnt "$MNT"
stop_server

# ------------------------------------------------------------- hostile names

long=$(printf 'x%.0s' {1..300})
start_nbdkit --filter=exportname memory 1M "${many[@]}" exportname= \
	exportname=. exportname=.. exportname=../../etc/passwd exportname=a/b \
	exportname=50% exportname=50%25 exportname=$'new\nline' \
	exportname=$'\e[31m' exportname="with space" exportname=-rf \
	exportname="grün" exportname="${long}1" exportname="${long}2" \
	exportname=nbd || bail "nbdkit"
mnt "$URI" || bail "mount"
for name in %2E %2E%2E ..%2F..%2Fetc%2Fpasswd a%2Fb 50%25 50%2525 \
	new%0Aline %1B[31m "with space" -rf "grün"; do
	ok "[ -f \"\$MNT/\$name\" ]" "hostile: $name"
done
is "$(find "$MNT" -mindepth 1 | wc -l)" 15 "each has a file"
is "$(find "$MNT" -mindepth 1 -name 'x*~*' -size "${mib}c" | wc -l)" 2 \
	"two long names that differ at their end only"
is "$(find "$MNT" -mindepth 1 -name 'x*' -printf '%f\n' |
	awk 'length > 255' | wc -l)" 0 "are cut"
# "nbd" stands for the one without a name, and another has that name.
is "$(find "$MNT" -mindepth 1 -name 'nbd*' | wc -l)" 2 \
	"no two share a file: $(cd "$MNT" && echo nbd*)"
find "$MNT" -mindepth 1 -print0 | xargs -0 cksum >"$T/sums" 2>"$T/err"
is "$? $(awk '{ print $1, $2 }' "$T/sums" | uniq -c | wc -l)" "0 1" \
	"all of them can be read" || diag "$(cat "$T/err")"
before=$(ls "$MNT" | md5sum)
umnt "$MNT"
mnt "$URI"
is "$(ls "$MNT" | md5sum)" "$before" "names are the same at the next mount"
umnt "$MNT"
stop_server

# The names that another server could not even be asked to serve.
_next_server bad
: >"$SERVER_LOG"
spawn "$SERVER_LOG" "$NBDFS_HELPERS/badserver" "$SOCK" hostile-names
SERVER_PID=$SPAWNED
_await_server badserver grep -q ready "$SERVER_LOG"
mnt "$URI"
is "$? $(find "$MNT" -mindepth 1 -type f | wc -l)" "0 7" \
	"names that are no text: a file for each"
umnt "$MNT"
stop_server

# ---------------------------------------------------------- several servers

truncate -s 1000 "$T/one"
head -c 2000 /dev/urandom >"$T/two"
start_qemu_nbd "$T/one" -x same || bail "qemu-nbd"
uri1=$URI pid1=$SERVER_PID named=$(uri same)
start_nbdkit --filter=exportname file "$T/two" exportname=same \
	exportname=other "${many[@]}" || bail "nbdkit"
mnt "$uri1" "$URI" my-disk="$named" \
	their-disk="$(uri other)" [ nbdkit memory 4000 ] || bail "mount"
is "$(stat -c %s "$MNT/my-disk")" 1024 "NAME=URI"
is "$(stat -c %s "$MNT/nbd")" 4000 "a server of our own"
is "$(stat -c %s "$MNT/other")" 2000 "an export of one server"
ok "cmp '$MNT/other' '$MNT/their-disk'" "two names for one export"
is "$(stat -c %s "$MNT"/same* | sort | tr '\n' ' ')" "1024 2000 " \
	"two exports of one name: $(cd "$MNT" && echo same*)"
ok "cmp '$MNT/other' '$T/two'" "one is read"
ok "cmp -n 1000 '$MNT/my-disk' '$T/one'" "the other is read"
umnt "$MNT"
stop_server
stop_server "$pid1"

# ------------------------------------------------- sizes that come only late

head -c 12345 /dev/urandom >"$T/three"
start_nbd_server one="$T/one" three="$T/three" || bail "nbd-server"
mnt "$URI" || bail "mount"
is "$(stat -c '%n %s' "$MNT"/* | sed 's,.*/,,' | tr '\n' ,)" \
	"one 1000,three 12345," "nbd-server: sizes are right"
ok "cmp '$MNT/three' '$T/three'" "nbd-server: contents"
umnt "$MNT"
stop_server
done_testing
