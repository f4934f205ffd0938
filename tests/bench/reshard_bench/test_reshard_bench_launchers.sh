#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# reshard-bench under other launchers than its own, on this machine: with the variables that srun sets, with torchrun's
# and a secret, and under mpirun, where the ranks meet through PMIx or at a port that they derive.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"
unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE XM_JOB_SECRET XM_JOB_SECRET_FILE
set -- --src-mesh 2 --dst-mesh 2 --src-spec S0R --dst-spec RS0 --shape 256x300 --dtype int32 -i 2

right() {
    grep -q "# Out of bounds values : 0 OK" "$out" || fail "wrong bytes, or no result: $*"
}

# each VARIABLE SETTINGS... : four processes with these settings, each with its rank in the variable.
each() {
    variable=$1
    shift
    : >"$out"
    pids=
    for rank in 0 1 2 3; do
        env "$variable=$rank" "$@" timeout 60 "$RESHARD_BENCH" --src-mesh 2 --dst-mesh 2 --src-spec S0R --dst-spec RS0 \
            --shape 256x300 --dtype int32 -i 2 >>"$out" 2>&1 &
        pids="$pids $!"
    done
    for pid in $pids; do
        wait "$pid" || fail "a rank's status is not 0: $*"
    done
}

job=$$
each SLURM_PROCID SLURM_NTASKS=4 SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=$job SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost
right srun
[ "$(grep -c "this job is open" "$out")" = 1 ] || fail "a job without a secret does not say so once"
each RANK WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT="$("$(dirname "$0")/free_port.py")" XM_JOB_SECRET=correct-horse-battery
right torchrun
grep -q "this job is open" "$out" && fail "a job with a secret says that it is open"

# Without the secret a rank is not let in, and rank 0 says so, when its time is up: it begins to count when the others are
# there, and long enough for one that is not.
secret=correct-horse-battery
port=$("$(dirname "$0")/free_port.py")
for rank in 1 2 3; do
    [ "$rank" -lt 3 ] || secret=another-one-than-this
    RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port XM_JOB_SECRET=$secret XM_TIMEOUT=60 \
        timeout 90 "$RESHARD_BENCH" "$@" >"$directory/rank$rank" 2>&1 &
done
secret=correct-horse-battery
sleep 1
RANK=0 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port XM_JOB_SECRET=$secret XM_TIMEOUT=8 \
    timeout 60 "$RESHARD_BENCH" "$@" >"$directory/rank0" 2>&1
wait $! && fail "a wrong secret was accepted"
wait
cat "$directory"/rank* >"$out"
grep -q "1 of 4 ranks are missing: 3; connections turned away: 1 without the job's secret" "$directory/rank0" || fail "rank 0 does not say why"
grep -q "$secret" "$out" && fail "the secret is in the output"

command -v mpirun >/dev/null || {
    echo "left out: mpirun is not there (Debian: openmpi-bin)"
    finish
    exit 0
}
# under OPTIONS OF ENV...: four ranks in one mpirun.
under() {
    echo "mpirun reshard-bench, env $*"
    mpirun --allow-run-as-root --oversubscribe --timeout 120 -n 4 env "$@" "$RESHARD_BENCH" --src-mesh 2 --dst-mesh 2 \
        --src-spec S0R --dst-spec RS0 --shape 256x300 --dtype int32 -i 2 >"$out" 2>&1 || fail "status not 0: $*"
    right "$@"
}
under XM_LOG=info
# Without PMIx's variables there is only the derived port.
under -u PMIX_NAMESPACE -u PMIX_RANK
finish
