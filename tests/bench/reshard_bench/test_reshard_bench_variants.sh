#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Several strategies and schedulers in one run, the paper's protocol, and what is said of them.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"

# The ablation: five results a case; --list shows them.
timeout 60 "$RESHARD_BENCH" --list --suite alpa-ablation >"$out" || fail "--list --suite alpa-ablation"
[ "$(grep -vc '^#' "$out")" -eq 45 ] || fail "not 45 variants listed"
[ "$(grep -c ' broadcast openshop ' "$out")" -eq 9 ] || fail "not 9 variants of openshop listed"
run 5 -n 16 --suite alpa-ablation --case nm3 --scale 1/128 -w 0 -i 1 -J "$directory/j.json"
json "$directory/j.json" "[r['scheduler'] for r in d['results']] == \
['naive', 'balance', 'dfs', 'greedy', 'openshop']"
json "$directory/j.json" "{(r['case'], r['strategy']) for r in d['results']} == {('nm3', 'broadcast')}"
json "$directory/j.json" "len({r['digest'] for r in d['results']}) > 1"
grep -qE '^# +nm3 broadcast +naive .* 1\.000 .*reference$' "$out" || fail "no ratio of the reference"
[ "$(grep -cE '^# +nm3 broadcast ' "$out")" -eq 5 ] || fail "not 5 ratios"

# Variants share buffers: a run that moved nothing would find the poison, or another run's bytes.
run 42 -n 8 --case t16 --strategy all --scheduler all -w 1 -i 2 --verify --memory-limit 1MiB
run 8 -n 8 --case t6 --case t15 --strategy send_recv,broadcast --scheduler naive,openshop -i 2 --trace "$directory/t.json"
json "$directory/t.json" "len([e for e in d['traceEvents'] if e['ph'] == 'X']) > 0"

# The paper's protocol, and what a result says of its runs.
run 7 -n 4 --case t14 --strategy all --protocol paper -J "$directory/j.json"
grep -q 'warm-up 3, runs 10 (the paper' "$out" || fail "the protocol is not in the header"
grep -qE '^# +t14 auto .* 1\.000 .*reference$' "$out" || fail "auto is not the reference"
grep -qE '^# CPU of all ranks     : 0\.[0-9]*[1-9]' "$out" || fail "no processor time"
grep -qE '^# Prediction error     : (median [0-9.]+ %, worst [+-][0-9.]+ % \(t14, |not comparable: .* waited [0-9]+ % of the time)' "$out" ||
    fail "no prediction error"
json "$directory/j.json" "d['config']['protocol'] == 'paper'"
json "$directory/j.json" "all(len(r['time_s']['all']) == 10 for r in d['results'])"
json "$directory/j.json" "all(abs(sum(r['time_s']['all']) / 10 / r['time_s']['mean'] - 1) < 1e-6 for r in d['results'])"
json "$directory/j.json" "all(abs(sum((t - r['time_s']['mean']) ** 2 for t in r['time_s']['all']) / 10 \
- r['time_s']['variance']) <= 1e-6 * r['time_s']['variance'] for r in d['results'])"
# There is an error, unless ranks waited for processors for more than 15 % of the time.
json "$directory/j.json" "all(abs(r['makespan_s'] / r['time_s']['median'] - 1 - r['sim_error']) < 1e-6 \
for r in d['results'] if 'sim_error' in r)"
json "$directory/j.json" "all(('not_comparable' in r) == (r.get('waited_s', 0) > 0.15 * r['time_s']['mean']) for r in d['results'])"
json "$directory/j.json" "all(('not_comparable' in r) != ('sim_error' in r) for r in d['results'])"
[ "$(grep -c '^# t14: not comparable: ' "$out")" -eq "$(grep -c '"not_comparable"' "$directory/j.json")" ] ||
    fail "the table and the document differ in what can be compared"
json "$directory/j.json" "all(0 < r['cpu_s'] < 60 for r in d['results'])"

# In the simulated network the prediction is right, and ratios are those of makespans.
timeout 60 "$RESHARD_BENCH" --case nm1 --scale 1/64 --transport sim --nic-gbps 8 --strategy send_recv,broadcast \
    --no-validate >"$out" || fail "sim"
grep -q '^# Prediction error     : median 0.0 %, worst +0.0 %' "$out" || fail "the simulation errs"
awk '$2 == "nm1" && $3 == "broadcast" && $(NF - 1) > 0.2 && $(NF - 1) < 0.3 { good = 1 } END { exit !good }' "$out" ||
    fail "broadcast is not four times as fast as send_recv"

finish
