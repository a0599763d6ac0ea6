#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# plot.sh RESULTS: how cost grows, as an SVG: a panel for each measurement,
# both axes logarithmic, so that a straight line that rises with the diagonal
# is in proportion, and a level one costs the same whatever there is.

here=$(dirname "$0")

"$here/numbers.sh" "$1" | awk -F '\t' '
function escape(s) {
	gsub(/&/, "\\&amp;", s)
	gsub(/</, "\\&lt;", s)
	gsub(/>/, "\\&gt;", s)
	return s
}
function log10(x) {
	return log(x) / log(10)
}
function floor(x,    i) {
	i = int(x)
	return i > x ? i - 1 : i
}
function ceil(x) {
	return -floor(-x)
}
# 1500000 is 1.5M; bytes of images come in powers of two.
function short(x,    i, unit) {
	if (x && x < 0.01)
		return sprintf("%.0e", x)
	split("k M G T P E", unit, " ")
	for (i = 0; x >= 1000 && i < 6; i++)
		x /= 1000
	return sprintf("%.3g", x) (i ? unit[i] : "")
}
# Zero has no logarithm: it stands at a tenth of the least other value.
function place(x, low, high, from, to) {
	if (high <= low)
		return (from + to) / 2
	return from + (log10(x) - low) / (high - low) * (to - from)
}
function text(x, y, anchor, size, s) {
	printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" " \
		"font-size=\"%d\">%s</text>\n", x, y, anchor, size, escape(s)
}
function rule(x1, y1, x2, y2, colour) {
	printf "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" " \
		"stroke=\"%s\"/>\n", x1, y1, x2, y2, colour
}
function bounds(w, xs,    i, v, least) {
	least = 0
	for (i = 1; i <= count[w]; i++) {
		v = xs ? x[w, i] : y[w, i]
		if (v > 0 && (!least || v < least))
			least = v
	}
	low = high = log10(least ? least : 1)
	for (i = 1; i <= count[w]; i++) {
		v = xs ? x[w, i] : y[w, i]
		if (v <= 0) {
			v = least / 10
			if (xs)
				x[w, i] = v
			else
				y[w, i] = v
			low = log10(v)
		}
		if (log10(v) > high)
			high = log10(v)
	}
	if (!xs) {
		low = floor(low)
		high = ceil(high)
		if (high == low)
			high++
	}
}
function panel(w, left, top,    i, k, px, py, path, xlow, xhigh, ylow, yhigh,
	       right, bottom) {
	right = left + 300
	bottom = top + 180
	bounds(w, 1)
	xlow = low
	xhigh = high
	for (i = 1; i <= count[w]; i++)
		shown[i] = short(original[w, i])
	bounds(w, 0)
	ylow = low
	yhigh = high
	text(left, top - 12, "start", 13, title[w])
	for (k = ylow; k <= yhigh; k++) {
		py = bottom - (k - ylow) / (yhigh - ylow) * (bottom - top)
		rule(left, py, right, py, "#ddd")
		text(left - 6, py + 4, "end", 11, short(10 ^ k))
	}
	for (i = 1; i <= count[w]; i++) {
		px = place(x[w, i], xlow, xhigh, left + 8, right - 8)
		py = place(y[w, i], ylow, yhigh, bottom, top)
		path = path (i > 1 ? " " : "") sprintf("%.1f,%.1f", px, py)
		rule(px, bottom, px, bottom + 4, "#888")
		text(px, bottom + 17, "middle", 11, shown[i])
		printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" " \
			"fill=\"#1f5fa8\"/>\n", px, py
	}
	rule(left, bottom, right, bottom, "#888")
	printf "<polyline points=\"%s\" fill=\"none\" stroke=\"#1f5fa8\" " \
		"stroke-width=\"1.5\"/>\n", path
	text((left + right) / 2, bottom + 34, "middle", 12, label[w])
}
$1 == "fact" && $2 ~ /^(date|kernel|processor|processors)$/ {
	facts = facts (facts ? ", " : "") $2 " " $3
}
$1 == "axis" {
	order[++n] = $2
	label[$2] = $3
	title[$2] = $4
}
$1 == "point" {
	i = ++count[$2]
	x[$2, i] = original[$2, i] = $3 + 0
	y[$2, i] = $4 + 0
}
END {
	rows = int((n + 1) / 2)
	width = 780
	height = 60 + rows * 260
	printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" " \
		"height=\"%d\" font-family=\"sans-serif\" fill=\"#222\">\n", \
		width, height
	printf "<!-- SPDX-License-Identifier: LGPL-2.1-or-later -->\n"
	printf "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width, height
	text(20, 24, "start", 12, facts)
	for (i = 1; i <= n; i++)
		if (count[order[i]])
			panel(order[i], 70 + (i - 1) % 2 * 380, \
				70 + int((i - 1) / 2) * 260)
	print "</svg>"
}'
