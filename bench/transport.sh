#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What crossmesh makes of UCX, against ucx_perftest: bandwidth of 1 MiB messages (tag_bw) and latency of small ones
# (tag_lat), between two processes of a host over shared memory, and between two emulated hosts over TCP through NICs of
# a limited rate. Both sides spin, each process on a core of its own, and take turns, round by round, now the one first
# and now the other; the figures are medians, also of the rounds' ratios. Ends with 1 when a ratio is not as wanted.
#
# ucx_perftest sends one buffer again and again, and receives into one, which therefore never leave the caches. So do we
# where the two are compared. A row without a goal says what is left when each message in flight has its own buffer.
#
# The leg "failover" takes two NICs a host, which stand in for each other, and compares with the transport-bench of BASE
# (the same build) under XM_FAILOVER=off: with a build from before rails, that is what standing in costs.
#
# transport.sh [BUILD_DIRECTORY [ROUNDS]]: build/release and 5 rounds by default. Needs ucx_perftest (ucx-utils), and root
# or user namespaces for the emulated hosts. NIC (1gbit), SIZE (1048576), SMALL (8), WINDOW (16), and LEGS ("shm tcp") may
# be set; so may COUNT_shm (4000), COUNT_tcp (200), TRIPS_shm (100000) and TRIPS_tcp (10000), messages and round trips of
# a round (failover's are tcp's). XM_ and UCX_ variables apply.
set -eu
folder=$(dirname "$0")
. "$folder/turns.sh"
build=${1:-build/release}
rounds=${2:-5}
nic=${NIC:-1gbit}
size=${SIZE:-1048576}
small=${SMALL:-8}
window=${WINDOW:-16}
legs=${LEGS:-shm tcp}
bench=$build/bench/transport-bench
base=${BASE:-$build}/bench/transport-bench
emulated_cluster=$build/bench/emulated-cluster
needs transport.sh "$bench" "$base" "$emulated_cluster" ucx_perftest taskset
find_cores
work=$(mktemp -d)
name=transport$$
port=$((12000 + $$ % 16000))
other=
failed=0
export EMULATED_CLUSTER_DIR="$work/clusters"
cleanup() {
    [ -z "$other" ] || kill "$other" 2>/dev/null || true
    "$emulated_cluster" down --name "$name" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# at SIDE COMMAND…: on that host of the leg, and on that side's core.
at() {
    side=$1
    shift
    if [ "$side" -eq 0 ]; then core=$first_core; else core=$second_core; fi
    if [ "$leg" != shm ]; then
        exec "$emulated_cluster" exec --name "$name" "$side" taskset -c "$core" "$@"
    fi
    exec taskset -c "$core" "$@"
}

# give_up WHAT FILES…
give_up() {
    echo "transport.sh: $1 failed:" >&2
    shift
    cat "$@" >&2
    exit 1
}

# theirs FILE COLUMN FACTOR OPTIONS…: appends a column of ucx_perftest's last line. Its server does not say when it is
# ready, so the client tries until it is.
theirs() {
    file=$1 column=$2 factor=$3
    shift 3
    port=$((port + 1))
    (at 0 timeout 120 ucx_perftest -p "$port" "$@") >"$work/out.0" 2>&1 &
    other=$!
    tries=0
    until (at 1 timeout 120 ucx_perftest "$address" -p "$port" "$@") >"$work/out.1" 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -ge 100 ] || ! kill -0 "$other" 2>/dev/null; then
            give_up ucx_perftest "$work/out.0" "$work/out.1"
        fi
        sleep 0.1
    done
    wait "$other" || give_up "ucx_perftest's server" "$work/out.0" "$work/out.1"
    other=
    awk -v column="$column" -v factor="$factor" '/^Final:/ { print $column * factor }' "$work/out.1" >>"$work/$file"
}

# ours FILE COLUMN OPTIONS…: appends a column of transport-bench's row.
ours() {
    file=$1 column=$2
    shift 2
    port=$((port + 1))
    for side in 0 1; do
        (at "$side" timeout 120 env RANK="$side" WORLD_SIZE=2 MASTER_ADDR="$address" MASTER_PORT="$port" XM_PROGRESS=spin \
            "$bench" --window "$window" "$@") >"$work/out.$side" 2>&1 &
        [ "$side" -eq 1 ] || other=$!
    done
    last=$!
    wait "$other" || give_up transport-bench "$work/out.0" "$work/out.1"
    other=
    wait "$last" || give_up transport-bench "$work/out.0" "$work/out.1"
    awk -v column="$column" '/^ *[0-9]+ / && NF >= 5 { print $column }' "$work/out.0" >>"$work/$file"
}

# rails on|off PROGRAM WHOSE: both figures, over two NICs.
rails() {
    export XM_FAILOVER="$1" XM_NICS=nic0=1000000000,nic1=1000000000
    bench=$2 whose=$3
    ours "${whose}_bw_$leg" 4 --size "$size" --iterations "$count"
    ours "${whose}_lat_$leg" 3 --size "$small" --iterations "$trips" --warmup 1000
}

# MB/s of 10^6 bytes on both sides; microseconds, the median ones.
measure_theirs() {
    if [ "$leg" = failover ]; then
        rails off "$base" their
        return
    fi
    theirs "their_bw_$leg" 7 1.048576 -t tag_bw -s "$size" -n "$count" -w 20 -O "$window"
    theirs "their_lat_$leg" 3 1 -t tag_lat -s "$small" -n "$trips" -w 1000
}

measure_ours() {
    if [ "$leg" = failover ]; then
        rails on "$build/bench/transport-bench" our
        return
    fi
    ours "our_bw_$leg" 4 --one-buffer --size "$size" --iterations "$count"
    ours "our_lat_$leg" 3 --size "$small" --iterations "$trips" --warmup 1000
    ours "our_own_$leg" 4 --size "$size" --iterations "$count"
}

for leg in $legs; do
    case $leg in
    shm) address=127.0.0.1 count=${COUNT_shm:-4000} trips=${TRIPS_shm:-100000} ;;
    tcp | failover) address=10.77.0.1 count=${COUNT_tcp:-200} trips=${TRIPS_tcp:-10000} ;;
    *)
        echo "transport.sh: LEGS: '$leg' is neither shm, tcp nor failover" >&2
        exit 2
        ;;
    esac
    nics=1
    [ "$leg" != failover ] || nics=2
    [ "$leg" = shm ] || "$emulated_cluster" up --name "$name" --hosts 2 --nic "$nic" --nics-per-host "$nics"
    round=0
    while [ "$round" -lt "$rounds" ]; do
        if [ $((round % 2)) -eq 0 ]; then
            measure_theirs
            measure_ours
        else
            measure_ours
            measure_theirs
        fi
        round=$((round + 1))
    done
    [ "$leg" = shm ] || "$emulated_cluster" down --name "$name"
    unset XM_FAILOVER XM_NICS
    bench=$build/bench/transport-bench
done

echo "# $rounds rounds in turns, spinning on cores $first_core and $second_core; tcp: two emulated hosts, NICs of $nic"
head_of_rows crossmesh ucx_perftest
for leg in $legs; do
    if [ "$leg" = failover ]; then
        row "failover on and off, $size B" MB/s our_bw_failover their_bw_failover ">= 0.98"
        row "failover on and off, $small B" us our_lat_failover their_lat_failover "<= 1.05"
        continue
    fi
    row "$leg, $size B, $window in flight" MB/s "our_bw_$leg" "their_bw_$leg" ">= 0.95"
    row "$leg, each in its own buffer" MB/s "our_own_$leg" "their_bw_$leg" "none"
    row "$leg, $small B, one way" us "our_lat_$leg" "their_lat_$leg" "<= 1.3"
done
exit "$failed"
