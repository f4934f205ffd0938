#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the verbs transport makes of an RDMA device, against perftest on the same device: bandwidth of 1 MiB messages
# (ib_write_bw) and latency of 8 bytes (ib_write_lat). Each process has a core of its own. perftest polls; ours sleeps where
# bandwidth is measured, as it does by default, and polls for latency. They take turns, round by round; the figures are
# medians, also of the rounds' ratios. Ends with 1 when a ratio is not as wanted.
#
# verbs.sh [BUILD_DIRECTORY [ROUNDS]]: build/release and 5 rounds by default, on the devices in $RDMA_DEVICES (two ports
# "mlx5_0:1,mlx5_1:1", or one twice). A machine without RDMA devices runs it in a virtual machine that has some
# (docs/guest.md), where the ratios mean little and the figures nothing. Needs perftest. VERBS_MESSAGES (500) and
# VERBS_ROUND_TRIPS (1000) are what a round measures.
set -eu
folder=$(realpath "$(dirname "$0")")
. "$folder/turns.sh"
build=$(realpath "${1:-build/release}")
rounds=${2:-5}
messages=${VERBS_MESSAGES:-500}
round_trips=${VERBS_ROUND_TRIPS:-1000}
window=16
needs verbs.sh "$build/bench/transport-bench"
if [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
    exec "$folder/../tests/guest/guest" run --timeout 900 --env VERBS_MESSAGES="$messages" \
        --env VERBS_ROUND_TRIPS="$round_trips" -- "$folder/verbs.sh" "$build" "$rounds"
fi
needs verbs.sh ib_write_bw ib_write_lat taskset
: "${RDMA_DEVICES:?verbs.sh: RDMA_DEVICES names the two ports, e.g. mlx5_0:1,mlx5_1:1}"
first=${RDMA_DEVICES%%,*}
second=${RDMA_DEVICES##*,}
find_cores
work=$(mktemp -d)
server=
failed=0
port=29600
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

give_up() {
    cat "$work/server" "$work/client" >&2
    exit 1
}

# theirs FILE COLUMN FACTOR PROGRAM OPTIONS…: appends a column of perftest's line of results. The server has no way to
# say that it is ready, so the client tries.
theirs() {
    file=$1 column=$2 factor=$3 program=$4
    shift 4
    taskset -c "$first_core" "$program" -F -d "${first%:*}" -i "${first#*:}" "$@" >"$work/server" 2>&1 &
    server=$!
    tries=0
    until taskset -c "$second_core" "$program" -F -d "${second%:*}" -i "${second#*:}" "$@" 127.0.0.1 >"$work/client" 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -ge 50 ] || ! kill -0 "$server" 2>/dev/null; then
            give_up
        fi
        sleep 0.1
    done
    wait "$server" || true
    server=
    awk -v column="$column" -v factor="$factor" '/^ *[0-9]+ +[0-9]+ / { value = $column * factor } END { print value }' \
        "$work/client" >>"$work/$file"
}

# ours FILE COLUMN SIZE COUNT spin|sleep: appends a column of transport-bench's row.
ours() {
    port=$((port + 1))
    export XM_PROGRESS=$5 XM_TRANSPORT=verbs WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
    RANK=1 XM_NICS=$second taskset -c "$second_core" "$build/bench/transport-bench" --size "$3" --iterations "$4" \
        --window "$window" >"$work/server" 2>&1 &
    server=$!
    RANK=0 XM_NICS=$first taskset -c "$first_core" "$build/bench/transport-bench" --size "$3" --iterations "$4" \
        --window "$window" >"$work/client" 2>&1 || give_up
    wait "$server" || give_up
    server=
    awk -v column="$2" '!/^#/ { print $column }' "$work/client" >>"$work/$1"
}

round=0
while [ "$round" -lt "$rounds" ]; do
    # MB/s of 10^6 bytes, on average; microseconds, the typical (median) ones.
    theirs their_bandwidth 4 125 ib_write_bw -s 1048576 -n "$messages" -t "$window" --report_gbits
    ours our_bandwidth 4 1MiB "$messages" sleep
    theirs their_latency 5 1 ib_write_lat -s 8 -n "$round_trips"
    ours our_latency 3 8 "$round_trips" spin
    round=$((round + 1))
done

echo "# $rounds rounds in turns on $first and $second: $messages messages of 1 MiB, $window in flight; $round_trips messages of 8 B there and back"
head_of_rows verbs perftest
row "1 MiB, against ib_write_bw" MB/s our_bandwidth their_bandwidth ">= 0.9"
row "8 B one way, against ib_write_lat" us our_latency their_latency "<= 1.5"
exit "$failed"
