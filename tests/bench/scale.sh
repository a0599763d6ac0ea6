# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash disable=SC2034
#
# scale.sh - how the cost grows with what there is much of: extents, exports,
# latency, size, connections, open files. See lib.sh for the words used here.
# Each measurement gives points; plot.sh draws them.

scales=(scale-extents scale-extents-memory scale-exports scale-exports-memory
	scale-latency scale-size scale-connections scale-open-files)

# axis X Y: what the points of this measurement mean.
axis()
{
	printf 'axis\t%s\t%s\t%s\n' "$workload" "$1" "$2" >>"$results"
}

# timed COMMAND...: three times; TOOK is the median in seconds, PEAK the peak
# memory in KiB of the mount with the process id in DAEMON.
timed()
{
	local watch=() i
	[ -z "$DAEMON" ] || watch=(-d "$DAEMON")
	rm -f "$dir/sample"
	for i in 1 2 3; do
		measure -o "$dir/sample" -l "$time_limit" "${watch[@]}" "$@" \
			>/dev/null 2>>"$dir/log" </dev/null || return
	done
	TOOK=$(sort -g "$dir/sample" | sed -n '2s/ .*//p')
	PEAK=$(awk '$6 > most { most = $6 } END { print most + 0 }' "$dir/sample")
}

# of EXPRESSION: arithmetic with fractions.
of()
{
	awk "BEGIN { printf \"%.9g\", $* }"
}

# mount_one URI [OPTIONS]
mount_one()
{
	mounted nbdfs "$@" || return
	DAEMON=${daemons[-1]}
}

extents_points()
{
	local n
	for n in 100 1000 10000 100000 "$comb_extents"; do
		[ "$n" -le "$comb_extents" ] || continue
		image "comb$n"
		serve qemu "$IMAGE" || return
		mount_one "$URI" || return
		timed seekmap -w "$MOUNTED" || return
		"$1" "$n"
		tidy
		[ "$n" = "$comb_extents" ] || drop "comb$n"
	done
}

extents_time()
{
	point "$1" "$(of "$TOOK * 1e6 / $1")"
}

extents_memory()
{
	point "$1" "$(of "$PEAK / 1024")"
}

run_scale_extents()
{
	drop dense small mixed empty
	axis "extents" "SEEK walk: microseconds an extent"
	extents_points extents_time
}

run_scale_extents_memory()
{
	axis "extents" "SEEK walk: MiB at the peak"
	extents_points extents_memory
}

# exports N: a server with N exports of 1 MiB, and a mount of them all.
exports()
{
	local i folder=$dir/out/exports
	rm -rf "$folder"
	mkdir "$folder"
	for ((i = 0; i < $1; i++)); do
		truncate -s 1M "$folder/disk$i"
	done
	serve nbdkit file "dir=$folder" || return
	where=$dir/mnt/all
	mkdir "$where"
	begin=$EPOCHREALTIME
	launch "$dir/log" "$NBDFS" -f "$URI" "$where"
	mounts+=("$where")
	daemons+=("$LAUNCHED")
	DAEMON=$LAUNCHED
	until_true 30 in_mount "$where/disk0" &&
		[ "$(find "$where" -type f -size 1M | wc -l)" = "$1" ]
}

exports_points()
{
	local n where begin
	for n in 1 10 100 1000; do
		exports "$n" || return
		if [ "$1" = time ]; then
			point "$n" "$(of "$EPOCHREALTIME - $begin")"
		else
			point "$n" "$(awk '/^VmHWM/ { print $2 / 1024 }' \
				"/proc/$DAEMON/status")"
		fi
		tidy
	done
}

run_scale_exports()
{
	axis "exports" "mount and find(1): seconds"
	exports_points time
}

run_scale_exports_memory()
{
	axis "exports" "mount and find(1): MiB at the peak"
	exports_points memory
}

run_scale_latency()
{
	local ms
	axis "ms of latency" "dd bs=1M from the mount: MiB/s"
	image small
	for ms in 0 1 5 50; do
		serve nbdkit --filter=delay file "$IMAGE" "rdelay=${ms}ms" ||
			return
		mount_one "$URI" || return
		timed dd if="$MOUNTED" of=/dev/null bs=1M status=none || return
		point "$ms" "$(of "$small_bytes / 1048576 / $TOOK")"
		tidy
	done
}

# The first and the last byte, and what stat says: no matter how large.
run_scale_size()
{
	local size
	axis "bytes" "stat, first and last block: milliseconds"
	for size in 1048576 1073741824 1099511627776 1125899906842624 \
		9223372036854771712; do
		serve nbdkit memory "$size" || return
		mount_one "$URI" || return
		timed sh -c "stat '$MOUNTED' && head -c 4096 '$MOUNTED' &&
			tail -c 4096 '$MOUNTED'" || return
		point "$size" "$(of "$TOOK * 1000")"
		tidy
	done
}

run_scale_connections()
{
	local n
	axis "connections" "dd bs=1M from the mount: MiB/s"
	image dense
	for n in 1 2 4 8 16; do
		serve qemu "$IMAGE" || return
		mount_one "$URI" --connections="$n" || return
		timed dd if="$MOUNTED" of=/dev/null bs=1M status=none || return
		point "$n" "$(of "$dense_bytes / 1048576 / $TOOK")"
		tidy
	done
}

run_scale_open_files()
{
	local n
	axis "open files" "readers by turns, 64 KiB each: MiB/s in all"
	image small
	for n in 1 10 100 1000; do
		serve qemu "$IMAGE" || return
		mount_one "$URI" || return
		timed openmany "$MOUNTED" "$n" "$small_bytes" || return
		point "$n" "$(of "$small_bytes / 1048576 / $TOOK")"
		tidy
	done
}
