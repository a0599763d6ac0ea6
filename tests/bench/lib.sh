# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash disable=SC2034
#
# lib.sh - servers, mounts, images and rounds of the benchmark; see run.
#
# A workload is a function. It calls, in this order
#   image NAME           makes the image, if it is not there
#   serve KIND ...       starts a server; URI and SOCK are its address
#   mounted WHO URI      mounts it by one of the contenders; MOUNTED is the file
#   contend WHO ...      what is to be measured
#   rounds TITLE         measures it, and writes down what it saw
# After it everything it started is ended.

# What only one workload uses.
servers=()		# process ids
daemons=()
mounts=()
declare -A peer_pids	# of a contender: its mount daemons
declare -A command_of	# of a contender: what is timed
declare -A before_of	# ... what comes before, untimed
declare -A check_of	# ... what tells whether the bytes are right
declare -A checked	# ... they were
declare -A bytes_of	# ... how much it moves
declare -A kind_of	# ... "fio": the speed is in its report
contenders=()
serial=0

note()
{
	printf '  %s\n' "$*" >&2
}

have()
{
	command -v "$1" >/dev/null
}

# gone PID: has ended, and was perhaps not waited for.
gone()
{
	local line
	{ line=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
	line=${line##*) }
	[ "${line:0:1}" = Z ]
}

# until_true SECONDS COMMAND...
until_true()
{
	local end=$((SECONDS + $1 + 1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.01
	done
}

# launch LOG COMMAND...: in the background, out of reach of Ctrl-C, ended with
# this script even when it is killed. LAUNCHED is the process id.
launcher=(env "--default-signal=INT,QUIT")
have setpriv && launcher=(setpriv --pdeathsig TERM "${launcher[@]}")
have setsid && launcher=(setsid "${launcher[@]}")
launch()
{
	local log=$1
	shift
	"${launcher[@]}" "$@" >>"$log" 2>&1 </dev/null &
	LAUNCHED=$!
}

# finish PID...: asks them to end, then makes them.
finish()
{
	local pid
	[ $# -gt 0 ] || return 0
	kill -TERM "$@" 2>/dev/null
	for pid; do
		until_true 5 gone "$pid" || kill -KILL "$pid" 2>/dev/null
		wait "$pid" 2>/dev/null
	done
}

is_mounted()
{
	grep -qF " $1 fuse" /proc/self/mountinfo
}

# tidy: ends what the workload began.
tidy()
{
	local where
	for where in "${mounts[@]}"; do
		is_mounted "$where" || continue
		timeout 10 fusermount3 -u "$where" 2>/dev/null ||
			fusermount3 -uz "$where" 2>/dev/null
	done
	for where in "${daemons[@]}"; do
		until_true 5 gone "$where"
	done
	finish "${daemons[@]}"
	finish "${servers[@]}"
	for where in "${mounts[@]}"; do
		! is_mounted "$where" || fusermount3 -uz "$where" 2>/dev/null
	done
	rm -rf "${dir:?}/mnt" "$dir/sock" "$dir/out"
	mkdir -p "$dir/mnt" "$dir/sock" "$dir/out"
	mounts=() daemons=() servers=() contenders=()
	peer_pids=() command_of=() before_of=() check_of=() checked=()
	bytes_of=() kind_of=()
}

# ------------------------------------------------------------------- images

size_of()
{
	stat -Lc %s "$1"
}

# image NAME: $dir/NAME is there; IMAGE is its path. The sizes are set in run.
image()
{
	IMAGE=$dir/image.$1
	[ ! -e "$IMAGE" ] || return 0
	case $1 in
	empty) "$helpers/mkimage" empty "$empty_size" "$seed" "$IMAGE" ;;
	dense | dense2) "$helpers/mkimage" dense "$dense_size" "$seed" "$IMAGE" ;;
	mixed)
		"$helpers/mkimage" mixed "$mixed_size" "$seed" "$IMAGE" \
			"$mixed_extents" 40
		;;
	small) "$helpers/mkimage" dense "$small_size" "$seed" "$IMAGE" ;;
	comb*)
		"$helpers/mkimage" comb "$((${1#comb} * 4))K" "$seed" \
			"$IMAGE" "${1#comb}"
		;;
	esac || fatal "no image $1: is $dir full?"
}

# drop NAME...: images that are not needed any more.
drop()
{
	local name
	for name; do
		rm -f "$dir/image.$name"
	done
}

# target SIZE: an empty file for a server that is written to.
target()
{
	IMAGE=$dir/out/target
	rm -f "$IMAGE"
	truncate -s "$1" "$IMAGE"
}

# ------------------------------------------------------------------ servers

answers()
{
	[ -S "$1" ]
}

# serve qemu FILE [NAME], serve nbdkit ARGS...
serve()
{
	local kind=$1 file=$2
	shift
	serial=$((serial + 1))
	SOCK=$dir/sock/$serial
	URI="nbd+unix:///?socket=$SOCK"
	case $kind in
	qemu)
		have qemu-nbd || { skipped="needs qemu-nbd"; return 1; }
		launch "$dir/log" qemu-nbd -t -e 64 -f raw --cache=writeback \
			-k "$SOCK" "$file"
		;;
	nbdkit)
		have nbdkit || { skipped="needs nbdkit"; return 1; }
		launch "$dir/log" nbdkit -f -U "$SOCK" "$@"
		;;
	esac
	servers+=("$LAUNCHED")
	until_true 10 answers "$SOCK" && return
	tail -n 3 "$dir/log" >&2
	fatal "$kind does not start: $*"
}

# ------------------------------------------------------------------- mounts

# attached FILE: the mount answers with a file that has a size.
attached()
{
	local size
	size=$(timeout 5 stat -Lc %s "$1" 2>/dev/null) && [ "${size:-0}" -gt 0 ]
}

# in_mount FILE: FILE is in a FUSE mount now, no left-over of one.
in_mount()
{
	[[ $(timeout 5 stat -fc %T "$1" 2>/dev/null) = fuse* ]]
}

# mounted WHO URI [MORE OPTIONS]: MOUNTED is the file; fails where the program
# is missing.
mounted()
{
	local who=$1 uri=$2 where
	shift 2
	serial=$((serial + 1))
	where=$dir/mnt/$serial
	case $who in
	nbdfs | nbdfs-cached)
		[ "$who" = nbdfs ] || set -- --cache=kernel "$@"
		mkdir "$where"
		MOUNTED=$where/nbd
		launch "$dir/log" "$NBDFS" -f "$@" "nbd=$uri" "$where"
		;;
	nbdfuse)
		have nbdfuse || return 1
		mkdir "$where"
		MOUNTED=$where/nbd
		launch "$dir/log" nbdfuse "$where" "$uri"
		;;
	qsd-fuse)
		# No goal depends on it: a short round does without.
		[ -z "$quick" ] && have qemu-storage-daemon || return 1
		: >"$where"
		MOUNTED=$where
		launch "$dir/log" qemu-storage-daemon --blockdev \
			"driver=nbd,node-name=n,server.type=unix,server.path=${uri##*socket=}" \
			--export \
			"type=fuse,id=e,node-name=n,mountpoint=$where,writable=on"
		;;
	esac
	mounts+=("$where")
	daemons+=("$LAUNCHED")
	peer_pids[$who]+=" $LAUNCHED"
	until_true 10 in_mount "$MOUNTED" && until_true 10 attached "$MOUNTED" ||
		{ note "$who does not mount"; tail -n 3 "$dir/log" >&2; return 1; }
}

# ------------------------------------------------------------------- rounds

# contend WHO BYTES [-b BEFORE] [-c CHECK] [-k KIND] COMMAND...: BEFORE and
# CHECK are lines of shell.
contend()
{
	local who=$1 opt OPTIND
	bytes_of[$who]=$2
	shift 2
	while getopts b:c:k: opt; do
		case $opt in
		b) before_of[$who]=$OPTARG ;;
		c) check_of[$who]=$OPTARG ;;
		k) kind_of[$who]=$OPTARG ;;
		*) return 2 ;;
		esac
	done
	shift $((OPTIND - 1))
	have "$1" || { note "$1 is not installed: left out"; return; }
	command_of[$who]=$(printf '%q ' "$@")
	contenders+=("$who")
}

# shuffled ROUND WORD...: the same order for the same seed.
shuffled()
{
	local salt=$1
	shift
	printf '%s\n' "$@" | awk -v seed="$seed" -v salt="$salt" '
	BEGIN {
		x = seed % 65521 + 1
		for (i = 1; i <= length(salt); i++)
			x = (x * 31 + index("0123456789abcdefghijklmnopqrst" \
				"uvwxyz-", substr(salt, i, 1))) % 65521
	}
	{ word[NR] = $0 }
	END {
		for (i = NR; i > 0; i--) {
			x = (x * 17364 + 7) % 65521
			j = x % i + 1
			print word[j]
			word[j] = word[i]
		}
	}'
}

# lost WHO WHY: it takes no further part in this workload.
lost()
{
	local who rest=()
	for who in "${contenders[@]}"; do
		[ "$who" = "$1" ] || rest+=("$who")
	done
	contenders=("${rest[@]}")
	note "$1: $2"
	printf 'lost\t%s\t%s\t%s\n' "$workload" "$1" "$2" >>"$results"
	case $1 in
	nbdfs*) failed=1 ;;
	esac
}

# fio_line: speed in bytes a second, from fio's terse report.
fio_speed()
{
	awk -F ';' 'NF > 40 { print ($7 + $48) * 1024 }' "$1"
}

# once WHO: one measured run; sample is what it gave.
once()
{
	local who=$1 pid watch='' line status speed
	for pid in ${peer_pids[$who]}; do
		if gone "$pid"; then
			lost "$who" "its mount is gone"
			return 1
		fi
		watch+=" -d $pid"
	done
	for pid in "${servers[@]}"; do
		! gone "$pid" || fatal "a server has ended"
		watch+=" -s $pid"
	done
	eval "${before_of[$who]}"
	rm -f "$dir/sample" "$dir/said"
	eval "measure -o '$dir/sample' -l $time_limit$watch ${command_of[$who]}" \
		>"$dir/said" 2>>"$dir/log" </dev/null
	status=$?
	if [ $status = 124 ]; then
		lost "$who" "took longer than $time_limit s"
		return 1
	elif [ $status != 0 ]; then
		lost "$who" "failed with status $status"
		return 1
	fi
	read -r line <"$dir/sample"
	if [ "${kind_of[$who]}" = fio ]; then
		speed=$(fio_speed "$dir/said")
		line=$(awk -v speed="${speed:-0}" -v took="${line%% *}" \
			-v want="$fio_seconds" '{ print want, $0, speed * want }' \
			<<<"${line#* }")
		bytes_of[$who]=${line##* }
		line=${line% *}
	fi
	sample=${line// /$'\t'}
	[ -z "${checked[$who]}" ] || return 0
	checked[$who]=1
	[ -n "${check_of[$who]}" ] || return 0
	if ! eval "${check_of[$who]}" >"$dir/said" 2>&1; then
		lost "$who" "wrong bytes: $(head -n 1 "$dir/said")"
		return 1
	fi
}

# rounds TITLE [N]: all contenders in turn, in another order each round.
rounds()
{
	local title=$1 n=${2:-$rounds} round who salt
	printf 'title\t%s\t%s\n' "$workload" "$title" >>"$results"
	for ((round = 1 - warmup; round <= n; round++)); do
		salt=$((round + warmup))-${workload//[^a-z0-9-]/}
		for who in $(shuffled "$salt" "${contenders[@]}"); do
			once "$who" || continue
			[ "$round" -gt 0 ] || continue
			printf 'run\t%s\t%s\t%s\t%s\t%s\n' "$workload" "$who" \
				"$round" "${bytes_of[$who]}" "$sample" \
				>>"$results"
		done
	done
}

# goal METRIC PEERS OP VALUE: what the workload must show. METRIC is speed or
# cpu (ratio to PEERS), cpu-abs (s/GiB), seconds, us-extent, daemon-kib. With
# several PEERS, a|b, the better one counts.
goal()
{
	printf 'goal\t%s\t%s\t%s\t%s\t%s\t%s\n' "$workload" "${5:-nbdfs}" "$@" |
		cut -f 1-7 >>"$results"
}

# point X VALUE: one measurement of how cost grows.
point()
{
	printf 'point\t%s\t%s\t%s\n' "$workload" "$1" "$2" >>"$results"
}
