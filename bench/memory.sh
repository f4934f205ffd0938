#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The memory rate that autopar probe finds, beside a copy as STREAM makes it with as many processes at the same time:
# bytes read and written in a second by each. Ends with 1 where one is more than 15 % from the other, or from that of
# the first round, which is that of a fresh machine where this is run first.
# Usage: bench/memory.sh [BUILD-FOLDER [PROCESSES [ROUNDS]]]
set -eu
build=${1:-build/release}
processes=${2:-2}
rounds=${3:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
round=0
while [ $round -lt "$rounds" ]; do
    "$build/planner/cli/autopar" probe -n "$processes" --max-bytes 64K --budget 5 -J "$work/probe.$round" >/dev/null
    "$build/bench/baseline/memory_copy" -o -k "$processes" -b 256M -i 5 >"$work/copy.$round"
    round=$((round + 1))
done
python3 - "$work" "$rounds" "$processes" <<'END'
import json
import sys

work, rounds, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
good, first = True, None
for i in range(rounds):
    with open(f"{work}/probe.{i}", encoding="utf-8") as file:
        probed = 1e-9 * json.load(file)["device"]["memory_bytes_per_s"]
    with open(f"{work}/copy.{i}", encoding="utf-8") as file:
        copied = 2 * float(file.read().split()[-1]) / processes
    first = first or probed
    errors = [100 * (probed / copied - 1), 100 * (probed / first - 1)]
    good = good and all(abs(error) <= 15 for error in errors)
    print(f"round {i}  probe {probed:7.2f} GB/s  copy {copied:7.2f} GB/s  {errors[0]:+6.1f} %  from round 0 {errors[1]:+6.1f} %")
print("met" if good else "MISSED", "(<= 15 %)")
sys.exit(0 if good else 1)
END
