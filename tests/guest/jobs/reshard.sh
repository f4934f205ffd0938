#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# reshard.sh TRANSPORT: reshards between two hosts of two ranks each, in one guest or in two. Every byte is checked by
# reshard-bench, and the packet counters prove that the bytes took the RDMA devices.
set -eu
. "$(dirname "$0")/common.sh"
transport=$1
iterations=2

# reshard WHAT BYTES OPTIONS…: BYTES reach the devices of this guest in each iteration.
reshard() {
    what=$1
    bytes=$(($2 * iterations))
    shift 2
    started=$(date +%s)
    export XM_METRICS_FILE="$OUT/metrics-%r.prom"
    counters "$bytes" ranks 2 "$RESHARD_BENCH" --transport "$transport" -w 0 -i "$iterations" --nic-gbps 1 "$@" \
        >"$out" 2>&1 || fail "$transport, $what: status $?"
    # Only rank 0 prints a report.
    [ "$NODE" -ne 0 ] || all_right || fail "$transport, $what: bytes were not checked, or wrong"
    ! grep -Eq ' (WARN|ERROR) ' "$out" || fail "$transport, $what: warnings"
    carried=$(cat "$OUT"/metrics-*.prom |
        awk '/^crossmesh_nic_bytes_total.*,nic="rxe.*"receive"/ { sum += $NF } END { printf "%d\n", sum }')
    [ "$carried" -ge "$bytes" ] || fail "$transport, $what: the ranks counted $carried bytes on the devices, not $bytes"
    rm "$OUT"/metrics-*.prom
    echo "$transport, $what: all right after $(($(date +%s) - started)) s ($(tail -n 1 "$out"))"
}

# The doctor sees the devices, and the hosts' are alike.
ranks 2 "$RESHARD_BENCH" --check --transport "$transport" >"$out" 2>&1 || fail "--check: status $?"
[ "$NODE" -ne 0 ] || grep -Eq '^ok +0-3 +RDMA MTUs on all hosts +4096$' "$out" || fail "--check: no RDMA MTUs"
[ "$NODE" -ne 0 ] || grep -Eq '^ok .* GIDs of rxe' "$out" || fail "--check: no GIDs"

mib=1048576
# 4 MiB from the first host to the second; each host's half of 8 MiB crosswise to the other.
if [ "$NODES" -eq 1 ]; then
    one_way=$((4 * mib)) crosswise=$((4 * mib))
else
    one_way=$((4 * mib * NODE)) crosswise=$((2 * mib))
fi
reshard "rows to columns" "$one_way" --src-mesh 2 --dst-mesh 2 --src-spec S0R --dst-spec RS0 --shape 1024x1024 \
    --dtype int32
reshard "one rank to all of the other host" "$one_way" --src-mesh 1 --dst-mesh 2 --src-ranks 0 --dst-ranks 2,3 \
    --src-spec RR --dst-spec RR --shape 1024x1024 --dtype float32 --strategy broadcast
reshard "all to all, both ways" "$crosswise" --src-mesh 4 --dst-mesh 4 --src-ranks 0-3 --dst-ranks 0-3 --src-spec S0R \
    --dst-spec RS0 --shape 2048x1024 --dtype int32
