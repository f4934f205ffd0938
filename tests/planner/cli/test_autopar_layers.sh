#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# autopar plan on model files and with other planners, as a user meets them.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0
cluster=$SOURCE_DIR/tests/fixtures/profiles/lab-2x4.json
step=$SOURCE_DIR/tests/fixtures/hlo/transformer2.hlo
onnx=$SOURCE_DIR/tests/fixtures/onnx/gpt2layers.onnx

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

# good NAME TEXT arguments…: autopar plan succeeds and prints TEXT.
good() {
    name=$1 text=$2
    shift 2
    "$AUTOPAR" plan --cluster "$cluster" "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ $status -eq 0 ] || fail "$name: exit status $status: $(cat "$work/err")"
    grep -qF -e "$text" "$work/out" || fail "$name: the output lacks '$text': $(cat "$work/out")"
}

# bad NAME SENTENCE arguments…: a status that is not 0, and one line with SENTENCE.
bad() {
    name=$1 text=$2
    shift 2
    "$AUTOPAR" plan --cluster "$cluster" "$@" >"$work/out" 2>"$work/err"
    [ $? -ne 0 ] || fail "$name: exit status 0"
    grep -qF -e "$text" "$work/err" || fail "$name: the sentence lacks '$text': $(cat "$work/err")"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$name: not one line: $(cat "$work/err")"
    [ -s "$work/out" ] && fail "$name: output in spite of the error: $(cat "$work/out")"
}

# explained NAME: the plan that was just written is explained, read as it was planned.
explained() {
    "$AUTOPAR" explain "$work/plan.json" --cluster "$cluster" >"$work/out" 2>"$work/err" ||
        fail "$1: explain: $(cat "$work/err")"
    grep -q "^stage 0" "$work/out" || fail "$1: explain says nothing of stage 0"
}

good "HLO text" "operators are the forward pass" --model "$step" -o "$work/plan.json"
explained "HLO text"
good "a number of layers" "2 layers, 2 of them different" --model "$step" --layers 2 --stages 2 \
    -o "$work/plan.json"
explained "a number of layers"
good "a pattern" "3 layers" --model "$onnx" --layer-pattern 'blocks[./]([0-9]+)' --stages 2 \
    -o "$work/plan.json"
explained "a pattern"
good "sizes of dimensions" "layers" --model "$SOURCE_DIR/tests/fixtures/onnx/block-dynamic.onnx" \
    --dim batch=8 --dim sequence=64 -o "$work/plan.json"
explained "sizes of dimensions"
# 12,916 operators: embedding, 31 blocks, one more with the last norm, head.
if [ -z "${TEST_FEW:-}" ]; then
    gzip -dc "$SOURCE_DIR/tests/fixtures/hlo/large/gpt-32-layers.hlo.gz" >"$work/gpt.hlo"
    good "a large step" "34 layers, 4 of them different" --model "$work/gpt.hlo" \
        --devices-per-host 8 --memory-limit 80GiB
fi
echo "  no-such-operator # a comment" >"$work/marks"
bad "marks of nothing" "layer mark 'no-such-operator' names no operator" --model "$step" \
    --layers "$work/marks"
printf '# nothing\n' >"$work/none.txt"
bad "no marks" "no operator stands there" --model "$step" --layers "$work/none.txt"
bad "a device" "cannot read /dev/null: no regular file" --model "$step" --layers /dev/null
bad "neither number nor file" "neither auto nor a number of layers nor a file" --model "$step" \
    --layers fuor
bad "too many layers" "does not make 99 layers" --model "$step" --layers 99
bad "layers twice" "one of them says what a layer is" --model "$step" --layers 2 --layer-pattern x
bad "layers of a built-in model" "layers are told for files" --model gpt-125m --layers 2
bad "too many samples" "micro-batches of 8 samples: a step has at most" --model "$step" \
    --micro-batches 2147483647
bad "a missing file" "cannot read" --model "$work/none.hlo"

# Our planner as a command, and others.
own="$AUTOPAR plan --request -"
double=$SOURCE_DIR/tests/planner/plugin/planner_double.py
same="--model gpt-125m --global-batch 32 --micro-batches 8 --stages 2"
# shellcheck disable=SC2086
good "our own command" '"reshardings"' $same --planner "$own" --json
cp "$work/out" "$work/through"
# shellcheck disable=SC2086
good "built in" '"reshardings"' $same --json
cmp -s "$work/out" "$work/through" || fail "the plan of the command is another"
# Some stages recompute, others do not: verified, and explained stage by stage.
mixed="--model gpt-125m --global-batch 64 --micro-batches 16 --stages 4-8 --memory-limit 900MiB"
# shellcheck disable=SC2086
good "stages that recompute" "recomputation in stages 0-1" $mixed --planner "$own" -o "$work/plan.json"
explained "stages that recompute"
grep -A1 "^stage 0: recomputation" "$work/out" | grep -q "chosen      on" ||
    fail "stage 0 does not recompute: $(cat "$work/out")"
# shellcheck disable=SC2086
bad "another's stages when none may" "recomputation is in stages 0-1 in the plan" $mixed --recompute off \
    --memory-limit 16GiB --planner "cat $work/plan.json"
# shellcheck disable=SC2086
bad "no command" "$work/none: " $same --planner "$work/none"
# shellcheck disable=SC2086
bad "no JSON" "planner echo {: its plan: line 2, column" $same --planner "echo {"
python3 - "$work/through" "$work/too-good.json" <<'END' || fail "the plan is no JSON"
import json, sys
plan = json.load(open(sys.argv[1]))
del plan["digest"]
plan["stages"][0]["seconds"]["forward"] = 1e-9
json.dump(plan, open(sys.argv[2], "w"))
END
# shellcheck disable=SC2086
bad "too good a plan" "its plan: stages[0]: seconds of" $same --planner "cat $work/too-good.json"

# The question in a file, and a planner of another kind that asks ours.
# shellcheck disable=SC2086
bad "the question" "it gave no reason (exit status 2)" $same --planner "'$double' request $work/request.json"
"$AUTOPAR" plan --request "$work/request.json" >"$work/out" 2>"$work/err" || fail "a request: $(cat "$work/err")"
cmp -s "$work/out" "$work/through" || fail "the plan of the request is another"
grep -q "^progress [01]" "$work/err" || fail "no progress: $(cat "$work/err")"
grep -qv "^progress " "$work/err" && fail "more than progress: $(cat "$work/err")"
any="--model gpt-125m --global-batch 64 --micro-batches 64 --json"
# shellcheck disable=SC2086
PATH=$(dirname "$AUTOPAR"):$PATH good "the example" '"reshardings"' $any \
    --planner "python3 '$SOURCE_DIR/examples/planner.py'"
cp "$work/out" "$work/example"
# shellcheck disable=SC2086
good "ours in that case" '"reshardings"' $any
python3 - "$work/example" "$work/out" <<'END' || fail "the example is no trade of time for memory"
import json, sys
example, fastest = (json.load(open(path)) for path in sys.argv[1:])
assert example["predicted"]["step_s"] <= 1.1 * fastest["predicted"]["step_s"]
needs = [[m["state_bytes"] + m["in_flight"] * m["activation_bytes"] + m["work_bytes"]
          for m in (stage["memory"] for stage in plan["stages"])] for plan in (example, fastest)]
assert max(needs[0]) < 0.9 * max(needs[1]), needs
END
bad "two questions" "--model has no meaning with --request" --request "$work/request.json" --model gpt-125m

[ $failures -eq 0 ] || exit 1
