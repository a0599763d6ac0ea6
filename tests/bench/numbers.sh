#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# numbers.sh RESULTS: from what run wrote down, tab-separated lines:
#
#	fact NAME VALUE			set NAME VALUE
#	title WORKLOAD TITLE
#	median WORKLOAD WHO BYTES/S SECONDS CPU-S/GIB DAEMON-S/GIB TOOL-KIB
#		DAEMON-KIB SAMPLES-OF-SECONDS
#	verdict WORKLOAD WHAT VALUE OP LIMIT reached|missed|unknown
#	lost WORKLOAD WHO WHY		skipped WORKLOAD WHY
#	axis WORKLOAD X Y		point WORKLOAD X Y

# mawk has no sort of its own: insertion is enough for a few rounds.
awk -F '\t' '
function median(list, n,    i, j, x) {
	for (i = 2; i <= n; i++) {
		x = list[i]
		for (j = i - 1; j > 0 && list[j] > x; j--)
			list[j + 1] = list[j]
		list[j + 1] = x
	}
	if (!n)
		return 0
	if (n % 2)
		return list[(n + 1) / 2]
	return (list[n / 2] + list[n / 2 + 1]) / 2
}
# The median of a column of one contender.
function column(w, who, what,    i, n, list) {
	for (i = 1; i <= samples[w, who]; i++)
		list[++n] = value[w, who, what, i]
	return median(list, n)
}
function cpu_of(w, who, i) {
	return value[w, who, "cpu", i]
}
# Ratios within each round to the best of the peers, and their median.
function ratio(w, who, peers, what,    names, k, n, i, round, best, x, list, m) {
	n = split(peers, names, "|")
	for (i = 1; i <= samples[w, who]; i++) {
		round = value[w, who, "round", i]
		best = -1
		for (k = 1; k <= n; k++) {
			if (!((w, names[k], round) in index_of))
				continue
			x = value[w, names[k], what, index_of[w, names[k], round]]
			if (best < 0 || (what == "speed" ? x > best : x < best))
				best = x
		}
		if (best > 0)
			list[++m] = value[w, who, what, i] / best
	}
	count = m
	return median(list, m)
}
function verdict(w, who, metric, peers, op, limit,    x, what, show) {
	count = samples[w, who]
	if (metric == "speed" || metric == "cpu") {
		x = ratio(w, who, peers, metric)
		what = who " : " peers ", " (metric == "cpu" ? "CPU" : metric)
		gsub(/\|/, " or ", what)
		show = sprintf("%.2f x", x)
	} else if (metric == "cpu-abs") {
		x = column(w, who, "cpu")
		what = who ", CPU s/GiB"
		show = sprintf("%.2f", x)
	} else if (metric == "seconds") {
		x = column(w, who, "seconds")
		what = who ", seconds"
		show = sprintf("%.4f", x)
	} else if (metric == "us-extent") {
		x = column(w, who, "seconds") * 1e6 / peers
		what = who ", us an extent"
		show = sprintf("%.2f", x)
	} else {
		x = column(w, who, metric == "tool-kib" ? "tool" : "daemon")
		what = who ", peak memory in KiB"
		show = sprintf("%d", x)
	}
	if (!count)
		state = "unknown"
	else if (op == ">=" ? x >= limit : x <= limit)
		state = "reached"
	else
		state = "missed"
	print "verdict", w, what, count ? show : "-", op, limit, state
}
function flush_workload(w,    k, who, all, i) {
	for (k = 1; k <= whos[w]; k++) {
		who = name[w, k]
		all = ""
		for (i = 1; i <= samples[w, who]; i++)
			all = all (i > 1 ? " " : "") value[w, who, "seconds", i]
		print "median", w, who, column(w, who, "speed"), \
			column(w, who, "seconds"), column(w, who, "cpu"), \
			column(w, who, "ours"), column(w, who, "tool"), \
			column(w, who, "daemon"), all
	}
	for (k = 1; k <= lost[w]; k++)
		print lost_line[w, k]
	for (k = 1; k <= goals[w]; k++) {
		split(goal[w, k], part, "\t")
		verdict(w, part[3], part[4], part[5], part[6], part[7])
	}
}
BEGIN { OFS = "\t" }
$1 == "fact" || $1 == "set" { print; next }
$1 == "skipped" || $1 == "axis" || $1 == "point" { later[++laters] = $0 }
$1 == "goal" { goal[$2, ++goals[$2]] = $0 }
$1 == "lost" { lost_line[$2, ++lost[$2]] = $0 }
$1 == "title" { order[++n] = $2; title[$2] = $3 }
$1 == "run" {
	if (!(($2, $3) in samples))
		name[$2, ++whos[$2]] = $3
	i = ++samples[$2, $3]
	index_of[$2, $3, $4] = i
	gib = $5 / 1073741824
	value[$2, $3, "round", i] = $4
	value[$2, $3, "seconds", i] = $6
	value[$2, $3, "speed", i] = $6 > 0 ? $5 / $6 : 0
	value[$2, $3, "cpu", i] = gib > 0 ? ($7 + $8 + $9) / gib : 0
	value[$2, $3, "ours", i] = gib > 0 ? ($7 + $8) / gib : 0
	value[$2, $3, "tool", i] = $10
	value[$2, $3, "daemon", i] = $11
}
END {
	for (k = 1; k <= n; k++) {
		print "title", order[k], title[order[k]]
		flush_workload(order[k])
	}
	for (k = 1; k <= laters; k++)
		print later[k]
}' "$1"
