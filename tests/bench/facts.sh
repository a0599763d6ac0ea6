#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# facts.sh: where and with what is measured: lines of
# "fact", name, value, separated by tabs.

fact()
{
	printf 'fact\t%s\t%s\n' "$1" "$2"
}

# version NAME COMMAND...: the first number with a dot in what it prints.
version()
{
	local name=$1
	shift
	command -v "$1" >/dev/null || return 0
	fact "$name" "$("$@" 2>&1 </dev/null |
		grep -oE '[0-9]+\.[0-9][0-9.]*' | head -n 1)"
}

fact date "$(date -u +%Y-%m-%d)"
fact kernel "$(uname -r)"
fact machine "$(uname -m)"
fact processor "$(sed -n 's/^model name[[:blank:]]*: //p' /proc/cpuinfo |
	head -n 1)"
fact processors "$(getconf _NPROCESSORS_ONLN)"
fact memory_mib "$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)"
fact load "$(cut -d ' ' -f 1 /proc/loadavg)"
version nbdfs "${NBDFS:-nbdfs}" --version
version nbdcopy nbdcopy --version
version nbdfuse nbdfuse --version
version qemu qemu-img --version
version nbdkit nbdkit --version
version fio fio --version
version coreutils cp --version
