#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# autopar probe on real local ranks, then a plan from what it measured.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ended STATUS SENTENCE COMMAND...: that exit status, and the sentence in what it says.
ended() {
    status=$1 sentence=$2
    shift 2
    code=0
    "$@" >"$work/out" 2>&1 || code=$?
    if [ "$code" -ne "$status" ] || ! grep -q -- "$sentence" "$work/out"; then
        cat "$work/out"
        echo "FAIL: status $code instead of $status, or not said: $sentence"
        exit 1
    fi
}

"$AUTOPAR" probe --hosts 2 --ranks-per-host 2 --max-bytes 1MiB --repetitions 1 \
    -o "$work/cluster.json" >"$work/out"
cat "$work/out"
for text in "2 hosts x 2 devices" self intra_host inter_host inter_host_hot "device FLOP/s in float64" measured; do
    grep -qF "$text" "$work/out" || {
        echo "FAIL: the table lacks '$text'"
        exit 1
    }
done
"$AUTOPAR" plan --model gpt-125m --cluster "$work/cluster.json" --hosts 2 --devices-per-host 4 \
    --stages 2 --memory-limit 64GiB -o "$work/plan.json" | tee "$work/plan.txt"
# A comment of several lines breaks where it does, which depends on what was measured.
sed 's/^#  *//' "$work/plan.txt" | tr '\n' ' ' | grep -q "resized from 2 x 2 to 2 x 4 devices"
"$AUTOPAR" explain "$work/plan.json" --cluster "$work/cluster.json" | grep -q "measured"

# One host: the class without a pair is said to be measured on a substitute.
"$AUTOPAR" probe -n 2 --max-bytes 1MiB --repetitions 3 -o "$work/one.json" | grep -q "1 hosts x 2"
"$AUTOPAR" probe -n 1 --max-bytes 1MiB --repetitions 3 --json | python3 -m json.tool | grep -q inter_host

# Comparing: with itself nothing has changed; with NICs of half the rate something has.
"$AUTOPAR" probe --compare "$work/cluster.json" "$work/cluster.json" | tee "$work/same.txt"
grep -q "^# 0 of " "$work/same.txt"
# However well a busy machine let them be measured: a change is one only beyond what was not known.
python3 - "$work/cluster.json" "$work/fast.json" "$work/slow.json" <<'END'
import json
import sys
profile = json.load(open(sys.argv[1]))
profile["nic"].pop("hosts", None)
profile["nic"]["spread"] = 0.02
json.dump(profile, open(sys.argv[2], "w"))
profile["nic"]["bytes_per_s"] /= 20
json.dump(profile, open(sys.argv[3], "w"))
END
ended 1 "^\* nic B/s .* -95" "$AUTOPAR" probe --compare "$work/fast.json" "$work/slow.json" --threshold 50
ended 2 "only profiles of clusters of one size can be compared" "$AUTOPAR" probe --ranks 1 --max-bytes 64KiB --budget 2 \
    --compare "$work/one.json" -o "$work/now.json"

# Results of other programs: the planner uses them.
fixtures="$SOURCE_DIR/tests/fixtures/collectives"
"$AUTOPAR" probe --import "$fixtures/nccl-all-reduce.txt" --cluster "$work/cluster.json" \
    -o "$work/with.json" | grep -q "all-reduce .* 2 .* 4 .* NCCL 2.28.7"
"$AUTOPAR" probe --import "$fixtures/osu-allgather.txt" --axis across --cluster "$work/with.json" \
    -o "$work/with.json" --json | python3 -c '
import json
import sys
entries = json.load(sys.stdin)["collectives"]
assert [entry["collective"] for entry in entries] == ["all-reduce", "all-gather"], entries
assert (entries[1]["hosts"], entries[1]["devices_per_host"], entries[1]["groups_per_host"]) == (2, 1, 2)'

# Bad input is one sentence.
refuse() {
    expected=$1
    shift
    code=0
    "$AUTOPAR" probe "$@" >"$work/out" 2>"$work/err" || code=$?
    if [ $code -ne 2 ] || ! grep -qF -- "$expected" "$work/err" || [ "$(wc -l <"$work/err")" -ne 1 ]; then
        echo "FAIL: probe $* ended with $code: $(cat "$work/err")"
        exit 1
    fi
}
refuse "a profile to compare with is needed" new.json
refuse "measures one, and -o must say where it goes" --compare "$work/one.json"
refuse "--resume needs the -o FILE" --resume
refuse "--import needs --cluster FILE and -o FILE" --import x
refuse "are for --import" --axis all
refuse "--axis 'some' is none of inside" --import x --axis some --cluster "$work/one.json" -o "$work/x"
refuse "unknown collective 'broadcast'" --import x --collective broadcast --cluster "$work/one.json" -o "$work/x"
refuse "plan.txt: neither the table" --import "$work/plan.txt" --cluster "$work/one.json" -o "$work/x"
refuse "x: No such file" --import "$work/x" --cluster "$work/one.json" -o "$work/y"
refuse "No such file" --compare "$work/nothing" "$work/one.json"

# A probe goes on with what an interrupted one has left, of the same job only.
printf '{"probe": 2, "job": "another", "steps": {}}\n' >"$work/left.json.partial"
ended 2 "are of another job (another); this one is 2 ranks on 1 hosts" "$AUTOPAR" probe -n 2 --max-bytes 64KiB --budget 2 \
    --resume -o "$work/left.json"
[ "$(wc -l <"$work/out")" -eq 1 ] || {
    cat "$work/out"
    echo "FAIL: more than one sentence"
    exit 1
}
rm "$work/left.json.partial"
"$AUTOPAR" probe -n 2 --max-bytes 64KiB --budget 2 --resume -o "$work/left.json" >/dev/null
[ ! -e "$work/left.json.partial" ]
echo "all as expected"
