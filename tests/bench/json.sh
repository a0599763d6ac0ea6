#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# json.sh RESULTS: the results for programs, as one object:
#
#	machine, settings	names and values
#	workloads		of each: name, title, contenders with their
#				medians and seconds, lost, goals
#	skipped			name, why
#	scale			of each: name, x, y, points

here=$(dirname "$0")

"$here/numbers.sh" "$1" | awk -F '\t' '
function text(s) {
	gsub(/\\/, "\\\\", s)
	gsub(/"/, "\\\"", s)
	gsub(/[\001-\037]/, " ", s)
	return "\"" s "\""
}
function number(s) {
	return s ~ /^-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?$/ ? s + 0 "" : "null"
}
function add(list, item) {
	return list (list == "" ? "" : ",") item
}
function end_workload() {
	if (work != "")
		workloads = add(workloads, "\n{" work ",\"contenders\":[" \
			whos "],\"lost\":[" losts "],\"goals\":[" goals "]}")
	work = whos = losts = goals = ""
}
function end_scale() {
	if (scale != "")
		scales = add(scales, "\n{" scale ",\"points\":[" points "]}")
	scale = points = ""
}
BEGIN { CONVFMT = OFMT = "%.9g" }
$1 == "fact" { facts = add(facts, text($2) ":" text($3)) }
$1 == "set" { sets = add(sets, text($2) ":" text($3)) }
$1 == "title" {
	end_workload()
	work = "\"name\":" text($2) ",\"title\":" text($3)
}
$1 == "median" {
	all = $10
	gsub(/ /, ",", all)
	whos = add(whos, "\n {\"name\":" text($3) \
		",\"bytes_per_second\":" number($4) ",\"seconds\":" number($5) \
		",\"cpu_seconds_per_gib\":" number($6) \
		",\"cpu_seconds_per_gib_without_server\":" number($7) \
		",\"tool_peak_kib\":" number($8) \
		",\"daemon_peak_kib\":" number($9) ",\"samples\":[" all "]}")
}
$1 == "lost" {
	losts = add(losts, "{\"name\":" text($3) ",\"why\":" text($4) "}")
}
$1 == "verdict" {
	sub(/ x$/, "", $4)
	goals = add(goals, "\n {\"what\":" text($3) ",\"value\":" number($4) \
		",\"op\":" text($5) ",\"limit\":" number($6) ",\"state\":" \
		text($7) "}")
}
$1 == "skipped" {
	skipped = add(skipped, "{\"name\":" text($2) ",\"why\":" text($3) "}")
}
$1 == "axis" {
	end_scale()
	scale = "\"name\":" text($2) ",\"x\":" text($3) ",\"y\":" text($4)
}
$1 == "point" { points = add(points, "[" number($3) "," number($4) "]") }
END {
	end_workload()
	end_scale()
	print "{\"machine\":{" facts "},\n\"settings\":{" sets "},"
	print "\"workloads\":[" workloads "],\n\"skipped\":[" skipped "],"
	print "\"scale\":[" scales "]}"
}'
