#!/bin/sh
# reshard-peer-mpi: every method moves every byte of the paper's cases and of uneven ones.
set -u
. "$(dirname "$0")/../reshard_bench/reshard_bench_checks.sh"
: "${PEER_MPI:?}"
for need in "$PEER_MPI" mpirun; do
    command -v "$need" >/dev/null || {
        echo "skipped: $need is not there (Debian: libopenmpi-dev openmpi-bin)"
        exit 77
    }
done

# peer RANKS ARGUMENTS...: in one mpirun, on one machine and over shared memory.
peer() {
    ranks=$1
    shift
    echo "reshard-peer-mpi ($ranks ranks) $*"
    mpirun --allow-run-as-root --oversubscribe --timeout 240 --mca mpi_yield_when_idle 1 --mca pml ob1 --mca btl self,vader \
        --mca btl_vader_single_copy_mechanism none -n "$ranks" "$PEER_MPI" "$@" >"$out" 2>&1
}

# right ROWS RANKS ARGUMENTS...: status 0, so many rows, each with #wrong 0.
right() {
    rows=$1
    shift
    if ! peer "$@"; then
        fail "status not 0: $*"
    elif [ "$(grep -c 'openmpi-' "$out")" -ne "$rows" ]; then
        fail "not $rows rows: $*"
    elif grep 'openmpi-' "$out" | awk '$NF != 0 { bad = 1 } END { exit !bad }'; then
        fail "wrong bytes: $*"
    fi
}

# refused SENTENCE RANKS ARGUMENTS...: status not 0, and the sentence is said once.
refused() {
    sentence=$1
    shift
    if peer "$@"; then
        fail "accepted: $*"
    elif [ "$(grep -c -- "$sentence" "$out")" -ne 1 ]; then
        fail "not one '$sentence': $*"
    fi
}

# 1m7 and nm6 need three and four hosts.
right 48 16 all --suite alpa --scale 1/128 --ranks-per-host 4 -w 0 -i 1 -J "$directory/j.json"
python3 - "$directory/j.json" <<'END' || fail "the JSON document"
import json, sys
d = json.load(open(sys.argv[1]))
r = d["results"]
assert len({(x["case"], x["peer"]) for x in r}) == 48
assert {x["peer"] for x in r} == {"openmpi-alltoallw", "openmpi-isend", "openmpi-bcast"}
assert all(x["wrong"] == 0 and len(x["time_s"]["all"]) == 1 for x in r)
assert all(x["bytes"] == (8388608, 16777216, 16711680)[(x["case"][0] == "n") + (x["case"] == "nm6")] for x in r)
assert d["config"]["library"].startswith("Open MPI v") and d["config"]["hosts"] == 4
assert [x["rank"] for x in d["ranks"]] == list(range(16))
END

# Uneven and empty parts, meshes that overlap, several boxes between a pair, elements of 1 and 16
# bytes, a scalar.
set -- all --src-mesh 2x2 --dst-mesh 4 --src-spec S01R --dst-spec RS0 --partition chunk -w 0 -i 1
right 3 8 "$@" --shape 2x3 --dtype int8
right 3 8 "$@" --shape 7x9 --partition balanced --src-ranks 0-3 --dst-ranks 5,3,2,4 --dtype complex128
right 3 8 "$@" --shape 9x7x5 --src-spec S01RR --dst-spec S0RS1 --dst-mesh 2x3 --src-ranks 0-3 --dst-ranks 7,2-6
right 3 8 "$@" --shape scalar --src-spec "" --dst-spec ""

refused "method 'isnd' is unknown; did you mean 'isend'?" 2 isnd --case 1m1
refused '--strategy is an option of reshard-bench that a peer has no use for' 2 isend --case 1m1 --strategy auto
refused 'case nm1 needs 4 ranks on each of 2 hosts' 2 all --case 1m1 --case nm1

finish
