#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Simulated ranks and plans without ranks: nothing here depends on the machine.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"

# Hosts with unequal NICs, and racks.
timeout 60 "$RESHARD_BENCH" --case nm1 --dry-run --nic-gbps 10,25 --racks 2 --uplink-gbps 8 --json >"$out" ||
    fail "--racks"
json "$out" "d['config']['network']['nic_bandwidth_Bps'] == [1.25e9, 3.125e9]"
json "$out" "d['config']['network']['racks'] == 2 and d['config']['network']['uplink_bandwidth_Bps'] == 1e9"
json "$out" "abs(d['results'][0]['bound_s'] / 2.147483648 - 1) < 1e-6"

# A sweep alone: half of the ranks to the other half, and the mean of the rows below them.
timeout 60 "$RESHARD_BENCH" -n 4 -b 64K -e 1M -f 4 --transport sim >"$out" || fail "a sweep alone"
awk '/^ / && $3 == "2:S0" && $4 == "2:S0" && $2 == 65536 * 4 ^ rows { ++rows; sum += $10 }
     /^# Avg bus bandwidth/ { mean = $6 } END { exit !(rows == 3 && mean / (sum / rows) > 0.999 && mean / (sum / rows) < 1.001) }' "$out" ||
    fail "a sweep alone: $(cat "$out")"

# auto says which scheduler it took.
timeout 60 "$RESHARD_BENCH" --case nm3 --dry-run --scheduler auto >"$out" || fail "--scheduler auto"
grep -qE ' auto:(dfs|greedy|openshop) ' "$out" || fail "auto does not say what it took"

# The simulated network: right bytes, virtual time that is the same in every run.
run 16 --suite alpa-tests --transport sim
run 9 --suite alpa-nm --scale 1/128 --transport sim -w 0 -i 2
timeout 120 "$RESHARD_BENCH" --case nm1 --scale 1/64 --transport sim --nic-gbps 8 --json -i 2 >"$out" ||
    fail "sim"
json "$out" "d['config']['virtual_time'] and d['results'][0]['transport'] == 'sim'"
json "$out" "len(set(d['results'][0]['time_s']['all'])) == 1"
json "$out" "0.8 < d['results'][0]['bound_fraction'] <= 1"

# The time of a simulated run is what the plan says, to the nanosecond; at full size where that is quick. Under a slow
# checker (TEST_FEW) two strategies and small tensors say whether anything goes wrong.
while read -r strategy scheduler; do
    [ -n "$strategy" ] || continue
    while read -r arguments; do
        [ -n "$arguments" ] || continue
        # shellcheck disable=SC2086 # a list of words
        timeout 120 "$RESHARD_BENCH" $arguments --transport sim --strategy "$strategy" --scheduler "$scheduler" \
            -w 0 -i 1 --json >"$out" </dev/null || fail "sim $strategy $scheduler $arguments"
        json "$out" "all(round(t * 1e9) == round(r['makespan_s'] * 1e9) > 0 for r in d['results'] for t in r['time_s']['all'])"
    done <<ARGUMENTS
$([ -n "${TEST_FEW:-}" ] || echo "--suite alpa-1m --no-validate
--case nm1 --case nm3 --case nm7 --no-validate
--suite alpa-nm --scale 1/128 --no-validate
--case dense-7b --scale 1/64")
--suite alpa-tests --verify
--case nm4 --case nm6 --scale 1/64 --no-validate --nic-gbps 10,25,5 --racks 2 --uplink-gbps 8
ARGUMENTS
done <<PLANS
$([ -n "${TEST_FEW:-}" ] || echo "send_recv naive
broadcast balance
broadcast greedy
global_allgather greedy
alpa naive")
local_allgather balance
allgather openshop
auto auto
PLANS

finish
