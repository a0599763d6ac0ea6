#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# manual.t - what is said of options is true: the table of each program, its
# --help, its manual page and the completion of both shells name the same ones.

. "$(dirname "$0")/../lib.sh"
requires copy mandoc zsh
[ -x "$NBDFS" ] || skip "needs $NBDFS"

# lines TEXT...: sorted, each once.
lines()
{
	printf '%s\n' "$@" | sed '/^$/d' | sort -u
}

# names PROGRAM: the long names and other names of its table, "--name".
names()
{
	"$1" --dump-options | awk -F'\t' '{
		print "--" $1
		if ($8 != "-")
			print "--" $8
	}'
}

# letters PROGRAM: "-x".
letters()
{
	"$1" --dump-options | awk -F'\t' '$2 != "-" { print "-" $2 }'
}

# entries PAGE: of its list of options, "name<tab>paragraph" for each of them,
# several where a paragraph is about several.
entries()
{
	awk '
	function flush(	i) {
		for (i = 1; i <= n; i++)
			print name[i] "\t" text
		n = 0
		text = ""
	}
	/^\.Sh / { flush(); inside = $2 == "OPTIONS" }
	!inside { next }
	/^\.(It|El)/ { flush() }
	/^\.It Fl / {
		for (i = 2; i < NF; i++) {
			if ($i == "Fl")
				name[++n] = "-" $(i + 1)
		}
		next
	}
	n { text = text " " $0 }
	' "$1"
}

# The words that --help shows as options: they stand at the left.
help_names()
{
	"$1" --help | sed -nE 's/^ {2,6}(-., )?(--[a-z-]+).*/\2/p'
	"$1" --help | grep -oE 'also --[a-z-]+' | sed 's/also //'
}

# bash_reply LINE PROGRAM WORD...: what bash would offer, the rest being LINE as
# it splits it.
bash_reply()
{
	bash --norc -c '
	. "$1"
	compopt() { :; }
	COMP_LINE=$2
	shift 2
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	COMP_WORDBREAKS=" ><=;|&(:"
	_nbdfs "$1"
	printf "%s\n" "${COMPREPLY[@]}"
	' bash "$ROOT/contrib/completion/nbdfs.bash" "$@"
}

# zsh_specs PROGRAM: what zsh is told of the options.
zsh_specs()
{
	zsh -f -c '
	compset() { return 1 }
	_call_program() { shift; "$@" }
	_arguments() { print -l -- "$@" }
	words=("$2" "")
	CURRENT=2
	. "$1"
	' zsh "$ROOT/contrib/completion/_nbdfs" "$1"
}

# plain: without the backspaces of bold letters.
plain()
{
	sed 's/.\x08//g'
}

# words: one a line, without the head, the foot, quotes, and typography.
words()
{
	plain | sed -e '1,/^NAME/d' -e '$d' -e "s/\`/'/g" |
		tr -s '[:space:]' '\n' | sed -e 's/^--$/-/' -e 's/"//g' -e '/^$/d'
}

check_program()
{
	local program=$1 name=${1##*/} page list name deflt
	page=$ROOT/man/$name.1
	names "$program" >"$T/names"
	letters "$program" >"$T/letters"
	list=$(lines "$(cat "$T/names")")
	ok "[ $(wc -l <"$T/names") -gt 10 ]" "$name: has a table of options"

	is "$(lines "$(help_names "$program")")" "$list" \
		"$name: --help has the options of the table"
	entries "$page" >"$T/entries"
	is "$(lines "$(cut -f 1 "$T/entries" | grep '^--')")" "$list" \
		"$name: the manual has the options of the table"
	is "$(lines "$(cut -f 1 "$T/entries" | grep -v '^--')")" \
		"$(lines "$(cat "$T/letters")")" "$name: and their letters"

	"$program" --dump-options | awk -F'\t' \
		'$6 != "-" { print "--" $1, $6 }' >"$T/defaults"
	list=
	while read -r opt deflt; do
		grep -F -- "$opt	" "$T/entries" | grep -qw -- "$deflt" ||
			list+="$opt: $deflt"$'\n'
	done <"$T/defaults"
	is "$list" "" "$name: the manual tells each default"

	is "$(lines "$(bash_reply "$program --" "$program" -- |
		sed 's/=$//')")" "$(lines "$(cat "$T/names")")" \
		"$name: bash completes the options of the table"
	is "$(lines "$(zsh_specs "$program" |
		grep -oE '^--[a-z-]+')")" "$(lines "$(cat "$T/names")")" \
		"$name: zsh completes the options of the table"
	is "$(lines "$(zsh_specs "$program" |
		grep -oE '^-[a-zA-Z](\[|\+)' | cut -c 1-2)")" \
		"$(lines "$(cat "$T/letters")")" \
		"$name: and their letters"
	is "$(mandoc -T lint -W warning "$page" 2>&1)" "" \
		"$name: mandoc has nothing to say against the manual"
	is "$(mandoc -T ascii -O width=80 "$page" | plain |
		awk 'length > 80')" "" "$name: no line of it is too long"
	if command -v groff >/dev/null; then
		is "$(groff -ww -mdoc -Tutf8 "$page" 2>&1 >/dev/null)" "" \
			"$name: nor has groff"
		is "$(diff <(mandoc -T ascii -O width=500 "$page" | words) \
			<(groff -mdoc -Tascii -P-c -rLL=500n "$page" |
				words))" "" "$name: which prints the same"
	fi
}

check_program "$NBDFS"
check_program "$NBDFS_COPY"

# Values.
is "$(bash_reply "$NBDFS --cache=" "$NBDFS" --cache = | tr '\n' ' ')" \
	"direct kernel " "bash completes the value of an option"
is "$(bash_reply "$NBDFS -o ro,cache=k" "$NBDFS" -o ro,cache = k)" \
	"kernel" "and one within a list"
is "$(bash_reply "$NBDFS [ nbdki" "$NBDFS" '[' nbdki)" \
	"$(compgen -c nbdki | sort -u)" "and a command between brackets"
is "$(bash_reply "$NBDFS nbd+unix:///?socket=/de" "$NBDFS" nbd + unix : \
	///?socket = /de)" "/dev/" "and the path of a socket"
is "$(bash_reply "$NBDFS \"nbd+unix:///?socket=/de" "$NBDFS" \
	'"nbd+unix:///?socket=/de')" "nbd+unix:///?socket=/dev/" \
	"also between quotes"
is "$(bash_reply "$NBDFS_COPY --source-format=vmdk-" "$NBDFS_COPY" \
	--source-format = vmdk-)" vmdk-stream "and a format"
like "$(zsh_specs "$NBDFS")" '--cache=\[[^]]*\]:cache:\(direct kernel\)' \
	"zsh completes the value of an option"

# Mount options that the completion offers and the manual names.
list=
for opt in $(bash_reply "$NBDFS -o " "$NBDFS" -o '' | grep -v =) \
	$(sed -n '/^Of the mount options/,/^Unknown options/p' \
		"$ROOT/man/nbdfs.1" |
		sed -nE 's/^\.Cm ([a-z_, ]+)( Ns.*)?$/\1/p' | tr -d ,); do
	case $opt in
	x- | fsname) continue ;;
	esac
	"$NBDFS" -o "$opt" --help >/dev/null 2>&1 || list+="$opt "
done
is "$list" "" "nbdfs knows the mount options that it is said to know"

# What the examples use.
list=
for opt in $(cat "$ROOT"/man/*.1 "$ROOT/README.md" |
	grep -E '^ *[$#] nbdfs' | grep -oE '[ ]--[a-z-]+'); do
	{
		names "$NBDFS"
		names "$NBDFS_COPY"
	} | grep -qx -- "$opt" || list+="$opt "
done
is "$list" "" "examples use options that exist"

done_testing
