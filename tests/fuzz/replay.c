/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs a fuzz target on each of the files that are given. */
#include "fuzz.h"

#define INPUT_MAX ((size_t)1 << 20)

static int run_file(const char *name, uint8_t *data)
{
	FILE *f = fopen(name, "rb");
	size_t n;

	if (!f) {
		perror(name);
		return 1;
	}
	n = fread(data, 1, INPUT_MAX, f);
	if (ferror(f) || !feof(f)) {
		fprintf(stderr, "%s: cannot be read, or is too long\n", name);
		fclose(f);
		return 1;
	}
	fclose(f);
	printf("%s\n", name);
	fflush(stdout);
	return LLVMFuzzerTestOneInput(data, n);
}

int main(int argc, char **argv)
{
	uint8_t *data = malloc(INPUT_MAX);
	int status = 0;

	if (!data)
		return 1;
	for (int i = 1; i < argc; i++)
		status |= run_file(argv[i], data);
	free(data);
	return status;
}
