# SPDX-License-Identifier: Apache-2.0
# What the jobs of the guests' tests share; they read it with ".". They run in a guest, where `wire`, `ranks` and
# `counters` are commands.
# shellcheck shell=sh
: "${RESHARD_BENCH:?}" "${OUT:?}"
out=$OUT/output
export XM_TIMEOUT="${XM_TIMEOUT:-120}" # the machine under the guest may be busy with other things

fail() {
    echo "FAILED: $*"
    cat "$out"
    exit 1
}

# received: packets that the RDMA devices have received so far.
received() {
    cat /sys/class/infiniband/*/ports/1/hw_counters/rcvd_pkts | awk '{ sum += $1 } END { printf "%d\n", sum }'
}

# eventually SECONDS COMMAND…: waits until the command succeeds.
eventually() {
    end=$(($(date +%s) + $1))
    shift
    until "$@"; do
        [ "$(date +%s)" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# all_right: reshard-bench has checked every byte of what it moved.
all_right() {
    grep -q '^# Out of bounds values : 0 OK$' "$out"
}
