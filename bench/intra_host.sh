#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How near reshard-bench comes to what this host can do between its own ranks: one rank to one rank against
# ucx_perftest, and one rank to four against a plain memory copy by four processes. All four take turns, round by
# round, so that whatever disturbs the machine disturbs all alike; the figures are medians over the rounds.
#
# intra_host.sh BUILD_DIRECTORY [ROUNDS [BYTES]]: 5 rounds of 1 GiB by default. Needs ucx_perftest (ucx-utils) and
# taskset. XM_ and UCX_ variables apply.
set -eu
[ $# -ge 1 ] || {
    echo "intra_host.sh: give the build directory" >&2
    exit 2
}
build=$1
rounds=${2:-5}
bytes=${3:-1073741824}
port=${INTRA_HOST_PORT:-$((20000 + $$ % 20000))}
for program in "$build/bench/reshard-bench" "$build/bench/baseline/memory_copy"; do
    [ -x "$program" ] || {
        echo "intra_host.sh: $program is not built" >&2
        exit 2
    }
done
for command in ucx_perftest taskset; do
    command -v "$command" >/dev/null || {
        echo "intra_host.sh: $command is not installed" >&2
        exit 2
    }
done
directory=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$directory"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# The first two cores that this process may use; one where there is only one.
cores=$(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (c = $1; c <= ($2 == "" ? $1 : $2); ++c) print c }')
first=$(echo "$cores" | sed -n 1p)
second=$(echo "$cores" | sed -n 2p)
second=${second:-$first}

# Each measures once and prints GB/s.
measure_perftest() {
    taskset -c "$first" ucx_perftest -t tag_bw -s "$bytes" -n 4 -w 1 -p "$port" >/dev/null 2>&1 &
    server=$!
    sleep 1
    taskset -c "$second" timeout 120 ucx_perftest 127.0.0.1 -t tag_bw -s "$bytes" -n 4 -w 1 -p "$port" 2>/dev/null |
        awk '/^Final/ { print $6 * 1.048576e-3 }'
    wait "$server" || true
    server=
    port=$((port + 1))
}
# One rank to so many others of the same host.
measure_reshard() {
    cpus=$2
    taskset -c "$cpus" "$build/bench/reshard-bench" -n $((1 + $1)) --hosts 1 --src-mesh 1 --dst-mesh "$1" --src-spec R \
        --dst-spec R --shape "$bytes" --dtype int8 --nic-gbps 10 --no-validate -w 1 -i 3 --json |
        awk -v copies="$1" '/"algbw_GBps"/ { sub(/,$/, "", $2); print $2 * copies }'
}
measure_memory() {
    "$build/bench/baseline/memory_copy" -k "$1" -b "$bytes" -i 3 | awk '!/^#/ { print $NF }'
}

round=0
while [ "$round" -lt "$rounds" ]; do
    measure_perftest >>"$directory/perftest"
    measure_reshard 1 "$first,$second" >>"$directory/one"
    measure_memory 4 >>"$directory/memory"
    measure_reshard 4 "$(echo "$cores" | tr '\n' ',' | sed 's/,$//')" >>"$directory/four"
    round=$((round + 1))
done

median() {
    sort -g "$directory/$1" | awk '{ v[NR] = $1 } END { if (NR) print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2; else print 0 }'
}
report() {
    awk -v what="$1" -v ours="$(median "$2")" -v against="$3" -v theirs="$(median "$4")" -v wanted="$5" 'BEGIN {
        if (!(theirs > 0)) { print "intra_host.sh: " against " measured nothing"; exit 1 }
        printf "%-28s %8.3f %-28s %8.3f %7.1f %8s\n", what, ours, against, theirs, 100 * ours / theirs, wanted }'
}
echo "# $rounds rounds of $bytes B, cores $(echo "$cores" | tr '\n' ' ')"
printf '# %-26s %8s %-28s %8s %7s %8s\n' "reshard-bench" "GB/s" "against" "GB/s" "%" "goal (%)"
report "1 rank to 1" one "ucx_perftest tag_bw" perftest 90
report "1 rank to 4, copies in all" four "memory_copy, 4 copies" memory 70
