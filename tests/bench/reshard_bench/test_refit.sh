#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The suite `refit`: plans at full size within 3 % of the bound beside what was published, and runs at scale.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"

# The largest takes its time to plan.
cases="q4b-dp8 q4b-tp2 q30b-pp2 q30b-tp2 q30b-fsdp q235b"
[ "${1:-}" != whole ] || cases="dsv3 $cases"
set --
for name in $cases; do
    set -- "$@" --case "$name"
done
timeout 500 "$RESHARD_BENCH" "$@" --dry-run -J "$directory/j.json" >"$out" 2>&1 || fail "dry run: $*"
json "$directory/j.json" "len(d['results']) == $# // 2 and all(0 <= r['gap'] <= 0.03 for r in d['results'])"
json "$directory/j.json" "all(0 < min(r['published']['seconds']) and r['published']['source'] for r in d['results'])"
json "$directory/j.json" "{r['case']: r['published']['seconds'] for r in d['results']}['q4b-dp8'] == [0.21, 0.34]"
# The one host that serves needs the whole model, at 400 GB/s; of 30 rollouts those of a host share one copy.
json "$directory/j.json" "abs({r['case']: r['bound_s'] for r in d['results']}['q4b-dp8'] - 2 * 4022468096 / 4e11) < 1e-4"
json "$directory/j.json" "abs({r['case']: r['bound_s'] for r in d['results']}['q30b-fsdp'] - 2 * 30532122624 / 4e11) < 1e-4"
json "$directory/j.json" "abs({r['case']: r['bound_s'] for r in d['results']}.get('dsv3', 0.8426) - 0.8426) < 0.001"
grep -q 'Planned seconds are a simulation of the transfer alone, published ones a measurement' "$out" ||
    fail "no sentence about what the seconds are"
[ "$(grep -c -- ' -> ' "$out")" -eq $(($# / 2)) ] || fail "not a row with a mapping for each case"

run 3 -n 32 --ranks-per-host 8 --case q4b-dp8 --case q4b-tp2 --case q30b-pp2 --scale 1/64 -w 0 -i 1 --nic-gbps 10
grep -qE '^# time = messages x [0-9.]+ us \+ bytes / ' "$out" || fail "no two terms"
[ "$(grep -cE '^# q(4b|30b)-[a-z0-9]+ +[0-9]+ +[0-9]+ ' "$out")" -eq 3 ] || fail "not a row of terms for each case"
finish
