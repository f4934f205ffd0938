#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# reshard-bench --show-topology prints the golden tables, and refuses what it cannot do.
set -u
: "${RESHARD_BENCH:?}" "${SOURCE_DIR:?}"
failures=0
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
fixtures=$SOURCE_DIR/tests/fixtures/hwloc
unset XM_TOPOLOGY
nics=

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

show() {
    XM_NICS=$nics "$RESHARD_BENCH" --show-topology "$@" >"$directory/out" 2>"$directory/err"
}

count=0
for golden in "$fixtures"/*.choice.txt "$fixtures"/own/*.choice.txt; do
    machine=${golden%.choice.txt}
    show --topology "$machine.xml" || fail "$machine: status $?"
    [ ! -s "$directory/err" ] || fail "$machine: $(cat "$directory/err")"
    sed '1,/^$/d' "$directory/out" >"$directory/choice"
    cmp "$golden" "$directory/choice" || fail "$machine: another choice"
    if [ -e "$machine.txt" ]; then
        sed '/^$/,$d' "$directory/out" >"$directory/devices"
        cmp "$machine.txt" "$directory/devices" || fail "$machine: other devices"
    fi
    count=$((count + 1))
done
[ "$count" -ge 20 ] || fail "only $count golden tables"

# This machine, whatever it is.
show || fail "this machine: $(cat "$directory/err")"
grep -q '^packages ' "$directory/out" && grep -q '^NIC choice: ' "$directory/out" || fail "this machine: $(cat "$directory/out")"

# Measured rates: as fast as the near one, the far ones lose.
show --topology "$fixtures/own/unequal-nics.xml" --uneven 25,40,40
grep -q '^  gpu0 *-> mlx5_0:1  same PCIe switch, 25 Gb/s$' "$directory/out" || fail "--uneven: $(cat "$directory/out")"
show --topology "$fixtures/own/unequal-nics.xml" --nic-gbps 10
grep -q '^  gpu0 *-> mlx5_0:1  same PCIe switch, 10 Gb/s$' "$directory/out" || fail "--nic-gbps: $(cat "$directory/out")"

# What a user leaves out or names.
nics=^mlx5_1
show --topology "$fixtures/own/two-sockets.xml"
grep -q '^  mlx5_1:1  XM_NICS leaves it out$' "$directory/out" || fail "XM_NICS=^mlx5_1: $(cat "$directory/out")"
grep -q '^  gpu3 *-> mlx5_0:1 ' "$directory/out" || fail "XM_NICS=^mlx5_1: $(cat "$directory/out")"
nics=lo
show --topology "$fixtures/own/two-sockets.xml"
grep -q '^XM_NICS=lo is used instead of this:$' "$directory/out" || fail "XM_NICS=lo: $(cat "$directory/out")"

nics=
# refuse TEXT ARGUMENTS…: status 2 and one sentence.
refuse() {
    text=$1
    shift
    show "$@"
    status=$?
    if [ "$status" -ne 2 ] || [ "$(wc -l <"$directory/err")" -ne 1 ] || ! grep -qF -- "$text" "$directory/err"; then
        fail "$*: status $status, $(cat "$directory/err")"
    fi
}
refuse "there is no JSON document" --json
refuse "/nonexistent.xml: No such file" --topology /nonexistent.xml
refuse "not an hwloc topology" --topology "$fixtures/README.md"
nics=^mlx5_7
refuse "no NIC 'mlx5_7' to leave out" --topology "$fixtures/own/two-sockets.xml"

[ "$failures" -eq 0 ] || exit 1
echo "$count machines"
