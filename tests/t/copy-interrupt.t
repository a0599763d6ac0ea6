#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Ctrl-C at every stage of nbdfs-copy: it ends soon, says one line, and leaves
# nothing behind.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy helper:badserver nbdkit nbdkit-plugin:eval nbdkit-filter:delay
# shellcheck source=tests/crash.sh
. "$ROOT/tests/crash.sh"

mkdir "$T/tmp"
export TMPDIR=$T/tmp
unset XDG_RUNTIME_DIR
head -c $((8 * MiB)) /dev/urandom >"$T/data"

# Commands that are run have the mark among their arguments.
none_left()
{
	! cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' |
		grep -qxF "$T/mark"
}

# ends SIGNAL LINE DESCRIPTION ARGS...: a copy that gets the signal when it has
# come as far as it can.
ends()
{
	local signal=$1 line=$2 what=$3 pid ms status
	shift 3
	env --default-signal=INT,TERM,HUP "$NBDFS_COPY" "$@" >/dev/null \
		2>"$T/err" 5<&- 6<&- &
	pid=$!
	sleep 0.4
	ok "! _gone $pid" "$what: is busy" || diag "$(<"$T/err")"
	start_clock
	kill "-$signal" $pid
	wait_until 20 _gone $pid
	ms=$(since)
	wait $pid
	status=$?
	is "$status" "$((128 + $(kill -l "$signal")))" "$what: SIG$signal"
	ok "[ $ms -lt 3500 ]" "$what: ends soon ($ms ms)"
	like "$(<"$T/err")" "^nbdfs-copy: interrupted$line\$" "$what: one line"
	is "$(ls "$T/tmp")" "" "$what: no folder is left"
	ok "wait_until 3 none_left" "$what: and no child"
}

copied=": .* of .* copied"

# --------------------------------------------------------------- connecting

mute=(sh -c "read -r x <\"$T/never\"" mute "$T/mark")
mkfifo "$T/never"
spawn "$T/silent.log" "$NBDFS_HELPERS/badserver" "$T/silent.sock" silent
wait_until 10 grep -q ready "$T/silent.log"
silent="nbd+unix:///?socket=$T/silent.sock"
ends INT "" "source that does not greet" "$silent" "$T/out"
ends TERM "" "destination that does not greet" "$T/data" "$silent"
ends HUP "" "a command that does not listen" [ "${mute[@]}" ] "$T/out"
ends INT "" "a command as destination" "$T/data" [ "${mute[@]}" ]
ends INT "" "a map" --map "$silent"

# ------------------------------------------------------------------ copying

nbdkit=(nbdkit -e "$T/mark")
ends INT "$copied" "reads that are slow" \
	[ "${nbdkit[@]}" --filter=delay file "$T/data" rdelay=100 ] "$T/out"
ends INT "$copied" "writes that are slow" "$T/data" \
	[ "${nbdkit[@]}" --filter=delay memory 8M wdelay=100 ]
ends TERM "$copied" "a flush that is slow" --flush "$T/data" \
	[ "${nbdkit[@]}" eval get_size='echo 8M' pread='head -c $3 /dev/zero' \
	pwrite='cat >/dev/null' can_write='exit 0' can_flush='exit 0' \
	flush='sleep 2' ]
ends INT ": .* of .* compared" "comparing" --verify "$T/data" \
	[ "${nbdkit[@]}" --filter=delay memory 8M rdelay=100 ]
mkfifo "$T/fifo"
exec 5<>"$T/fifo"
ends INT "$copied" "a full pipe" [ "${nbdkit[@]}" file "$T/data" ] "$T/fifo"
exec 5<&-
exec 6<>"$T/fifo"
ends INT ": 0 B copied" "an empty pipe" "$T/fifo" \
	[ "${nbdkit[@]}" memory 8M ]
exec 6<&-

# ------------------------------------------------------------------- frozen

cp "$T/data" "$DISK"
serve nbdkit
freeze
ends INT "" "a source that is frozen" "$WHERE" "$T/out"
ends INT "" "a destination that is frozen" "$T/data" "$WHERE"
thaw
done_testing
