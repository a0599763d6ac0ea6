#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# The random test of the whole file interface, on many kinds of server and in
# several ways to mount. What the program expects is at last held against what
# the server has.
#
# NBDFS_RANDOM_OPS     operations in each run (2000; fewer for the thread
#                      sanitizer)
# NBDFS_RANDOM_SEED    the first seed; each run takes the next one (1)
# NBDFS_RANDOM_RUNS    which runs, by name, spaces between (all)
# NBDFS_RANDOM_ARGS    more options of fsrandom, also to find a fault: --verbose
# NBDFS_RANDOM_MOUNT   more options of the mount

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires fuse helper:fsrandom helper:jitter nbdkit qemu-nbd nbd-server qemu-io nbdcopy \
	nbdkit-filter:delay nbdkit-filter:blocksize-policy \
	nbdkit-filter:noextents nbdkit-filter:nozero

OPS=2000
[[ $NBDFS != */thread/* ]] || OPS=500
OPS=${NBDFS_RANDOM_OPS:-$OPS}
seed=${NBDFS_RANDOM_SEED:-1}
read -ra more_args <<<"$NBDFS_RANDOM_ARGS"
read -ra more_mount <<<"$NBDFS_RANDOM_MOUNT"

A=$T/a.img B=$T/b.img		# what servers with files serve
EVEN=$((4 * 1024 * 1024 + 12288))
ODD=$((4 * 1024 * 1024 + 777))

# fresh SIZE_A SIZE_B: data with holes in both.
fresh()
{
	rm -f "$A" "$B"
	truncate -s "$1" "$A"
	truncate -s "$2" "$B"
	head -c $(($1 / 3)) /dev/urandom |
		dd of="$A" bs=4k seek=$(($1 / 32768)) conv=notrunc status=none
	head -c $(($2 / 13)) /dev/urandom |
		dd of="$B" bs=4k seek=3 conv=notrunc status=none
	cp "$A" "$T/a.start"
	cp "$B" "$T/b.start"
}

# fetch URI FILE TO: what the server has, as its own file shows it.
fetch()
{
	if [ -n "$MEMORY" ]; then
		run nbdcopy "$1" "$3"
	else
		cp "$2" "$3"
	fi
}

# random NAME "MOUNT OPTIONS" PART FSRANDOM-ARGS...: on servers $URI_A and
# $URI_B ($MEMORY: their contents are nowhere else), with one PART of the
# operations.
random()
{
	local name=$1 mount ops
	read -ra mount <<<"$2"
	shift 2
	ops=$((OPS / $1))
	shift
	rm -f "$T"/*.model
	if ! mnt "${mount[@]}" "${more_mount[@]}" "a=$URI_A" "b=$URI_B"; then
		fail "$name: mount"
		return
	fi
	RUN_TIMEOUT=${NBDFS_TEST_TIMEOUT:-250} run "$NBDFS_HELPERS/fsrandom" \
		--seed="$seed" --ops="$ops" --check-every=$((OPS / 4)) \
		--initial="$T/a.start" --initial2="$T/b.start" \
		--model="$T/a.model" --model2="$T/b.model" --file2="$MNT/b" \
		"$@" "${more_args[@]}" "$MNT/a"
	ok "$STATUS" "$name: $ops operations, seed $seed"
	if [ "$STATUS" != 0 ]; then
		diag "nbdfs ${mount[*]} ${more_mount[*]};" \
			"fsrandom --seed=$seed --ops=$ops $*"
		diag "status $STATUS: $(tail -n 40 <<<"$ERR")"
	fi
	seed=$((seed + 1))
	ok "umnt '$MNT'" "$name: unmounted"
	[ -e "$T/a.model" ] || return
	fetch "$URI_A" "$A" "$T/a.end" && fetch "$URI_B" "$B" "$T/b.end"
	ok "cmp '$T/a.model' '$T/a.end' && cmp '$T/b.model' '$T/b.end'" \
		"$name: the server has what is expected"
}

# two COMMAND...: starts one server for each of the files; FILE stands
# for the file.
two()
{
	local f
	pids=()
	for f in "$A" "$B"; do
		"${@/FILE/$f}" || bail "server"
		pids+=("$SERVER_PID")
		URI_A=$URI_B URI_B=$URI
	done
}

# slow_lines MIN MAX: to both servers; milliseconds for all that is said.
slow_lines()
{
	local line uri
	for line in A B; do
		uri=URI_$line
		spawn "$T/jitter.log" "$NBDFS_HELPERS/jitter" "$T/jitter.$line" \
			"${!uri#*socket=}" "$1" "$2" "$seed"
		pids+=("$SPAWNED")
		wait_until 10 test -S "$T/jitter.$line" || bail "jitter"
	done
	URI_A="nbd+unix:///?socket=$T/jitter.A"
	URI_B="nbd+unix:///?socket=$T/jitter.B"
}

stop_two()
{
	local pid
	for pid in "${pids[@]}"; do
		stop_server "$pid"
	done
	rm -f "$T"/jitter.[AB]
	MEMORY=
}

wanted()
{
	[ -z "$NBDFS_RANDOM_RUNS" ] || [[ " $NBDFS_RANDOM_RUNS " == *" $1 "* ]]
}

# ---------------------------------------------------------------- the runs

run_memory()
{
	two start_nbdkit memory "$ODD"
	run nbdcopy "$A" "$URI_A" && run nbdcopy "$B" "$URI_B" ||
		bail "nbdcopy to fill"
	MEMORY=1
	random memory "" 1
}

run_file()
{
	fresh "$ODD" "$EVEN"
	two start_nbdkit file FILE
	random file "" 1 --threads=4
}

# Time runs out for what is known of extents; nothing is known for long.
run_qemu()
{
	two start_qemu_nbd FILE --discard=unmap
	random qemu "--extent-timeout=0" 1 --itimer=10
}

# Two threads have bytes in every block.
run_blocks()
{
	two start_nbdkit --filter=blocksize-policy file FILE \
		blocksize-minimum=4K blocksize-preferred=4K \
		blocksize-maximum=64K blocksize-error-policy=error
	random blocks "" 1 --threads=3 --stripe=700
}

run_blocks_single()
{
	two start_nbdkit --filter=blocksize-policy file FILE \
		blocksize-minimum=64K blocksize-preferred=64K \
		blocksize-maximum=128K blocksize-error-policy=error
	random blocks_single "--detect-zeroes" 1
}

run_delay()
{
	two start_nbdkit --filter=delay file FILE rdelay=1ms wdelay=3ms \
		delay-extents=20ms delay-zero=20ms delay-trim=20ms
	random delay "" 10 --threads=4
}

run_delay_single()
{
	two start_nbdkit --filter=delay file FILE wdelay=2ms \
		delay-extents=15ms delay-zero=15ms
	random delay_single "--extent-timeout=0" 10
}

# Each connection is slow by itself: answers are old when they come, and what
# goes over one may overtake what goes over another.
run_jitter()
{
	two start_nbdkit file FILE
	slow_lines 0 10
	random jitter "--extent-timeout=0" 10 --threads=6
}

run_jitter_single()
{
	two start_nbdkit file FILE
	slow_lines 0 8
	random jitter_single "" 10
}

# All of it in little room: whatever is done meets something that is still
# under way.
run_overlap()
{
	two start_nbdkit file FILE
	slow_lines 0 3
	random overlap "--extent-timeout=0.05" 1 --max-io=20000 \
		--only=write,small,punch,zero,seek,walk,read,copy,mapwrite,map
}

run_overlap_blocks()
{
	two start_nbdkit --filter=blocksize-policy file FILE \
		blocksize-minimum=4K blocksize-preferred=4K \
		blocksize-maximum=64K blocksize-error-policy=error
	slow_lines 0 3
	random overlap_blocks "--write-behind=64K" 1 --max-io=20000 \
		--threads=4 --stripe=1500 \
		--only=write,small,punch,zero,seek,read,truncate
}

run_nbd_server()
{
	pids=()
	start_nbd_server "a=$A" "b=$B" -- "flush = true" "trim = true" ||
		bail "server"
	pids+=("$SERVER_PID")
	URI_A=$(uri a) URI_B=$(uri b)
	random nbd_server "" 1
}

run_no_sr()
{
	two start_nbdkit --no-sr file FILE
	random no_sr "--cache=kernel" 1 --threads=4
}

run_noextents()
{
	two start_nbdkit --filter=noextents --filter=nozero file FILE
	random noextents "--write-behind=64K --read-ahead=0 --detect-zeroes" 1
}

run_kernel()
{
	two start_nbdkit file FILE
	random kernel "--cache=kernel" 1 --itimer=10
}

run_sync()
{
	two start_nbdkit file FILE
	random sync "--write-behind=0 -C1" 1 --threads=2 --stripe=4096
}

# Somebody else writes to the disks while they are closed here.
run_peer()
{
	two start_qemu_nbd FILE --discard=unmap
	cat >"$T/peer" <<-END
		#!/bin/bash
		uri=$(printf %q "$URI_A")
		[ "\$FSR_FILE" = 1 ] || uri=$(printf %q "$URI_B")
		op="write -q -P \$FSR_BYTE \$FSR_OFFSET \$FSR_LENGTH"
		[ "\$FSR_BYTE" != 0 ] ||
			op="write -q -z -u \$FSR_OFFSET \$FSR_LENGTH"
		exec qemu-io -f raw -c "\$op" -c flush "\$uri" >/dev/null
	END
	chmod +x "$T/peer"
	random peer "--extent-timeout=60" 1 --at-reopen="$T/peer"
}

for name in memory file qemu blocks blocks_single delay delay_single \
	jitter jitter_single overlap overlap_blocks nbd_server no_sr noextents kernel sync peer; do
	wanted $name || continue
	fresh "$EVEN" "$EVEN"
	case $name in
	memory) fresh "$ODD" "$ODD" ;;
	overlap*) fresh $((49 * 4096)) $((33 * 4096)) ;;
	blocks_single) fresh $((65 * 65536)) $((33 * 65536)) ;;
	esac
	run_$name
	stop_two
done
done_testing
