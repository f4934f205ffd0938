#!/bin/sh
# reshard-bench under mpirun on this machine: the ranks meet through PMIx, or at a port that they derive.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"
command -v mpirun >/dev/null || {
    echo "skipped: mpirun is not there (Debian: openmpi-bin)"
    exit 77
}
unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE

# bench OPTIONS OF ENV...: four ranks in one mpirun.
bench() {
    echo "mpirun reshard-bench $*"
    mpirun --allow-run-as-root --oversubscribe --timeout 120 -n 4 env "$@" "$RESHARD_BENCH" --src-mesh 2 --dst-mesh 2 \
        --src-spec S0R --dst-spec RS0 --shape 256x300 --dtype int32 -i 2 --validate >"$out" 2>&1 ||
        fail "status not 0: $*"
    grep -q "# Out of bounds values : 0 OK" "$out" || fail "wrong bytes: $*"
}

bench XM_LOG_LEVEL=info
# Without PMIx's variables there is only the derived port.
bench -u PMIX_NAMESPACE -u PMIX_RANK
finish
