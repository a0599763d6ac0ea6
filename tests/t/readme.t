#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# README is true: its session, pasted as it is, works and prints what it says;
# the options, targets and files that it names exist.

. "$(dirname "$0")/../lib.sh"
requires copy qemu-nbd qemu-img mkfs.ext4 e2fsck fusermount3
[ -x "$NBDFS" ] || skip "needs $NBDFS"

readme=$ROOT/README.md
mkdir "$T/bin" "$T/session"
ln -s "$NBDFS" "$T/bin/nbdfs"
ln -s "$NBDFS_COPY" "$T/bin/nbdfs-copy"
PATH=$T/bin:$PATH:/usr/sbin:/sbin

# section NAME: the examples in it, without their indentation.
section()
{
	awk -v name="## $1" '
	/^## / { inside = $0 == name }
	inside && sub(/^    /, "")
	' "$readme"
}

# commands: of a session, with lines that go on in the next one.
commands()
{
	awk '
	/^\$ / { more = 1; sub(/^\$ /, "") }
	more { print; more = /\\$/ }
	'
}

# with_output: runs the commands of a session one by one in this shell, and
# prints the session as it went.
with_output()
{
	local line rest
	while IFS= read -r line; do
		printf '$ %s\n' "$line"
		while [[ $line == *\\ ]]; do
			IFS= read -r rest
			printf '%s\n' "$rest"
			line=${line%\\}$rest
		done
		eval "$line" </dev/null 2>&1 || echo "status $?"
	done
}

# plain: what differs each time, and from machine to machine, left out.
plain()
{
	sed -E -e 's/^(-rw-------).* disk$/\1 disk/' \
		-e 's/^(real|user|sys)\t.*/\1/' \
		-e 's/^[0-9.]+[KM]\t/SIZE\t/' \
		-e 's/^(0x[0-9a-f]+|0) +0x.*/EXTENT/' \
		-e 's/^(new:).*/\1/' \
		-e 's/^(e2fsck) .*/\1/' -e '/^$/d'
}

section "A session" >"$T/want"
cd "$T/session" || bail "no folder"
cleanup_session()
{
	fusermount3 -u -z "$T/session/mnt" 2>/dev/null
	[ ! -e "$T/session/disk.pid" ] ||
		kill "$(cat "$T/session/disk.pid")" 2>/dev/null
}
on_exit cleanup_session
timeout 120 bash -c "$(declare -f with_output)
with_output" <<<"$(commands <"$T/want")" >"$T/got" 2>&1
is "$(plain <"$T/got")" "$(plain <"$T/want")" "the session goes as it is told"
ok "[ $(du -k backup.img | cut -f 1) -lt 20000 ]" "its copy is sparse"
ok "! mountpoint -q mnt" "nothing is left mounted"

# Options, wherever one of the programs is called.
calls=$(sed -n -E 's/^    [$#] (nbdfs(-copy)? .*)/\1/p' "$readme" |
	sed -E 's/ \[ .* \]//')
missing=
while read -r program rest; do
	for word in $rest; do
		[[ $word == --* ]] || continue
		word=${word%%=*}
		"$program" --help | grep -qE -- "$word([=[ ,]|\$)" ||
			missing+=" $program $word"
	done
done <<<"$calls"
is "$missing" "" "the options that it uses exist"
ok "[ $(wc -l <<<"$calls") -gt 15 ]" "and there are examples"

missing=
for target in $(grep -oE '(^    \$|`)(sudo )? ?make [a-z-]+( [a-z-]+)*' \
	"$readme" | sed 's/.*make //'); do
	grep -qE "^([a-z-]+ )*$target( [a-z-]+)*:" "$ROOT/Makefile" ||
		missing+=" $target"
done
is "$missing" "" "the targets of make that it names exist"
missing=
for file in $(grep -oE '\b(contrib|tests)/[a-z.@-]+' "$readme" | sort -u); do
	[ -e "$ROOT/$file" ] || missing+=" $file"
done
is "$missing" "" "and so do the files"
done_testing
