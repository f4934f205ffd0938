#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Data that are spoiled behind TCP's checksums: XM_VERIFY=chunk sends them again, run and chunk end a job whose link spoils
# all, and off notices nothing.
set -eu
: "${SPOIL_SENDS:?}"
. "$(dirname "$0")/reshard_bench_checks.sh"

# VERIFY ONE_IN OPTIONS...: 64 MiB between two emulated hosts, of which one in so many segments is spoiled.
spoiled() {
    verify=$1
    one_in=$2
    shift 2
    echo "XM_VERIFY=$verify, one segment in $one_in"
    status=0
    XM_VERIFY=$verify SPOIL_ONE_IN=$one_in LD_PRELOAD=$SPOIL_SENDS timeout 100 \
        "$RESHARD_BENCH" -n 2 --hosts 2 --src-mesh 1 --dst-mesh 1 --src-ranks 0 --dst-ranks 1 --src-spec RR --dst-spec RR \
        --shape 4096x4096 --nic-gbps 10 -w 0 -i 3 "$@" >"$out" 2>&1 || status=$?
}

spoiled chunk 100
[ "$status" -eq 0 ] || fail "chunks that are sent again, status $status"
grep -q '^# Out of bounds values : 0 OK$' "$out" || fail "wrong bytes although chunks prove themselves"
grep -q '^# Sent again           : [1-9]' "$out" || fail "nothing was sent again"

spoiled chunk 1000000
[ "$status" -eq 0 ] || fail "a healthy network, status $status"
grep -q '^# Sent again           : 0 ' "$out" || fail "something was sent again on a healthy network"

spoiled off 20
[ "$status" -eq 1 ] || fail "spoiled and not looked for, status $status"
grep -q '^# Out of bounds values : .* FAILED$' "$out" || fail "nothing was spoiled"

spoiled run 20 --no-validate
[ "$status" -eq 1 ] || fail "a comparison at the end, status $status"
grep -q 'rank 0 holds data with hash' "$out" || fail "no sentence of the box that differs"

spoiled chunk 1
[ "$status" -eq 1 ] || fail "a network that spoils all, status $status"
grep -q 'wrong 11 times in a row' "$out" || fail "no sentence of what is spoiled"

exit $((failures > 0))
