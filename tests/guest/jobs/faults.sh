#!/bin/sh
# faults.sh TRANSPORT: what a job does when the cable between its hosts loses packets, or is
# cut. The ranks' bootstrap does not use the cable, so nobody but the transport can notice.
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

cut() {
    sentence='reshard-bench: .*rank [0-3] .* is gone'
    start 100000
    moving
    wire noise loss 100%
    cut_at=$(date +%s%N)
    status=0
    wait "$job" || status=$?
    milliseconds=$((($(date +%s%N) - cut_at) / 1000000))
    wire quiet
    [ "$status" -ne 0 ] || fail "$transport, cable cut: status 0"
    [ "$milliseconds" -lt 5000 ] || fail "$transport, cable cut: noticed after $milliseconds ms"
    grep -q "$sentence" "$out" || fail "$transport, cable cut: no '$sentence'"
    echo "$transport: the cut was noticed after $milliseconds ms: $(grep "$sentence" "$out" | head -n 1)"
}

loss_and_delay
cut
