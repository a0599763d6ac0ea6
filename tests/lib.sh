# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash disable=SC2034
#
# lib.sh - what the tests in tests/t share. A test begins with
#
#	. "$(dirname "$0")/../lib.sh"
#	requires fuse nbdkit
#	plan 3
#
# and prints TAP. It runs by `make check`, or alone: `bash tests/t/name.t`.
# When it ends, however it ends, everything it mounted or started is gone.
#
# Variables that a test may use
#   T            a folder of its own
#   ROOT         the top of the sources
#   NBDFS, NBDFS_COPY, NBDFS_HELPERS   what is tested, and the helper programs
#   OUT, ERR, STATUS                   of the last `run`
#   URI, SOCK, SERVER_PID, SERVER_LOG  of the last server started
#   STATS, REQUESTS                    of the last nbdkit started
#   MNT, MNT_PID, MNT_LOG              of the last mount
#
# Functions; each has its comment below
#   requires plan skip done_testing bail
#   ok is isnt like unlike pass fail diag
#   run run_ok run_fails wait_until free_port on_exit spawn
#   start_nbdkit start_qemu_nbd start_nbd_server stop_server kill_server uri
#   mnt mnt_file mnt_daemon umnt mounted
#   extents stats requests count_requests

if [ -z "$BASH_VERSION" ]; then
	echo "1..0 # SKIP needs bash"
	exit 0
fi

_lib=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Started by hand: get the time limit too. bash -x stays as it is.
if [ -z "$NBDFS_TEST_RUN" ] && [[ $- != *x* ]]; then
	exec "$_lib/run" "$0" "$@"
fi

ROOT=$(dirname "$_lib")
NBDFS=${NBDFS:-$ROOT/build/release/nbdfs}
NBDFS_COPY=${NBDFS_COPY:-$ROOT/build/release/nbdfs-copy}
NBDFS_HELPERS=${NBDFS_HELPERS:-$ROOT/build/release/tests/helpers}

# Messages of tools and the order of sorting do not depend on the user.
export LC_ALL=C
umask 022
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

_count=0		# tests so far
_planned=
_failures=0
_complete=		# set when the test has said all it had to say
_hooks=()		# commands for the end, last first
_server_pids=()
_mount_pids=()
_mount_points=()	# the same index as _mount_pids
_serial=0

# ------------------------------------------------------------------ results

# plan N: how many results will follow.
plan()
{
	_planned=$1
	echo "1..$1"
}

# done_testing: instead of a plan; the last command of a test.
done_testing()
{
	_complete=1
	[ -n "$_planned" ] || echo "1..$_count"
}

# skip REASON: the whole test is left out. Nothing is left out in CI.
skip()
{
	if [ "$CI" = true ] || [ "$CI" = 1 ]; then
		echo "1..1"
		echo "not ok 1 - in CI nothing is skipped: $*"
		_failures=1
	else
		echo "1..0 # SKIP $*"
	fi
	_complete=1
	exit "$_failures"
}

# bail REASON: the test cannot go on.
bail()
{
	fail "$*"
	exit 1
}

diag()
{
	printf '%s\n' "$*" | sed 's/^/# /'
}

_show_file()
{
	[ -s "$1" ] || return 0
	echo "# --- end of ${1##*/}"
	tail -n "${2:-20}" "$1" | tr -c '\n[:print:]\t' '?' | sed 's/^/#   /'
}

pass()
{
	_count=$((_count + 1))
	echo "ok $_count - $*"
}

fail()
{
	_count=$((_count + 1))
	_failures=$((_failures + 1))
	echo "not ok $_count - $*"
	echo "#   at ${BASH_SOURCE[-1]##*/} line ${BASH_LINENO[-2]}"
	return 1
}

# ok CONDITION DESCRIPTION: CONDITION is an exit status or a command line.
ok()
{
	local cond=$1 status
	shift
	if [[ $cond =~ ^[0-9]+$ ]]; then
		status=$cond
	else
		eval "$cond"
		status=$?
	fi
	if [ "$status" = 0 ]; then
		pass "$*"
	else
		fail "$*"
		[ "$cond" = "$status" ] || diag "status $status of: $cond"
		return 1
	fi
}

# is GOT WANTED DESCRIPTION
is()
{
	local got=$1 want=$2
	shift 2
	if [ "$got" = "$want" ]; then
		pass "$*"
	else
		fail "$*"
		diag "got:    $got"
		diag "wanted: $want"
		return 1
	fi
}

isnt()
{
	local got=$1 want=$2
	shift 2
	if [ "$got" != "$want" ]; then
		pass "$*"
	else
		fail "$*"
		diag "got what was not wanted: $got"
		return 1
	fi
}

# like GOT REGEX DESCRIPTION (extended regular expression)
like()
{
	local got=$1 regex=$2
	shift 2
	if [[ $got =~ $regex ]]; then
		pass "$*"
	else
		fail "$*"
		diag "got:    $got"
		diag "not like: $regex"
		return 1
	fi
}

unlike()
{
	local got=$1 regex=$2
	shift 2
	if [[ ! $got =~ $regex ]]; then
		pass "$*"
	else
		fail "$*"
		diag "got:    $got"
		diag "is like: $regex"
		return 1
	fi
}

# ------------------------------------------------------------- requirements

_missing()
{
	case $1 in
	fuse)
		if [ ! -c /dev/fuse ]; then
			echo "/dev/fuse"
		elif [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then
			echo "access to /dev/fuse"
		elif ! command -v fusermount3 >/dev/null; then
			echo "fusermount3"
		elif [ ! -x "$NBDFS" ]; then
			echo "$NBDFS"
		fi
		;;
	copy)
		[ -x "$NBDFS_COPY" ] || echo "$NBDFS_COPY"
		;;
	root)
		[ "$(id -u)" = 0 ] || echo "to be root"
		;;
	full)
		[ -n "$NBDFS_TEST_FULL" ] || echo "NBDFS_TEST_FULL=1"
		;;
	nbdkit-plugin:*)
		nbdkit "${1#*:}" --dump-plugin >/dev/null 2>&1 || echo "$1"
		;;
	nbdkit-filter:*)
		nbdkit --filter="${1#*:}" null --dump-plugin >/dev/null 2>&1 ||
			echo "$1"
		;;
	helper:*)
		[ -x "$NBDFS_HELPERS/${1#*:}" ] ||
			echo "$NBDFS_HELPERS/${1#*:} (make test-programs)"
		;;
	*)
		command -v "$1" >/dev/null || echo "$1"
		;;
	esac
}

# requires WHAT...: leaves the test out where something is missing. WHAT is a
# command, or fuse (the mount works), copy (nbdfs-copy is built), root, full
# (long tests are wanted; left out in CI too), nbdkit-plugin:NAME,
# nbdkit-filter:NAME, helper:NAME.
requires()
{
	local what missing
	for what; do
		missing=$(_missing "$what")
		[ -n "$missing" ] || continue
		if [ "$what" = full ]; then
			echo "1..0 # SKIP takes long: needs $missing"
			_complete=1
			exit 0
		fi
		skip "needs $missing"
	done
}

# ---------------------------------------------------------------- processes

# _gone PID: it has ended (a child that nobody has waited for has ended too).
_gone()
{
	local line
	{ line=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
	line=${line##*) }
	[ "${line:0:1}" = Z ]
}

# wait_until SECONDS COMMAND...: until it succeeds, or fails at the end.
wait_until()
{
	local end=$((SECONDS + $1 + 1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.02
	done
}

# _is_ours PID: a process of this test, as far as can be seen. After a long test
# the number may be that of another one.
_is_ours()
{
	! _gone "$1" || return
	grep -qzxF "NBDFS_TEST_DIR=$T" "/proc/$1/environ" 2>/dev/null
	[ $? != 1 ]
}

# _end SECONDS PID...: asks them to end, then makes them.
_end()
{
	local pid limit=$1 ours=()
	shift
	for pid; do
		! _is_ours "$pid" || ours+=("$pid")
	done
	set -- "${ours[@]}"
	[ $# -gt 0 ] || return 0
	kill -TERM "$@" 2>/dev/null
	for pid; do
		wait_until "$limit" _gone "$pid" && continue
		kill -KILL "$pid" 2>/dev/null
		wait_until 2 _gone "$pid"
	done
}

# _bounded SECONDS COMMAND...: also for what no signal can end.
_bounded()
{
	local limit=$1 pid
	shift
	"$@" &
	pid=$!
	if ! wait_until "$limit" _gone $pid; then
		kill -KILL $pid 2>/dev/null
		return 124
	fi
	wait $pid
}

# How programs in the background are started: a session of their own, so that
# Ctrl-C reaches the test first; ended with the test, also when it is killed;
# with SIGINT not ignored.
_launcher=()
if command -v setsid >/dev/null; then
	_launcher+=(setsid)
fi
if command -v setpriv >/dev/null; then
	_launcher+=(setpriv --pdeathsig TERM)
fi
_launcher+=(env "--default-signal=INT,QUIT")

# spawn LOG COMMAND...: in the background; SPAWNED is its process id. It is
# ended with the test.
spawn()
{
	local log=$1
	shift
	"${_launcher[@]}" "$@" >>"$log" 2>&1 </dev/null &
	SPAWNED=$!
	_server_pids+=("$SPAWNED")
}

# run COMMAND...: sets OUT, ERR and STATUS. At most 60 s, or RUN_TIMEOUT.
run()
{
	local limit=("timeout" -k 5 "${RUN_TIMEOUT:-60}")
	[ "$(type -t "$1")" = file ] || limit=()
	"${limit[@]}" "$@" >"$T/.out" 2>"$T/.err" </dev/null
	STATUS=$?
	OUT=$(tr -d '\0' <"$T/.out")
	ERR=$(tr -d '\0' <"$T/.err")
	return $STATUS
}

_run_failed()
{
	diag "status $STATUS"
	_show_file "$T/.out"
	_show_file "$T/.err"
	return 1
}

# run_ok [-n DESCRIPTION] COMMAND...: a result by itself.
run_ok()
{
	local desc
	if [ "$1" = -n ]; then
		desc=$2
		shift 2
	fi
	if run "$@"; then
		pass "${desc:-$*}"
	else
		fail "${desc:-$*}"
		_run_failed
	fi
}

# run_fails [-n DESCRIPTION] COMMAND...: passes when it ends with an error; a
# signal or a time-out is no orderly error.
run_fails()
{
	local desc
	if [ "$1" = -n ]; then
		desc=$2
		shift 2
	fi
	run "$@"
	if [ $STATUS != 0 ] && [ $STATUS -lt 99 ]; then
		pass "${desc:-fails: $*}"
	else
		fail "${desc:-fails: $*}"
		_run_failed
	fi
}

_port_is_taken()
{
	(exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# free_port: prints a TCP port of the loopback interface where nobody listens.
free_port()
{
	local port
	while :; do
		port=$((20000 + RANDOM % 12000))
		_port_is_taken $port || break
	done
	echo $port
}

# on_exit COMMAND...: at the end of the test, before the mounts go; the last
# one first.
on_exit()
{
	_hooks+=("$(printf '%q ' "$@")")
}

# ------------------------------------------------------------------ servers

# uri [EXPORT]: of the last server, with the name of an export (as it stands
# in a URI: percent-encoded).
uri()
{
	if [ -n "$SOCK" ]; then
		echo "nbd+unix:///$1?socket=$SOCK"
	else
		echo "${URI%/}/$1"
	fi
}

_server_is_up()
{
	"$@" || _gone "$SERVER_PID"
}

# _await_server WHAT CONDITION...
_await_server()
{
	local what=$1
	shift
	if wait_until 15 _server_is_up "$@" && ! _gone "$SERVER_PID"; then
		return 0
	fi
	diag "$what did not start"
	_show_file "$SERVER_LOG"
	return 1
}

_next_server()
{
	_serial=$((_serial + 1))
	SERVER_LOG=$T/$1.$_serial.log
	_server_pidfile=$T/$1.$_serial.pid
	SOCK=$T/$1.$_serial.sock
	URI="nbd+unix:///?socket=$SOCK"
}

# start_nbdkit [--tcp] ARGS...: a server at $URI. $STATS and $REQUESTS are
# file names for the statsfile= of its stats filter and the logfile= of its
# log filter: set before this is called, by next_nbdkit.
start_nbdkit()
{
	local listen port
	[ -n "$_nbdkit_prepared" ] || next_nbdkit
	_nbdkit_prepared=
	if [ "$1" = --tcp ]; then
		shift
		port=$(free_port)
		listen=(-i 127.0.0.1 -p "$port")
		SOCK=
		URI=nbd://127.0.0.1:$port/
	else
		listen=(-U "$SOCK")
	fi
	spawn "$SERVER_LOG" nbdkit -f "${listen[@]}" -P "$_server_pidfile" "$@"
	SERVER_PID=$SPAWNED
	_await_server "nbdkit $*" test -s "$_server_pidfile"
}

# next_nbdkit: the file names for the next start_nbdkit.
next_nbdkit()
{
	_next_server nbdkit
	STATS=$T/nbdkit.$_serial.stats
	REQUESTS=$T/nbdkit.$_serial.requests
	_nbdkit_prepared=1
}

# start_qemu_nbd FILE ARGS...: raw unless ARGS say otherwise; 16 clients.
start_qemu_nbd()
{
	local file=$1 format=(-f raw)
	shift
	case " $* " in
	*" --image-opts "* | *" -f "* | *" --format"*)
		format=()
		;;
	esac
	_next_server qemu-nbd
	spawn "$SERVER_LOG" qemu-nbd -t -e 16 -k "$SOCK" \
		--pid-file "$_server_pidfile" "${format[@]}" "$@" "$file"
	SERVER_PID=$SPAWNED
	_await_server "qemu-nbd $*" test -s "$_server_pidfile"
}

# start_nbd_server [--tcp] NAME=FILE... [-- LINE...]: nbd-server with these
# exports; each LINE goes into the section of every export.
start_nbd_server()
{
	local conf port arg exports=() lines=()
	_next_server nbd-server
	conf=$T/nbd-server.$_serial.conf
	port=$(free_port)
	if [ "$1" = --tcp ]; then
		shift
		SOCK=
		URI=nbd://127.0.0.1:$port/
	fi
	while [ $# -gt 0 ] && [ "$1" != -- ]; do
		exports+=("$1")
		shift
	done
	[ $# -eq 0 ] || shift
	lines=("$@")
	{
		echo "[generic]"
		echo "	allowlist = true"
		echo "	listenaddr = 127.0.0.1"
		echo "	port = $port"
		[ -z "$SOCK" ] || echo "	unixsock = $SOCK"
		for arg in "${exports[@]}"; do
			echo "[${arg%%=*}]"
			echo "	exportname = ${arg#*=}"
			[ ${#lines[@]} -eq 0 ] || printf '\t%s\n' "${lines[@]}"
		done
	} >"$conf"
	# Without its own fork it would serve one client only.
	timeout -k 5 15 nbd-server -C "$conf" -p "$_server_pidfile" \
		>"$SERVER_LOG" 2>&1 </dev/null
	if ! wait_until 10 test -s "$_server_pidfile"; then
		diag "nbd-server did not start"
		_show_file "$SERVER_LOG"
		return 1
	fi
	SERVER_PID=$(<"$_server_pidfile")
	_server_pids+=("$SERVER_PID")
	if [ -n "$SOCK" ]; then
		_await_server nbd-server test -S "$SOCK"
	else
		_await_server nbd-server _port_is_taken "$port"
	fi
}

# stop_server [PID]: an orderly end.
stop_server()
{
	_end 10 "${1:-$SERVER_PID}"
}

# kill_server [PID]: dies without a word.
kill_server()
{
	# It may have ended, and its number be that of another process.
	! _is_ours "${1:-$SERVER_PID}" || kill -KILL "${1:-$SERVER_PID}"
	wait_until 5 _gone "${1:-$SERVER_PID}"
}

# stats OPERATION: how many of read, write, zero, trim, extents, cache, flush,
# total the server counted. Needs --filter=stats with statsfile=$STATS; valid
# after stop_server.
stats()
{
	awk -v op="$1:" '$1 == op { n = $2 } END { print n + 0 }' "$STATS"
}

# requests [OPERATION...]: what arrived so far, one a line, in the order of
# arrival: "Write 0x400 0x200 fua=1", as nbdkit's log filter has it. Needs
# --filter=log with logfile=$REQUESTS.
requests()
{
	awk -v ops="$*" '
	BEGIN { n = split(ops, list); for (i = 1; i <= n; i++) want[list[i]] = 1 }
	$3 ~ /^connection=/ && $5 ~ /^id=/ && $4 !~ /^\.\.\./ {
		if (n && !($4 in want))
			next
		line = $4
		for (i = 6; i <= NF; i++) {
			if ($i == "...")
				continue
			sub(/^(offset|count)=/, "", $i)
			line = line " " $i
		}
		print line
	}' "$REQUESTS"
}

# count_requests OPERATION...: how many of them.
count_requests()
{
	requests "$@" | wc -l
}

# ------------------------------------------------------------------- mounts

# mounted PATH: something is mounted there.
mounted()
{
	awk -v mp="$1" '$5 == mp { f = 1 } END { exit !f }' /proc/self/mountinfo
}

_next_mount()
{
	_serial=$((_serial + 1))
	MNT=$T/mnt.$_serial
	MNT_LOG=$T/mnt.$_serial.log
	_mnt_pidfile=$T/mnt.$_serial.pid
}

_mount_is_up()
{
	mounted "$MNT" || _gone "$MNT_PID"
}

_mount_foreground()
{
	"${_launcher[@]}" "$NBDFS" -f "$@" "$MNT" >"$MNT_LOG" 2>&1 </dev/null &
	MNT_PID=$!
	_mount_pids+=("$MNT_PID")
	_mount_points+=("$MNT")
	if wait_until "${MNT_TIMEOUT:-30}" _mount_is_up && mounted "$MNT"; then
		return 0
	fi
	diag "not mounted: nbdfs $*"
	_show_file "$MNT_LOG"
	return 1
}

# mnt ARGS...: nbdfs -f ARGS on a fresh folder, $MNT. Ready when it returns 0.
mnt()
{
	_next_mount
	mkdir "$MNT"
	_mount_foreground "$@"
}

# mnt_file ARGS...: the same on a fresh regular file, which becomes the export.
mnt_file()
{
	_next_mount
	: >"$MNT"
	_mount_foreground "$@"
}

# mnt_daemon ARGS...: without -f. MNT_PID is the daemon's.
mnt_daemon()
{
	_next_mount
	mkdir "$MNT"
	if ! timeout -k 5 30 "$NBDFS" -P "$_mnt_pidfile" "$@" "$MNT" \
		>"$MNT_LOG" 2>&1 </dev/null; then
		diag "not mounted: nbdfs $*"
		_show_file "$MNT_LOG"
		return 1
	fi
	MNT_PID=$(<"$_mnt_pidfile")
	mounted "$MNT"
}

# _why_stuck PID: what can be learnt of a process that does not end.
_why_stuck()
{
	kill -USR1 "$1" 2>/dev/null
	if command -v gdb >/dev/null; then
		timeout 30 gdb -p "$1" -batch -ex "thread apply all bt full" \
			>"$T/stuck.$1.log" 2>/dev/null </dev/null
	fi
	cat "/proc/$1/task"/*/stack >>"$T/stuck.$1.log" 2>/dev/null
	diag "$(tail -n 150 "$T/stuck.$1.log" 2>/dev/null)"
	_show_file "$MNT_LOG"
}

# _copied MOUNTPOINT: another mount namespace, made meanwhile by somebody else on
# this machine, has a copy of the mount, and nbdfs has to serve on.
_copied()
{
	local info
	for info in /proc/[0-9]*/mountinfo; do
		if awk -v mp="$1" '$5 == mp { found = 1 } END { exit !found }' \
			"$info" 2>/dev/null; then
			diag "a copy of the mount is in ${info%/*}"
			return 0
		fi
	done
	return 1
}

# umnt [MOUNTPOINT]: unmounts and waits for the end of nbdfs; its exit status.
umnt()
{
	local mp=${1:-$MNT} i pid='' status
	for i in "${!_mount_points[@]}"; do
		[ "${_mount_points[i]}" != "$mp" ] || pid=${_mount_pids[i]}
	done
	if [ -z "$pid" ] && [ "$mp" = "$MNT" ]; then
		pid=$MNT_PID
	fi
	_bounded 20 fusermount3 -u "$mp" || return
	[ -n "$pid" ] || return 0
	if ! wait_until "${MNT_TIMEOUT:-30}" _gone "$pid" &&
		! { _copied "$mp" && kill "$pid" &&
			wait_until "${MNT_TIMEOUT:-30}" _gone "$pid"; }; then
		diag "nbdfs did not end after the unmount"
		_why_stuck "$pid"
		return 124
	fi
	wait "$pid" 2>/dev/null
	status=$?
	# 127: a daemon is no child of this shell, its status is not known.
	[ $status = 127 ] || return $status
}

# extents FILE: its map by SEEK_DATA and SEEK_HOLE, "data START LENGTH" and
# "hole START LENGTH" lines.
extents()
{
	timeout -k 5 "${EXTENTS_TIMEOUT:-60}" "$NBDFS_HELPERS/seekmap" "$@"
}

# ------------------------------------------------------------------ the end

# Mount points below $T, the last one mounted first.
_mounts_below()
{
	awk -v t="$T/" 'index($5, t) == 1 { print $5 }' /proc/self/mountinfo | tac
}

# Processes that belong to this test: they carry its mark in the environment.
_leftovers()
{
	local dir
	for dir in /proc/[0-9]*; do
		[ "${dir#/proc/}" != $$ ] || continue
		! _gone "${dir#/proc/}" || continue
		if grep -qzxF "NBDFS_TEST_DIR=$T" "$dir/environ" 2>/dev/null; then
			echo "${dir#/proc/}"
		fi
	done
}

_no_leftovers()
{
	[ -z "$(_leftovers)" ]
}

_unmount_all()
{
	local mp dev
	for mp in $(_mounts_below); do
		_bounded 10 fusermount3 -u "$mp" 2>/dev/null && continue
		_bounded 5 umount "$mp" 2>/dev/null && continue
		diag "$mp would not unmount"
		dev=$(awk -v mp="$mp" '$5 == mp { print $3 }' \
			/proc/self/mountinfo | head -n 1)
		{ echo 1 >"/sys/fs/fuse/connections/${dev#*:}/abort"; } \
			2>/dev/null
		_bounded 5 fusermount3 -uz "$mp" 2>/dev/null ||
			_bounded 5 umount -l "$mp" 2>/dev/null
		_failures=$((_failures + 1))
	done
}

# A program that ended by a fault of its own, or with a sanitizer's report.
_check_statuses()
{
	local i status
	for i in "${!_mount_pids[@]}"; do
		wait "${_mount_pids[i]}" 2>/dev/null
		status=$?
		case $status in
		99 | 13[2-6] | 139)
			diag "nbdfs ended with status $status:" \
				"${_mount_points[i]##*/}"
			_failures=$((_failures + 1))
			;;
		esac
	done
}

_check_sanitizers()
{
	local log
	for log in "$T"/sanitizer.*; do
		[ -s "$log" ] || continue
		diag "a sanitizer complains:"
		_show_file "$log" 100
		_failures=$((_failures + 1))
	done
}

_check_leftovers()
{
	local pid pids
	wait_until 5 _no_leftovers && return
	pids=$(_leftovers)
	for pid in $pids; do
		diag "left running: $pid" \
			"$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"
	done
	# shellcheck disable=SC2086
	_end 3 $pids
	# Only a test that ran to its end had the chance to tidy up.
	[ -z "$_complete" ] || _failures=$((_failures + 1))
}

_cleanup()
{
	local status=$? i log

	trap '' INT TERM HUP PIPE QUIT
	trap - EXIT
	set +eu
	if [ -n "$_planned" ] && [ "$_count" -ge "$_planned" ]; then
		_complete=1
	fi
	for ((i = ${#_hooks[@]} - 1; i >= 0; i--)); do
		eval "${_hooks[i]}"
	done
	_unmount_all
	for i in "${_mount_pids[@]}"; do
		wait_until 10 _gone "$i" || _end 3 "$i"
	done
	_end 5 "${_server_pids[@]}"
	_check_leftovers
	_check_statuses
	_check_sanitizers
	if [ -z "$_complete" ] && [ "$status" = 0 ]; then
		diag "the test ended early"
		status=1
	fi
	if [ "$_failures" != 0 ] || [ "$status" != 0 ]; then
		for log in "$T"/*.log; do
			_show_file "$log"
		done
	fi
	if [ -n "$NBDFS_TEST_KEEP" ]; then
		diag "kept: $T"
	else
		rm -rf --one-file-system "$T"
	fi
	if [ "$status" = 0 ] && [ "$_failures" != 0 ]; then
		status=1
	fi
	exit "$status"
}

# The folder is made by run, which calls this script with --clean-up where a
# test was killed before it could tidy up.
T=$NBDFS_TEST_FOLDER
if [ -z "$T" ]; then
	T=$(mktemp -d "${TMPDIR:-/tmp}/nbdfs-test.XXXXXX") || exit 1
fi
trap _cleanup EXIT
[ "$1" != --clean-up ] || exit 1
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
trap 'exit 141' PIPE

# The mark by which _leftovers knows what was started here: this shell does not
# have it in the environment that it was born with.
export NBDFS_TEST_DIR=$T
# A report ends the program with a status that _check_statuses knows, and
# stands in a file that _check_sanitizers finds, also when a daemon wrote it.
_report="log_path=$T/sanitizer:exitcode=99"
export ASAN_OPTIONS="$_report:$ASAN_OPTIONS"
export UBSAN_OPTIONS="$_report:print_stacktrace=1:$UBSAN_OPTIONS"
export TSAN_OPTIONS="$_report:die_after_fork=0:$TSAN_OPTIONS"
export LSAN_OPTIONS="$_report:$LSAN_OPTIONS"
