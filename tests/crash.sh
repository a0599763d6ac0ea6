# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash disable=SC2034
#
# crash.sh - servers that die, come back and freeze: after lib.sh, for the
# tests of that. All servers serve $DISK; KIND, SERVER_PID, SOCK and WHERE (the
# URI) belong to the one that was started or used last.
#
#   serve KIND [ARGS...]   nbdkit, qemu-nbd or nbd-server
#   die  back [ARGS...]    kill -9; the same server, at the same place
#   freeze  thaw           all of its processes
#   crash                  frozen, dead, and back
#   feed  take  steps      programs while it dies: see there

DISK=$T/disk
MiB=1048576
ops=$NBDFS_HELPERS/fileops

# Options before the plugin, KEY=VALUE after it.
_nbdkit_words()
{
	local arg after=("$DISK")
	WORDS=()
	for arg; do
		case $arg in
		-*) WORDS+=("$arg") ;;
		*) after+=("$arg") ;;
		esac
	done
	WORDS+=(file "${after[@]}")
}

# serve nbdkit|qemu-nbd|nbd-server [ARGS...]
serve()
{
	KIND=$1
	shift
	ARGS=("$@")
	case $KIND in
	nbdkit)
		_nbdkit_words "${ARGS[@]}"
		start_nbdkit "${WORDS[@]}"
		;;
	qemu-nbd) start_qemu_nbd "$DISK" "${ARGS[@]}" ;;
	nbd-server) start_nbd_server "disk=$DISK" -- "flush = true" ;;
	esac || bail "$KIND"
	case $KIND in
	nbd-server) WHERE=$(uri disk) ;;
	*) WHERE=$URI ;;
	esac
}

# The server and, of nbd-server, the children that have the connections.
everyone()
{
	echo "$SERVER_PID"
	cat "/proc/$SERVER_PID/task"/*/children 2>/dev/null
}

_all_stopped()
{
	local pid
	for pid in $(everyone); do
		_gone "$pid" && continue
		! cut -d')' -f2- "/proc/$pid"/task/*/stat | grep -qv '^ T' ||
			return 1
	done
}

# Threads stop one after the other.
freeze()
{
	# shellcheck disable=SC2046
	kill -STOP $(everyone)
	wait_until 5 _all_stopped
}

thaw()
{
	# shellcheck disable=SC2046
	kill -CONT $(everyone)
}

# Dies without a word.
die()
{
	local pid pids
	pids=$(everyone)
	# shellcheck disable=SC2086
	kill -KILL $pids 2>/dev/null
	for pid in $pids; do
		wait_until 5 _gone "$pid"
		wait "$pid" 2>/dev/null # the shell has no word to say of it
	done
	[ -z "$SOCK" ] || rm -f "$SOCK"
}

# It gets no pipes and files of the test.
back()
{
	_start_again "$@" 3>&- 4>&- 5>&- 6>&-
}

_start_again()
{
	local log=$T/$KIND.again.log pidfile=$T/$KIND.again.pid
	local args=("${ARGS[@]}")
	[ $# -eq 0 ] || args=("$@")
	rm -f "$pidfile"
	case $KIND in
	nbdkit)
		_nbdkit_words "${args[@]}"
		spawn "$log" nbdkit -f -U "$SOCK" -P "$pidfile" "${WORDS[@]}"
		SERVER_PID=$SPAWNED
		;;
	qemu-nbd)
		spawn "$log" qemu-nbd -t -e 16 -k "$SOCK" -f raw \
			--pid-file "$pidfile" "${args[@]}" "$DISK"
		SERVER_PID=$SPAWNED
		;;
	nbd-server)
		timeout -k 5 15 nbd-server -C "${SERVER_LOG%.log}.conf" \
			-p "$pidfile" >"$log" 2>&1 </dev/null
		;;
	esac
	wait_until 10 test -s "$pidfile" || bail "$KIND again"
	if [ "$KIND" = nbd-server ]; then
		SERVER_PID=$(<"$pidfile")
		_server_pids+=("$SERVER_PID")
	fi
	wait_until 10 test -S "$SOCK"
}

# Requests are on their way when it dies.
crash()
{
	freeze
	sleep 0.2
	die
	back
}

# ----------------------------------------------------------------- programs

# new_and_old MIB: $T/new, $T/old and $T/pipe for feed and take.
new_and_old()
{
	NEW_MIB=$1
	head -c $(($1 * MiB)) /dev/urandom >"$T/new"
	head -c $(($1 * MiB)) /dev/urandom >"$T/old"
	mkfifo "$T/pipe"
}

# piece COUNT SKIP: so many MiB of the new bytes.
piece()
{
	dd if="$T/new" bs=1M count="$1" skip="$2" status=none
}

# feed COMMAND...: it reads the new bytes from $T/pipe, first a half of them;
# two more come while the server crashes, then the rest. Sets STATUS and ERR.
feed()
{
	local pid more half=$((NEW_MIB / 2))
	timeout -k 5 60 "$@" 2>"$T/err" &
	pid=$!
	exec 3>"$T/pipe"
	piece $half 0 >&3
	freeze
	piece 2 $half >&3 &
	more=$!
	sleep 0.2
	die
	back
	wait $more
	piece $((half - 2)) $((half + 2)) >&3
	exec 3>&-
	wait $pid
	STATUS=$?
	ERR=$(<"$T/err")
}

# take COMMAND...: what it writes to $T/pipe goes to $T/got, in the same way.
take()
{
	local pid more half=$((NEW_MIB / 2))
	timeout -k 5 60 "$@" 2>"$T/err" &
	pid=$!
	exec 3<"$T/pipe"
	dd bs=1M count=$half iflag=fullblock status=none <&3 >"$T/got"
	freeze
	dd bs=1M count=2 iflag=fullblock status=none <&3 >>"$T/got" &
	more=$!
	sleep 0.2
	die
	back
	wait $more
	cat <&3 >>"$T/got"
	exec 3<&-
	wait $pid
	STATUS=$?
	ERR=$(<"$T/err")
}

# What operations of `steps` wait for: that the server has died and is back.
dies=("touch:$T/here" "await:$T/go")

# steps WANTED DESCRIPTION OPERATION...: of fileops. At "${dies[@]}" the server
# dies and comes back; or what the variable MEANWHILE names is done.
steps()
{
	local want=$1 what=$2 pid
	shift 2
	rm -f "$T/here" "$T/go"
	timeout -k 5 60 "$ops" "$@" >"$T/steps" 2>&1 &
	pid=$!
	wait_until 20 test -e "$T/here" || diag "did not come so far"
	${MEANWHILE:-_die_and_back}
	touch "$T/go"
	wait $pid
	is "$(tr '\n' ';' <"$T/steps")" "$want" "$what"
}

_die_and_back()
{
	die
	back
}

# ---------------------------------------------------------- two at a time

# two KIND: a source $A, which has the bytes of $T/new, and a destination $B.
# `use A` or `use B` says which of them is meant from then on.
two()
{
	local kind=$1
	cp "$T/new" "$T/disk.a"
	cp "$T/old" "$T/disk.b"
	DISK=$T/disk.a
	serve "$kind"
	A=$WHERE
	SAVED_A=("$KIND" "$SERVER_PID" "$SOCK" "$SERVER_LOG")
	DISK=$T/disk.b
	serve "$kind"
	B=$WHERE
	SAVED_B=("$KIND" "$SERVER_PID" "$SOCK" "$SERVER_LOG")
}

use()
{
	local -n saved=SAVED_$1
	KIND=${saved[0]} SERVER_PID=${saved[1]}
	SOCK=${saved[2]} SERVER_LOG=${saved[3]}
	DISK=$T/disk.$(tr AB ab <<<"$1")
}

keep_pid()
{
	local -n saved=SAVED_$1
	saved[1]=$SERVER_PID
}

stop_both()
{
	use A
	stop_server
	use B
	stop_server
}

# What is being written, and how to know that it has begun.
COPY=$T/disk.b
_begun()
{
	cmp -s -n 65536 "$COPY" "$T/new"
}

# dying WHICH COMMAND...: they die one after the other, when the copy to $COPY
# has begun. Sets STATUS and ERR.
dying()
{
	local which=$1 pid w
	shift
	timeout -k 5 60 "$@" 2>"$T/err" &
	pid=$!
	wait_until 20 ${BEGUN:-_begun} || diag "$*: does not begin"
	for w in $which; do
		sleep 0.1
		! _gone $pid || diag "$*: too fast"
		use "$w"
		crash
		keep_pid "$w"
	done
	wait $pid
	STATUS=$?
	ERR=$(<"$T/err")
}

# since: milliseconds since start_clock.
start_clock()
{
	BEGAN=${EPOCHREALTIME/./}
}

since()
{
	echo $(((${EPOCHREALTIME/./} - BEGAN) / 1000))
}
