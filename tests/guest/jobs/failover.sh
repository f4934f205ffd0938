#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# failover.sh TRANSPORT [ROUNDS]: hosts with two RDMA devices each, one of which is lost in the middle of a job: its cable is
# cut, or its port goes down, on either host. The other one carries on, every byte is right, and each lost NIC is said.
# With UCX only the cable is cut: the driver of these devices breaks queue pairs that send while a port is down, and UCX
# 1.13 ends the process over that (docs/transport.md, "Limits").
set -eu
. "$(dirname "$0")/common.sh"
# Here a NIC is lost, which queue pairs tell; a path that is only slow, since the machine under the guest is busy, is not.
export XM_HEARTBEAT=5
transport=$1
rounds=${2:-1}
export NICS_0=rxe0:1,rxe2:1 NICS_1=rxe1:1,rxe3:1

is_moving() {
    [ "$(received)" -gt $((begin + 600)) ] || ! kill -0 "$job" 2>/dev/null
}

# survive NAME DEVICES COMMAND…: a job that moves 1 MiB both ways in each iteration, and what happens meanwhile.
survive() {
    name=$1 devices=$2
    shift 2
    ranks 2 "$RESHARD_BENCH" --transport "$transport" -w 0 -i 60 --nic-gbps 1 --src-mesh 4 --dst-mesh 4 --src-ranks 0-3 \
        --dst-ranks 0-3 --src-spec S0R --dst-spec RS0 --shape 1024x512 --dtype int32 >"$out" 2>&1 &
    job=$!
    begin=$(received)
    eventually 200 is_moving || fail "$name: nothing moves"
    kill -0 "$job" 2>/dev/null || fail "$name: the job is over before the test began"
    "$@"
    status=0
    wait "$job" || status=$?
    [ "$status" -eq 0 ] || fail "$name: status $status"
    all_right || fail "$name: bytes were not checked, or wrong"
    grep -qE "NIC $devices:1 towards rank [0-3] is lost" "$out" || fail "$name: nobody says so"
    ! grep "is lost" "$out" | grep -qvE "NIC $devices:1 " || fail "$name: another NIC is lost"
    echo "$name: every byte is right; $(grep -c "is lost" "$out") warnings"
}

wire second
for _ in $(seq "$rounds"); do
    survive "cable cut" "rxe[01]" wire noise loss 100%
    wire quiet
    [ "$transport" != ucx ] || continue
    survive "port of the second host down" "rxe[23]" ip link set veth3 down
    wire blink veth3
    survive "port of the first host down" "rxe[01]" ip link set veth0 down
    wire blink veth0
done
