#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Planning stays small as devices grow: a 70B model between 512 and 512 hosts of 8 devices within 5 s of processor time and 2 GiB, and one
# 2 GiB tensor within 20 ms (it takes 3 to 4 on an idle machine), by the quickest of several runs. The limits
# are several times what is measured, so that only a change of order fails.
set -u
: "${PLAN_SCALE:?}" "${RESHARD_BENCH:?}"
hosts=${XM_TEST_HOSTS:-512}
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT

"$PLAN_SCALE" --hosts "$hosts" >"$directory/table" || exit 1
cat "$directory/table"
# Columns: hosts devices tensors GB load plan tasks transfers hops makespan bound gap RSS.
awk -v hosts="$hosts" '
    /^#/ { table += /^# [a-z ]+:/; next }
    NF != 13 { print "FAILED: " NF " columns: " $0; bad = 1; next }
    $12 > 3 || $12 < 0 { print "FAILED: " $12 " % above the bound: " $0; bad = 1 }
    $13 > 2048 { print "FAILED: " $13 " MiB: " $0; bad = 1 }
    table == 1 && $6 > 5 { print "FAILED: planning took " $6 " s: " $0; bad = 1 }
    table == 1 && $1 == hosts && $3 == 723 { full = 1 }
    END {
        if (table != 4 || !full) { print "FAILED: rows are missing"; bad = 1 }
        exit bad
    }' "$directory/table" || exit 1

# The number of pairs of an all-to-all grows fourfold, its planning with the devices.
for shape in all-to-all split; do
    for devices in 256 512; do
        "$PLAN_SCALE" --case "$shape" --hosts "$devices" --nics-per-host 8 --nic-gbps 3200 --gib 32 --repeat 5 >"$directory/$shape$devices" || exit 1
    done
    cat "$directory/$shape"*
    awk -v name="$shape" '!/^#/ { seconds[++rows] = $6 }
        END {
            if (rows != 2 || seconds[2] > 0.1 || seconds[2] > 3 * seconds[1] + 0.002) {
                print "FAILED: " name " planned in " seconds[1] " s and " seconds[2] " s"; exit 1
            }
        }' "$directory/${shape}256" "$directory/${shape}512" || exit 1
done

[ "$hosts" -eq 512 ] || exit 0
runs=10
run=0
while [ "$run" -lt "$runs" ]; do
    "$RESHARD_BENCH" --suite alpa-nm --dry-run --wide --nic-gbps 10 --scheduler auto --strategy auto >"$directory/cases$run" || exit 1
    run=$((run + 1))
done
cat "$directory/cases0"
# The plan time stands between the scheduler and the bytes on the net.
awk -v runs="$runs" '$1 ~ /^nm[0-9]$/ {
        for (i = 1; i < NF; ++i) if ($i ~ /^auto:(naive|balance|dfs|greedy|openshop)$/) {
            ++cases
            if (!($1 in least) || $(i + 1) < least[$1]) least[$1] = $(i + 1)
        }
        if ($NF > 1) { print "FAILED: " $NF " % above the bound: " $0; bad = 1 }
    }
    END {
        for (name in least) if (least[name] > 20000) { print "FAILED: " name " planned in " least[name] " us"; bad = 1 }
        if (cases != 9 * runs) { print "FAILED: " cases " cases"; bad = 1 }
        exit bad
    }' "$directory"/cases*
