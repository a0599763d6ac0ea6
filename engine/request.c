/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * request.c - how a long request is cut into pieces.
 */
#include "export.h"
#include "util.h"

uint64_t request_cut(uint64_t offset, uint64_t end, uint64_t limit,
		     uint64_t align)
{
	uint64_t cut;

	if (end - offset <= limit)
		return end;
	cut = align_down(offset + limit, align);
	return cut > offset ? cut : offset + limit;
}
