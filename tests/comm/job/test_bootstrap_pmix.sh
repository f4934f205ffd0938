#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that mpirun starts meet through PMIx, without an address in the environment.
set -u
: "${PMIX_RANK_PROGRAM:?}"
command -v mpirun >/dev/null || {
    echo "skipped: mpirun is not there (Debian: openmpi-bin)"
    exit 77
}
if [ -n "${NO_PMIX:-}" ]; then
    echo "skipped: this build has no PMIx (Debian: libpmix-dev)"
    exit 77
fi
out=$(mktemp) || exit 1
MARKS=$(mktemp -d) || exit 1
export MARKS
trap 'rm -rf "$out" "$MARKS"' EXIT
failed=0
unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE

fail() {
    echo "FAILED: $*"
    cat "$out"
    failed=1
}

# under RANKS [OPTIONS OF MPIRUN...] -- ROLE
under() {
    ranks=$1
    shift
    options=
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    # shellcheck disable=SC2086
    timeout 60 mpirun --allow-run-as-root --oversubscribe $options -n "$ranks" "$PMIX_RANK_PROGRAM" "$2" >"$out" 2>&1
}

# says COUNT TEXT: so many lines hold the text.
says() {
    [ "$(grep -c -- "$2" "$out")" -eq "$1" ] || fail "not $1 times '$2'"
}

for ranks in 1 2 7; do
    under "$ranks" -- meet || fail "$ranks ranks do not meet"
    says "$ranks" "of $ranks met"
done
# What Open MPI leaks has no names any more when it is looked for: its modules are unloaded.
(
    export ASAN_OPTIONS=detect_leaks=0
    under 3 -- mpi
) || fail "MPI beside PMIx"
says 3 "used MPI"
under 4 --enable-recovery -- die
says 3 "rank 1 (host .*) died"
# mpirun minds a rank that has not called PMIx; the others' sentences are what counts.
under 3 -- miss
says 2 "timed out"
under 2 -- differ || fail "another size"
says 2 "PMIx says rank"

# A server that is gone: the variables have leaked into a process that mpirun has not started.
PMIX_NAMESPACE=nobody PMIX_RANK=0 PMIX_SERVER_URI2='nobody.0;tcp4://127.0.0.1:1' timeout 60 "$PMIX_RANK_PROGRAM" meet >"$out" 2>&1 &&
    fail "a dead launcher was accepted"
grep -q "PMIx: cannot connect to the launcher that PMIX_NAMESPACE names" "$out" || fail "no sentence about the launcher"
exit $failed
