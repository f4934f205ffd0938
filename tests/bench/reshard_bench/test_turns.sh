#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench/transport.sh runs, gives a row for each demand, and says by its status whether all are met; and the arithmetic of
# the scripts that measure in turns. Nothing is timed here.
set -eu
for need in ucx_perftest taskset; do
    command -v "$need" >/dev/null || {
        echo "skipped: $need is not there (Debian: ucx-utils, util-linux)"
        exit 77
    }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    cat "$work/out"
    echo "FAIL: $1"
    exit 1
}

# Rows: medians, the median of the ratios, the verdict, and the status.
. "$SOURCE_DIR/bench/turns.sh"
failed=0
printf '1\n9\n2\n' >"$work/ours"
printf '2\n3\n4\n' >"$work/theirs"
row three MB/s ours theirs ">= 0.5" >"$work/out"
grep -q "three .* 2.000 .* 3.000 .* 0.500 .*>= 0.5 met" "$work/out" || fail "a row that is met"
row three MB/s ours theirs ">= 0.51" >"$work/out"
grep -q "MISSED" "$work/out" || fail "a row that is missed"
[ "$failed" -eq 1 ] || fail "no failure"
failed=0
row three us ours theirs "<= 0.5" >"$work/out"
[ "$failed" -eq 0 ] || fail "a limit that is met"
row three us ours theirs none >"$work/out"
[ "$failed" -eq 0 ] && ! grep -qE "met|MISSED" "$work/out" || fail "a row without a goal"
: >"$work/none"
row none us none theirs "<= 0.5" >"$work/out"
grep -q "not measured" "$work/out" && [ "$failed" -eq 1 ] || fail "a side without figures"

status=0
LEGS=shm COUNT_shm=20 TRIPS_shm=200 "$SOURCE_DIR/bench/transport.sh" "$BUILD_DIR" 1 >"$work/out" 2>&1 || status=$?
[ "$status" -le 1 ] || fail "status $status"
[ "$(grep -cE '(met|MISSED)$' "$work/out")" -eq 2 ] || fail "two rows"
if grep -q MISSED "$work/out"; then expected=1; else expected=0; fi
[ "$status" -eq "$expected" ] || fail "status $status instead of $expected"
status=0
LEGS=ib "$SOURCE_DIR/bench/transport.sh" "$BUILD_DIR" 1 >"$work/out" 2>&1 || status=$?
[ "$status" -eq 2 ] && grep -q "'ib' is neither shm, tcp nor failover" "$work/out" || fail "a wrong leg"
echo "all as expected"
