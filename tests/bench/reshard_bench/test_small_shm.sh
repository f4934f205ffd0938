#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where /dev/shm is small, as in containers, the ranks of a host share memory without it; also when one of them is killed,
# nothing stays in the system.
set -u
: "${RESHARD_BENCH:?}"
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
export RESHARD_BENCH directory

# within SIZE COMMAND: a shell's command with a /dev/shm of that size and segments of its own.
within() {
    size=$1 unshare -im sh -euc 'mount -t tmpfs -o size="$size" tmpfs /dev/shm
        '"$2" >"$directory/out" 2>&1
}

fail() {
    cat "$directory/out"
    echo "FAILED: $*"
    exit 1
}

if ! within 1m true; then
    echo "this process can have no /dev/shm of its own: $(cat "$directory/out")"
    exit 77
fi
job='"$RESHARD_BENCH" -n 4 --src-mesh 2 --dst-mesh 2 --src-spec S0R --dst-spec RS0 --shape 512x1024 --nic-gbps 10'
for size in 1m 20m 64m; do
    within $size "XM_LOG=info $job --validate -i 5" || fail "with $size: status $?"
    grep -q '^# Out of bounds values : 0 OK$' "$directory/out" || fail "with $size: bytes were not checked, or wrong"
    grep -q 'UCX *ERROR' "$directory/out" && fail "with $size: UCX complains"
done
grep -q 'UCX does without' "$directory/out" && fail "64 MiB are enough for 4 ranks"
within 1m "$job"' -i 100000 >"$directory/job" 2>&1 & job=$!
    for i in $(seq 600); do
        pids=$(sed -n "s/^# rank .* pid *\([0-9]*\) .*/\1/p" "$directory/job")
        [ "$(echo $pids | wc -w)" -lt 4 ] || break
        sleep 0.1
    done
    [ "$(ipcs -m | grep -c ^0x)" -ge 4 ] # segments are what it shares
    kill -9 $pids
    wait $job || true
    ipcs -m
    [ "$(ipcs -m | grep -c ^0x)" -eq 0 ]' || fail "a killed job: no segments, or some are left"
echo "in 1, 20 and 64 MiB: every byte is right, nothing is left"
