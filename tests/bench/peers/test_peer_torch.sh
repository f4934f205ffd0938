#!/bin/sh
# torch_peer.py: its layouts are reshard-bench's, and both methods move every byte.
set -u
. "$(dirname "$0")/../reshard_bench/reshard_bench_checks.sh"
: "${SOURCE_DIR:?}"
peer=$SOURCE_DIR/bench/peers/torch_peer.py
PYTHON=${PYTHON:-/usr/bin/python3}
PYTHONDONTWRITEBYTECODE=1
GLOO_SOCKET_IFNAME=lo
export PYTHONDONTWRITEBYTECODE GLOO_SOCKET_IFNAME
"$PYTHON" -c 'import importlib.util as i, sys; sys.exit(i.find_spec("torch") is None)' || {
    echo "skipped: $PYTHON has no PyTorch (Debian: python3-torch)"
    exit 77
}

# cases NAME ARGUMENTS...: a document of reshard-bench with what is to be moved.
cases() {
    name=$1
    shift
    timeout 60 "$RESHARD_BENCH" --dry-run -J "$directory/$name.json" "$@" >"$out" 2>&1 || fail "dry run: $*"
}

# right ROWS ARGUMENTS...: status 0, so many rows, each with #wrong 0.
right() {
    rows=$1
    shift
    echo "torch_peer.py $*"
    if ! timeout 240 "$PYTHON" "$peer" "$@" >"$out" 2>&1; then
        fail "status not 0: $*"
    elif [ "$(grep -vc '^#' "$out")" -ne "$rows" ]; then
        fail "not $rows rows: $*"
    elif grep -v '^#' "$out" | awk '$NF != 0 { bad = 1 } END { exit !bad }'; then
        fail "wrong bytes: $*"
    fi
}

# The paper's cases on four hosts of four ranks: 1m7 and nm6 need as many.
cases paper -n 16 --ranks-per-host 4 --suite alpa --scale 1/512 --partition chunk
# Uneven and empty parts, axes in another order, meshes that overlap, elements of 1 to 16 bytes, a scalar.
set -- --src-mesh 2x2 --dst-mesh 2x3 --src-ranks 0-3 --dst-ranks 7,2-6 -n 8
cases chunk "$@" --src-spec S01RR --dst-spec S0RS1 --shape 9x7x5 --partition chunk --dtype int16
cases balanced "$@" --src-spec S10RR --dst-spec RS10R --shape 7x9x2 --partition balanced --dtype complex128
cases empty "$@" --src-spec S0S1 --dst-spec S01R --shape 2x3 --partition chunk --dtype int8
cases scalar "$@" --src-spec "" --dst-spec "" --shape scalar --dtype float64
"$PYTHON" - "$directory" chunk balanced empty scalar <<'END' || fail "joining the documents"
import json, sys
joined = None
for name in sys.argv[2:]:
    d = json.load(open(f"{sys.argv[1]}/{name}.json"))
    d["results"][0]["case"] = name
    if joined is None:
        joined = d
    else:
        joined["results"] += d["results"]
json.dump(joined, open(f"{sys.argv[1]}/uneven.json", "w"))
END

right 32 "$directory/paper.json" -n 16 -w 0 -i 1 -J "$directory/j.json"
json "$directory/j.json" "len({(r['case'], r['peer']) for r in d['results']}) == 32"
json "$directory/j.json" "all(r['wrong'] == 0 and len(r['time_s']['all']) == 1 for r in d['results'])"
json "$directory/j.json" "[r['rank'] for r in d['ranks']] == list(range(16)) and d['config']['library'].startswith('PyTorch ')"
right 8 "$directory/uneven.json" -n 8 --protocol paper -J "$directory/j.json"
json "$directory/j.json" "all(len(r['time_s']['all']) == 10 for r in d['results']) and d['config']['protocol'] == 'paper'"

# Both ends use the layouts that Python derives, so these are held against the plans that reshard-bench wrote; and
# the check is held against data that did not arrive.
for name in chunk balanced empty; do
    set -- $("$PYTHON" -c "
import json, sys
for e in json.load(open(sys.argv[1]))['results']:
    s, t = e['src'], e['dst']
    print('--src-mesh', s['mesh'], '--src-ranks', ','.join(map(str, s['ranks'])), '--src-spec', s['spec'],
          '--dst-mesh', t['mesh'], '--dst-ranks', ','.join(map(str, t['ranks'])), '--dst-spec', t['spec'],
          '--partition', s['partition'], '--shape', 'x'.join(map(str, e['shape'])), '--dtype', e['dtype'])
" "$directory/$name.json")
    timeout 60 "$RESHARD_BENCH" -n 8 --dry-run --strategy send_recv --dump-plan "$directory/$name-plan.json" "$@" \
        >"$out" 2>&1 || fail "plan of $name"
done
timeout 60 "$RESHARD_BENCH" --dry-run --suite model --case dense-7b -J "$directory/model.json" >"$out" 2>&1 || fail "model"
"$PYTHON" - "$directory" "$(dirname "$peer")" chunk balanced empty >"$out" 2>&1 <<'END' || fail "layouts and check"
import argparse, json, sys
sys.path.insert(0, sys.argv[2])
import torch_peer
for name in sys.argv[3:]:
    plan = json.load(open(f"{sys.argv[1]}/{name}-plan.json"))
    entry = json.load(open(f"{sys.argv[1]}/{name}.json"))["results"][0]
    slots = [torch_peer.Slot(entry, rank) for rank in range(8)]
    received = set()
    for transfer in plan["transfers"]:
        box = tuple(map(tuple, plan["tasks"][transfer["task"]]["box"]))
        for rank in plan["routes"][transfer["route"]]["ranks"]:
            received.add((rank, box))
        assert torch_peer.intersect(slots[transfer["sender"]].src_box, box) == box
    wanted = set()
    for slot in slots:
        for held in slot.src.holders:
            box = slot.dst_box and torch_peer.intersect(slot.dst_box, held)
            if box:
                wanted.add((slot.rank, box))
    assert wanted and wanted <= received, name
    assert sum(torch_peer.volume(t.dst_box) for t in slots if t.dst_box) == \
        sum(torch_peer.volume(b) for _, b in wanted), name
    for slot in slots:
        if slot.dst_box and torch_peer.volume(slot.dst_box) > 0:
            slot.poison()
            assert slot.wrong() == slot.dst_tile.numel() * slot.dst_tile.element_size()

# Bad input is one sentence.
def refused(sentence, path, *case):
    try:
        torch_peer.load(argparse.Namespace(cases=path, case=list(case)))
    except torch_peer.BadInput as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(f"accepted: {path} {case}")

refused("has no case 'nm1', only chunk", f"{sys.argv[1]}/uneven.json", "nm1")
refused("is not JSON", sys.argv[2] + "/torch_peer.py")
model = json.load(open(f"{sys.argv[1]}/model.json"))["results"][0]
try:
    torch_peer.Slot(model, 0)
except torch_peer.BadInput as error:
    assert "many tensors" in str(error), error
else:
    raise AssertionError("a model is accepted")
END

# Under a launcher's environment.
cases two -n 2 --src-mesh 1 --dst-mesh 1 --src-spec R --dst-spec R --shape 1000
port=$("$(dirname "$0")/../reshard_bench/free_port.py")
export MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" WORLD_SIZE=2
RANK=1 timeout 120 "$PYTHON" "$peer" "$directory/two.json" >"$directory/rank1" 2>&1 &
RANK=0
export RANK
right 2 "$directory/two.json"
wait $! || fail "rank 1: $(cat "$directory/rank1")"
unset RANK

timeout 60 "$PYTHON" "$peer" "$directory/two.json" >"$out" 2>&1
[ $? -eq 2 ] || fail "status not 2 without a launcher"
[ "$(cat "$out")" = "torch_peer: no launcher has started this process (RANK and WORLD_SIZE are not set) and -n is not given" ] ||
    fail "not the sentence"
finish
