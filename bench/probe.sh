#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How exactly autopar probe finds the rates of an emulated cluster's NICs: prints for every host of every cluster the
# rate that was measured, the one that the NICs are shaped to (less TCP's headers), and the error, and for every
# cluster the time that the probe took, with whether they are as wanted. Ends with 1 when an error is above 3 % or a
# probe takes longer than a minute.
# Usage: bench/probe.sh [BUILD-FOLDER]; RANKS_PER_HOST (default 4) and LIMIT (per cent, default 3) may be set.
set -eu
build=${1:-build/release}
ranks_per_host=${RANKS_PER_HOST:-4}
limit=${LIMIT:-3}
autopar=$build/planner/cli/autopar
emulated_cluster=$build/bench/emulated-cluster
for program in "$autopar" "$emulated_cluster"; do
    [ -x "$program" ] || {
        echo "probe.sh: $program is not there; build it, or name the build folder" >&2
        exit 2
    }
done
work=$(mktemp -d)
name=probe$$
export EMULATED_CLUSTER_DIR="$work/clusters"
trap '"$emulated_cluster" down --name "$name" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# probe_one TITLE HOSTS "RATES OF THE HOSTS, bit/s" OPTIONS OF up…
probe_one() {
    title=$1 hosts=$2 rates=$3
    shift 3
    "$emulated_cluster" up --name "$name" --hosts "$hosts" "$@"
    start=$(date +%s.%N)
    rank=0
    pids=
    while [ $rank -lt $((hosts * ranks_per_host)) ]; do
        "$emulated_cluster" exec --name "$name" $((rank / ranks_per_host)) env RANK=$rank \
            WORLD_SIZE=$((hosts * ranks_per_host)) MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 \
            "$autopar" probe -o "$work/cluster.json" >"$work/out.$rank" 2>"$work/err.$rank" &
        pids="$pids $!"
        rank=$((rank + 1))
    done
    for pid in $pids; do
        wait "$pid" || {
            cat "$work"/err.* >&2
            exit 1
        }
    done
    end=$(date +%s.%N)
    "$emulated_cluster" down --name "$name"
    python3 - "$title" "$work/cluster.json" "$rates" "$start" "$end" "$limit" <<'END' || failed=1
import json
import sys

title, path, rates, start, end, limit = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    profile = json.load(file)
expected = [float(rate) / 8 * 1448 / 1514 for rate in rates.split()]
measured = profile["nic"].get("hosts", [profile["nic"]["bytes_per_s"]] * profile["hosts"])
good = len(measured) == len(expected)
for host, (found, wanted) in enumerate(zip(measured, expected)):
    error = 100 * (found / wanted - 1)
    near = abs(error) <= float(limit)
    good = good and near
    print(f"{title:34} host {host}  measured {found / 1e6:8.2f} MB/s  expected {wanted / 1e6:8.2f} MB/s  "
          f"error {error:+6.2f} %  (<= {limit} %) {'met' if near else 'MISSED'}")
both = profile["nic"].get("both_ways_bytes_per_s", 0)
seconds = float(end) - float(start)
fast = seconds < 60
good = good and fast
print(f"{title:34} {profile['hosts']} x {profile['devices_per_host']} ranks  both ways {both / 1e6:.2f} MB/s  "
      f"spread {100 * profile['nic'].get('spread', 0):.1f} %  wall time {seconds:.1f} s  (< 60 s) "
      f"{'met' if fast else 'MISSED'}")
sys.exit(0 if good else 1)
END
}

failed=0
probe_one "1 Gbit/s" 4 "1e9 1e9 1e9 1e9" --nic 1gbit
probe_one "1 Gbit/s, 500 Mbit/s in turn" 4 "1e9 5e8 1e9 5e8" --nic 1gbit,500mbit
probe_one "two NICs of 500 Mbit/s" 4 "1e9 1e9 1e9 1e9" --nic 500mbit --nics-per-host 2
probe_one "NICs of 600 and 300 Mbit/s" 4 "9e8 9e8 9e8 9e8" --uneven 600mbit,300mbit
exit $failed
