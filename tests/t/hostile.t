#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Servers that break the protocol, in every scenario of the helper evilnbd: a
# clear error or a correct result, soon, in bounded memory, and without harm to
# what else is mounted.
#
# NBDFS_HOSTILE   only these scenarios, spaces between

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:evilnbd helper:seekmap

E=$T/evil
mkdir "$E"
spawn "$T/evil.log" "$NBDFS_HELPERS/evilnbd" "$E"
wait_until 10 grep -q ready "$T/evil.log" || bail "evilnbd"

# address SCENARIO
address()
{
	case $1 in
	tls-*) echo "nbds+unix:///?socket=$E/$1&tls-verify-peer=no" ;;
	*) echo "nbd+unix:///?socket=$E/$1" ;;
	esac
}

wanted()
{
	[ -z "$NBDFS_HOSTILE" ] || [[ " $NBDFS_HOSTILE " == *" $1 "* ]]
}

now_ms()
{
	echo $((${EPOCHREALTIME/./} / 1000))
}

touch "$T/seen"

# ----------------------------------------------------------- not to be mounted

# try SCENARIO: mounts, and leaves what came of it in $T/SCENARIO.try: status,
# milliseconds, lines of messages, the first of them.
try()
{
	local begin
	begin=$(now_ms)
	timeout -k 5 20 "$NBDFS" -f --timeout="$PATIENCE" \
		"x=$(address "$1")" "$T/none" >"$T/$1.err" 2>&1 </dev/null
	echo "$? $(($(now_ms) - begin)) $(wc -l <"$T/$1.err")" \
		"$(head -n 1 "$T/$1.err")" >"$T/$1.try"
}

# refused: reads lines "SCENARIO REGEX"; the mounts run beside each other.
refused()
{
	local name regex status ms lines text names=() regexes=() i n=0 pids=()
	while read -r name regex; do
		wanted "$name" || continue
		names+=("$name")
		regexes+=("$regex")
		try "$name" &
		pids+=($!)
		n=$((n + 1))
		[ $((n % 8)) != 0 ] || wait "${pids[@]}"
	done
	[ $n = 0 ] || wait "${pids[@]}"
	for i in "${!names[@]}"; do
		name=${names[i]}
		echo "$name" >>"$T/seen"
		read -r status ms lines text <"$T/$name.try"
		like "$status $lines $text" \
			"^1 1 nbdfs: nbds?\+unix:[^ ]*/${name//^/\\^}: ${regexes[i]}\$" \
			"$name: one clear line ($ms ms)"
		[ "$ms" -lt 8000 ] || fail "$name: took $ms ms"
	done
}

mkdir "$T/none"

# Under a sanitizer everything takes its time.
PATIENCE=10
refused <<'END'
greet-close the server closed the connection
greet-garbage server did not send expected NBD magic
greet-half the server closed the connection
oldstyle-huge export '': its size is above 2\^63 - 1 bytes
sr-garbage invalid option reply magic or option
sr-close the server closed the connection
sr-other invalid option reply magic or option
sr-type unexpected option reply type 32767
sr-long invalid NBD_REP_ACK option reply length
context-close the server closed the connection
context-garbage invalid option reply magic or option
context-short invalid NBD_REP_META_CONTEXT reply length
go-close the server closed the connection
go-garbage invalid option reply magic or option
go-other invalid option reply magic or option
go-type unexpected option reply type 153
go-error unknown reply from (NBD_OPT_GO|the server): 0x8000ffff
go-long invalid option reply length
go-long-error invalid option reply length
go-ack-with-payload invalid NBD_REP_ACK option reply length
go-without-info export '': the server does not tell its size
go-short-info incorrect NBD_INFO_EXPORT option reply length
go-empty-info NBD_REP_INFO reply length too small
list-many which export is 'x' to be\? The server offers: .*\(10000 in all\)
list-names which export is 'x' to be\? The server offers: [[:print:]]*
list-nul which export is 'x' to be\? The server offers: 'one', 'other'
size-2^63 export '': its size is above 2\^63 - 1 bytes
size-2^64-1 export '': its size is above 2\^63 - 1 bytes
tls-refused the server does not offer TLS
tls-close the server ended the TLS handshake: .*
tls-half the server ended the TLS handshake: .*
tls-alert the server ended the TLS handshake: .*
tls-garbage the TLS handshake failed: .*
tls-empty the TLS handshake failed: .*
tls-long the TLS handshake failed: .*
tls-flood the TLS handshake failed: .*
tls-alerts the TLS handshake failed: .*
tls-data the TLS handshake failed: .*
tls-plain the TLS handshake failed: .*
END

PATIENCE=1
refused <<'END'
greet-silent no answer within 1 s
greet-drip no answer within 1 s
sr-silent no answer within 1 s
context-silent no answer within 1 s
go-silent no answer within 1 s
go-drip no answer within 1 s
list-silent no answer within 1 s
tls-silent no answer within 1 s
tls-drip no answer within 1 s
END

# ------------------------------------------------------------- many exports

peak_kb()
{
	awk '$1 == "VmHWM:" { print $2 }' "/proc/$MNT_PID/status"
}

# A sanitizer's memory says nothing.
sanitized()
{
	grep -qa __asan_init "$NBDFS" || grep -qa __tsan_init "$NBDFS"
}

# modest MEGABYTES WHAT
modest()
{
	local kb
	kb=$(peak_kb)
	sanitized || ok "[ $kb -lt $(($1 * 1024)) ]" "$2: $kb KiB of memory"
}

if wanted list-many; then
	begin=$(now_ms)
	if mnt --timeout=20 "$(address list-many)"; then
		# shellcheck disable=SC2012
		is "$(ls "$MNT" | wc -l)" 10000 "ten thousand exports are listed"
		is "$(stat -c %s "$MNT/export9999")" 1048576 "and have a size"
		ok "[ $(($(now_ms) - begin)) -lt 20000 ]" "soon"
		modest 200 "ten thousand exports"
		umnt "$MNT"
	else
		fail "ten thousand exports"
	fi
fi
if wanted list-names; then
	mnt --timeout=10 "$(address list-names)" || fail "mount of odd names"
	is "$(cd "$MNT" && shopt -s dotglob && printf '%q\n' * | grep -v '^nnnn')" "$(cat <<-'END'
		%1B\]0\;title%07
		%25
		%252F
		%2E
		%2E%2E
		%2F
		-rf
		..%2F..%2Fetc%2Fpasswd
		a%2Fb
		nl%0A
		plain
		tab%09here
		$'\377\376\300\257'
		END
	)" "names that are none"
	is "$(cd "$MNT" && for name in nnnn*; do echo ${#name}; done)" \
		$'255\n255' "names of 4096 bytes"
	run_ok -n "one of them is read" cmp -n 4096 "$MNT/plain" "$MNT/%2E%2E"
	umnt "$MNT"
fi

# ------------------------------------------------------------- in transmission

SIZE=1048576 PART=65536
# What all servers have; the second half is a hole.
mnt ref="$(address good)" || bail "a good server"
cp --sparse=never "$MNT/ref" "$T/ref"
umnt "$MNT"
is "$(stat -c %s "$T/ref") $(tr -d '\0' <"$T/ref" | wc -c)" \
	"$SIZE $((SIZE / 2 - SIZE / 2 / 256))" "what a good server has"
head -c $PART "$T/ref" >"$T/new"

# outcome COMMAND...: "ok", or the error as a word.
outcome()
{
	local text status
	text=$(LC_ALL=C timeout -k 5 "$LIMIT" "$@" 2>&1 >/dev/null)
	status=$?
	case $status:$text in
	0:*) echo ok ;;
	124:* | 137:*) echo late ;;
	*"Input/output error"*) echo EIO ;;
	*"Operation not permitted"*) echo EPERM ;;
	*"Invalid argument"*) echo EINVAL ;;
	*"Cannot allocate memory"*) echo ENOMEM ;;
	*"No space left"*) echo ENOSPC ;;
	*"Read-only"*) echo EROFS ;;
	*) echo "$status: $text" ;;
	esac
}

# job NAME WANTED: reads it, writes it, makes zeroes (unless "-" is wanted);
# leaves the outcomes and the milliseconds in $T/NAME.job.
job()
{
	local file=$MNT/$1 begin read write zero
	begin=$(now_ms)
	read=$(outcome dd if="$file" of="$T/$1.read" bs=128K count=8 status=none)
	if [ "$read" = ok ] && ! cmp -s "$T/$1.read" "$T/ref"; then
		read=wrong
	fi
	rm -f "$T/$1.read"
	write=$(outcome dd if="$T/new" of="$file" bs=$PART seek=4 \
		conv=notrunc,fsync status=none)
	zero=-
	[ "$2" = - ] ||
		zero=$(outcome fallocate -z -o $((PART * 6)) -l $PART "$file")
	echo "$read $write $zero $(($(now_ms) - begin))" >"$T/$1.job"
}

# transmission MOUNT-OPTIONS...: reads lines "SCENARIO READ WRITE ZERO", with
# the outcomes that are wanted ("any": ok or EIO). All of them in one mount.
# Where two are told apart by "|", the first is of libnbd 1.14, and the other
# of 1.22, which skips some answers that it did not ask for.
transmission()
{
	local names=() wants=() sources=() pids=() name want i got
	while read -r name want; do
		wanted "${name%.once}" || continue
		names+=("$name")
		wants+=("$want")
		sources+=("$name=$(address "$name")")
	done
	[ ${#names[@]} -gt 0 ] || return
	mnt "$@" "${sources[@]}" fine="$(address good.once)" ||
		bail "mount of ${names[*]}"
	for i in "${!names[@]}"; do
		job "${names[i]}" "${wants[i]##* }" &
		pids+=($!)
	done
	wait "${pids[@]}"
	for i in "${!names[@]}"; do
		name=${names[i]}
		echo "${name%.once}" >>"$T/seen"
		got=$(<"$T/$name.job")
		like "${got% *}" "^${wants[i]//any/(ok|EIO)}\$" \
			"$name (${got##* } ms)"
	done
	run_ok -n "a good server beside them" cmp "$MNT/fine" "$T/ref"
	modest 200 "all of them"
	ok "! _gone $MNT_PID" "still there"
	umnt "$MNT"
	ok "[ $? -le 1 ]" "and unmounted"
}

LIMIT=20
transmission --timeout=10 --reconnect=1 <<'END'
good ok ok ok
good-many ok ok ok
good-old ok ok ok
good-read-only ok EROFS EROFS
context-none ok ok ok
context-many ok ok ok
context-twice ok ok ok
go-strange-info ok ok ok
go-two-sizes ok ok ok
list-garbage ok ok ok
list-bad-length ok ok ok
size-2^63-1 ok ok ok
size-odd wrong ok ok
size-not-blocks wrong ok ok
min-3 ok ok ok
min-128K ok ok ok
min-huge ok ok ok
preferred-odd ok ok ok
preferred-small ok ok ok
max-small ok ok ok
max-odd ok ok ok
blocks-0 ok ok ok
max-1 ok ok ok
max-4K ok ok ok
flags-all ok ok ok
flags-none ok ok ok
close EIO EIO EIO
bad-magic EIO EIO EIO
unknown-cookie (EIO|late) EIO (EIO|late)
twice ok (EIO|ok) (ok|EIO)
garbage EIO EIO EIO
shutdown EIO EIO EIO
write-half ok EIO ok
write-early ok ok ok
write-with-data ok EIO ok
zero-close ok ok EIO
read-short EIO ok ok
read-none EIO ok ok
read-overlap EIO ok ok
read-half-twice EIO ok ok
read-outside EIO ok ok
read-before EIO ok ok
read-hole-outside EIO ok ok
read-empty-hole ok ok ok
read-short-chunk (EIO|late) ok ok
read-huge-chunk EIO ok ok
read-error-after EIO ok ok
read-error-offset EIO ok ok
read-error-zero (EINVAL|EIO) ok ok
read-error-text EIO ok ok
read-error-long-text EIO ok ok
read-unknown-chunk EIO ok ok
read-unknown-error (EIO|EINVAL) ok ok
read-status-chunk EIO ok ok
read-simple EIO ok ok
read-half-close EIO ok ok
read-pieces ok ok ok
read-errno-max EINVAL ok ok
status-zero-length ok ok ok
status-empty ok ok ok
status-none ok ok ok
status-overlong ok ok ok
status-unknown-id ok ok ok
status-only-unknown-id ok ok ok
status-twice ok ok ok
status-odd-length ok ok ok
status-huge ok ok ok
status-data-chunk ok ok ok
status-close ok ok ok
status-hole-only ok ok ok
status-unknown-flags ok ok ok
status-tiny ok ok ok
status-512 ok ok ok
status-unaligned ok ok ok
status-many ok ok ok
read-errno-perm EPERM ok ok
read-errno-io EIO ok ok
read-errno-nomem ENOMEM ok ok
read-errno-inval EINVAL ok ok
read-errno-nospc ENOSPC ok ok
read-errno-overflow EIO ok ok
read-errno-notsup EIO ok ok
read-errno-shutdown EIO ok ok
read-errno-unknown EINVAL ok ok
write-errno-perm ok EPERM ok
write-errno-io ok EIO ok
write-errno-nomem ok ENOMEM ok
write-errno-inval ok EINVAL ok
write-errno-nospc ok ENOSPC ok
write-errno-overflow ok EIO ok
write-errno-notsup ok EIO ok
write-errno-shutdown ok EIO ok
write-errno-unknown ok EINVAL ok
flush-errno-perm ok EPERM EPERM
flush-errno-io ok EIO EIO
flush-errno-nomem ok ENOMEM ENOMEM
flush-errno-inval ok EINVAL EINVAL
flush-errno-nospc ok ENOSPC ENOSPC
flush-errno-overflow ok EIO EIO
flush-errno-notsup ok EIO EIO
flush-errno-shutdown ok EIO EIO
flush-errno-unknown ok EINVAL EINVAL
zero-errno-perm ok ok EPERM
zero-errno-io ok ok EIO
zero-errno-nomem ok ok ENOMEM
zero-errno-inval ok ok ok
zero-errno-nospc ok ok ENOSPC
zero-errno-overflow ok ok ok
zero-errno-notsup ok ok ok
zero-errno-shutdown ok ok EIO
zero-errno-unknown ok ok ok
status-errno-perm ok ok ok
status-errno-io ok ok ok
status-errno-nomem ok ok ok
status-errno-inval ok ok ok
status-errno-nospc ok ok ok
status-errno-overflow ok ok ok
status-errno-notsup ok ok ok
status-errno-shutdown ok any ok
status-errno-unknown ok ok ok
read-too-long ok ok ok
write-too-long ok ok ok
zero-too-long ok ok ok
END

# Once only: the connection is made again, and all is well but for an error
# that the server has told, and for what was written and not flushed.
transmission --timeout=10 --reconnect=10 <<'END'
context-none.once ok ok ok
context-many.once ok ok ok
context-twice.once ok ok ok
go-strange-info.once ok ok ok
go-two-sizes.once ok ok ok
list-garbage.once ok ok ok
list-bad-length.once ok ok ok
close.once ok ok ok
bad-magic.once ok ok ok
unknown-cookie.once ok ok ok
twice.once ok ok ok
garbage.once ok ok ok
shutdown.once ok ok ok
write-half.once ok ok ok
write-early.once ok ok ok
write-with-data.once ok (ok|EIO) ok
zero-close.once ok ok ok
read-short.once ok ok ok
read-none.once ok ok ok
read-overlap.once ok ok ok
read-half-twice.once ok ok ok
read-outside.once ok ok ok
read-before.once ok ok ok
read-hole-outside.once ok ok ok
read-empty-hole.once ok ok ok
read-short-chunk.once ok ok ok
read-huge-chunk.once ok ok ok
read-error-after.once ok ok ok
read-error-offset.once ok ok ok
read-error-zero.once ok ok ok
read-error-text.once ok ok ok
read-error-long-text.once ok ok ok
read-unknown-chunk.once ok ok ok
read-unknown-error.once ok ok ok
read-status-chunk.once ok ok ok
read-simple.once ok ok ok
read-half-close.once ok ok ok
read-pieces.once ok ok ok
read-errno-max.once ok ok ok
status-zero-length.once ok ok ok
status-empty.once ok ok ok
status-none.once ok ok ok
status-overlong.once ok ok ok
status-unknown-id.once ok ok ok
status-only-unknown-id.once ok ok ok
status-twice.once ok ok ok
status-odd-length.once ok ok ok
status-huge.once ok ok ok
status-data-chunk.once ok ok ok
status-close.once ok ok ok
status-hole-only.once ok ok ok
status-unknown-flags.once ok ok ok
status-tiny.once ok ok ok
status-512.once ok ok ok
status-unaligned.once ok ok ok
status-many.once ok ok ok
read-errno-perm.once ok ok ok
read-errno-io.once ok ok ok
read-errno-nomem.once ok ok ok
read-errno-inval.once ok ok ok
read-errno-nospc.once ok ok ok
read-errno-overflow.once ok ok ok
read-errno-notsup.once ok ok ok
read-errno-shutdown.once ok ok ok
read-errno-unknown.once ok ok ok
write-errno-perm.once ok EPERM ok
write-errno-io.once ok EIO ok
write-errno-nomem.once ok ENOMEM ok
write-errno-inval.once ok EINVAL ok
write-errno-nospc.once ok ENOSPC ok
write-errno-overflow.once ok ok ok
write-errno-notsup.once ok EIO ok
write-errno-shutdown.once ok ok ok
write-errno-unknown.once ok EINVAL ok
flush-errno-perm.once ok EPERM ok
flush-errno-io.once ok EIO ok
flush-errno-nomem.once ok ENOMEM ok
flush-errno-inval.once ok EINVAL ok
flush-errno-nospc.once ok ENOSPC ok
flush-errno-overflow.once ok EIO ok
flush-errno-notsup.once ok EIO ok
flush-errno-shutdown.once ok EIO ok
flush-errno-unknown.once ok EINVAL ok
zero-errno-perm.once ok ok EPERM
zero-errno-io.once ok ok EIO
zero-errno-nomem.once ok ok ENOMEM
zero-errno-inval.once ok ok ok
zero-errno-nospc.once ok ok ENOSPC
zero-errno-overflow.once ok ok ok
zero-errno-notsup.once ok ok ok
zero-errno-shutdown.once ok ok ok
zero-errno-unknown.once ok ok ok
status-errno-perm.once ok ok ok
status-errno-io.once ok ok ok
status-errno-nomem.once ok ok ok
status-errno-inval.once ok ok ok
status-errno-nospc.once ok ok ok
status-errno-overflow.once ok ok ok
status-errno-notsup.once ok ok ok
status-errno-shutdown.once ok any ok
status-errno-unknown.once ok ok ok
read-too-long.once ok ok ok
write-too-long.once ok ok ok
zero-too-long.once ok ok ok
END

transmission --timeout=0.5 --reconnect=1 <<'END'
silent EIO EIO -
write-silent ok EIO ok
write-stall ok EIO ok
flush-silent ok EIO -
zero-silent ok ok EIO
read-half-stall EIO ok ok
read-drip EIO ok ok
read-flood EIO ok ok
read-flood-empty EIO ok ok
read-silent EIO ok ok
status-flood any any ok
status-silent ok ok ok
END

transmission --timeout=0.5 --reconnect=10 <<'END'
silent.once ok ok ok
write-silent.once ok ok ok
write-stall.once ok ok ok
flush-silent.once ok EIO ok
zero-silent.once ok ok ok
read-half-stall.once ok ok ok
read-drip.once ok ok ok
read-flood.once ok ok ok
read-flood-empty.once ok ok ok
read-silent.once ok ok ok
status-flood.once ok ok ok
status-silent.once ok ok ok
END

if [ -z "$NBDFS_HOSTILE" ]; then
	is "$(sort -u "$T/seen")" \
		"$("$NBDFS_HELPERS/evilnbd" -l | sort)" "no scenario is forgotten"
fi
done_testing
