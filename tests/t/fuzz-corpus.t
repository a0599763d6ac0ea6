#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Each fuzz target on the inputs that are kept for it; finding new ones is the
# matter of `make fuzz` and tests/fuzz/run.

# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

fuzz=$(dirname "$0")/../fuzz

for target in "$fuzz"/fuzz_*.c; do
	name=$(basename "$target" .c)
	files=("$fuzz/corpus/${name#fuzz_}"/*)
	run_ok -n "$name" timeout 60 "$NBDFS_HELPERS/$name" "${files[@]}"
	is "$(wc -l <<<"$OUT")" "${#files[@]}" "and all of its inputs were used"
done

done_testing
