#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# autopar import, and autopar shard on files of every kind: told by what is in them, written as the schema says, with the
# same optimum on every way, refused with the place and exit status 2.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fixtures=$SOURCE_DIR/tests/fixtures
failures=0

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

# bad NAME SENTENCE COMMAND…: exit status 2, and this in the one line on standard error.
bad() {
    name=$1
    sentence=$2
    shift 2
    "$@" >"$work/out" 2>"$work/err"
    status=$?
    [ $status -eq 2 ] || fail "$name: exit status $status: $(cat "$work/err")"
    grep -qF -- "$sentence" "$work/err" || fail "$name: '$sentence' is not in: $(cat "$work/err")"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$name: more than a sentence"
}

# same NAME OBJECTIVE FILE MESH: what autopar shard finds.
same() {
    found=$("$AUTOPAR" shard "$3" --mesh "$4" --beta 1,1 2>&1 | sed -n 's/^objective \([^,]*\),.*/\1/p')
    [ "$found" = "$2" ] || fail "$1: objective '$found', not $2"
}

# A model by name, as HLO, as ONNX, and each of these by way of JSON: one optimum.
"$AUTOPAR" import mlp2 --batch 1024 --hidden 128 -o "$work/zoo.json" >/dev/null || fail "import of a model"
"$AUTOPAR" import "$fixtures/hlo/mlp2-b1024-h128.hlo" -o "$work/hlo.json" >/dev/null || fail "import of HLO"
"$AUTOPAR" import "$fixtures/onnx/mlp2-b1024-h128.onnx" -o "$work/onnx.json" >/dev/null || fail "import of ONNX"
"$AUTOPAR" import "$fixtures/graph/mlp2.json" --training sgd -o "$work/step.json" >/dev/null || fail "import of JSON"
for file in "$fixtures/onnx/mlp2-b1024-h128.onnx" "$fixtures/graph/mlp2.json" "$work/zoo.json" "$work/hlo.json" \
    "$work/onnx.json" "$work/step.json"; do
    same "$file" 196614.02 "$file" 4x1
done

# Told by the beginning, not by the name.
cp "$fixtures/onnx/mlp2-b1024-h128.onnx" "$work/model.bin"
cp "$work/hlo.json" "$work/graph.bin"
same "ONNX by its bytes" 196614.02 "$work/model.bin" 4x1
same "JSON by its bytes" 196614.02 "$work/graph.bin" 4x1

# Symbolic dimensions.
"$AUTOPAR" import "$fixtures/onnx/block-dynamic.onnx" --dim batch=8 --dim sequence=8 -o "$work/block.json" \
    >"$work/out" || fail "import with dimensions"
grep -q 'forward *[0-9]* operators *2.607.*e+07 FLOP' "$work/out" || fail "FLOPs: $(cat "$work/out")"

# Names in any script: from HLO (raw, and escaped as XLA writes them), JSON and back into every form.
cat >"$work/noms.hlo" <<'HLO'
HloModule jit_pas, input_output_alias={ {}: (1, {}, may-alias) }

ENTRY main.1 {
  x.2 = f32[8,16]{1,0} parameter(0), metadata={op_name="entr\303\251e[\'\316\261\']"}
  w.3 = f32[8,16]{1,0} parameter(1), metadata={op_name="权重"}
  ROOT add.4 = f32[8,16]{1,0} add(x.2, w.3)
}
HLO
"$AUTOPAR" import "$work/noms.hlo" -o "$work/noms.json" >/dev/null || fail "import of names"
sed 's/权重/w\\u001b[2J\\n/' "$work/noms.json" >"$work/control.json"
"$AUTOPAR" shard "$work/noms.hlo" --mesh 2 --json --export-jax "$work/noms.jax" --export-torch "$work/noms.torch" \
    --plot "$work/noms.svg" >"$work/noms.out" || fail "names through shard"
"$AUTOPAR" shard "$work/control.json" --mesh 2 >"$work/control.out" || fail "control characters through shard"
grep -qF 'w\x1b[2J\n' "$work/control.out" || fail "control characters are not escaped: $(cat "$work/control.out")"
python3 - "$work" <<'PY' || fail "a name is not what it was"
import json
import sys
import xml.dom.minidom

def read(name):
    with open(f"{sys.argv[1]}/{name}", encoding="utf-8") as file:
        return file.read()

names = ["entrée['α']", "权重"]
assert [t["name"] for t in json.loads(read("noms.json"))["tensors"]] == names
assert [n["node"] for n in json.loads(read("noms.out"))["nodes"]][:2] == names
assert [row[0] for row in json.loads(read("noms.jax"))["parameters"]] == names
placements = json.dumps(json.loads(read("noms.torch")), ensure_ascii=False)
assert all(name in placements for name in names)
xml.dom.minidom.parseString(read("noms.svg"))
PY

# What import says, as JSON.
"$AUTOPAR" import "$fixtures/graph/mlp2.json" --training sgd --json >"$work/out" || fail "import --json"
python3 -c 'import json, sys
said = json.load(open(sys.argv[1]))
assert said["inputs"] == 2 and said["parameters"] == 2 and said["parameter_elements"] == 32768, said
assert said["phases"]["update"]["operators"] == 2 and said["unknown_operators"] == [], said' "$work/out" ||
    fail "import --json says $(cat "$work/out")"
"$AUTOPAR" import --list-models --json | python3 -c 'import json, sys
assert any(m["name"] == "llama3-8b" for m in json.load(sys.stdin)["models"])' || fail "list of models as JSON"

# Every kind of graph keeps the schema.
for model in gpt-125m moe-380m unet-470m; do
    "$AUTOPAR" import "$model" --layers 2 --training adam -o "$work/$model.json" >/dev/null || fail "import of $model"
done
"$AUTOPAR" import "$fixtures/hlo/convnet.hlo" -o "$work/convnet.json" >/dev/null || fail "import of a convnet"
PATH=/usr/bin:$PATH python3 - "$SOURCE_DIR/docs/graph.schema.json" "$work"/*.json "$fixtures"/graph/*.json <<'PY' ||
import json
import sys

import jsonschema

with open(sys.argv[1], encoding="utf-8") as file:
    schema = json.load(file)
jsonschema.Draft7Validator.check_schema(schema)
for path in sys.argv[2:]:
    with open(path, encoding="utf-8") as file:
        jsonschema.validate(json.load(file), schema)
PY
    fail "a graph does not keep the schema"

"$AUTOPAR" import --list-models >"$work/out" || fail "list of models"
for model in gpt-1.3b moe-27b wresnet-13b unet-2b llama3-8b qwen3-32b mixtral-8x7b; do
    grep -q "^  $model  *[0-9]" "$work/out" || fail "$model is not listed"
done

bad "nothing" "a model or file is needed" "$AUTOPAR" import
bad "unknown model" "did you mean 'llama3-8b'?" "$AUTOPAR" import llama-8b
bad "no file" "cannot read $work/none.json" "$AUTOPAR" shard "$work/none.json" --mesh 2x2
bad "unbound dimension" "is called 'batch': give its size with --dim batch=SIZE" \
    "$AUTOPAR" shard "$fixtures/onnx/block-dynamic.onnx" --mesh 2x2
bad "unknown dimension" "--dim bach=8: no dimension is called that" \
    "$AUTOPAR" shard "$fixtures/onnx/block-dynamic.onnx" --mesh 2x2 --dim batch=8 --dim sequence=8 --dim bach=8
bad "dimension without size" "--dim: 'batch' is not NAME=SIZE" \
    "$AUTOPAR" import "$fixtures/onnx/block-dynamic.onnx" --dim batch
bad "dimension of HLO" "to ONNX models only" \
    "$AUTOPAR" import "$fixtures/hlo/convnet.hlo" --dim batch=8
bad "batch of a file" "are for built-in models" "$AUTOPAR" import "$fixtures/hlo/convnet.hlo" --batch 8
tr -d "\n" <"$fixtures/graph/mlp2.json" | sed "s/, *\"loss\": {[^}]*}//" >"$work/forward.json"
bad "training of a step" "--training: $work/step.json holds its whole step" \
    "$AUTOPAR" import "$work/step.json" --training adam
bad "training without a loss" "--training: $work/forward.json names no loss to derive a step from" \
    "$AUTOPAR" import "$work/forward.json" --training adam
bad "optimizer of a step" "the training step is derived; $work/step.json holds its whole step" \
    "$AUTOPAR" shard "$work/step.json" --mesh 2x2 --optimizer adam
bad "optimizer without a loss" "$work/forward.json names no loss to derive a step from" \
    "$AUTOPAR" shard "$work/forward.json" --mesh 2x2 --optimizer adam
head -c 300 "$fixtures/onnx/block.onnx" >"$work/cut.onnx"
bad "cut ONNX" "cut.onnx: byte " "$AUTOPAR" shard "$work/cut.onnx" --mesh 2x2
head -c 300 "$work/step.json" >"$work/cut.json"
bad "cut JSON" "cut.json: line " "$AUTOPAR" shard "$work/cut.json" --mesh 2x2
sed 's/"w2"\]/"w9"]/' "$fixtures/graph/mlp2.json" >"$work/wrong.json"
bad "wrong JSON" "wrong.json: line 11, column 55: there is no tensor 'w9'" "$AUTOPAR" shard "$work/wrong.json" --mesh 2x2
printf 'nothing' >"$work/text"
bad "text" "this is no ONNX model" "$AUTOPAR" import "$work/text"
: >"$work/empty.onnx"
bad "empty" "empty.onnx is empty" "$AUTOPAR" import "$work/empty.onnx"

if [ $failures -ne 0 ]; then
    echo "$failures failures"
    exit 1
fi
echo "all as expected"
