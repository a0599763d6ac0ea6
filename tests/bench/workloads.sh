# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash disable=SC2034
#
# workloads.sh - what the benchmark measures, and what it must show; see
# lib.sh for the words used here. Each function says why it is skipped by
# setting skipped and returning.

workloads=(read read-cat read-pattern copy-null write fio-32 fio-1 read-4k
	cp-dense copy-dense pipe copy-nbd read-late write-late writers-late
	fio-late read-4k-late cp-mixed copy-mixed cp-empty copy-nothing
	walk-million cp-million copy-million vmdk-dense vmdk-mixed vmdk-late
	vmdk-stream)

# late TIME: delays of nbdkit for reads and writes.
late()
{
	late=(--filter=delay file "$IMAGE" "rdelay=$1" "wdelay=$1")
}

# Reading with dd from each mount; the bytes are compared once.
dd_from_mounts()
{
	local bs=$1 bytes=$2 who
	shift 2
	for who; do
		mounted "$who" "$URI" || continue
		contend "$who" "$bytes" ${IMAGE:+-c "samedata '$MOUNTED' '$IMAGE'"} \
			dd if="$MOUNTED" of=/dev/null bs="$bs" status=none \
			count="$bytes" iflag=count_bytes
	done
}

run_read()
{
	image dense
	serve qemu "$IMAGE" || return
	dd_from_mounts 1M "$dense_bytes" nbdfs nbdfuse qsd-fuse
	contend nbdcopy "$dense_bytes" nbdcopy -- "$URI" null:
	contend local "$dense_bytes" dd if="$IMAGE" of=/dev/null bs=1M \
		status=none
	goal speed nbdfuse ">=" 2.7
	goal speed nbdcopy ">=" 1.0
	goal cpu-abs - "<=" 1.0
	goal cpu nbdfuse "<=" 0.45
	rounds "dd bs=1M from the mount"
}

run_read_cat()
{
	local who
	image dense
	serve qemu "$IMAGE" || return
	for who in nbdfs nbdfuse; do
		mounted $who "$URI" || continue
		contend $who "$dense_bytes" sh -c "cat '$MOUNTED' >/dev/null"
	done
	contend nbdcopy "$dense_bytes" nbdcopy -- "$URI" null:
	goal speed nbdfuse ">=" 2.7
	goal speed nbdcopy ">=" 1.0
	rounds "cat from the mount"
}

run_read_pattern()
{
	serve nbdkit pattern "$dense_size" || return
	IMAGE=
	dd_from_mounts 1M "$dense_bytes" nbdfs nbdfuse
	goal speed nbdfuse ">=" 2
	rounds "dd bs=1M, nbdkit pattern"
}

# Copies of an image to a file on tmpfs: cp from each mount, and the copy
# programs WHO... that can do the same.
cp_from_mounts()
{
	local bytes=$1 who out
	shift
	for who; do
		out=$dir/out/$who
		case $who in
		nbdfs | nbdfuse | qsd-fuse)
			mounted "$who" "$URI" || continue
			set -- cp "$MOUNTED" "$out"
			;;
		nbdfs-copy) set -- "$NBDFS_COPY" "$URI" "$out" ;;
		nbdcopy) set -- nbdcopy -- "$URI" "$out" ;;
		qemu-img) set -- qemu-img convert -f raw -O raw "$URI" "$out" ;;
		local) set -- cp "$IMAGE" "$out" ;;
		esac
		contend "$who" "$bytes" -b "rm -f '$dir'/out/*" \
			-c "samedata '$out' '$IMAGE'" "$@"
	done
}

run_cp_dense()
{
	image dense
	serve qemu "$IMAGE" || return
	cp_from_mounts "$dense_bytes" nbdfs nbdfuse nbdcopy qemu-img local
	goal speed nbdfuse ">=" 1.6
	goal speed nbdcopy ">=" 1.0
	rounds "cp mount -> tmpfs, dense"
}

run_cp_mixed()
{
	drop dense
	image mixed
	serve qemu "$IMAGE" || return
	cp_from_mounts "$mixed_bytes" nbdfs nbdfuse qsd-fuse nbdcopy qemu-img \
		local
	goal speed nbdfuse ">=" 2.5
	goal speed "nbdcopy|qemu-img" ">=" 1.0
	rounds "cp mount -> tmpfs, mixed"
}

run_cp_empty()
{
	drop dense mixed
	image empty
	serve qemu "$IMAGE" || return
	cp_from_mounts "$empty_bytes" nbdfs nbdfuse nbdcopy qemu-img local
	goal speed nbdfuse ">=" 100
	goal seconds - "<=" 0.050
	rounds "cp mount -> tmpfs, empty" "$slow_rounds"
}

run_copy_dense()
{
	image dense
	serve qemu "$IMAGE" || return
	cp_from_mounts "$dense_bytes" nbdfs-copy nbdcopy qemu-img local
	goal speed nbdcopy ">=" 1.1 nbdfs-copy
	rounds "nbdfs-copy -> tmpfs, dense"
}

run_copy_mixed()
{
	drop dense
	image mixed
	serve qemu "$IMAGE" || return
	cp_from_mounts "$mixed_bytes" nbdfs-copy nbdcopy qemu-img local
	goal speed "nbdcopy|qemu-img" ">=" 1.0 nbdfs-copy
	rounds "nbdfs-copy -> tmpfs, mixed"
}

run_read_late()
{
	image small
	late 5ms
	serve nbdkit "${late[@]}" || return
	dd_from_mounts 1M "$small_bytes" nbdfs nbdfuse
	contend nbdcopy "$small_bytes" nbdcopy -- "$URI" null:
	goal speed nbdfuse ">=" 15
	goal speed nbdcopy ">=" 0.95
	rounds "dd bs=1M from the mount, 5 ms" "$slow_rounds"
}

run_read_4k()
{
	image small
	serve qemu "$IMAGE" || return
	dd_from_mounts 4k "$small_bytes" nbdfs nbdfs-cached nbdfuse
	goal speed nbdfuse ">=" 1.0
	rounds "dd bs=4k from the mount"
}

run_read_4k_late()
{
	image small
	late 5ms
	serve nbdkit "${late[@]}" || return
	dd_from_mounts 4k "$small_bytes" nbdfs nbdfs-cached nbdfuse
	goal speed nbdfuse ">=" 15
	rounds "dd bs=4k from the mount, 5 ms" "$slow_rounds"
}

# dd with an fsync at its end onto each mount of $URI, whose file is TARGET.
dd_onto_mounts()
{
	local source=$1 file=$2 bytes=$3 who
	shift 3
	for who; do
		mounted "$who" "$URI" || continue
		contend "$who" "$bytes" -c "samedata '$file' '$source'" dd \
			if="$source" of="$MOUNTED" bs=1M conv=notrunc,fsync \
			status=none
	done
}

run_write()
{
	local source
	image dense
	source=$IMAGE
	target "$dense_bytes"
	serve qemu "$IMAGE" || return
	dd_onto_mounts "$source" "$IMAGE" "$dense_bytes" nbdfs nbdfuse qsd-fuse
	contend nbdcopy "$dense_bytes" -c "samedata '$IMAGE' '$source'" \
		nbdcopy --flush -- "$source" "$URI"
	goal speed nbdfuse ">=" 2.2
	goal speed nbdcopy ">=" 0.9
	rounds "dd + fsync onto the mount"
}

run_write_late()
{
	local source
	image small
	source=$IMAGE
	target "$small_bytes"
	late 5ms
	serve nbdkit "${late[@]}" || return
	dd_onto_mounts "$source" "$IMAGE" "$small_bytes" nbdfs nbdfuse
	contend nbdcopy "$small_bytes" nbdcopy --flush -- "$source" "$URI"
	goal speed nbdfuse ">=" 15
	rounds "dd + fsync onto the mount, 5 ms" "$slow_rounds"
}

# Eight programs that write 64 KiB at a time to parts of their own.
run_writers_late()
{
	local who i line part=$((small_bytes / 8 / 65536))
	image small
	source=$IMAGE
	target "$small_bytes"
	late 2ms
	serve nbdkit "${late[@]}" || return
	for who in nbdfs nbdfuse; do
		mounted $who "$URI" || continue
		line=
		for ((i = 0; i < 8; i++)); do
			line+="dd if='$source' of='$MOUNTED' bs=64k count=$part \
				skip=$((i * part)) seek=$((i * part)) \
				conv=notrunc oflag=direct status=none & "
		done
		contend $who "$small_bytes" -c "samedata '$IMAGE' '$source'" \
			sh -c "$line wait"
	done
	goal speed nbdfuse ">=" 5
	rounds "8 direct writers of 64 KiB, 2 ms" "$slow_rounds"
}

# fio: random reads of 4 KiB, past every cache.
fio_on_mounts()
{
	local depth=$1 bytes=$2 who
	shift 2
	have fio || { skipped="needs fio"; return 1; }
	for who; do
		mounted "$who" "$URI" || continue
		contend "$who" "$bytes" -k fio fio --name=r --minimal --rw=randread \
			--bs=4k --direct=1 --ioengine=libaio --iodepth="$depth" \
			--filename="$MOUNTED" --size="$bytes" --norandommap \
			--time_based --runtime="$fio_seconds" \
			--randseed="$seed"
	done
}

run_fio_32()
{
	image dense
	serve qemu "$IMAGE" || return
	fio_on_mounts 32 "$dense_bytes" nbdfs nbdfuse qsd-fuse || return
	goal speed nbdfuse ">=" 1.7
	rounds "random reads of 4 KiB, depth 32"
}

run_fio_1()
{
	image dense
	serve qemu "$IMAGE" || return
	fio_on_mounts 1 "$dense_bytes" nbdfs nbdfuse qsd-fuse || return
	goal speed nbdfuse ">=" 1.2
	rounds "random reads of 4 KiB, depth 1"
}

run_fio_late()
{
	image small
	late 5ms
	serve nbdkit "${late[@]}" || return
	fio_on_mounts 32 "$small_bytes" nbdfs nbdfuse || return
	goal speed nbdfuse ">=" 8
	rounds "random reads of 4 KiB, depth 32, 5 ms" "$slow_rounds"
}

# two_servers: A with the dense image, B with a target for it.
two_servers()
{
	image dense
	from=$IMAGE
	serve qemu "$IMAGE" || return
	from_uri=$URI
	target "$dense_bytes"
	to=$IMAGE
	serve qemu "$IMAGE" || return
	to_uri=$URI
}

# peers_between: the copy programs, from A to B.
peers_between()
{
	local check="samedata '$to' '$from'"
	contend nbdcopy "$dense_bytes" -c "$check" nbdcopy -- "$from_uri" \
		"$to_uri"
	contend qemu-img "$dense_bytes" -c "$check" qemu-img convert -n -f raw \
		-O raw "$from_uri" "$to_uri"
}

run_pipe()
{
	local from to from_uri to_uri who a
	two_servers || return
	for who in nbdfs nbdfuse; do
		if [ $who = nbdfs ]; then
			mounted nbdfs "$from_uri" "other=$to_uri" || continue
			a=$MOUNTED
			MOUNTED=${a%/*}/other
		else
			mounted $who "$from_uri" || continue
			a=$MOUNTED
			mounted $who "$to_uri" || continue
		fi
		contend $who "$dense_bytes" -c "samedata '$to' '$from'" \
			sh -c "cat '$a' >'$MOUNTED'"
	done
	peers_between
	goal speed nbdcopy ">=" 1.3
	rounds "cat mnt/a > mnt/b"
}

run_copy_nbd()
{
	local from to from_uri to_uri
	two_servers || return
	contend nbdfs-copy "$dense_bytes" -c "samedata '$to' '$from'" \
		"$NBDFS_COPY" "$from_uri" "$to_uri"
	peers_between
	goal speed nbdcopy ">=" 1.3 nbdfs-copy
	goal speed qemu-img ">=" 1.2 nbdfs-copy
	goal cpu nbdcopy "<=" 0.75 nbdfs-copy
	rounds "nbdfs-copy NBD -> NBD, dense"
}

run_copy_null()
{
	image dense
	serve qemu "$IMAGE" || return
	contend nbdfs-copy "$dense_bytes" "$NBDFS_COPY" "$URI" null:
	contend nbdcopy "$dense_bytes" nbdcopy -- "$URI" null:
	goal speed nbdcopy ">=" 1.5 nbdfs-copy
	goal cpu nbdcopy "<=" 0.7 nbdfs-copy
	rounds "nbdfs-copy -> null:"
}

run_copy_nothing()
{
	serve nbdkit --filter=delay memory 100G delay-extents=10ms || return
	contend nbdfs-copy 107374182400 "$NBDFS_COPY" "$URI" null:
	contend nbdcopy 107374182400 nbdcopy -- "$URI" null:
	contend qemu-img 107374182400 -b "rm -f '$dir'/out/*" qemu-img convert \
		-f raw -O raw "$URI" "$dir/out/qemu-img"
	goal speed nbdcopy ">=" 10 nbdfs-copy
	rounds "nbdfs-copy of 100 GiB of nothing, 10 ms" "$slow_rounds"
}

# A million extents, half of them holes.
comb()
{
	drop dense small mixed empty
	image "comb$comb_extents"
	comb_bytes=$((comb_extents * 4096))
	serve qemu "$IMAGE" || return
}

run_walk_million()
{
	comb || return
	mounted nbdfs "$URI" || return
	contend nbdfs "$comb_bytes" "$helpers/seekmap" -w "$MOUNTED"
	contend local "$comb_bytes" "$helpers/seekmap" -w "$IMAGE"
	goal us-extent "$comb_extents" "<=" 35
	goal daemon-kib - "<=" 102400
	rounds "SEEK walk of $comb_extents extents" "$slow_rounds"
}

run_cp_million()
{
	comb || return
	cp_from_mounts "$comb_bytes" nbdfs nbdcopy qemu-img local
	goal us-extent "$comb_extents" "<=" 35
	goal daemon-kib - "<=" 102400
	rounds "cp of $comb_extents extents" "$slow_rounds"
}

run_copy_million()
{
	comb || return
	cp_from_mounts "$comb_bytes" nbdfs-copy nbdcopy qemu-img
	goal us-extent "$comb_extents" "<=" 35 nbdfs-copy
	goal tool-kib - "<=" 102400 nbdfs-copy
	rounds "nbdfs-copy of $comb_extents extents" "$slow_rounds"
}

# to_vmdk BYTES KIND SUBFORMAT [WORD...]: a server's disk as a VMDK image; the
# words stand before the commands.
to_vmdk()
{
	local bytes=$1 kind=$2 subformat=$3 out who copy
	shift 3
	for who in nbdfs-copy qemu-img; do
		out=$dir/out/$who.vmdk
		copy=("$NBDFS_COPY" "--destination-format=$kind" "$URI" "$out")
		[ $who = nbdfs-copy ] ||
			copy=(qemu-img convert -f raw -O vmdk -o
				"subformat=$subformat" "$URI" "$out")
		contend "$who" "$bytes" -b "rm -f '$dir'/out/*.vmdk" \
			-c "qemu-img compare -q -f raw -F vmdk '$IMAGE' '$out'" \
			"$@" "${copy[@]}"
	done
}

run_vmdk_dense()
{
	drop mixed
	image dense
	serve qemu "$IMAGE" || return
	to_vmdk "$dense_bytes" vmdk monolithicSparse
	goal speed qemu-img ">=" 1.5 nbdfs-copy
	rounds "to a VMDK image, dense"
}

run_vmdk_mixed()
{
	drop dense
	image mixed
	serve qemu "$IMAGE" || return
	to_vmdk "$mixed_bytes" vmdk monolithicSparse
	goal speed qemu-img ">=" 1.5 nbdfs-copy
	rounds "to a VMDK image, mixed"
}

run_vmdk_late()
{
	image small
	serve qemu "$IMAGE" || return
	to_vmdk "$small_bytes" vmdk monolithicSparse \
		env LD_PRELOAD="$helpers/slowio.so"
	goal speed qemu-img ">=" 3 nbdfs-copy
	rounds "to a VMDK image, writes take 2 ms more" "$slow_rounds"
}

run_vmdk_stream()
{
	image small
	serve qemu "$IMAGE" || return
	to_vmdk "$small_bytes" vmdk-stream streamOptimized
	goal speed qemu-img ">=" 1.8 nbdfs-copy
	rounds "to a streamOptimized VMDK image" "$slow_rounds"
}
