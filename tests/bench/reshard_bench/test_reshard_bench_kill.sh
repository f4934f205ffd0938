#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kill -9 of a rank in the middle of a run: all others end at once, with a sentence that names it.
set -u
: "${RESHARD_BENCH:?}"
failures=0
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT

# UCX does not free what belongs to a connection whose peer died; that is not what is tested here.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"

# Seconds that the others may take, and the deadline of their waits.
limit=30
export XM_TIMEOUT=120

# wait_for COMMAND...: tries some ninety seconds long.
wait_for() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 900 ] || return 1
        sleep 0.1
    done
}

started() {
    grep -q '%bound' "$directory/out" 2>/dev/null
}

# True when every rank has sent or received twenty messages: all connections are made by then, which UCX 1.13 may
# abort a rank over if a peer dies while it makes them (docs/failures.md).
in_the_middle() {
    for of_rank in 0 1 2 3 4 5 6 7; do
        awk '/^crossmesh_operations_total.*status="ok"/ { all += $2 } END { exit all < 20 }' \
            "$directory/metrics-$of_rank" 2>/dev/null || return 1
    done
}

# running PIDS...: true while one of them exists and is not a zombie.
running() {
    for process; do
        state=$(sed 's/.*) //;s/ .*//' "/proc/$process/stat" 2>/dev/null) || continue
        [ -z "$state" ] || [ "$state" = Z ] || return 0
    done
    return 1
}

none_running() {
    # shellcheck disable=SC2086
    ! running $pids
}

kill_one() {
    rank=$1
    # The background job opens the file in its own time: what the job before wrote must not pass for its output.
    rm -f "$directory/out" "$directory"/metrics-*
    XM_METRICS_FILE=$directory/metrics-%r XM_METRICS_INTERVAL=0.1 timeout 170 "$RESHARD_BENCH" -n 8 --src-mesh 2x2 --dst-mesh 2x2 --src-spec S0R --dst-spec RS0 \
        --shape 1024x1024 --nic-gbps 10 -i 100000 >"$directory/out" 2>"$directory/err" &
    job=$!
    if ! wait_for started || ! wait_for in_the_middle; then
        echo "FAILED: the job did not come far"
        kill "$job"
        wait "$job"
        return 1
    fi
    pids=$(awk '$2 == "rank" { for (i = 1; i < NF; ++i) if ($i == "pid") print $(i + 1) }' "$directory/out")
    victim=$(echo "$pids" | sed -n "$((rank + 1))p")
    before=$(date +%s)
    kill -9 "$victim"
    wait "$job"
    status=$?
    seconds=$(($(date +%s) - before))
    if [ "$status" -eq 0 ] || [ "$seconds" -gt "$limit" ]; then
        echo "FAILED: rank $rank killed, status $status after $seconds s"
        return 1
    fi
    if ! wait_for none_running; then
        echo "FAILED: rank $rank killed, but processes of the job are left"
        return 1
    fi
    if [ "$(grep -c "^reshard-bench: .*rank $rank\b" "$directory/err")" -ne 2 ] ||
        ! grep -q "^reshard-bench: rank $rank was killed by signal 9" "$directory/err" ||
        [ "$(wc -l <"$directory/err")" -ne 2 ]; then
        echo "FAILED: rank $rank killed, but standard error says:"
        sed 's/^/  /' "$directory/err"
        return 1
    fi
    echo "rank $rank killed: status $status after $seconds s, $(head -n 1 "$directory/err")"
}

for rank in 0 1 3 4 7; do
    kill_one "$rank" || failures=$((failures + 1))
done
[ "$failures" -eq 0 ] || exit 1
