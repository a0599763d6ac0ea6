# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash disable=SC2034
#
# Completion of nbdfs and nbdfs-copy for bash. The options are not written here:
# the program that is being completed is asked for them.

# _nbdfs_options COMMAND: one option a line, tab-separated: name, letter, kind,
# argument, choices, default, what to complete, alias, help.
_nbdfs_options()
{
	"$1" --dump-options 2>/dev/null
}

# Options of mount(8) and fuse that nbdfs knows besides its own.
_nbdfs_mount_options="ro rw allow_other allow_root auto_unmount fsname= \
noatime dev nodev suid nosuid exec noexec sync async noauto _netdev nofail \
user users defaults"

# What bash has taken apart at "=" and ":", put together again: _nbdfs_words, of
# which _nbdfs_cur is the last, as far as the cursor, without the quote that it
# may begin with. Bash wants only what follows _nbdfs_cut of a completed word.
# Words between brackets belong to a command of their own: _nbdfs_group is where
# an open one begins.
_nbdfs_split()
{
	local i word glue='' line=$COMP_LINE rest
	_nbdfs_words=()
	_nbdfs_group=-1
	rest=$line
	for ((i = 0; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		# Is there a blank before it?
		case $rest in
		[[:space:]]*)
			rest=${rest#"${rest%%[![:space:]]*}"}
			glue=''
			;;
		esac
		rest=${rest#"$word"}
		if [ -n "$glue" ] && [ ${#_nbdfs_words[@]} -gt 0 ]; then
			_nbdfs_words[-1]+=$word
		else
			_nbdfs_words+=("$word")
			case $word in
			'[') _nbdfs_group=$i ;;
			']') _nbdfs_group=-1 ;;
			esac
		fi
		glue=1
	done
	_nbdfs_cur=${_nbdfs_words[-1]}
	_nbdfs_cut=''
	case $_nbdfs_cur,$COMP_WORDBREAKS in
	[\"\']*) _nbdfs_cur=${_nbdfs_cur:1} ;;
	*,*[:=]*) _nbdfs_cut=${_nbdfs_cur%"${_nbdfs_cur##*[:=]}"} ;;
	esac
}

# _nbdfs_reply PREFIX WORDS: those that fit what is there, each after PREFIX.
_nbdfs_reply()
{
	local i
	mapfile -t COMPREPLY < <(compgen -P "$1" -W "$2" -- \
		"${_nbdfs_cur#"$1"}")
	for i in "${!COMPREPLY[@]}"; do
		COMPREPLY[i]=${COMPREPLY[i]#"$_nbdfs_cut"}
		case ${COMPREPLY[i]} in
		*= | *:/ | *//) compopt -o nospace ;;
		esac
	done
}

# _nbdfs_value PREFIX CHOICES FILES: the value of an option.
_nbdfs_value()
{
	case $2,$3 in
	-,file | -,dir)
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen "-${3:0:1}" -- \
			"${_nbdfs_cur#"$1"}")
		;;
	-,*) ;;
	*) _nbdfs_reply "$1" "${2//|/ }" ;;
	esac
}

# The value of the option NAME, long, or "-X": nothing if it has none.
_nbdfs_value_of()
{
	local name letter kind arg choices deflt files alias help
	while IFS=$'\t' read -r name letter kind arg choices deflt files alias \
		help; do
		[ "--$name" = "$2" ] || [ "--$alias" = "$2" ] ||
			[ "-$letter" = "$2" ] || continue
		case $kind in
		flag) return 1 ;;
		maybe) [ -n "$3" ] || return 1 ;;
		esac
		if [ "$name" = options ]; then
			_nbdfs_list "$1" "$3"
		elif [ "$name" = uid ]; then
			_nbdfs_reply "$3" "$(compgen -u)"
		elif [ "$name" = gid ]; then
			_nbdfs_reply "$3" "$(compgen -g)"
		elif [ "$name" = source ]; then
			_nbdfs_uri "$3"
		else
			_nbdfs_value "$3" "$choices" "$files"
		fi
		return 0
	done < <(_nbdfs_options "$1")
	return 1
}

# The last of a list of mount options.
_nbdfs_list()
{
	local name letter kind arg choices deflt files alias help
	local list=$_nbdfs_mount_options prefix=$2 item
	item=${_nbdfs_cur#"$2"}
	case $item in
	*,*) prefix+=${item%,*}, ;;
	esac
	item=${item##*,}
	case $item in
	*=*)
		_nbdfs_value_of "$1" "--${item%%=*}" "$prefix${item%%=*}="
		return
		;;
	esac
	while IFS=$'\t' read -r name letter kind arg choices deflt files alias \
		help; do
		case $name,$kind in
		help,* | version,* | options,*) ;;
		*,flag) list+=" $name" ;;
		*) list+=" $name=" ;;
		esac
	done < <(_nbdfs_options "$1")
	_nbdfs_reply "$prefix" "$list"
}

# The beginnings of URIs.
_nbdfs_uri()
{
	_nbdfs_reply "$1" "nbd:// nbds:// nbd+unix:///?socket= \
nbds+unix:///?socket= nbd+vsock:// nbds+vsock://"
}

_nbdfs_names()
{
	local name letter kind arg choices deflt files alias help list=''
	while IFS=$'\t' read -r name letter kind arg choices deflt files alias \
		help; do
		case $kind in
		flag | maybe) list+=" --$name" ;;
		*) list+=" --$name=" ;;
		esac
		case $alias in
		-) ;;
		*) list+=" --$alias" ;;
		esac
	done < <(_nbdfs_options "$1")
	_nbdfs_reply '' "$list"
}

# A file name after socket= within a URI.
_nbdfs_socket()
{
	local prefix=${_nbdfs_cur%%socket=*}socket= path i
	path=${_nbdfs_cur#"$prefix"}
	mapfile -t COMPREPLY < <(compgen -f -- "$path")
	for i in "${!COMPREPLY[@]}"; do
		path=${COMPREPLY[i]}
		if [ -d "$path" ]; then
			path+=/
			compopt -o nospace 2>/dev/null
		fi
		path=$prefix$path
		COMPREPLY[i]=${path#"$_nbdfs_cut"}
	done
}

_nbdfs_operand()
{
	case $_nbdfs_cur in
	*socket=*) _nbdfs_socket ;;
	*://*) ;;
	n | nb | nbd*) _nbdfs_uri '' ;;
	esac
	case $_nbdfs_cur,${#COMPREPLY[@]} in
	*://*) ;;
	*,0)
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -f -- "$_nbdfs_cur")
		;;
	esac
}

# Within brackets: another command, and its own completion where it is known.
_nbdfs_command()
{
	if [ "$COMP_CWORD" = $((_nbdfs_group + 1)) ]; then
		mapfile -t COMPREPLY < <(compgen -c -- "$_nbdfs_cur" | sort -u)
	elif type -t _command_offset >/dev/null; then
		_command_offset $((_nbdfs_group + 1))
	else
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -f -- "$_nbdfs_cur")
	fi
}

_nbdfs()
{
	local _nbdfs_words _nbdfs_cur _nbdfs_cut _nbdfs_group before=
	COMPREPLY=()
	_nbdfs_split
	if [ "$_nbdfs_group" -ge 0 ]; then
		_nbdfs_command
		return
	fi
	[ ${#_nbdfs_words[@]} -lt 2 ] || before=${_nbdfs_words[-2]}
	case $_nbdfs_cur in
	--*=*)
		_nbdfs_value_of "$1" "${_nbdfs_cur%%=*}" "${_nbdfs_cur%%=*}="
		return
		;;
	--*)
		_nbdfs_names "$1"
		return
		;;
	esac
	case $before in
	-?*)
		! _nbdfs_value_of "$1" "$before" '' || return
		;;
	esac
	case $_nbdfs_cur in
	-*) _nbdfs_names "$1" ;;
	*) _nbdfs_operand ;;
	esac
}

complete -F _nbdfs nbdfs nbdfs-copy
