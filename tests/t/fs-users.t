#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Who may: a user without privileges mounts, others get in only as the modes
# allow; and mount(8) with its fstab.

# shellcheck source=tests/lib.sh
# shellcheck disable=SC2119,SC2011,SC2012
. "$(dirname "$0")/../lib.sh"
requires fuse root nbdkit mount umount fusermount3

# Two users who have nothing to do with it. fusermount3 wants to know a name.
ALICE=$(id -u daemon 2>/dev/null) || skip "needs a user called daemon"
BOB=$(id -u bin 2>/dev/null) || skip "needs a user called bin"
command -v setpriv >/dev/null || bail "setpriv is missing"

as()
{
	local id=$1
	shift
	setpriv --reuid="$id" --regid="$id" --clear-groups "$@"
}

chmod 755 "$T"
truncate -s 1M "$T/disk"
start_nbdkit file "$T/disk" || bail "no server"
chmod 777 "$SOCK"

# ------------------------------------------------------------- others

mnt "$URI"
run as "$ALICE" ls "$MNT"
isnt "$STATUS" 0 "without allow_other nobody else gets in"
umnt

mnt -o allow_other "$URI"
run_ok -n "with allow_other: the folder" as "$ALICE" ls "$MNT"
run_ok -n "and its attributes" as "$ALICE" stat "$MNT/nbd"
run_fails -n "but not the file" as "$ALICE" head -c 1 "$MNT/nbd"
like "$ERR" "Permission denied" "that is EACCES"
chmod 644 "$MNT/nbd"
run_ok -n "mode 644 lets read" as "$ALICE" head -c 1 "$MNT/nbd"
run_fails -n "but not write" as "$ALICE" dd if=/dev/zero of="$MNT/nbd" count=1 \
	conv=notrunc status=none
run_fails -n "nor change the mode" as "$ALICE" chmod 666 "$MNT/nbd"
chmod 600 "$MNT/nbd"
chown "$ALICE" "$MNT/nbd"
run_ok -n "its owner may write" as "$ALICE" dd if=/dev/zero of="$MNT/nbd" \
	count=1 conv=notrunc status=none
run_fails -n "another may not" as "$BOB" head -c 1 "$MNT/nbd"
umnt

mnt -o "allow_other,uid=$ALICE,gid=$BOB,umask=0077" "$URI"
is "$(stat -c '%u %g %a' "$MNT/nbd")" "$ALICE $BOB 600" "uid=, gid=, umask="
run_ok -n "the named user may" as "$ALICE" head -c 1 "$MNT/nbd"
umnt

# ------------------------------------------------------- a user's own mount

# /dev/fuse of a namespace of its own, open to all, whatever the one outside
# is like.
mkdir "$T/dev" "$T/alice"
chown "$ALICE" "$T/alice"
mknod "$T/dev/fuse" c 10 229 2>/dev/null
chmod 666 "$T/dev/fuse"
cat >"$T/inside" <<'EOF'
set -e
T=$1 URI=$2 ID=$3 NBDFS=$4
export NBDFS_TEST_DIR=$T
mount --bind "$T/dev/fuse" /dev/fuse
cat >"$T/user" <<'EOI'
set -e
cd "$1"
mkdir m
"$3" -P pid "$2" m
stat -c '%u %g %a' m/nbd
head -c 1000000 /dev/urandom >new
cp new m/nbd
cmp -n 1000000 new m/nbd
ls -l m >/dev/null
df m >/dev/null
fusermount3 -u m
for i in $(seq 100); do
	[ -e pid ] || break
	sleep 0.1
done
[ ! -e pid ]
echo unmounted
"$3" -P pid -o allow_other "$2" m || echo refused
"$3" -P pid "$2" m
"$3" "$2" m || echo twice
kill "$(cat pid)"
for i in $(seq 100); do
	[ -e pid ] || break
	sleep 0.1
done
[ -z "$(ls m)" ]
echo ended
mkdir locked
chmod 500 locked
"$3" "$2" locked && echo mounted
true
EOI
exec setpriv --reuid="$ID" --regid="$ID" --clear-groups \
	sh "$T/user" "$T/alice" "$URI" "$NBDFS"
EOF
if unshare -m true 2>/dev/null && [ -c "$T/dev/fuse" ]; then
	run "$ROOT/tests/apart" sh "$T/inside" "$T" "$URI" \
		"$ALICE" "$NBDFS"
	like "$OUT" "^$ALICE $ALICE 600" "a user mounts, and owns the files"
	like "$OUT" "unmounted" "reads, writes, and unmounts"
	like "$OUT" "twice" "does not mount there twice"
	like "$ERR" "cannot mount on .* .something is mounted there already" \
		"and is told so"
	like "$OUT" "ended" "ends it by a signal, which unmounts"
	if grep -q '^user_allow_other' /etc/fuse.conf 2>/dev/null; then
		pass "this system lets users allow others"
	else
		like "$OUT" "refused" "may not let others in"
		like "$ERR" "nbdfs: cannot mount on .*user_allow_other" \
			"and is told why in one line"
	fi
	unlike "$OUT" "mounted$" "nor mount where it may not write"
	is "$(grep -vc '^nbdfs: ' <<<"$ERR")" 0 "nothing else is said"
	ok "cmp -n 1000000 '$T/alice/new' '$T/disk'" "the server has it all"
else
	pass "no namespaces here: left out"
fi

# --------------------------------------------------------- mount(8), fstab

# mount(8) finds helpers by a path.
mkdir "$T/m"
fstab()
{
	printf '%s %s fuse.%s %s 0 0\n' "$1" "$T/m" "$NBDFS" "$2" >"$T/fstab"
	run mount -T "$T/fstab" "$T/m"
}
left()
{
	run umount "$T/m"
	is "$STATUS" 0 "umount"
	# It may still be writing.
	wait_until 10 _no_nbdfs
}
_no_nbdfs()
{
	! pgrep -f "$NBDFS .*$T/m" >/dev/null
}

run_ok -n "mount -t" mount -t "fuse.$NBDFS" "$URI" "$T/m"
ok "mounted '$T/m'" "mounts"
is "$(ls "$T/m")" nbd "and serves"
left
run_ok -n "mount -o" mount -t "fuse.$NBDFS" \
	-o ro,uid=12,nofail,_netdev,noauto,x-systemd.automount,noexec "$URI" "$T/m"
is "$(stat -c '%u %a' "$T/m/nbd")" "12 400" "with options"
left
fstab "$URI" noauto,nofail,_netdev,x-systemd.requires=x,user,umask=077
is "$STATUS" 0 "fstab"
is "$(ls "$T/m")" nbd "a line of it"
left
fstab "one=$URI\\040two=$URI" defaults
is "$(ls "$T/m" | xargs)" "one two" "two sources with a blank between them"
left
fstab none "source=one=$URI,source=two=$URI,read-ahead=1M,connections=2"
is "$(ls "$T/m" | xargs)" "one two" "two sources as options"
left
fstab "[\\040nbdkit\\040memory\\0402M\\040]" ro
is "$(stat -c %s "$T/m/nbd")" 2097152 "a server of its own"
left
fstab "it's\\040a\\040\$HOME=$URI" ro
is "$(ls "$T/m")" "it's a \$HOME" "names that a shell would change"
left
fstab "$URI" nonsense
isnt "$STATUS" 0 "a wrong option"
like "$ERR" "nbdfs: unknown mount option nonsense" "is named"
fstab "$URI" 'fsname="my,disk"'
like "$(awk -v mp="$T/m" '$5 == mp' /proc/self/mountinfo)" " my,disk " \
	"fsname="
left

# Secrets do not show.
mnt "nbd+unix://user:secret@/?socket=$SOCK"
unlike "$(grep "$MNT" /proc/mounts)" secret "no password in /proc/mounts"

done_testing
