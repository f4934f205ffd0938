#!/bin/sh
# autopar probe on real local ranks, then a plan from what it measured.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$AUTOPAR" probe --hosts 2 --ranks-per-host 2 --max-bytes 1MiB --repetitions 1 \
    -o "$work/cluster.json" >"$work/out"
cat "$work/out"
for text in "2 hosts x 2 devices" self intra_host inter_host "GFLOP/s" measured; do
    grep -qF "$text" "$work/out" || {
        echo "FAIL: the table lacks '$text'"
        exit 1
    }
done
"$AUTOPAR" plan --model gpt-125m --cluster "$work/cluster.json" --hosts 2 --devices-per-host 4 \
    --stages 2 --memory-limit 64GiB -o "$work/plan.json" | tee "$work/plan.txt"
grep -q "resized from 2 x 2 to 2 x 4" "$work/plan.txt"
"$AUTOPAR" explain "$work/plan.json" --cluster "$work/cluster.json" | grep -q "measured"

# One host: the class without a pair is said to be measured on a substitute.
"$AUTOPAR" probe -n 2 --max-bytes 1MiB --repetitions 3 -o "$work/one.json" | grep -q "1 hosts x 2"
"$AUTOPAR" probe -n 1 --max-bytes 1MiB --repetitions 3 --json | python3 -m json.tool | grep -q inter_host
echo "all as expected"
