#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The memory rate that autopar probe finds, beside a copy as STREAM makes it with as many processes just before and
# just after it: bytes read and written in a second by each. Other machines of the same host change the rate from one
# second to the next, so what counts is the ratio within a round, and of the ratios the median. The first round is that
# of a fresh machine where this is run first. Ends with 1 where the median of all rounds, or that of the later ones from
# the first, is more than 15 % off.
# Usage: bench/memory.sh [BUILD-FOLDER [PROCESSES [ROUNDS]]]
set -eu
build=${1:-build/release}
processes=${2:-2}
rounds=${3:-7}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy() {
    "$build/bench/baseline/memory_copy" -o -k "$processes" -b 256M -i 5 >"$work/copy.$1"
}
round=0
while [ $round -lt "$rounds" ]; do
    copy $round.before
    "$build/planner/cli/autopar" probe -n "$processes" --max-bytes 64K --budget 5 -J "$work/probe.$round" >/dev/null
    copy $round.after
    round=$((round + 1))
done
python3 - "$work" "$rounds" "$processes" <<'END'
import json
import statistics
import sys

work, rounds, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def copied(turn, when):
    with open(f"{work}/copy.{turn}.{when}", encoding="utf-8") as file:
        return 2 * float(file.read().split()[-1]) / processes


ratios = []
for i in range(rounds):
    with open(f"{work}/probe.{i}", encoding="utf-8") as file:
        probed = 1e-9 * json.load(file)["device"]["memory_bytes_per_s"]
    before, after = copied(i, "before"), copied(i, "after")
    ratios.append(2 * probed / (before + after))
    print(f"round {i}  probe {probed:7.2f} GB/s  copies {before:7.2f}, {after:7.2f} GB/s  {100 * ratios[i] - 100:+6.1f} %")
median = 100 * statistics.median(ratios) - 100
later = 100 * statistics.median(ratios[1:] or ratios) / ratios[0] - 100
good = abs(median) <= 15 and abs(later) <= 15
print(f"{'met' if good else 'MISSED'}: median {median:+.1f} %, later rounds {later:+.1f} % from the first (<= 15 %)")
sys.exit(0 if good else 1)
END
