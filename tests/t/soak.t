#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Servers that are killed and started again, frozen, or that fail now and then,
# under the random test: operations may fail, but what succeeded is true, and
# what an fsync has promised is still there.
#
# NBDFS_SOAK_SECONDS   for each kind of trouble (2)
# NBDFS_SOAK_SEED      the first seed; each kind takes the next one (1)
# NBDFS_SOAK_RUNS      which kinds, by name, spaces between (all)
# NBDFS_SOAK_ARGS      more options of fsrandom: --verbose

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fsrandom nbdkit qemu-nbd nbd-server nbdkit-filter:cache \
	nbdkit-filter:error nbdkit-filter:delay nbdkit-filter:noextents \
	nbdkit-filter:multi-conn nbdkit-filter:blocksize-policy \
	nbdkit-filter:nozero nbdkit-filter:fua nbdkit-plugin:eval

LIMIT=${NBDFS_SOAK_SECONDS:-2}
seed=${NBDFS_SOAK_SEED:-1}
read -ra more_args <<<"$NBDFS_SOAK_ARGS"
SIZE=$((2 * 1024 * 1024 + 8192))
PID_a=
PID_b=

# Every kind of server, on a socket that stays the same.
server_file()
{
	spawn "$T/$1.log" nbdkit -f -U "$T/$1.sock" file "$T/$1.img"
}

# One connection at a time.
server_single()
{
	spawn "$T/$1.log" nbdkit -f -U "$T/$1.sock" --filter=multi-conn \
		file "$T/$1.img" multi-conn-mode=disable
}

# Forgets what was not flushed. Its extents are not those of what it has.
server_cache()
{
	spawn "$T/$1.log" nbdkit -f -U "$T/$1.sock" --filter=noextents \
		--filter=cache file "$T/$1.img"
}

# The same, and has nothing that would help: blocks, short requests, neither
# zeroes nor FUA.
server_poor()
{
	spawn "$T/$1.log" nbdkit -f -U "$T/$1.sock" --filter=noextents \
		--filter=blocksize-policy --filter=nozero --filter=fua \
		--filter=cache file "$T/$1.img" \
		blocksize-minimum=4K blocksize-preferred=4K \
		blocksize-maximum=64K blocksize-error-policy=error
}

server_slow()
{
	spawn "$T/$1.log" nbdkit -f -U "$T/$1.sock" --filter=noextents \
		--filter=cache --filter=delay file "$T/$1.img" \
		rdelay=1ms wdelay=5ms delay-zero=5ms
}

server_qemu()
{
	spawn "$T/$1.log" qemu-nbd -t -e 16 -k "$T/$1.sock" -f raw \
		--discard=unmap "$T/$1.img"
}

# A child of it serves each client.
server_nbd_server()
{
	cat >"$T/$1.conf" <<-END
		[generic]
			unixsock = $T/$1.sock
			listenaddr = 127.0.0.1
			port = $(free_port)
		[disk]
			exportname = $T/$1.img
			flush = true
			fua = true
	END
	rm -f "$T/$1.pid"
	timeout -k 5 15 nbd-server -C "$T/$1.conf" -p "$T/$1.pid" \
		>>"$T/$1.log" 2>&1 </dev/null
	wait_until 10 test -s "$T/$1.pid"
	SPAWNED=$(<"$T/$1.pid")
	_server_pids+=("$SPAWNED")
}

server_errors()
{
	spawn "$T/$1.log" nbdkit -f -U "$T/$1.sock" --filter=error \
		file "$T/$1.img" error=EIO error-file="$T/inject" \
		error-pread-rate=5% error-pwrite-rate=20% error-zero-rate=20% \
		error-extents-rate=5%
}

# Nothing can be flushed while errors are wanted.
server_flush()
{
	local f=$T/$1.img
	spawn "$T/$1.log" nbdkit -f -U "$T/$1.sock" eval \
		get_size="stat -Lc %s $f" \
		pread="dd if=$f skip=\$4 count=\$3 bs=64k status=none \
			iflag=skip_bytes,count_bytes" \
		can_write=true pwrite="dd of=$f seek=\$4 conv=notrunc bs=64k \
			oflag=seek_bytes status=none" \
		can_zero=true zero="fallocate -zno \$4 -l \$3 $f" \
		can_flush=true flush="[ ! -e $T/inject ] ||
			{ echo EIO no >&2; exit 1; }"
}

# serve KIND a|b: its process is PID_a or PID_b.
serve()
{
	rm -f "$T/$2.sock"
	"server_$1" "$2"
	printf -v "PID_$2" %s "$SPAWNED"
	wait_until 15 test -S "$T/$2.sock"
}

# between A B: sleeps for so many milliseconds.
between()
{
	local ms=$(($1 + RANDOM % ($2 - $1 + 1)))
	sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
}

die()
{
	local children
	_is_ours "$1" || return
	children=$(cat "/proc/$1/task/$1/children" 2>/dev/null)
	# shellcheck disable=SC2086
	kill -KILL "$1" $children 2>/dev/null
	wait "$1" 2>/dev/null
}

# The troubles, once each: KIND and a or b.
trouble_kill()
{
	local pid=PID_$2
	between 50 800
	# So that much is on its way.
	! _is_ours "${!pid}" || kill -STOP "${!pid}"
	between 0 60
	die "${!pid}"
	between 0 400
	serve "$1" "$2"
}

trouble_kill_often()
{
	local pid=PID_$2
	between 20 150
	! _is_ours "${!pid}" || kill -STOP "${!pid}"
	between 10 60
	die "${!pid}"
	serve "$1" "$2"
}

# Longer than the mount's patience, or not so long. nbdkit may die of clients
# that have gone.
trouble_freeze()
{
	local pid=PID_$2
	between 200 1000
	if _is_ours "${!pid}"; then
		kill -STOP "${!pid}"
		between 50 2000
		kill -CONT "${!pid}"
	fi
	! _gone "${!pid}" || serve "$1" "$2"
}

# The old process goes on for a moment when its connections are thought lost.
trouble_freeze_kill()
{
	local pid=PID_$2
	trouble_freeze "$@"
	between 0 100
	die "${!pid}"
	serve "$1" "$2"
}

trouble_inject()
{
	between 50 800
	: >"$T/inject"
	between 20 200
	rm -f "$T/inject"
}

trouble_inject_kill()
{
	trouble_inject "$@"
	[ $((RANDOM % 3)) != 0 ] || trouble_kill "$@"
}

prepare()
{
	local f
	for f in a b; do
		rm -f "$T/$f.img" "$T/$f.model"
		truncate -s $SIZE "$T/$f.img"
		head -c 700000 /dev/urandom |
			dd of="$T/$f.img" bs=64k seek=2 conv=notrunc status=none
		cp "$T/$f.img" "$T/$f.start"
		serve "$1" "$f" || bail "server"
	done
}

# make_trouble KIND TROUBLE PID: until that has ended.
make_trouble()
{
	local f
	troubles=0
	while ! _gone "$3"; do
		f=a
		[ $((RANDOM % 2)) = 0 ] || f=b
		"trouble_$2" "$1" $f
		troubles=$((troubles + 1))
	done
}

# soak NAME KIND TROUBLE THREADS MOUNT-OPTIONS...
soak()
{
	local name=$1 kind=$2 trouble=$3 threads=$4 f job export=
	shift 4
	if [ -n "$NBDFS_SOAK_RUNS" ] &&
		[[ " $NBDFS_SOAK_RUNS " != *" $name "* ]]; then
		return
	fi
	seed=$((seed + 1))
	prepare "$kind"
	[ "$kind" != nbd_server ] || export=disk
	set -- -v "$@" "a=nbd+unix:///$export?socket=$T/a.sock" \
		"b=nbd+unix:///$export?socket=$T/b.sock"
	# In its first moments nbd-server may leave a connection alone.
	if ! mnt "$@" && ! mnt "$@"; then
		fail "$name: mount"
		return
	fi
	RANDOM=$((seed % 32768))
	timeout -k 5 $((LIMIT * 4 + 120)) "$NBDFS_HELPERS/fsrandom" \
		--seed="$seed" --ops=1000000000 --seconds="$LIMIT" \
		--threads="$threads" --max-io=300000 --itimer=10 --pause=20 \
		--initial="$T/a.start" --initial2="$T/b.start" \
		--model="$T/a.model" --model2="$T/b.model" --file2="$MNT/b" \
		"${may[@]}" "${more_args[@]}" "$MNT/a" >"$T/out" 2>&1 </dev/null &
	job=$!
	make_trouble "$kind" "$trouble" $job
	wait $job
	ok $? "$name: $(tail -n 1 "$T/out"), $troubles troubles" ||
		diag "$(tail -n 50 "$T/out")"
	ok "umnt '$MNT'" "$name: unmounted"
	stop_server "$PID_a"
	stop_server "$PID_b"
	for f in a b; do
		[ ! -e "$T/$f.model" ] || ok "cmp '$T/$f.model' '$T/$f.img'" \
			"$name: the server of $f has what is expected"
	done
}

# Where each write is on stable storage before it returns, nothing is lost, and
# so nothing may fail.
may=("--only=dsync,readv,stat,check")
soak durable cache kill_often 4 --timeout=2

may=(--lossy)
soak kill file kill 4 --timeout=2
soak single single kill 2 --timeout=2
soak forget cache kill 1 --timeout=2
soak forget_all cache kill 4 --timeout=2 --write-behind=256K
soak poor poor kill 2 --timeout=2
soak qemu qemu kill 3 --timeout=2 --cache=kernel
soak nbd_server nbd_server kill 1 --timeout=2
soak freeze qemu freeze 4 --timeout=1
soak late slow freeze_kill 3 --timeout=1 -C2
soak errors errors inject 1 --extent-timeout=0.1
soak flush flush inject_kill 2
done_testing
