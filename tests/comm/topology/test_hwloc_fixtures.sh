#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The machine descriptions in tests/fixtures/hwloc/own are what their generator writes.
set -eu
: "${SOURCE_DIR:?}"
own=$SOURCE_DIR/tests/fixtures/hwloc/own
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -B "$own/generate.py" "$directory"
count=0
for written in "$directory"/*.xml; do
    cmp "$written" "$own/${written##*/}"
    count=$((count + 1))
done
[ "$count" -gt 10 ]
echo "$count descriptions are as written"
