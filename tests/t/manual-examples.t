#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# manual-examples.t - what the manuals and README tell people to type works, as
# it stands there. It is run in a network and a set of mounts of its own, where
# the hosts of the examples exist; what lies in the way of others (/mnt, /srv)
# is a folder of the test instead.

if [ -z "$EXAMPLES_APART" ] && [ "$(id -u)" = 0 ] && unshare -mn true; then
	EXAMPLES_APART=1 exec "$(dirname "$0")/../apart" -n bash "$0" "$@"
fi
# shellcheck disable=SC2119 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires root fuse copy nbdkit qemu-nbd qemu-img mkfs.ext4 python3
[ -n "$EXAMPLES_APART" ] || skip "needs namespaces (unshare)"

# ------------------------------------------------------------- surroundings

hosts=(server server1 server2 server3 a b old new node1 node2 node3
	far.example)
R=$T/root
mkdir -p "$R"/{mnt,srv/{disk,disks,d,k,all,safe,image,files},tmp,pki} "$T/bin"
exports=$T/exports
disk=$exports/server/disk
size=16M
mkdir "$exports"
ln -s "$NBDFS" "$NBDFS_COPY" "$T/bin"

python3 - <<-'END' || bail "no loopback interface"
	import fcntl, socket, struct
	s = socket.socket()
	# SIOCSIFFLAGS: IFF_UP
	fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 1))
END
{
	echo "127.0.0.1 localhost"
	for i in "${!hosts[@]}"; do
		echo "127.0.1.$((i + 1)) ${hosts[i]}"
	done
} >"$T/hosts"
: >"$T/fstab"
mount --bind "$T/hosts" /etc/hosts && mount --bind "$T/fstab" /etc/fstab &&
	mount --bind "$T/bin" /usr/local/bin || bail "no private mounts"
PATH=/usr/local/bin:$PATH

# fresh_disk FILE: data at both ends and in the middle, holes between.
fresh_disk()
{
	rm -f "$1"
	truncate -s $size "$1"
	head -c 300k /dev/urandom | dd of="$1" conv=notrunc status=none
	head -c 1M /dev/urandom |
		dd of="$1" bs=1M seek=10 conv=notrunc status=none
	head -c 4k /dev/urandom |
		dd of="$1" bs=4k seek=4095 conv=notrunc status=none
}

# overwrite: with data, the disk of the first server.
overwrite()
{
	dd if=/dev/urandom of="$disk" bs=1M count=15 conv=notrunc status=none
}

# serve HOST NAME...: a server of disks of these names.
serve()
{
	local host=$1 name dir=$exports/$1
	shift
	mkdir -p "$dir"
	for name; do
		fresh_disk "$dir/$name"
	done
	rm -f "$T/$host.pid"
	nbdkit -i "$host" -P "$T/$host.pid" file dir="$dir" ||
		bail "no server $host"
	wait_until 10 test -s "$T/$host.pid" || bail "no server $host"
	_server_pids+=("$(<"$T/$host.pid")")
}

serve_all()
{
	serve server disk
	serve server1 one
	serve server2 two disk
	serve server3 disk7
	serve a disk
	serve b disk x
	serve old disk
	serve new disk
	serve far.example disk
	local i
	for i in 1 2 3; do
		serve node$i disk$i
	done
}

stop_all()
{
	local host
	for host in "${hosts[@]}"; do
		[ ! -s "$T/$host.pid" ] || stop_server "$(<"$T/$host.pid")"
	done
}

# ----------------------------------------------------------------- examples

# examples FILE: "SECTION<tab>COMMAND" for each, lines that go on joined.
examples()
{
	case $1 in
	*.1)
		awk '
		/^\.S[hs] / { name = $0; sub(/^\.S[hs] /, "", name) }
		/^\.Bd / { inside = 1; next }
		/^\.Ed/ { inside = 0 }
		inside {
			gsub(/\\e/, "\\")
			gsub(/\\&/, "")
			print name "\t" $0
		}' "$1"
		;;
	*)
		awk '
		/^## / { name = substr($0, 4) }
		sub(/^    /, "") { print name "\t" $0 }' "$1"
		;;
	esac | awk -F'\t' '
	more { line = line $2 }
	!more && $2 ~ /^[$#] [a-z][a-z0-9.-]* / { line = $1 "\t" substr($2, 3) }
	line {
		more = sub(/\\$/, "", line)
		if (!more) {
			print line
			line = ""
		}
	}'
}

# load FILE: into commands and sections.
load()
{
	local section command
	page=${1##*/}
	sections=()
	commands=()
	while IFS=$'\t' read -r section command; do
		sections+=("$section")
		commands+=("$command")
	done < <(examples "$1")
	played=()
	ok "[ ${#commands[@]} -ge $2 ]" "$page: has examples"
}

# placed COMMAND: in this test's folders.
placed()
{
	sed -E -e "s,(^|[ =\"])/(mnt|srv|tmp)\b,\1$R/\2,g" \
		-e "s,/etc/pki/nbd,$R/pki,g" -e "s,040/d.img,040$R/d.img,g" \
		-e "s,dir=DIR,dir=$R/psk,g" <<<"$1"
}

# at_terminal COMMAND: e2fsck wants one, and asks nothing.
at_terminal()
{
	script -qec "$1" /dev/null
}

listening()
{
	(exec 3<>/dev/tcp/server/10809) 2>/dev/null
}

# perform COMMAND: its status. What serves until it is stopped goes to the
# background.
perform()
{
	local command=$1
	case $command in
	"qemu-nbd "*)
		read -ra words <<<"$command"
		spawn "$T/examples.log" "${words[@]}"
		wait_until 10 listening
		;;
	"nbdkit "*)
		read -ra words <<<"$command"
		rm -f "$T/examples.pid"
		"${words[0]}" -P "$T/examples.pid" "${words[@]:1}" &&
			wait_until 10 test -s "$T/examples.pid" &&
			SPAWNED=$(<"$T/examples.pid") &&
			_server_pids+=("$SPAWNED")
		;;
	"e2fsck "*) at_terminal "$command" ;;
	*) timeout 60 bash -o pipefail -c "$command" ;;
	esac >"$T/.out" 2>"$T/.err" </dev/null
}

# missing_for COMMAND: a program of it that is not installed.
missing_for()
{
	local program
	for program in $(grep -oE '(^|\| )[a-z][a-z0-9.-]*' <<<"$1" |
		tr -d '| '); do
		command -v "$program" >/dev/null || echo "$program"
	done
}

# play SECTION [N...]: the examples there, or the Nth of them.
play()
{
	local section=$1 i n=0 missing
	shift
	for i in "${!commands[@]}"; do
		[ "${sections[i]}" = "$section" ] || continue
		n=$((n + 1))
		[ $# = 0 ] || [[ " $* " = *" $n "* ]] || continue
		played[i]=1
		missing=$(missing_for "${commands[i]}")
		if [ -n "$missing" ]; then
			diag "not run, no $missing: ${commands[i]}"
			continue
		fi
		perform "$(placed "${commands[i]}")"
		STATUS=$?
		OUT=$(tr -d '\0' <"$T/.out")
		ok $STATUS "$page: ${commands[i]}" || _run_failed
	done
}

# left_out SECTION N REASON: cannot be run here.
left_out()
{
	local i n=0
	for i in "${!commands[@]}"; do
		[ "${sections[i]}" = "$1" ] || continue
		n=$((n + 1))
		[ $n != "$2" ] || played[i]=1
	done
}

all_played()
{
	local i rest=''
	for i in "${!commands[@]}"; do
		[ -n "${played[i]}" ] || rest+="${sections[i]}: ${commands[i]}
"
	done
	is "$rest" "" "$page: no example is left"
}

# leave: unmounts; the mount's servers have everything then.
leave()
{
	local mp=${1:-$R/mnt}
	timeout 20 fusermount3 -u "$mp"
	wait_until 20 eval "! pgrep -f '^[^ ]*nbdfs .*$mp\$' >/dev/null"
}

# in_mnt: the files in the mount.
in_mnt()
{
	(cd "${1:-$R/mnt}" && echo *)
}

same()
{
	cmp -s "$1" "$2"
	ok $? "$3"
}

sparse()
{
	ok "[ $(stat -c %b "$1") -lt 6000 ]" "${2:-and is sparse}"
}

work()
{
	rm -rf "$T/work"
	mkdir "$T/work"
	cd "$T/work" || bail "no folder"
}

# ------------------------------------------------------------- nbdfs(1)

serve_all
load "$ROOT/man/nbdfs.1" 30

work
cp "$disk" reference
play "WORKING WITH DISKS"
same "$R/mnt/disk" "$disk" "the disk is there"
mkdir backup
play "Back up a disk"
for file in disk.img backup/disk; do
	same $file reference "$file is a copy"
	sparse $file
done
sparse disks.tar "disks.tar is sparse"
# Otherwise rsync would not see within this second that the disk has changed.
touch -d @1000000000 backup/disk

qemu-img convert -O qcow2 reference disk.qcow2
head -c 700k /dev/urandom >boot.img
for i in 1 2 3 4 5; do
	# Old data that must go.
	head -c $size /dev/urandom | dd of="$R/mnt/disk" conv=notrunc bs=1M \
		status=none
	play "Restore a disk" $i
	# The fourth writes past the mount, whose blocks may be older.
	[ $i != 4 ] || { leave && play "WORKING WITH DISKS"; }
	same "$R/mnt/disk" reference "is what it was"
done
play "Restore a disk" 6
cp reference patched
dd if=boot.img of=patched bs=1M conv=notrunc status=none
same "$R/mnt/disk" patched "and the rest stays"
leave
same "$disk" patched "also at the server"

work
play "Clone between servers" 1 2
leave
same "$exports/a/disk" "$exports/b/disk" "a clone"
sparse "$exports/b/disk"
fresh_disk "$exports/b/disk"
play "Clone between servers" 3
same "$exports/a/disk" "$exports/b/disk" "a clone without a mount"

qemu-img convert -O qcow2 "$disk" disk.qcow2
play "Open an image file"
like "$(mounted "$R/mnt" || echo unmounted)" unmounted "it is unmounted again"

play "WORKING WITH DISKS"
play "Make and mount file systems in a disk" 1 2 3
if losetup -f >/dev/null 2>&1; then
	play "Make and mount file systems in a disk" 4
	echo hello >"$R/srv/files/hello"
	play "Make and mount file systems in a disk" 5 6
else
	diag "no loop devices: nothing is mounted through one"
	for i in 4 5 6; do
		left_out "Make and mount file systems in a disk" $i
	done
fi
play "Look at the extents"
play "Attributes"
like "$OUT" "user.nbd.stats=" "they are there"
leave

stop_all
qemu-img create -q -f qcow2 disk.qcow2 $size
qemu-img bitmap --add disk.qcow2 since-monday
qemu-io -c "write 1M 64k" disk.qcow2 >/dev/null
play "Dirty bitmaps"
is "$OUT" "disk
disk@since-monday" "both files are there"
is "$("$NBDFS_HELPERS/seekmap" "$R/mnt/disk@since-monday" | grep data)" \
	"data 1048576 65536" "with what was written"
leave
stop_server "$SPAWNED"
serve_all

# ------------------------------------------------------------- at boot

# fstab_of: the lines of a text, in the folders of the test.
fstab_of()
{
	grep -E '^[^# ]+ +/[^ ]* +fuse.nbdfs ' | sed -E \
		-e "s,([ =])/srv\b,\1$R/srv,g" \
		-e "s,040/(d.img|srv/disk.qcow2),040$R/\1,g" \
		-e "s,/etc/nbdfs/keys.psk,$R/keys.psk,"
}

# fstab_is_right NAME: mounts all of it and what is mounted on demand.
fstab_is_right()
{
	local name=$1 _ mp opts
	run_ok -n "$name: mount -a" mount -a
	while read -r _ mp _ opts; do
		if [[ $opts = *noauto* ]]; then
			run_ok -n "$name: mount ${mp#"$R"}" mount "$mp"
		fi
		ok "mounted '$mp'" "$name: ${mp#"$R"} is mounted"
		diag "$(in_mnt "$mp")"
	done <"$T/fstab"
	while read -r _ mp _; do
		umount "$mp" 2>/dev/null
	done <"$T/fstab"
}

fresh_disk "$R/d.img"
qemu-img create -q -f qcow2 "$R/srv/disk.qcow2" 8M
sed 's/\\e/\\/g' "$ROOT/man/nbdfs.1" | fstab_of >"$T/fstab"
is "$(wc -l <"$T/fstab")" 3 "the manual has lines for fstab"
fstab_is_right "fstab of the manual"
fstab_of <"$ROOT/contrib/fstab.example" | grep -v '^nbds:' >"$T/fstab"
is "$(wc -l <"$T/fstab")" 4 "so has contrib/fstab.example"
fstab_is_right "fstab.example"
: >"$T/fstab"

# unit_starts FILE NAME: as systemd would, with the settings that FILE shows.
unit_starts()
{
	local MOUNTPOINT SOURCES OPTIONS command
	eval "$(sed -nE 's,^ *(MOUNTPOINT|SOURCES|OPTIONS)=(.*)$,\1="\2",p' \
		"$1" | sed "s,/srv,$R/srv,")"
	command=$(sed -n 's/^ExecStart=//p' "$ROOT/contrib/nbdfs@.service")
	command=${command//\/run\/nbdfs\/%i/"$T"}
	eval "run_ok -n 'unit: as $2 has it' $command"
	is "$(in_mnt "$MOUNTPOINT")" "backup one" "with its disks"
	is "$(stat -c %U "$MOUNTPOINT/backup")" backup "for whom it says"
	leave "$MOUNTPOINT"
}
unit_starts "$ROOT/man/nbdfs.1" "the manual"
unit_starts "$ROOT/README.md" README
unit_starts <(sed 's/^#\t/ /' "$ROOT/contrib/nbdfs@.service") "the unit"
left_out "Mount at boot" 1 "systemd is not the init here"

# --------------------------------------------------------- many, and TLS

play "Many servers"
is "$(in_mnt)" "db disk one two" "all of their disks"
leave
play "EXAMPLES" 1
is "$(in_mnt)" disk "the server's disk"
is "$(stat -c '%U %a' "$R/mnt/disk")" "backup 400" "for backup only"
leave
play "EXAMPLES" 2
is "$(in_mnt)" disk "the far disk"
leave
play "EXAMPLES" 3 4 5 6

stop_all
cp "$exports/server/disk" disk.img
for i in 1 3 2; do
	play "TLS" $i
done
same "$R/mnt/disk" disk.img "by a key"
leave
stop_server "$SPAWNED"
mkdir "$R/psk"
cp keys.psk "$R/psk/"
play "TLS" 4
play "TLS" 2
same "$R/mnt/disk" disk.img "also from qemu-nbd"
leave
stop_server "$SPAWNED"

certificate()
{
	openssl req -new -newkey rsa:2048 -nodes -subj "/CN=$2" \
		-keyout "$R/pki/$1-key.pem" -out "$T/$1.csr" "${@:3}"
}
{
	certificate ca "a CA" -x509 -addext basicConstraints=critical,CA:TRUE
	mv "$T/ca.csr" "$R/pki/ca-cert.pem"
	certificate server server
	openssl x509 -req -in "$T/server.csr" -CA "$R/pki/ca-cert.pem" \
		-CAkey "$R/pki/ca-key.pem" -set_serial 1 \
		-extfile <(echo "subjectAltName=DNS:server") \
		-out "$R/pki/server-cert.pem"
} >"$T/openssl.log" 2>&1
perform "nbdkit --tls=require --tls-certificates=$R/pki file disk.img"
play "TLS" 5
same "$R/mnt/disk" disk.img "by a certificate"
leave
stop_server "$SPAWNED"
all_played

# --------------------------------------------------------- nbdfs-copy(1)

load "$ROOT/man/nbdfs-copy.1" 15
serve_all
work
play "EXAMPLES" 1
same "$disk" disk.img "a backup"
overwrite
play "EXAMPLES" 2
same "$disk" disk.img "back again"
play "EXAMPLES" 3
same "$exports/old/disk" "$exports/new/disk" "from server to server"
play "EXAMPLES" 4 5
qemu-img compare -q -f raw -F qcow2 "$disk" disk.qcow2
ok $? "a qcow2 image"
play "EXAMPLES" 6
cp "$disk" reference
overwrite
play "EXAMPLES" 7
same "$disk" reference "from VMDK and back"
play "EXAMPLES" 8
qemu-img compare -q -f raw -F vmdk "$disk" import.vmdk
ok $? "a stream"
play "EXAMPLES" 9
overwrite
if [ -s disk.zst ]; then
	play "EXAMPLES" 10
	same "$disk" reference "through a pipe and back"
else
	left_out "EXAMPLES" 10 "zstd is missing"
fi
qemu-img create -q -f qcow2 disk.qcow2 $size
qemu-io -c "write 8M 1M" disk.qcow2 >/dev/null
play "EXAMPLES" 11 12
qemu-io -c "write -P 7 12M 64k" -c "write -z 8M 64k" disk.qcow2 >/dev/null
play "EXAMPLES" 13
qemu-img compare -q -f raw -F qcow2 backup.img disk.qcow2
ok $? "an incremental backup"
cp "$disk" disk.img
play "EXAMPLES" 14
like "$(cat "$T/.out")" "data +[0-9.]+ MiB" "a picture"
play "EXAMPLES" 15
like "$(cat "$T/.out")" '"bytes_read": 16777216,' "all is read"
all_played

# ----------------------------------------------------------------- README

load "$ROOT/README.md" 40
work
play "Using nbdfs" 1
leave
play "Using nbdfs" 2
is "$(in_mnt)" "db disk one two" "several sources"
play "Using nbdfs" 3
mkdir backup
cp "$disk" reference
perform "nbdfs nbd://server/disk $R/mnt"
play "Using nbdfs" 4 5 6
for file in disk.img backup/disk; do
	same $file reference "$file is a copy"
done
touch -d @1000000000 backup/disk
for i in 7 8 9; do
	head -c $size /dev/urandom | dd of="$R/mnt/disk" conv=notrunc bs=1M \
		status=none
	play "Using nbdfs" $i
	same "$R/mnt/disk" reference "is what it was"
done
leave
play "Using nbdfs" 10 11
leave
same "$exports/a/disk" "$exports/b/disk" "a clone"
qemu-img create -q -f qcow2 image.qcow2 $size
play "Using nbdfs" 12
leave
perform "nbdfs nbd://server/disk $R/mnt"
play "Using nbdfs" 13
if losetup -f >/dev/null 2>&1; then
	play "Using nbdfs" 14 15
	umount "$R/srv/files"
else
	left_out "Using nbdfs" 14
	left_out "Using nbdfs" 15
fi
play "Using nbdfs" 16 17 18 19
leave
stop_all
play "Using nbdfs" 20
perform "nbdkit --tls=require --tls-psk=keys.psk file disk.img"
play "Using nbdfs" 21
same "$R/mnt/disk" disk.img "by a key"
leave
stop_server "$SPAWNED"
serve_all
cp "$disk" reference
play "Using nbdfs-copy" 1
same disk.img reference "a backup"
overwrite
play "Using nbdfs-copy" 2
same disk.img "$disk" "back again"
play "Using nbdfs-copy" 3 4 5
overwrite
play "Using nbdfs-copy" 6
same disk.img "$disk" "by VMDK"
qemu-img create -q -f qcow2 disk.qcow2 $size
qemu-img bitmap --add disk.qcow2 since
qemu-io -c "write 1M 64k" disk.qcow2 >/dev/null
truncate -s 0 disk.img
truncate -s $size disk.img
play "Using nbdfs-copy" 7
qemu-img compare -q -f raw -F qcow2 disk.img disk.qcow2
ok $? "an incremental backup"
play "Scaling out" 1
is "$(in_mnt)" "disk1 disk2 disk3" "many servers"
leave
for i in "${!commands[@]}"; do
	case ${sections[i]} in
	# Run by readme.t, and by contrib/try-in-tree.
	"A session" | "Install" | "Contributing") played[i]=1 ;;
	esac
done
for i in 2 3 4; do
	left_out "Scaling out" $i "takes a Ceph cluster"
done
all_played
stop_all
cd /
done_testing
