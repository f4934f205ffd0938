#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# faults.sh TRANSPORT: what a job does when the cable between its hosts loses packets, when a port goes down and comes
# back, and when the cable is cut. The ranks' bootstrap does not use the cable, so nobody but the transport can notice.
set -eu
. "$(dirname "$0")/common.sh"
transport=$1

# start ITERATIONS: a job that moves 1 MiB both ways in each iteration, in the background.
start() {
    ranks 2 "$RESHARD_BENCH" --transport "$transport" -w 0 -i "$1" --nic-gbps 1 --src-mesh 4 --dst-mesh 4 \
        --src-ranks 0-3 --dst-ranks 0-3 --src-spec S0R --dst-spec RS0 --shape 1024x512 --dtype int32 >"$out" 2>&1 &
    job=$!
    begin=$(received)
}

# More than connecting takes: data is moving.
is_moving() {
    [ "$(received)" -gt $((begin + 600)) ] || ! kill -0 "$job" 2>/dev/null
}

moving() {
    eventually 60 is_moving || fail "$transport: nothing moves"
    kill -0 "$job" 2>/dev/null || fail "$transport: the job is over before the test began"
}

loss_and_delay() {
    wire noise loss 1% delay 2ms
    start 4
    wait "$job" || fail "$transport, 1 % loss and 2 ms delay: status $?"
    wire quiet
    all_right || fail "$transport, 1 % loss and 2 ms delay: bytes were not checked, or wrong"
    echo "$transport: every byte is right with 1 % of the packets lost, after 2 ms"
}

# Packets are repeated for a second, so a port that comes back sooner costs nothing but time, unless Soft-RoCE wants to
# send in the very moment in which the kernel has no route: that is an error of the connection, and the rank is named. What
# never happens are wrong bytes and jobs that hang.
port_down_and_up() {
    sentence='reshard-bench: .*rank [0-3] .* \(is gone\|has lost the connection to rank [0-3]\|lives, but no message has passed\)'
    export XM_LOG=info # tells what the devices report
    start 150
    moving
    blinks=0
    while [ "$blinks" -lt 3 ] && kill -0 "$job" 2>/dev/null; do
        wire blink veth1
        blinks=$((blinks + 1))
        begin=$(received)
        eventually 60 is_moving || fail "$transport, port down and up: nothing moves afterwards"
    done
    status=0
    wait "$job" || status=$?
    unset XM_LOG
    # Both ends of the cable lose it; a rank whose connection is lost as well may end before it hears of that.
    grep -qE 'rank [0-3]: rxe[01]:1: port error' "$out" || fail "$transport, port down and up: no port went down"
    if [ "$status" -eq 0 ]; then
        all_right || fail "$transport, port down and up: bytes were not checked, or wrong"
        echo "$transport: every byte is right although a port went down and up $blinks times"
    else
        grep -q "$sentence" "$out" || fail "$transport, port down and up: status $status without '$sentence'"
        echo "$transport: a port went down and up $blinks times: $(grep "$sentence" "$out" | head -n 1)"
    fi
}

# Naps of a fifth of a second, one after the other: what the machine under the guest takes away is not counted.
naps() {
    while sleep 0.2; do
        echo
    done >"$OUT/naps"
}

cut() {
    sentence='reshard-bench: .*rank [0-3] .* \(is gone\|has lost the connection to rank [0-3]\|lives, but no message has passed\)'
    start 100000
    moving
    wire noise loss 100%
    cut_at=$(date +%s%N)
    naps &
    clock=$!
    status=0
    wait "$job" || status=$?
    milliseconds=$((($(date +%s%N) - cut_at) / 1000000))
    kill "$clock"
    wire quiet
    [ "$status" -ne 0 ] || fail "$transport, cable cut: status 0"
    [ "$(wc -l <"$OUT/naps")" -lt 25 ] || fail "$transport, cable cut: noticed after $milliseconds ms"
    grep -q "$sentence" "$out" || fail "$transport, cable cut: no '$sentence'"
    echo "$transport: the cut was noticed after $milliseconds ms: $(grep "$sentence" "$out" | head -n 1)"
}

loss_and_delay
port_down_and_up
cut
