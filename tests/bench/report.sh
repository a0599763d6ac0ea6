#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# report.sh RESULTS: the table for people; numbers.sh computes what is in it.

here=$(dirname "$0")

"$here/numbers.sh" "$1" | awk -F '\t' '
function speed(b) {
	if (b >= 1024 * 1024 * 1024 * 100)
		return sprintf("%.0f GiB/s", b / 1073741824)
	if (b >= 1073741824)
		return sprintf("%.2f GiB/s", b / 1073741824)
	return sprintf("%.1f MiB/s", b / 1048576)
}
$1 == "fact" { facts = facts (facts ? ", " : "") $2 " " $3 }
$1 == "set" { sets = sets (sets ? ", " : "") $2 " " $3 }
$1 != "fact" && $1 != "set" && !shown++ { print facts "\n" sets }
$1 == "title" {
	printf "\n%s: %s\n", $2, $3
	printf "  %-12s %12s %10s %9s %10s %10s %10s\n", "", "speed", \
		"seconds", "CPU s/GiB", "w/o server", "daemon MiB", "tool MiB"
}
$1 == "median" {
	printf "  %-12s %12s %10.3f %9.2f %10.2f %10.1f %10.1f\n", $3, \
		speed($4), $5, $6, $7, $9 / 1024, $8 / 1024
}
$1 == "lost" { printf "  %-12s out: %s\n", $3, $4 }
$1 == "skipped" { printf "\n%s\n  skipped: %s\n", $2, $3 }
$1 == "verdict" {
	printf "  %-44s %9s  %s %s  %s\n", $3, $4, $5, $6, $7
	if ($7 == "reached")
		reached++
	goals++
}
$1 == "point" {
	if ($2 != last)
		printf "\n%s: %s\n", $2, about[$2]
	last = $2
	printf "  %20s %14.6g\n", $3, $4
}
$1 == "axis" { about[$2] = $4 " against " $3 }
END {
	if (goals)
		printf "\n%d of %d goals reached\n", reached, goals
}'
