#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# autopar solve on three problems of the contest: proved optimal, and the printed list says so to an
# independent evaluator. Bad input: one sentence, exit 2.
set -eu
fixtures=$SOURCE_DIR/tests/fixtures/iopddl
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

check() { # NAME OPTIMUM
    "$AUTOPAR" solve "$fixtures/$1.json.gz" 600 --quiet > "$scratch/$1.out"
    grep -q "^# cost $2, bound $2 (proved optimal)" "$scratch/$1.out" ||
        fail "$1: $(sed -n 2p "$scratch/$1.out"), not $2"
    python3 - "$fixtures/$1.json.gz" "$2" "$scratch/$1.out" <<'EOF'
import gzip, json, sys
problem = json.load(gzip.open(sys.argv[1]))["problem"]
choice = json.loads(open(sys.argv[3]).read().splitlines()[-1])
nodes, edges = problem["nodes"], problem["edges"]
cost = sum(costs[pick] for costs, pick in zip(nodes["costs"], choice))
for scope, cells in zip(edges["nodes"], edges["costs"]):
    at = 0
    for node in scope:
        at = at * len(nodes["costs"][node]) + choice[node]
    cost += cells[at]
changes = {}
for (low, high), usage, pick in zip(nodes["intervals"], nodes["usages"], choice):
    if low < high:
        changes[low] = changes.get(low, 0) + usage[pick]
        changes[high] = changes.get(high, 0) - usage[pick]
load = peak = 0
for time in sorted(changes):
    load += changes[time]
    peak = max(peak, load)
assert cost == int(sys.argv[2]), f"the list costs {cost}"
assert peak <= problem["usage_limit"], f"the list uses {peak}"
EOF
}

refuse() { # SENTENCE ARGUMENT...
    sentence=$1
    shift
    if "$AUTOPAR" solve "$@" > "$scratch/out" 2> "$scratch/err"; then
        fail "accepted: $*"
    else
        [ $? -eq 2 ] || fail "exit status of $*"
    fi
    [ ! -s "$scratch/out" ] || fail "output of $*"
    grep -q "$sentence" "$scratch/err" || fail "$*: $(cat "$scratch/err")"
}

check G 217039
if [ -z "${TEST_FEW:-}" ]; then
    check A 6548553650
    check C 84102392579
fi
refuse "No such file" "$scratch/none.json" 60
refuse "SECONDS" "$fixtures/G.json.gz" soon
gzip -dc "$fixtures/G.json.gz" | head -c 1000 > "$scratch/cut.json"
refuse "cut.json: line 1, column 1001: " "$scratch/cut.json" 60
echo '{"problem": {"usage_limit": 1, "nodes": {"intervals": [[0, 2]], "costs": [[1]], "usages": [[2]]}}}' > "$scratch/full.json"
refuse "1 more than the limit 1" "$scratch/full.json" 60
