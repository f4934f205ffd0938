#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The suite `refit`: plans at full size within 3 % of the bound beside what was published, and runs at scale.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"

timeout 170 "$RESHARD_BENCH" --suite refit --dry-run -J "$directory/j.json" >"$out" 2>&1 || fail "--suite refit"
json "$directory/j.json" "len(d['results']) == 7 and all(0 <= r['gap'] <= 0.03 for r in d['results'])"
json "$directory/j.json" "all(0 < min(r['published']['seconds']) and r['published']['source'] for r in d['results'])"
json "$directory/j.json" "{r['case']: r['published']['seconds'] for r in d['results']}['dsv3'] == [2.39, 2.83]"
json "$directory/j.json" "{r['case']: r['src']['ranks'] + r['dst']['ranks'] for r in d['results']}['dsv3'] == 512"
# 671.03 10^9 parameters, of which 14,848 are in 32 bits, into 32 hosts of 400 GB/s that each hold a quarter of the model.
json "$directory/j.json" "abs({r['case']: r['bound_s'] for r in d['results']}['dsv3'] - 0.8426) < 0.01"
grep -q 'Planned seconds are a simulation of the transfer alone, published ones a measurement' "$out" ||
    fail "no sentence about what the seconds are"
[ "$(grep -c -- ' -> ' "$out")" -eq 7 ] || fail "not seven rows with a mapping"

run 3 -n 32 --ranks-per-host 8 --case q4b-dp8 --case q4b-tp2 --case q30b-pp2 --scale 1/64 -w 0 -i 1 --nic-gbps 10
grep -qE '^# time = messages x [0-9.]+ us \+ bytes / ' "$out" || fail "no two terms"
[ "$(grep -cE '^# q(4b|30b)-[a-z0-9]+ +[0-9]+ +[0-9]+ ' "$out")" -eq 3 ] || fail "not a row of terms for each case"
finish
