#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# autopar-probe-mpi: curves of every axis of two hosts, checked data, and a profile that takes them.
set -eu
for need in "$PROBE_MPI" mpirun; do
    command -v "$need" >/dev/null || {
        echo "skipped: $need is not there (Debian: libopenmpi-dev openmpi-bin)"
        exit 77
    }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# job ARGUMENTS...: mpirun on this machine, over shared memory.
job() {
    mpirun --allow-run-as-root --oversubscribe --timeout 300 --mca mpi_yield_when_idle 1 --mca pml ob1 \
        --mca btl self,vader --mca btl_vader_single_copy_mechanism none "$@"
}

# Enough of a budget that no size is left out as too slow, also where others use the machine: that is one which takes two
# seconds. Curves that are known well enough end long before.
few="--max-bytes 64KiB --repetitions 1 --budget 72"
# shellcheck disable=SC2086 # options are words
job -n 2 env XM_HOST=a "$PROBE_MPI" -o "$work/mpi.json" $few : \
    -n 2 env XM_HOST=b "$PROBE_MPI" -o "$work/mpi.json" $few | tee "$work/out"
grep -q "2 hosts x 2 devices" "$work/out"
python3 - "$work/mpi.json" <<'END'
import json
import sys

document = json.load(open(sys.argv[1], encoding="utf-8"))
found = {(c["collective"], c["hosts"], c["devices_per_host"], c["groups_per_host"]) for c in document["collectives"]}
shapes = ((1, 2, 1), (2, 1, 2), (2, 2, 1))
kinds = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
assert found == {(kind, *shape) for kind in kinds for shape in shapes}, found
for curve in document["collectives"]:
    times = [point[1] for point in curve["curve"]]
    assert len(times) >= 2 and times == sorted(times) and all(len(point) == 3 for point in curve["curve"]), curve
    assert curve["curve"][-1][0] == 65536 and "MPI" in curve["library"], curve
END

# The planner takes them.
"$AUTOPAR" probe --hosts 2 --ranks-per-host 2 --max-bytes 64KiB --budget 2 -o "$work/cluster.json" >"$work/out"
"$AUTOPAR" probe --import "$work/mpi.json" --cluster "$work/cluster.json" -o "$work/with.json" >"$work/out"
[ "$(grep -c "MPI" "$work/out")" -ge 12 ]
"$AUTOPAR" shard gpt-125m --mesh 2x2 --cost-model profile --cluster "$work/with.json" >"$work/out"

# refused SENTENCE COMMAND...: not 0, and the sentence.
refused() {
    sentence=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        echo "FAIL: accepted: $*"
        exit 1
    fi
    grep -qF -- "$sentence" "$work/out" || {
        cat "$work/out"
        echo "FAIL: not said: $sentence"
        exit 1
    }
}
refused "-o must say where the curves go" "$PROBE_MPI"
refused "--max-bytes must be" "$PROBE_MPI" -o "$work/x" --max-bytes 1KiB
refused "one rank has no collectives" job -n 1 "$PROBE_MPI" -o "$work/x"
refused "host 0 has 2 ranks and host 1 has 1" job -n 2 env XM_HOST=a "$PROBE_MPI" -o "$work/x" : \
    -n 1 env XM_HOST=b "$PROBE_MPI" -o "$work/x"
echo "all as expected"
