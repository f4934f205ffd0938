#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Written plans keep docs/reshard-plan.schema.json, and a few rules that a schema cannot say.
set -u
: "${RESHARD_BENCH:?}" "${SOURCE_DIR:?}"
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT

# dump NAME ARGUMENT...: plans one case without running it.
dump() {
    name=$1
    shift
    "$RESHARD_BENCH" --dry-run --nic-gbps 10 --dump-plan "$directory/$name.json" "$@" >"$directory/out" 2>&1 || {
        cat "$directory/out"
        exit 1
    }
}

dump broadcast -n 16 --src-mesh 2x4 --dst-mesh 2x4 --src-spec RS0R --dst-spec S0RR --shape 16x16x8 --dtype int32
dump allgather -n 9 --src-mesh 1x3 --dst-mesh 2x3 --src-spec S1R --dst-spec RR --shape 7x5 --dtype int16 \
    --partition chunk --strategy allgather --scheduler greedy
dump parts -n 16 --src-mesh 2x4 --dst-mesh 2x4 --src-spec S1RR --dst-spec S0RR --shape 1024x1024x16 --dtype int32 \
    --scheduler openshop --strategy auto
dump overlap -n 8 --src-mesh 2x4 --dst-mesh 4x2 --src-ranks 0-7 --dst-ranks 0-7 --src-spec S01R --dst-spec S1S0 \
    --shape 32x32 --dtype float32 --scheduler auto

# The system's interpreter has the schema package; a PATH may start with another.
PATH=/usr/bin:$PATH python3 - "$SOURCE_DIR/docs/reshard-plan.schema.json" "$directory"/*.json <<'EOF'
import json
import sys

import jsonschema

schema = json.load(open(sys.argv[1]))
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)
failures = 0
for path in sys.argv[2:]:
    plan = json.load(open(path))
    found = ["%s: %s" % ("/".join(map(str, e.absolute_path)), e.message) for e in validator.iter_errors(plan)]
    tasks, routes, transfers = plan.get("tasks", []), plan.get("routes", []), plan.get("transfers", [])
    if not (tasks and routes and transfers):
        found.append("no tasks, routes or transfers")
    for i, transfer in enumerate(transfers):
        volume = 1
        for low, high in tasks[transfer["task"]]["box"]:
            volume *= high - low
        if not (transfer["parent"] < i and transfer["first"] < transfer["end"] <= volume
                and transfer["route"] < len(routes)):
            found.append("transfer %d: %r of %d elements" % (i, transfer, volume))
    for sentence in found:
        print("FAILED: %s: %s" % (path, sentence))
    failures += len(found)
broken = dict(plan, version=1)
if not list(validator.iter_errors(broken)):
    print("FAILED: the schema accepts any version")
    failures += 1
sys.exit(failures != 0)
EOF
