/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* VMDK images as ends of nbdfs-copy. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli.h"
#include "dev_vmdk.h"
#include "util.h"

/* What a file holds is never looked at to find that out: who can write a disk
 * could make it look like an image of another kind. */
enum cli_format cli_format_of(const struct cli *cli,
			      const struct operand *operand, bool write)
{
	enum cli_format said = write ? cli->dest_format : cli->source_format;
	const char *dot;

	if (said != FORMAT_BY_NAME)
		return said;
	dot = operand->word ? strrchr(operand->word, '.') : NULL;
	return dot && strcasecmp(dot, ".vmdk") == 0 ? FORMAT_VMDK : FORMAT_RAW;
}

static int refuse(struct error *err, const struct end *e, const char *why)
{
	error_set(err, "%s: %s", e->label, why);
	return -EINVAL;
}

int vmdk_open_source(struct end *e, struct error *err)
{
	struct vmdk_header h;
	int r;

	r = local_open_source(e->operand->word, &e->local, err);
	if (r < 0)
		return r;
	if (e->local.kind == LOCAL_PIPE)
		return refuse(err, e,
			      "a VMDK image is read from a file, not a pipe");
	r = vmdk_read_header(e->local.fd, e->label, e->local.size, &h, err);
	if (r < 0)
		return r;
	if (h.unclean)
		fprintf(stderr,
			PROGRAM ": warning: %s: this VMDK image was not closed "
				"properly: what was written to it last may be "
				"missing\n",
			e->label);
	e->size = h.capacity * VMDK_SECTOR;
	return 0;
}

static int check_dest(const struct end *e, const struct end *source,
		      struct error *err)
{
	struct error why;
	struct vmdk_header h;

	if (e->cli->dirty)
		return refuse(err, e,
			      "--dirty changes raw images, not VMDK images");
	if (source->size == UINT64_MAX)
		return refuse(err, e,
			      "the size of a VMDK image must be known before: "
			      "the source must not be a pipe");
	if (vmdk_layout(source->size, &h, &why) < 0)
		return refuse(err, e, why.text);
	return 0;
}

int vmdk_open_dest(struct end *e, const struct end *source, struct error *err)
{
	struct local_want want = {
		.source = source->kind == END_LOCAL ? &source->local : NULL,
		.read_back = e->cli->verify,
	};
	bool stream = e->format == FORMAT_VMDK_STREAM;
	int r = check_dest(e, source, err);

	if (r == 0)
		r = local_open_dest(e->operand->word, &want, &e->local, err);
	if (r < 0)
		return r;
	if (e->local.kind == LOCAL_PIPE && !stream)
		return refuse(err, e,
			      "only a VMDK image of the kind vmdk-stream can "
			      "be written to a pipe");
	if (e->local.kind == LOCAL_PIPE && want.read_back)
		return refuse(err, e, "cannot be read back for --verify");
	if (e->local.kind == LOCAL_BLOCK ||
	    (e->local.kind == LOCAL_FILE && !e->local.is_zero))
		return refuse(err, e,
			      "a VMDK image needs a file that can grow");
	e->size = align_up(source->size, VMDK_SECTOR);
	return 0;
}

static int file_size(const struct end *e, uint64_t *size)
{
	off_t end = lseek(e->local.fd, 0, SEEK_END);

	if (end < 0)
		return -errno;
	*size = (uint64_t)end;
	return 0;
}

int vmdk_device(struct end *e, struct loop *loop, struct workers *workers,
		struct error *err)
{
	struct dev_vmdk_params p = {
		.name = e->label,
		.size = e->write ? e->size : e->local.size,
		.adapter = e->cli->adapter ? e->cli->adapter : "ide",
		.level = (int)e->cli->level,
		.allocate = e->cli->allocated,
		.loop = loop,
		.workers = workers,
		.threads = e->cli->helpers,
	};
	bool read = !e->write || e->complete;
	int r = 0;

	if (e->complete)
		r = file_size(e, &p.size);
	p.fd = r == 0 ? fcntl(e->local.fd, F_DUPFD_CLOEXEC, 3) : -1;
	if (p.fd < 0) {
		error_set(err, "%s: %s", e->label, strerror(errno));
		return -errno;
	}
	if (read)
		e->dev = dev_vmdk_read(&p, err);
	else if (e->format == FORMAT_VMDK_STREAM)
		e->dev = dev_vmdk_stream_new(&p, err);
	else
		e->dev = dev_vmdk_new(&p, err);
	if (e->dev)
		return 0;
	close(p.fd);
	return -EIO;
}
