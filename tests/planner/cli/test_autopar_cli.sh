#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# autopar as a user meets it: results, and for every bad input one sentence and exit status 2.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

# good NAME TEXT command…: succeeds and prints TEXT.
good() {
    name=$1 text=$2
    shift 2
    "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ $status -eq 0 ] || fail "$name: exit status $status: $(cat "$work/err")"
    grep -qF -e "$text" "$work/out" || fail "$name: the output lacks '$text': $(cat "$work/out")"
    [ -s "$work/err" ] && fail "$name: unexpected: $(cat "$work/err")"
}

# bad NAME SENTENCE command…: exit status 2 and exactly one line with SENTENCE.
bad() {
    name=$1 text=$2
    shift 2
    "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ $status -eq 2 ] || fail "$name: exit status $status, expected 2"
    grep -qF -e "$text" "$work/err" || fail "$name: the sentence lacks '$text': $(cat "$work/err")"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$name: not one line: $(cat "$work/err")"
    [ -s "$work/out" ] && fail "$name: output in spite of the error: $(cat "$work/out")"
}

cluster=$SOURCE_DIR/tests/fixtures/profiles/lab-2x4.json
plan=$work/plan.json

good help "Usage: autopar COMMAND" "$AUTOPAR" --help
good version "autopar 0." "$AUTOPAR" --version
for command in probe plan replan shard solve simulate import compare explain export; do
    good "$command --help" "Usage: autopar $command" "$AUTOPAR" $command --help
done
bad "no command" "autopar: a command is needed" "$AUTOPAR"
bad "unknown command" "unknown command 'pln'; did you mean 'plan'?" "$AUTOPAR" pln
bad "bad setting" "XM_TIMEOUT: 'soon'" env XM_TIMEOUT=soon "$AUTOPAR" plan
XM_TIMOUT=3 "$AUTOPAR" import --list-models 2>"$work/warned" | grep -q gpt-1.3b || fail "an unknown setting stops autopar"
grep -q "warning: unknown setting XM_TIMOUT; did you mean XM_TIMEOUT?" "$work/warned" || fail "no warning of XM_TIMOUT"

# -J FILE writes what --json prints, in every command.
same() {
    "$@" --json >"$work/printed" && "$@" -J "$work/written" >/dev/null && cmp "$work/printed" "$work/written" ||
        fail "$*: --json and -J differ"
}
same "$AUTOPAR" plan --model gpt-125m --cluster "$cluster" --stages 2 --micro-batches 8
same "$AUTOPAR" import gpt-125m
same "$AUTOPAR" import --list-models
same "$AUTOPAR" plan --like piper "$SOURCE_DIR/tests/fixtures/piper/bert32a100.json" --devices 8

good plan "predicted step" "$AUTOPAR" plan --model gpt-1.3b --cluster "$cluster" --stages 2 \
    -o "$plan" --plot "$work/plan.svg"
grep -q '"format": "crossmesh-plan"' "$plan" || fail "plan.json is no plan"
grep -q '</svg>' "$work/plan.svg" || fail "plan.svg is no figure"
python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$work/plan.svg" ||
    fail "plan.svg is not well-formed"
good "plan --json" '"reshardings"' "$AUTOPAR" plan --model gpt-125m --cluster "$cluster" \
    --hosts 1 --devices-per-host 2 --global-batch 32 --micro-batches 4,8 --json
good explain "runner-up" "$AUTOPAR" explain "$plan" --cluster "$cluster"
good "explain --json" '"decisions"' "$AUTOPAR" explain "$plan" --cluster "$cluster" --json

# Unequal hosts in turn: stages take them in another order, which everybody reads.
sed 's/"version": 1,/"version": 2,/; s/"nic": {"bytes_per_s": 1.195e9}/"nic": {"bytes_per_s": 1.195e9, "hosts": [1e9, 1e8]}/' \
    "$cluster" >"$work/turns.json"
turned="--model gpt-125m --cluster $work/turns.json --hosts 4 --devices-per-host 1 --global-batch 32 --micro-batches 8 --stages 4"
# shellcheck disable=SC2086 # a list of options
{
    good "plan: host order" "# hosts differ: the order below is the best found of all 6 orders" "$AUTOPAR" plan $turned \
        -o "$work/turned.json" --plot "$work/turned.svg"
    grep -q "^# hosts in the order " "$work/out" || fail "the order of hosts is not printed: $(cat "$work/out")"
    grep -q '"host_order": \[' "$work/turned.json" || fail "the plan lacks its order of hosts"
    [ "$(grep -o 'host [0-3]' "$work/turned.svg" | tr -d '\n')" != "host 0host 1host 2host 3" ] ||
        fail "the figure has the hosts in the profile's order"
    good "plan --keep-host-order" "predicted step" "$AUTOPAR" plan $turned --keep-host-order
    grep -q "^# hosts in\|^# hosts differ" "$work/out" && fail "hosts were to keep their order: $(cat "$work/out")"
}
good "simulate: host order" "step " "$AUTOPAR" simulate "$work/turned.json" --cluster "$work/turns.json"
good "explain: host order" "order of hosts" "$AUTOPAR" explain "$work/turned.json" --cluster "$work/turns.json"
good "export: host order" '"devices"' "$AUTOPAR" export "$work/turned.json" --to torch
python3 -c 'import json, sys; plan = json.load(open(sys.argv[1])); del plan["digest"]
plan["cluster"]["host_order"].append(0); print(json.dumps(plan))' "$work/turned.json" >"$work/wrong.json"
bad "simulate: wrong host order" "host_order must be a list of the 4 hosts" "$AUTOPAR" simulate "$work/wrong.json"

# Nothing of the provenance is cut, the times have an axis, and lanes are stages.
tr '\n' ' ' <"$work/plan.svg" | sed 's/<[^>]*>/ /g' | tr -s ' ' >"$work/words"
grep -q "curves latency + bytes / bandwidth .* stage 0: .* time (s)" "$work/words" || fail "plan.svg lacks its costs or an axis"
"$AUTOPAR" simulate "$plan" --plot "$work/lanes.svg" --trace "$work/lanes.json" >"$work/lanes"
grep -q '^#.* stage .*busy' "$work/lanes" && grep -q '>stage 1<' "$work/lanes.svg" && grep -q '>time (s)<' "$work/lanes.svg" &&
    grep -q '"gradients from stage 1"' "$work/lanes.json" && ! grep -q device "$work/lanes.svg" || fail "simulate names no stages"

# Files of another kind are told as what they are.
bad "a plan as profile" "$plan: this is a parallel plan, not a cluster profile" \
    "$AUTOPAR" plan --model gpt-1.3b --cluster "$plan"
bad "a profile as plan" "this is a cluster profile, not a parallel plan" "$AUTOPAR" simulate "$cluster"
bad "a plan as model" "this is a parallel plan, not a model's graph" "$AUTOPAR" import "$plan"

good simulate "under 1f1b" "$AUTOPAR" simulate "$plan" --plot "$work/timeline.svg" --trace "$work/trace.json"
python3 -c 'import sys, xml.dom.minidom as m, json; m.parse(sys.argv[1]); json.load(open(sys.argv[2]))' \
    "$work/timeline.svg" "$work/trace.json" || fail "the timelines are not well-formed"
for schedule in gpipe interleaved eager-1f1b eager-1f1b-w chimera zb-h1 zb-h2 terapipe pipedream-2bw zb-v dualpipev; do
    good "simulate $schedule" "under $schedule" "$AUTOPAR" simulate "$plan" --schedule $schedule \
        --micro-batches 16 --cluster "$cluster"
done
good "simulate --json" '"makespan_ns"' "$AUTOPAR" simulate "$plan" --micro-batches 4 --blocking --json
bad "simulate: schedule" "unknown pipeline schedule 'gpip'; did you mean gpipe?" \
    "$AUTOPAR" simulate "$plan" --schedule gpip
bad "simulate: numbers" "interleaved needs micro-batches in multiples of the 2 devices, not 3" \
    "$AUTOPAR" simulate "$plan" --schedule interleaved --micro-batches 3
good "simulate: slices" "slices of " "$AUTOPAR" simulate "$plan" --schedule terapipe \
    --slice-times "$SOURCE_DIR/tests/fixtures/slices/affine.txt"
sed '0,/{/s//{"runtime": {"jitter": 0.25},/' "$cluster" > "$work/jitter.json"
for share in "--jitter 0.25 --cluster $cluster" "--cluster $work/jitter.json"; do
    # shellcheck disable=SC2086
    "$AUTOPAR" simulate "$plan" --schedule varuna $share > "$work/${share%% *}.txt"
done
cmp "$work/--jitter.txt" "$work/--cluster.txt" || fail "varuna does not take the profile's jitter"
bad "simulate: slices" "a line is 'length context seconds'" "$AUTOPAR" simulate "$plan" --schedule terapipe \
    --slice-times "$plan"
good "replan: frozen" "layers 0-5 are frozen" "$AUTOPAR" replan "$plan" --cluster "$cluster" --frozen 6 -o "$work/frozen.json"
good "replan: still frozen" "layers 0-5 are frozen" "$AUTOPAR" replan "$work/frozen.json" --cluster "$cluster"
good "explain: frozen" "layers 0-5 are frozen" "$AUTOPAR" explain "$work/frozen.json" --cluster "$cluster"
good "replan: a host lost" "1 hosts x 4 devices" "$AUTOPAR" replan "$plan" --cluster "$cluster" --lost 0
bad "replan: all lost" "no host is left" "$AUTOPAR" replan "$plan" --cluster "$cluster" --lost 0,1
bad "replan: a host that is not there" "the cluster's hosts are 0 to 1" "$AUTOPAR" replan "$plan" --cluster "$cluster" --lost 2
bad "replan: all frozen" "at least one is trained" "$AUTOPAR" replan "$plan" --cluster "$cluster" --frozen 1000
bad "replan: no cluster" "--cluster is needed" "$AUTOPAR" replan "$plan" --frozen 1
good "plan --schedule auto" '"kind": "' "$AUTOPAR" plan --model gpt-125m --cluster "$cluster" \
    --global-batch 32 --micro-batches 8 --stages 2 --schedule auto --json
for schedule in pipedream-2bw pipedream pipemare hetpipe; do
    good "plan --schedule $schedule" "schedule $schedule" "$AUTOPAR" plan --model gpt-125m \
        --cluster "$cluster" --global-batch 32 --stages 2 --schedule $schedule -o "$work/late.json"
    good "explain $schedule" "schedule" "$AUTOPAR" explain "$work/late.json" --cluster "$cluster"
done
# More numbers of micro-batches never give a slower plan; 16 and 64 fit only in stages sliced for the
# schedule's own memory.
tight() {
    "$AUTOPAR" plan --model gpt-125m --cluster "$cluster" --global-batch 64 --stages 2 --recompute on \
        --schedule zb-h2 --memory-limit 700MiB --micro-batches "$1" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["predicted"]["step_s"])'
}
alone=$(tight 32) among=$(tight 16,32,64)
printf '%s %s\n' "$among" "$alone" | awk '{ exit !(NF == 2 && $1 <= $2 * 1.001) }' ||
    fail "plan: '$among' among others, '$alone' alone"
bad "plan: schedule" "autopar simulate shows" "$AUTOPAR" plan --model gpt-125m --cluster "$cluster" \
    --schedule chimera

like=$SOURCE_DIR/tests/fixtures
good "plan --like piper" "time per sample 0.165856 s on 8 devices, no plan is faster" "$AUTOPAR" plan \
    --like piper "$like/piper/bert32a100.json" --devices 8 --micro-batches 512 \
    --memory-limit 8GiB --bandwidth 25GiB
good "plan --like piper --json" '"dataParallelDegree"' "$AUTOPAR" plan --like piper \
    "$like/piper/bert32a100.json" --json
good "plan --like dnn-partitioning" "largest load 41.7458 contiguous (optimal" "$AUTOPAR" plan \
    --like dnn-partitioning "$like/dnn-partitioning/bert24_training.json"
bad "plan: unknown planner" "unknown planner 'pipr'; did you mean piper?" "$AUTOPAR" plan --like pipr x
galvatron=$SOURCE_DIR/tests/fixtures/galvatron/gpt-125m-data.json
while IFS='|' read -r change text; do
    sed "$change" "$galvatron" > "$work/galvatron.json"
    bad "plan: galvatron's file" "$text" "$AUTOPAR" plan --like galvatron --model gpt-125m --cluster "$cluster" \
        --import-strategy "$work/galvatron.json"
done << 'END'
s/"12",/"11",/|'pp_division' has 11 layers
s/"tp_sizes_enc": "1,/"tp_sizes_enc": "/|list of 11 numbers
s/"use_sp": "0/"use_sp": "1/|sequence parallelism
s/"checkpoint": "0/"checkpoint": "1/|of some layers only
s/"chunks": 8/"chunks": 0/|are 1 or more
s/"tp_sizes_enc": "1/"tp_sizes_enc": "3/|degree of 3
END
bad "plan: galvatron's file for another planner" "is for --like flexflow or galvatron" "$AUTOPAR" plan --like alpa \
    --model gpt-125m --cluster "$cluster" --import-strategy "$galvatron"
bad "plan: like without input" "--like piper needs --model, or an input file" "$AUTOPAR" plan --like piper
bad "plan: like and model" "--model has no meaning with --like" "$AUTOPAR" plan --like piper x --model y
bad "plan: like, no file" "cannot read $work/none.json" "$AUTOPAR" plan --like piper "$work/none.json"

few="--model gpt-125m --cluster $cluster --hosts 1 --devices-per-host 4 --global-batch 32 --micro-batches 2,8"
# shellcheck disable=SC2086 # a list of words
good compare "where it differs from default" "$AUTOPAR" compare $few --like megatron,pase
for row in megatron pase default; do
    grep -q "^  $row " "$work/out" || fail "compare has no row $row: $(cat "$work/out")"
done
[ "$(grep -c '^  ' "$work/out")" -eq 3 ] || fail "compare: not three rows: $(cat "$work/out")"
# shellcheck disable=SC2086
"$AUTOPAR" compare $few --like megatron,gpipe -J "$work/compare.json" >"$work/table" && python3 - "$work" <<'END' || fail "compare -J"
import json, sys
table = json.load(open(sys.argv[1] + "/compare.json"))
assert [row["planner"] for row in table["rows"]] == ["megatron", "gpipe", "default"]
assert table["version"] == 1 and table["devices_per_host"] == 4 and table["global_batch"] == 32
for row in table["rows"]:
    assert row["step_s"] > 0 and row["memory_bytes"] > 0 and row["ratio"] == row["step_s"] / table["rows"][2]["step_s"]
assert table["rows"][2]["ratio"] == 1 and table["rows"][2]["differs"] == ""
assert table["rows"][1]["stages"] == 4 and table["rows"][1]["recompute"]
END
good "compare --list" "tensoropt" "$AUTOPAR" compare --list
# shellcheck disable=SC2086
good "plan like a row" "schedule gpipe, recomputation on" "$AUTOPAR" plan $few --like gpipe -o "$work/like.json"
good "simulate a row's plan" "under gpipe" "$AUTOPAR" simulate "$work/like.json"
bad "compare: unknown planner" "unknown planner 'megaton'; did you mean megatron?" "$AUTOPAR" compare --like megaton
bad "compare: no model" "--model is needed" "$AUTOPAR" compare --cluster "$cluster"
# shellcheck disable=SC2086
bad "plan: a row has its schedule" "that of gpipe is gpipe" "$AUTOPAR" plan $few --like gpipe --schedule zb-h1
# shellcheck disable=SC2086
bad "plan: a row without a plan" "pase has no pipeline" "$AUTOPAR" plan $few --like pase --stages 2
good "export to jax" 'PartitionSpec' "$AUTOPAR" export "$plan" --to jax
"$AUTOPAR" export "$plan" --to jax -o "$work/plan.py" && python3 - "$work" <<'END' || fail "plan.py"
import ast, sys
tree = ast.parse(open(sys.argv[1] + "/plan.py").read())
stages, = (node.value for node in tree.body
           if isinstance(node, ast.Assign) and node.targets[0].id == "STAGES")
assert len(stages.elts) == 2
assert '"bs->", (P(("x", "y"), None),), (P(),)),' in open(sys.argv[1] + "/plan.py").read()  # the loss, of its own samples
END
for form in hlo torch; do
    "$AUTOPAR" export "$plan" --to $form -o "$work/export.json" && python3 - "$work" <<'END' || fail "$form"
import json, sys
plan = json.load(open(sys.argv[1] + "/plan.json"))
made = json.load(open(sys.argv[1] + "/export.json"))
assert made["plan"] == plan["digest"]
assert len(made["stages"]) == 2 and len(made["boundaries"]) == 1
rules = set()
for op in made["stages"][0]["operators"] + made["stages"][1]["operators"]:
    operands, results = op["rule"].split("->")
    assert len(op["operands"]) == operands.count(",") + 1, op
    assert len(op["results"]) == results.count(",") + 1, op
    rules.add(op["rule"])
assert "bs->" in rules, "no loss"
END
done
echo before >"$work/kept.py"
# A file of 512 bytes at most is a full disk; the thread sanitizer keeps its own memory in files.
if [ -z "${TSAN:-}" ]; then
    (trap "" XFSZ && ulimit -f 1 && exec "$AUTOPAR" export "$plan" --to jax -o "$work/kept.py") 2>"$work/err"
    [ $? -eq 1 ] || fail "export: no room, and no failure"
    grep -qF "cannot write $work/kept.py: File too large" "$work/err" || fail "export: $(cat "$work/err")"
    [ "$(cat "$work"/kept.py*)" = before ] || fail "export: an error half-way changed the file or left another"
fi
bad "export: no form" "--to is needed" "$AUTOPAR" export "$plan"
bad "export: no plan" "cannot read $work/none.json" "$AUTOPAR" export "$work/none.json" --to jax

# The rows of docs/autopar.md.
good "shard: data parallel" "objective 196614.02" "$AUTOPAR" shard mlp2 --mesh 4x1 --batch 1024 \
    --hidden 128 --beta 1,1
good "shard: model parallel" "objective 786437.01" "$AUTOPAR" shard mlp2 --mesh 1x4 --batch 128 \
    --hidden 1024 --beta 1,1
good "shard: forced" "objective 12582918" "$AUTOPAR" shard mlp2 --mesh 4x1 --batch 128 \
    --hidden 1024 --beta 1,1 --force-data-parallel
good "shard: one axis" "objective 196614.02" "$AUTOPAR" shard mlp2 --mesh 4 --batch 1024 \
    --hidden 128 --beta 1
good "shard: three axes" "proved optimal" "$AUTOPAR" shard mlp2 --mesh 2x2x2 --beta 1,1,1
good "shard: four axes" "proved optimal" "$AUTOPAR" shard mlp2 --mesh 2x2x2x2 --beta 1,1,1,1
good "shard: limit" "choices for" "$AUTOPAR" shard mlp2 --mesh 4x1 --cluster "$cluster" --hosts 1 \
    --optimizer adam --micro-batches 4 --memory-limit 1GiB --time-limit 20
good "shard: profile" "objective" "$AUTOPAR" shard mlp2 --mesh 2x2 --cluster "$cluster"
bad "shard: no such hosts" "8x8 lies on 8 hosts of 8 devices; cluster lab-2x4 has 2 of 4" "$AUTOPAR" shard mlp2 \
    --mesh 8x8 --cluster "$cluster"
bad "shard: one host" "8 lies on 1 host of 8 devices; cluster lab-2x4 has 2 of 4 (--hosts says" "$AUTOPAR" shard mlp2 \
    --mesh 8 --cluster "$cluster"
bad "shard: too many" "has too many devices; the most is 1048576" "$AUTOPAR" shard mlp2 --mesh 99999x99999
good "plan: 72 devices" "predicted step" "$AUTOPAR" plan --model gpt-125m --cluster "$cluster" --hosts 1 \
    --devices-per-host 72 --global-batch 144 --micro-batches 2

# A sum over all devices is one all-reduce.
good "shard: several axes" "all-reduce        0,1        2        392 B" "$AUTOPAR" shard mlp2 \
    --mesh 2x4 --cluster "$cluster" --batch 10000000 --hidden 7
# The report is of a step of 4 micro-batches, the objective of one of them; 7 is padded to 8.
good "shard: micro-batches" '"axes": [' "$AUTOPAR" shard mlp2 --mesh 2x4 --cluster "$cluster" \
    --batch 10000000 --hidden 7 --optimizer adam --micro-batches 4 --json
python3 - "$work/out" <<'END' || fail "shard: the report is not what the objective says"
import json, sys
made = json.load(open(sys.argv[1]))
step = made["compute"] + sum(of["cost"] for of in made["collectives"])
assert abs(step - 4 * made["objective"]) < 1e-9 * step, (step, 4 * made["objective"])
assert [of["count"] for of in made["collectives"]] == [2], "gradients are summed once a step"
END
good "shard --json" '"strategy": "S0R,RR->S0R {b:0}"' "$AUTOPAR" shard mlp2 --mesh 4x1 --json

# Experts lie on the devices of an axis, and tokens go to them and back.
good "shard: experts" '"axes": [' "$AUTOPAR" shard moe-380m --mesh 2x4 --cluster "$cluster" --batch 16 \
    --time-limit 60 --json
python3 - "$work/out" <<'END' || fail "shard: no expert parallelism"
import json, sys
made = json.load(open(sys.argv[1]))
experts = [of["strategy"] for of in made["nodes"] if of["node"].startswith("block") and
           of["node"].endswith((".expert.up.w", ".expert.down.w"))]
assert len(experts) == 8 and set(experts) == {"S1RR"}, experts
sent = [of for of in made["collectives"] if of["kind"] == "all-to-all" and of["axes"] == [1]]
assert sent and sent[0]["count"] >= 8, made["collectives"]
END

# What hides behind the backward pass, by option and by profile; measured operators in place of the roofline.
entry='{"op": "einsum", "flops": 1e9, "bytes": 1, "seconds": 0.001}'
sed 's/"version": 1,/"version": 2, "gradient_overlap": 0.75, "op_times": ['"$entry"'],/' "$cluster" >"$work/measured.json"
for overlap in 0 0.75; do
    good "shard --overlap" '"axes": [' "$AUTOPAR" shard mlp2 --mesh 2x4 --cluster "$cluster" --batch 10000000 \
        --hidden 7 --overlap $overlap --json
    cp "$work/out" "$work/overlap-$overlap.json"
done
good "shard: measured" '"axes": [' "$AUTOPAR" shard mlp2 --mesh 2x4 --cluster "$work/measured.json" --batch 10000000 \
    --hidden 7 --json
python3 - "$work" <<'END' || fail "shard: overlap or measured operators do not count as they should"
import json, sys
none, hidden, measured = (json.load(open(f"{sys.argv[1]}/{name}")) for name in
                          ("overlap-0.json", "overlap-0.75.json", "out"))
cost = lambda made: sum(of["cost"] for of in made["collectives"])
assert abs(cost(hidden) - 0.25 * cost(none)) < 1e-9 * cost(none), (cost(hidden), cost(none))
assert abs(cost(measured) - cost(hidden)) < 1e-9 * cost(none), (cost(measured), cost(hidden))
assert hidden["compute"] == none["compute"] < 0.5 * measured["compute"], (none["compute"], measured["compute"])
END
good "plan --overlap" '"sync"' "$AUTOPAR" plan --model gpt-125m --cluster "$cluster" --global-batch 32 \
    --micro-batches 4 --stages 1 --overlap 1 --json
# The loss, a number that is summed once a step, hides behind nothing.
python3 -c 'import json, sys
assert all(stage["seconds"]["sync"] < 1e-4 for stage in json.load(open(sys.argv[1]))["stages"])' "$work/out" ||
    fail "plan --overlap 1: gradients are still waited for"
bad "shard: overlap without profile" "--overlap is for --cost-model profile" "$AUTOPAR" shard mlp2 --mesh 2 --overlap 0.5
bad "shard: too much overlap" "--overlap: 1.5 is outside" "$AUTOPAR" shard mlp2 --mesh 2 --overlap 1.5
sed 's/"version": 1,/"version": 2, "op_times": [{"op": "einsum", "flops": 0, "bytes": 0, "seconds": 1}],/' "$cluster" \
    >"$work/measured.json"
bad "shard: a measured nothing" "op_times[0] has neither FLOPs nor bytes" "$AUTOPAR" shard mlp2 --mesh 2 \
    --cluster "$work/measured.json"

# Two nodes, two strategies each; the cheap pair does not fit.
printf '%s' '{"problem": {"name": "two", "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 5], [1, 5]],
  "usages": [[8, 2], [8, 2]]}, "edges": {"nodes": [[0, 1]], "costs": [[0, 3, 3, 0]]}, "usage_limit": 10}}' >"$work/two.json"
good "solve --json" '"choice"' "$AUTOPAR" solve "$work/two.json" 60 --quiet --json
python3 -c 'import json, sys
made = json.load(open(sys.argv[1]))
assert made["cost"] == 9 and made["optimal"] and sorted(made["choice"]) == [0, 1], made
assert made["peak_usage"] == 10 == made["usage_limit"] and made["nodes"] == 2, made' "$work/out" ||
    fail "solve --json says $(cat "$work/out")"
good "export --json" '"to": "torch"' "$AUTOPAR" export "$plan" --to torch -o "$work/export.json" --json
bad "export --json alone" "--json needs --output" "$AUTOPAR" export "$plan" --to torch --json

hlo=$SOURCE_DIR/tests/fixtures/hlo
good "shard: HLO" "objective 196614.02" "$AUTOPAR" shard "$hlo/mlp2-b1024-h128.hlo" --mesh 4x1 \
    --beta 1,1
good "shard: HLO, unknown operator" "without a rule, kept whole: custom-call mine x1" \
    "$AUTOPAR" shard "$SOURCE_DIR/tests/fuzz/corpus/hlo/operators.hlo" --mesh 2x2
good "shard: HLO as JSON" '"unknown_operators": [' "$AUTOPAR" shard "$hlo/moe.hlo" --mesh 2x2 --json
good "shard: exports" "# collective" "$AUTOPAR" shard "$hlo/transformer1.hlo" --mesh 2x4 \
    --plot "$work/memory.svg" --export-jax "$work/shardings.json" --export-hlo "$work/sharded.hlo" \
    --export-torch "$work/placements.json"
python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$work/memory.svg" ||
    fail "memory.svg is not well-formed"
python3 -c 'import json, sys; json.load(open(sys.argv[1]))["parameters"][0][2]' "$work/shardings.json" ||
    fail "shardings.json has no shardings of parameters"
python3 -c 'import json, sys; json.load(open(sys.argv[1]))["operators"]' "$work/placements.json" ||
    fail "placements.json is no JSON with operators"
grep -q 'sharding={devices=\[' "$work/sharded.hlo" || fail "sharded.hlo has no shardings"
good "shard: what was exported is read again" "objective" \
    "$AUTOPAR" shard "$work/sharded.hlo" --mesh 2x4
cp "$hlo/transformer1.hlo" "$work/own.hlo" && ln -s own.hlo "$work/link.hlo"
good "shard: into the file it reads" "# collective" \
    "$AUTOPAR" shard "$work/own.hlo" --mesh 2x4 --export-hlo "$work/link.hlo"
cmp -s "$work/own.hlo" "$work/sharded.hlo" || fail "shard --export-hlo lost the file it reads"
[ -L "$work/link.hlo" ] || fail "shard --export-hlo replaced a link"
good "shard: to a pipe" "autopar shardings for JAX" \
    sh -c '"$0" shard "$1" --mesh 2x4 --export-jax /dev/stdout | cat' "$AUTOPAR" "$work/own.hlo"
good "shard: report as JSON" '"peak_operator"' "$AUTOPAR" shard "$hlo/moe.hlo" --mesh 2x2 --json
bad "shard: HLO of a built-in model" "--export-hlo writes shardings into HLO text; mlp2 is" \
    "$AUTOPAR" shard mlp2 --mesh 2x2 --export-hlo "$work/none.hlo"
bad "shard: no HLO file" "cannot read $work/none.hlo: No such file" \
    "$AUTOPAR" shard "$work/none.hlo" --mesh 2x2
printf 'HloModule m\n\nENTRY e {\n  x = f32[2 parameter(0)\n}\n' >"$work/broken.hlo"
bad "shard: malformed HLO" "broken.hlo: line 4, column 13: ']' is expected here, not 'p'" \
    "$AUTOPAR" shard "$work/broken.hlo" --mesh 2x2
bad "shard: HLO and --batch" "are for built-in models" \
    "$AUTOPAR" shard "$work/broken.hlo" --mesh 2x2 --batch 3

bad "no model" "autopar plan: --model is needed" "$AUTOPAR" plan
bad "unknown option" "unknown option --modle; did you mean --model?" "$AUTOPAR" plan --modle x
bad "unknown model" "did you mean 'gpt-1.3b'?" "$AUTOPAR" plan --model gtp-1.3b --cluster "$cluster"
bad "missing profile" "cannot read $work/none.json: No such file" \
    "$AUTOPAR" plan --model gpt-1.3b --cluster "$work/none.json"
printf '{"version": 1,\n "name": }\n' >"$work/broken.json"
bad "malformed profile" "line 2" "$AUTOPAR" plan --model gpt-1.3b --cluster "$work/broken.json"
bad "stages impossible" "cannot be divided into 3 stages on 2 x 4 devices; the nearest" \
    "$AUTOPAR" plan --model mlp2 --cluster "$cluster" --stages 3
bad "stages reversed" "--stages: 4-2 is not a range" \
    "$AUTOPAR" plan --model mlp2 --cluster "$cluster" --stages 4-2
bad "stages text" "--stages: 'two' is not an integer" \
    "$AUTOPAR" plan --model mlp2 --cluster "$cluster" --stages two
bad "memory too small" "does not fit into 512.00 MiB per device on 2 x 4 devices" \
    "$AUTOPAR" plan --model gpt-1.3b --cluster "$cluster" --memory-limit 512MiB
bad "memory text" "--memory-limit: '16 GiB' is not a byte count" \
    "$AUTOPAR" plan --model gpt-1.3b --cluster "$cluster" --memory-limit "16 GiB"
bad "no memory" "--memory-limit: 0 bytes hold nothing" \
    "$AUTOPAR" plan --model gpt-1.3b --cluster "$cluster" --memory-limit 0
bad "micro-batches" "a batch of 1024 does not divide into 3 micro-batches" \
    "$AUTOPAR" plan --model gpt-1.3b --cluster "$cluster" --micro-batches 3
bad "micro-batches text" "--micro-batches: '' is not an integer" \
    "$AUTOPAR" plan --model gpt-1.3b --cluster "$cluster" --micro-batches 8,
bad "recompute" "--recompute: 'yes' is not one of auto|off|on" \
    "$AUTOPAR" plan --model gpt-1.3b --cluster "$cluster" --recompute yes
bad "extra argument" "unexpected argument 'gpt-1.3b'" "$AUTOPAR" plan gpt-1.3b

bad "explain without plan" "autopar explain: missing argument" "$AUTOPAR" explain
bad "explain: missing plan" "cannot read $work/none.json" \
    "$AUTOPAR" explain "$work/none.json" --cluster "$cluster"
sed 's/"micro_batches": /"micro_batches": 1/' "$plan" >"$work/edited.json"
bad "explain: edited plan" "does not match the contents" \
    "$AUTOPAR" explain "$work/edited.json" --cluster "$cluster"
printf '{"format": 3' >"$work/broken.json"
bad "explain: malformed" "line 1, column 12" \
    "$AUTOPAR" explain "$work/broken.json" --cluster "$cluster"

bad "shard without mesh" "--mesh is needed" "$AUTOPAR" shard mlp2
bad "shard: mesh" "--mesh: '4by2' is not a mesh of 1 to 4 axes such as 2x4" \
    "$AUTOPAR" shard mlp2 --mesh 4by2
bad "shard: mesh of five axes" "is not a mesh of 1 to 4 axes" "$AUTOPAR" shard mlp2 --mesh 2x2x2x2x2
bad "shard: hosts" "the 4 devices of mesh 4 do not spread evenly over 3 hosts" \
    "$AUTOPAR" shard mlp2 --mesh 4 --hosts 3
bad "shard: micro-batches of a file" "--micro-batches and --optimizer are for models of which the training step is derived" \
    "$AUTOPAR" shard "$hlo/moe.hlo" --mesh 4 --micro-batches 2
bad "shard: alpha" "--alpha: one number for each of the 2 mesh axes" \
    "$AUTOPAR" shard mlp2 --mesh 2x2 --alpha 1
bad "shard: profile without cluster" "--cost-model profile needs --cluster" \
    "$AUTOPAR" shard mlp2 --mesh 2x2 --cost-model profile
bad "shard: model" "no built-in model 'mlp'" "$AUTOPAR" shard mlp --mesh 2x2
bad "shard: no memory" "--memory-limit: 0 bytes hold nothing" \
    "$AUTOPAR" shard mlp2 --mesh 2x2 --memory-limit 0
bad "shard: memory" "1000 B" "$AUTOPAR" shard mlp2 --mesh 2x2 --memory-limit 1kB

bad "probe: ranks" "--ranks: 0 is outside 1" "$AUTOPAR" probe -n 0
bad "probe: contradiction" "2 hosts of 2 ranks are not 3 ranks" \
    "$AUTOPAR" probe -n 3 --hosts 2 --ranks-per-host 2
bad "probe: uneven" "3 ranks do not fill 2 emulated hosts evenly" "$AUTOPAR" probe -n 3 --hosts 2
bad "probe: hosts" "2 ranks are too few for 4 emulated hosts" "$AUTOPAR" probe -n 2 --hosts 4

"$AUTOPAR" plan --model gpt-125m --cluster "$cluster" >/dev/full 2>"$work/err"
[ $? -eq 1 ] || fail "a full disk goes unnoticed"
grep -q 'cannot write' "$work/err" || fail "a full disk has no sentence: $(cat "$work/err")"

if [ $failures -ne 0 ]; then
    echo "$failures failures"
    exit 1
fi
echo "all as expected"
