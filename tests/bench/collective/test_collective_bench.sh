#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# collective-bench: ranks run every program with right elements of every type; bad input gets one sentence.
set -u
. "$(dirname "$0")/../reshard_bench/reshard_bench_checks.sh"
: "${COLLECTIVE_BENCH:?}" "${SOURCE_DIR:?}"

# rows COUNT ARGUMENTS...: so many programs run, and no element is wrong.
rows() {
    count=$1
    shift
    if ! timeout 120 "$COLLECTIVE_BENCH" --run "$@" >"$out" 2>&1; then
        fail "status not 0: $*"
        cat "$out"
    elif ! awk -v count="$count" '!/^#/ { ++rows; bad += !(NF == 10 && $8 > 0 && $10 == 0) } END { exit !(rows == count && !bad) }' "$out"; then
        fail "not $count good rows: $*"
        cat "$out"
    fi
}

refuse() {
    text=$1
    shift
    timeout 60 "$COLLECTIVE_BENCH" "$@" >"$out" 2>&1
    status=$?
    if [ "$status" -ne 2 ] || [ "$(wc -l <"$out")" -ne 1 ] || ! grep -qF -- "$text" "$out"; then
        fail "status $status, expected 2 and one line with '$text': $*"
        cat "$out"
    fi
}

refuse "3 numbers, the mesh has 2" --gbps 1,2,3
refuse "two devices" --mesh 1x1
refuse "not a byte count" --size 8,,9
refuse "1 to 16 sizes" --size 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17
refuse "does not fit" --program trees
refuse "does not fit" --program ring --reduction adasum
refuse "floating-point" --reduction adasum --dtype int32
refuse "cannot read the links" --links /nonexistent
refuse "multiply to the 16 devices" --axes 4x3
refuse "names no program" --axes 4x4 --program ring
refuse "there are 2 axes" --axes 4x4 --over 2
refuse "hosts and devices" --mesh 2x2x2 --run

"$COLLECTIVE_BENCH" --help | grep -oE -- '--[a-z-]+' | sort -u >"$directory/help"
while read -r option; do
    case $option in --help | --version | ---*) continue ;; esac
    grep -qF -- "$option" "$SOURCE_DIR/docs/collective-bench.md" || fail "the page does not know $option"
done <"$directory/help"

grep -oE 'Fl Fl [a-z-]+' "$SOURCE_DIR/docs/man/collective-bench.1" | sed 's/Fl Fl /--/' | sort -u >"$directory/man"
grep -v -- '---' "$directory/help" | diff - "$directory/man" || fail "--help (<) and the man page (>) name different options"
if command -v mandoc >/dev/null; then
    mandoc -Tlint -W warning "$SOURCE_DIR/docs/man/collective-bench.1" || fail "the man page"
fi

for type in float32 bfloat16 float16 int32; do
    rows 18 --mesh 2x2 --gbps 1,20 --size 40002,8000 --dtype "$type"
done
for collective in reduce-scatter all-gather; do
    rows 5 --mesh 2x2 --gbps 1,20 --size 64KiB --collective $collective
done
# Two devices of a host, or of two hosts; and what lies between.
"$COLLECTIVE_BENCH" --run --mesh 2x2 --gbps 1,20 --size 64KiB --axes 2x2 >"$out" 2>&1 &&
    awk '!/^#/ { ++rows; bad += $NF != 0 } END { exit !(rows == 4 && !bad) }' "$out" || fail "mappings: $(cat "$out")"
rows 1 --mesh 2x3 --gbps 1,20 --size 6000 --collective all-to-all
finish
