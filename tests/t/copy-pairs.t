#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# nbdfs-copy from anything to anything: every byte arrives, nothing behind the
# end is touched, and holes are holes where there can be any.

# shellcheck disable=SC2002,SC2034,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy nbdkit nbdkit-plugin:file qemu-nbd qemu-img nbd-server nbdcopy

kinds=(file nbdkit qemu qcow2 nbdserver pipe)
if [ "$(id -u)" = 0 ] && losetup -f >/dev/null 2>&1; then
	kinds+=(loop)
else
	diag "no loop devices: left out"
fi

# ------------------------------------------------------------------- images

# patch FILE OFFSET LENGTH: data there.
patch()
{
	head -c "$3" /dev/urandom |
		dd of="$1" bs=64k seek="$2" oflag=seek_bytes conv=notrunc \
			status=none
}

images=(empty dense mixed odd tiny)
mkdir "$T/img"
truncate -s 1M "$T/img/empty"
head -c 1310720 /dev/urandom >"$T/img/dense"
truncate -s 3M "$T/img/mixed"
patch "$T/img/mixed" 131072 400000
patch "$T/img/mixed" 1000000 4096
patch "$T/img/mixed" 2097152 262144
truncate -s 2000001 "$T/img/odd"
patch "$T/img/odd" 4097 70001
patch "$T/img/odd" 1999990 11
# 4 KiB of data after each 4 KiB of nothing, and some of 64.
truncate -s 1M "$T/img/tiny"
patch "$T/img/tiny" 0 524288
for ((i = 0; i < 524288; i += 8192)); do
	fallocate -p -o $i -l 4096 "$T/img/tiny"
done
for ((i = 524288; i < 1048576; i += 131072)); do
	patch "$T/img/tiny" $i 65536
done

# ------------------------------------------------------------------ sources

declare -A source_of

losetup_new()
{
	LOOP=$(losetup -f --show "$@") || return 1
	on_exit losetup -d "$LOOP"
}

for image in "${images[@]}"; do
	file=$T/img/$image
	source_of[file:$image]=$file
	start_nbdkit -r file "$file" && source_of[nbdkit:$image]=$URI
	start_qemu_nbd "$file" -r && source_of[qemu:$image]=$URI
	qemu-img convert -f raw -O qcow2 "$file" "$file.qcow2"
	start_qemu_nbd "$file.qcow2" -f qcow2 -r &&
		source_of[qcow2:$image]=$URI
	start_nbd_server "x=$file" -- "readonly = true" &&
		source_of[nbdserver:$image]=$(uri x)
	source_of[pipe:$image]=-
	if [[ " ${kinds[*]} " == *" loop "* ]]; then
		losetup_new -r "$file" && source_of[loop:$image]=$LOOP
	fi
done

# ------------------------------------------------------------- destinations

# All of one size, full of old data before each copy.
size=$((3 * 1024 * 1024 + 512))
head -c $size /dev/zero | tr '\0' '\356' >"$T/old"
declare -A dest_of
mkdir "$T/dst"
dest_of[file]=$T/dst/file
dest_of[pipe]=-
for kind in nbdkit qemu nbdserver loop; do
	truncate -s $size "$T/dst/$kind"
done
qemu-img create -q -f qcow2 "$T/dst/qcow2" $size
start_nbdkit file "$T/dst/nbdkit" && dest_of[nbdkit]=$URI
start_qemu_nbd "$T/dst/qemu" --discard=unmap && dest_of[qemu]=$URI
start_qemu_nbd "$T/dst/qcow2" -f qcow2 --discard=unmap &&
	dest_of[qcow2]=$URI
start_nbd_server "x=$T/dst/nbdserver" -- "trim = true" &&
	dest_of[nbdserver]=$(uri x)
if [[ " ${kinds[*]} " == *" loop "* ]]; then
	losetup_new "$T/dst/loop" && dest_of[loop]=$LOOP
fi

# copy FROM KIND DESTINATION: also through pipes.
copy()
{
	local from=$1 kind=$2
	if [ "$from" = - ] && [ "$kind" = pipe ]; then
		cat "$file" | timeout -k 5 30 "$NBDFS_COPY" - - | cat >"$T/got"
		[ "${PIPESTATUS[*]}" = "0 0 0" ]
	elif [ "$from" = - ]; then
		cat "$file" | timeout -k 5 30 "$NBDFS_COPY" - "${dest_of[$kind]}"
		[ "${PIPESTATUS[*]}" = "0 0" ]
	elif [ "$kind" = pipe ]; then
		timeout -k 5 30 "$NBDFS_COPY" "$from" - | cat >"$T/got"
		[ "${PIPESTATUS[*]}" = "0 0" ]
	else
		timeout -k 5 30 "$NBDFS_COPY" "$from" "${dest_of[$kind]}"
	fi
}

# contents KIND: of a destination, in $T/got.
contents()
{
	case $1 in
	pipe) ;;
	file) cp --sparse=never "$T/dst/file" "$T/got" ;;
	loop) cat "${dest_of[loop]}" >"$T/got" ;;
	*) nbdcopy "${dest_of[$1]}" "$T/got" ;;
	esac
}

# arrived FROM KIND: what is in $T/got is the image, in old surroundings.
arrived()
{
	local kind=$2 length got
	length=$(stat -c %s "$file")
	# A loop device ends with the last whole sector.
	[ "$1" != loop ] || length=$((length / 512 * 512))
	got=$(stat -c %s "$T/got")
	cmp -n "$length" "$file" "$T/got" || return 1
	# Block devices and qemu have whole sectors: zeroes up to there.
	length=$(((length + 511) / 512 * 512))
	if [ "$got" -le $length ]; then
		return
	fi
	[ "$kind" != pipe ] && [ "$kind" != file ] || return 1
	cmp -i $length "$T/old" "$T/got"
}

# pair FROM TO: whether the copy is right.
pair()
{
	if [ "$2" != pipe ] && [ "$2" != file ]; then
		timeout -k 5 30 "$NBDFS_COPY" "$T/old" "${dest_of[$2]}" ||
			return 1
	elif [ "$2" = file ]; then
		cp "$T/old" "${dest_of[file]}"
	fi
	copy "${source_of[$1:$image]}" "$2" && contents "$2" && arrived "$1" "$2"
}

try()
{
	local why
	why=$(pair "$1" "$2" 2>&1)
	ok $? "$image: $1 to $2" || diag "$why"
}

for image in "${images[@]}"; do
	file=$T/img/$image
	for from in "${kinds[@]}"; do
		for to in "${kinds[@]}"; do
			# All pairs once, and each end with all images.
			if [ "$image" = mixed ] || [ "$image" = odd ] ||
				[ "$from" = file ] || [ "$to" = file ]; then
				try "$from" "$to"
			fi
		done
	done
done

# -------------------------------------------------------------------- holes

# blocks FILE: KiB that it takes.
blocks()
{
	echo $(($(stat -c %b "$1") / 2))
}

for image in empty mixed tiny; do
	file=$T/img/$image
	most=$(($(blocks "$file") + 64))
	# Not from a pipe alone: zeroes are found, too.
	for from in "${kinds[@]}"; do
		pair "$from" file
		ok "[ $(blocks "$T/dst/file") -le $most ]" \
			"$image: from $from, a file has its holes" ||
			extents "$T/dst/file" | head -n 20 | sed 's/^/# /'
	done
	for to in nbdkit qemu loop; do
		[ -n "${dest_of[$to]}" ] || continue
		pair file "$to"
		# What lies behind the image keeps its old data.
		rest=$(((size - $(stat -c %s "$file")) / 1024))
		ok "[ $(blocks "$T/dst/$to") -le $((most + rest + 64)) ]" \
			"$image: to $to, holes are holes"
	done
done

done_testing
