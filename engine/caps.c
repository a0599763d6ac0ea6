/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * caps.c - what a server says of an export, checked.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "negotiate.h"
#include "util.h"

#define MIN_BLOCK_LIMIT (64 * KiB)
#define DEFAULT_PREFERRED 4096
#define MAX_PAYLOAD (32 * MiB)
/* "Any length" as a maximum. */
#define NO_MAXIMUM UINT32_MAX

void nbd_caps_clear(struct nbd_caps *caps)
{
	free(caps->description);
	caps->description = NULL;
}

bool nbd_caps_same(const struct nbd_caps *a, const struct nbd_caps *b)
{
	/* What was promised to a file that is open must still hold; more than
	 * that does no harm. */
	return a->size == b->size && b->min_block <= a->min_block &&
	       b->max_block >= a->max_block && a->read_only == b->read_only &&
	       b->multi_conn >= a->multi_conn && b->flush >= a->flush &&
	       b->fua >= a->fua && b->zero >= a->zero &&
	       b->fast_zero >= a->fast_zero && b->trim >= a->trim &&
	       b->status >= a->status && b->extended >= a->extended;
}

int nbd_caps_blocks(uint64_t min, uint64_t pref, uint64_t max,
		    struct nbd_caps *caps, struct error *why)
{
	if (min == 0)
		min = 1;
	if (!is_pow2(min) || min > MIN_BLOCK_LIMIT) {
		error_set(why,
			  "its minimum block size %" PRIu64
			  " is not a power of two up to 64 KiB",
			  min);
		return -EPROTO;
	}
	if (pref == 0)
		pref = max_u64(min, DEFAULT_PREFERRED);
	if (!is_pow2(pref) || pref < min || pref > NO_MAXIMUM) {
		error_set(why,
			  "its preferred block size %" PRIu64
			  " is not a power of two from the minimum %" PRIu64
			  " on",
			  pref, min);
		return -EPROTO;
	}
	if (max == 0)
		max = MAX_PAYLOAD;
	if (max < min || max > NO_MAXIMUM ||
	    (max != NO_MAXIMUM && max % min != 0)) {
		error_set(why,
			  "its maximum block size %" PRIu64
			  " is not a multiple of the minimum %" PRIu64,
			  max, min);
		return -EPROTO;
	}
	max = min_u64(max, MAX_PAYLOAD);
	while (pref > max)
		pref /= 2;
	caps->min_block = (uint32_t)min;
	caps->pref_block = (uint32_t)pref;
	caps->max_block = (uint32_t)max;
	return 0;
}

static int read_blocks(struct nbd_handle *nbd, struct nbd_caps *caps,
		       struct error *why)
{
	int64_t min = nbd_get_block_size(nbd, LIBNBD_SIZE_MINIMUM);
	int64_t pref = nbd_get_block_size(nbd, LIBNBD_SIZE_PREFERRED);
	int64_t max = nbd_get_block_size(nbd, LIBNBD_SIZE_MAXIMUM);

	/* An error is no more than "not told" (old protocols). */
	return nbd_caps_blocks((uint64_t)(min < 0 ? 0 : min),
			       (uint64_t)(pref < 0 ? 0 : pref),
			       (uint64_t)(max < 0 ? 0 : max), caps, why);
}

static int read_size(struct nbd_handle *nbd, uint64_t *size, struct error *why)
{
	int64_t n = nbd_get_size(nbd);

	/* A handle that is ready knows the size, unless it was never told:
	 * negative means that it is too large (which not every libnbd
	 * notices). */
	if (n < 0 && nbd_get_errno() == EINVAL) {
		error_set(why, "the server does not tell its size");
		return -EPROTO;
	}
	if (n < 0) {
		error_set(why, "its size is above 2^63 - 1 bytes");
		return -EOVERFLOW;
	}
	*size = (uint64_t)n;
	return 0;
}

static int read_status(struct nbd_handle *nbd, const struct connect_opts *opts,
		       bool *status, struct error *why)
{
	*status = opts->want_extents &&
		  nbd_can_meta_context(nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) > 0;
	if (!opts->meta_context)
		return 0;
	if (nbd_can_meta_context(nbd, opts->meta_context) <= 0) {
		size_t n = strlen(BITMAP_CONTEXT);

		if (strncmp(opts->meta_context, BITMAP_CONTEXT, n) == 0)
			error_set(why, "it has no dirty bitmap '%.200s'",
				  opts->meta_context + n);
		else
			error_set(why, "it has no metadata context '%.200s'",
				  opts->meta_context);
		return -ENOENT;
	}
	*status = true;
	return 0;
}

int nbd_caps_read(struct nbd_handle *nbd, const struct connect_opts *opts,
		  struct nbd_caps *caps, struct error *why)
{
	int r;

	memset(caps, 0, sizeof(*caps));
	r = read_size(nbd, &caps->size, why);
	if (r == 0)
		r = read_blocks(nbd, caps, why);
	if (r == 0)
		r = read_status(nbd, opts, &caps->status, why);
	if (r < 0)
		return r;
	caps->read_only = nbd_is_read_only(nbd) > 0;
	caps->multi_conn = nbd_can_multi_conn(nbd) > 0;
	caps->flush = nbd_can_flush(nbd) > 0;
	caps->fua = nbd_can_fua(nbd) > 0;
	caps->zero = nbd_can_zero(nbd) > 0;
	caps->fast_zero = nbd_can_fast_zero(nbd) > 0;
	caps->trim = nbd_can_trim(nbd) > 0;
	caps->rotational = nbd_is_rotational(nbd) > 0;
#ifdef LIBNBD_HAVE_NBD_GET_EXTENDED_HEADERS_NEGOTIATED
	caps->extended = nbd_get_extended_headers_negotiated(nbd) > 0;
#endif
	caps->description = nbd_get_export_description(nbd);
	if (caps->description && !*caps->description)
		nbd_caps_clear(caps);
	return 0;
}
