#!/bin/sh
# What the verbs transport makes of an RDMA device, against perftest on the same device: bandwidth of 1 MiB messages
# (ib_write_bw) and latency of 8 bytes (ib_write_lat). Both take turns, round by round, so that whatever disturbs the
# machine disturbs both alike; the figures are medians, also of the rounds' ratios.
#
# verbs.sh BUILD_DIRECTORY [ROUNDS]: 5 rounds by default, on the devices in $RDMA_DEVICES (two ports "mlx5_0:1,mlx5_1:1",
# or one twice). A machine without RDMA devices runs it in a virtual machine that has some (docs/guest.md), where the
# ratios mean little and the figures nothing. Needs perftest. VERBS_MESSAGES (500) and VERBS_ROUND_TRIPS (1000) are what
# a round measures.
set -eu
[ $# -ge 1 ] || {
    echo "verbs.sh: give the build directory" >&2
    exit 2
}
build=$(realpath "$1")
rounds=${2:-5}
messages=${VERBS_MESSAGES:-500}
round_trips=${VERBS_ROUND_TRIPS:-1000}
window=16
for program in "$build/bench/transport-bench" ib_write_bw ib_write_lat; do
    command -v "$program" >/dev/null || {
        echo "verbs.sh: there is no $program" >&2
        exit 2
    }
done
if [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
    exec "$(dirname "$0")/../tests/guest/guest" run --timeout 900 --env VERBS_MESSAGES="$messages" \
        --env VERBS_ROUND_TRIPS="$round_trips" -- "$(realpath "$0")" "$build" "$rounds"
fi
: "${RDMA_DEVICES:?verbs.sh: RDMA_DEVICES names the two ports, e.g. mlx5_0:1,mlx5_1:1}"
first=${RDMA_DEVICES%%,*}
second=${RDMA_DEVICES##*,}
directory=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$directory"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# perftest PROGRAM OPTIONS…: its line of results. The server has no way to say that it is ready, so the client tries.
perftest() {
    program=$1
    shift
    "$program" -F -d "${first%:*}" -i "${first#*:}" "$@" >"$directory/server" 2>&1 &
    server=$!
    tries=0
    until "$program" -F -d "${second%:*}" -i "${second#*:}" "$@" 127.0.0.1 >"$directory/client" 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -ge 50 ] || ! kill -0 "$server" 2>/dev/null; then
            cat "$directory/server" "$directory/client" >&2
            exit 1
        fi
        sleep 0.1
    done
    wait "$server" || true
    server=
    awk '/^ *[0-9]+ +[0-9]+ / { line = $0 } END { print line }' "$directory/client"
}

# ours SIZE COUNT COLUMN
ours() {
    XM_PROGRESS=spin "$build/bench/transport-bench" --transport verbs --nics "$first" --nics "$second" --size "$1" \
        --iterations "$2" --window "$window" | awk -v column="$3" '!/^#/ { print $column }'
}

# perftest polls, and so do we.
round=0
while [ "$round" -lt "$rounds" ]; do
    # Gbit/s on average; microseconds, the typical (median) ones.
    perftest ib_write_bw -s 1048576 -n "$messages" -t "$window" --report_gbits |
        awk '{ print $4 * 125 }' >>"$directory/their_bandwidth"
    ours 1MiB "$messages" 4 >>"$directory/our_bandwidth"
    perftest ib_write_lat -s 8 -n "$round_trips" | awk '{ print $5 }' >>"$directory/their_latency"
    ours 8 "$round_trips" 3 >>"$directory/our_latency"
    round=$((round + 1))
done

median() {
    sort -g | awk '{ v[NR] = $1 } END { if (NR) print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2; else print 0 }'
}

# report WHAT UNIT: medians of both sides, and of the rounds' ratios ours / theirs.
report() {
    ratio=$(paste "$directory/our_$1" "$directory/their_$1" | awk '$2 > 0 { print $1 / $2 }' | median)
    printf '%-10s %-6s %12.2f %12.2f %8.3f\n' "$1" "$2" "$(median <"$directory/our_$1")" "$(median <"$directory/their_$1")" "$ratio"
}
echo "# $rounds rounds on $first and $second: $messages messages of 1 MiB, $window in flight; $round_trips messages of 8 B there and back"
printf '# %-8s %-6s %12s %12s %8s\n' "" "" "verbs" "perftest" "ratio"
report bandwidth MB/s
report latency us
