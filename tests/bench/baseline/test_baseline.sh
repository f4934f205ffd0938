#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The programs that reshard-bench is compared with: right bytes, well-formed rows, one sentence on bad input.
set -u
. "$(dirname "$0")/../reshard_bench/reshard_bench_checks.sh"
: "${SOCKET_COPY:?}" "${MEMORY_COPY:?}" "${SOURCE_DIR:?}"
# row FIELDS CONDITION COMMAND...: status 0 and one row with so many fields, for which the awk condition holds.
row() {
    fields=$1
    condition=$2
    shift 2
    echo "$*"
    if ! timeout 120 "$@" >"$out" 2>&1; then
        fail "status not 0: $*"
    elif ! awk "!/^#/ { ++rows; good = NF == $fields && ($condition) } END { exit !(rows == 1 && good) }" "$out"; then
        fail "not one row with $condition: $*"
    fi
}

# refuse TEXT COMMAND...: status 2 and one sentence with TEXT.
refuse() {
    text=$1
    shift
    timeout 60 "$@" >"$out" 2>&1
    status=$?
    if [ "$status" -ne 2 ] || [ "$(wc -l <"$out")" -ne 1 ] || ! grep -qF -- "$text" "$out"; then
        fail "status $status, expected 2 and one line with '$text': $*"
    fi
}

# Every byte is checked in every run; a byte more than a piece, several connections between the same ranks, both ways.
row 8 '$1 == 8 * 1048577 && $2 > 0 && $2 <= $3 && $3 <= $4 && $6 > 0 && $8 == 0' \
    "$SOCKET_COPY" -n 4 --pairs 0-1:2-3,2:0,3:1,0:3,0:3 -b 1048577 -w 1 -i 3
row 8 '$1 == 1 && $8 == 0' "$SOCKET_COPY" -n 2 --pairs 1:0 -b 1 -w 0 -i 1
# Ranks without a part, and a launcher's ranks.
row 8 '$1 == 65536 && $8 == 0' "$SOCKET_COPY" -n 4 --pairs 1:2 -b 65536 -i 2
port=$("$(dirname "$0")/../reshard_bench/free_port.py")
RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 60 "$SOCKET_COPY" -p 0:1 -b 4kB -i 2 >"$directory/other" 2>&1 &
export RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port"
row 8 '$1 == 4000 && $8 == 0' "$SOCKET_COPY" -p 0:1 -b 4kB -i 2
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
wait $! || fail "rank 1 of a launcher's job"
refuse "--pairs is not given" "$SOCKET_COPY" -n 2
refuse "--pairs: rank 0 sends to itself" "$SOCKET_COPY" -n 2 --pairs 0:0
refuse "names rank 2, but the job has ranks 0 … 1" "$SOCKET_COPY" -n 2 --pairs 0:2
refuse "and -n is not given" "$SOCKET_COPY" --pairs 0:1
refuse "--bytes: 0 bytes hold nothing" "$SOCKET_COPY" -n 2 --pairs 0:1 -b 0

row 5 '$1 == 3 && $2 > 0 && $2 <= $3 && $3 <= $4 && $5 > 0' "$MEMORY_COPY" -k 3 -b 1MiB -i 4
row 5 '$1 == 1' "$MEMORY_COPY" -b 1 -i 1
refuse "--bytes: 0 bytes hold nothing" "$MEMORY_COPY" -b 0
refuse "--copies: 0 is outside 1 … 256" "$MEMORY_COPY" -k 0
for program in "$SOCKET_COPY" "$MEMORY_COPY"; do
    timeout 60 "$program" --help >"$out" 2>&1 || fail "$program --help"
    grep -q -- '--bytes=BYTES' "$out" || fail "$program --help does not list --bytes"
done
refuse "intra_host.sh: give the build directory" "$SOURCE_DIR/bench/intra_host.sh"
refuse "is not built" "$SOURCE_DIR/bench/intra_host.sh" /nonexistent

finish
