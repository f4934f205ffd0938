#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# autopar probe --collectives: NCCL (a stand-in for it, and for CUDA's driver), MPI where it is, neither.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
few="--max-bytes 64KiB --repetitions 2 --budget 2"

# checked FILE LIBRARY: curves of four collectives on three axes of two hosts.
checked() {
    python3 - "$1" "$2" <<'END'
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
    assert sys.argv[2] in curve["library"], curve
assert "collectives of " + sys.argv[2] in document["provenance"], document["provenance"]
END
}

# refused STATUS SENTENCE COMMAND...
refused() {
    status=$1 sentence=$2
    shift 2
    code=0
    "$@" >"$work/out" 2>&1 || code=$?
    if [ "$code" -ne "$status" ] || ! grep -qF -- "$sentence" "$work/out"; then
        cat "$work/out"
        echo "FAIL: status $code instead of $status, or not said: $sentence"
        exit 1
    fi
}

# with_nccl COMMAND...: with both stand-ins and four devices.
with_nccl() {
    LD_LIBRARY_PATH=$DOUBLES CUDA_DOUBLE_DEVICES=4 "$@"
}

# By itself the first that works.
# shellcheck disable=SC2086 # options are words
with_nccl "$AUTOPAR" probe --hosts 2 --ranks-per-host 2 $few --collectives auto -o "$work/nccl.json" >"$work/out"
checked "$work/nccl.json" "NCCL 2.28.7"
grep -q "all-to-all  .*NCCL 2.28.7" "$work/out"

# A probe that was interrupted keeps the curves that it has.
# shellcheck disable=SC2086
refused 1 "cuMemAlloc" with_nccl env CUDA_DOUBLE_FAIL=cuMemAlloc_v2=2@30 "$AUTOPAR" probe --hosts 2 --ranks-per-host 2 \
    $few --collectives nccl -o "$work/late.json"
cp "$work/late.json.partial" "$work/partial"
# shellcheck disable=SC2086
with_nccl "$AUTOPAR" probe --hosts 2 --ranks-per-host 2 $few --collectives nccl --resume -o "$work/late.json" >"$work/out"
checked "$work/late.json" "NCCL 2.28.7"
python3 - "$work/partial" "$work/late.json" <<'END'
import json
import sys

steps, profile = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
kept = {name: numbers for name, numbers in steps["steps"].items() if name.startswith("NCCL")}
assert len(kept) == 3, list(kept)
for curve in profile["collectives"]:
    name = "{library} {collective} {hosts}x{devices_per_host}x{groups_per_host}".format(**curve)
    if name in kept:
        flat = [number for point in curve["curve"] for number in point]
        assert len(flat) == len(kept[name]), name
        assert all(abs(a - b) <= 1e-9 * abs(a) for a, b in zip(flat, kept[name])), name
END

# The planner takes them.
"$AUTOPAR" shard gpt-125m --mesh 2x2 --cost-model profile --cluster "$work/nccl.json" >"$work/out"

# Nothing, with the reason, where none does.
# shellcheck disable=SC2086
"$AUTOPAR" probe -n 1 $few --collectives auto -o "$work/none.json" >"$work/out"
grep -q "collectives were not measured: one rank has no collectives" "$work/none.json"
# shellcheck disable=SC2086
refused 2 "$([ -n "$MPI_MODULE" ] && echo "neither mpirun nor srun started this rank" || echo "no MPI")" \
    env -u PMIX_RANK "$AUTOPAR" probe -n 2 $few --collectives mpi
[ "$(wc -l <"$work/out")" -eq 1 ] || {
    cat "$work/out"
    echo "FAIL: more than one sentence"
    exit 1
}
# shellcheck disable=SC2086
refused 2 "one rank has no collectives" "$AUTOPAR" probe -n 1 $few --collectives nccl
refused 2 "did you mean nccl" "$AUTOPAR" probe -n 2 --collectives ncll
refused 2 "--collectives measures" "$AUTOPAR" probe --compare "$work/none.json" "$work/none.json" --collectives nccl

# MPI: the ranks of one mpirun are those of both.
if [ -n "$MPI_MODULE" ] && command -v mpirun >/dev/null; then
    # shellcheck disable=SC2086
    mpirun --allow-run-as-root --oversubscribe --timeout 100 --mca mpi_yield_when_idle 1 --mca pml ob1 \
        --mca btl self,vader --mca btl_vader_single_copy_mechanism none \
        -n 2 env XM_HOST=a "$AUTOPAR" probe $few --collectives mpi -o "$work/mpi.json" : \
        -n 2 env XM_HOST=b "$AUTOPAR" probe $few --collectives mpi -o "$work/mpi.json" >"$work/out"
    checked "$work/mpi.json" "Open MPI"
fi
echo "all as expected"
