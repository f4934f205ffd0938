# SPDX-License-Identifier: Apache-2.0
"""Fifty graphs from HLO, ONNX and the built-in models, as problems whose memory limit binds.

`autopar shard --dump-problem` makes a problem; the limits are multiples of its least memory, which CP-SAT finds, and
mostly proves, as the smallest peak of any choice without a forbidden cell. graphs.csv keeps what was found and what
was proved: both are sought again where the problem is no longer the one they are of.
"""
import csv
import gzip
import hashlib
import json
import subprocess
from itertools import accumulate
from pathlib import Path

from peers import cp_sat
from problem import INFINITE, ROOT, Problem, autopar, cost_of

FACTORS, SECONDS = (1.02, 1.1, 1.3, 2.0), 20
KEPT = ROOT / "bench/solver/graphs.csv"
CLUSTERS = {"lab": "tests/fixtures/profiles/lab-2x4.json", "p3": "tests/fixtures/profiles/p3-16xlarge-8x8.json",
            "busy": "tests/fixtures/profiles/busy-8x4.json"}
# Model or fixture, cluster ("alpa": its cost model), mesh, further options.
GRAPHS = [line.split(maxsplit=3) for line in """\
hlo/mlp2-b1024-h128.hlo lab 2x4
hlo/mlp12-b1024-h128.hlo p3 4x4
hlo/mlp12-b1024-h128.hlo alpa 2x2x2
hlo/scan12-b1024-h128.hlo lab 2x4
hlo/transformer1.hlo lab 2x4
hlo/transformer1.hlo p3 16 --hosts 2
hlo/transformer2.hlo p3 8
hlo/transformer2.hlo alpa 2x4
hlo/convnet.hlo lab 2x4
hlo/convnet.hlo p3 4x4
hlo/moe.hlo lab 2x4
hlo/moe.hlo p3 2x8
hlo/large/gpt-32-layers.hlo.gz p3 8
hlo/large/decoder-8b.hlo.gz p3 8
onnx/mlp2-b1024-h128.onnx lab 2x4
onnx/block.onnx lab 2x4
onnx/block.onnx p3 8
onnx/block-dynamo.onnx p3 4x4
onnx/gpt2layers.onnx lab 4
onnx/gpt2layers.onnx busy 4x4 --optimizer adam
onnx/convnet.onnx lab 2x4
onnx/convnet.onnx p3 4x4
mlp8 lab 2x4 --hidden 4096 --batch 512
mlp4 p3 2x8 --hidden 8192 --batch 64 --optimizer adam
mlp16 alpa 4x4 --hidden 2048 --batch 4096
gpt-125m lab 4
gpt-125m p3 8 --batch 8 --optimizer adam
gpt-125m alpa 4 --batch 8
gpt-350m p3 2x8 --optimizer adam
gpt-1.3b p3 8 --batch 8
gpt-1.3b busy 4 --optimizer adam
gpt-2.6b p3 16 --hosts 2 --batch 16 --optimizer adam
llama2-7b p3 8 --batch 8
llama3-8b p3 8 --batch 2
llama3-8b p3 8x8 --optimizer adam
llama3-70b p3 32 --hosts 4
qwen3-32b p3 8 --optimizer adam
moe-380m lab 4 --batch 8
moe-690m p3 8 --batch 16
moe-1.3b p3 16 --hosts 2 --optimizer adam
mixtral-8x7b p3 8 --batch 8
qwen3-30b-a3b p3 8 --optimizer adam
wresnet-250m lab 4 --batch 32
wresnet-500m p3 8 --batch 64 --optimizer adam
wresnet-1b p3 16 --hosts 2 --batch 32
unet-470m lab 4 --batch 8
unet-1b p3 8 --batch 16 --optimizer adam
t5-60m lab 4 --batch 8
t5-220m p3 8 --batch 16 --optimizer adam
t5-770m p3 16 --hosts 2 --batch 8""".splitlines()]


def name_of(graph):
    model = graph[0].split("/")[-1].split(".hlo")[0].split(".onnx")[0]
    return "-".join([graph[0].split("/")[0]] * ("/" in graph[0]) + [model, graph[1], graph[2]])


def dump(graph, limit, path):
    model, cluster, mesh, *options = graph
    if "/" in model:
        text = (ROOT / "tests/fixtures" / model).read_bytes()
        model = path.with_name(model.split("/")[-1].removesuffix(".gz"))
        model.write_bytes(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
    where = [] if cluster == "alpa" else ["--cluster", str(ROOT / CLUSTERS[cluster])]
    subprocess.run([autopar(), "shard", model, "--mesh", mesh, *where, *(options[0].split() if options else []),
                    "--memory-limit", str(limit), "--dump-problem", path], check=True)
    if "/" in graph[0]:
        Path(model).unlink()
    return Problem(path, limit)


def free_choice(problem, path):
    """Any choice within a small limit, by our solver: the costs are taken out, and the limit is raised until one is found."""
    raw = json.loads(json.dumps(problem.raw))
    for lists in (raw["nodes"]["costs"], raw["edges"]["costs"]):
        lists[:] = [[INFINITE if c >= INFINITE else 0 for c in cells] for cells in lists]
    for factor in (1, 1.01, 1.03, 1.06, 1.1, 1.2, 1.4, 1.7, 2, 3, 5, 10):
        raw["usage_limit"] = int(factor * problem.least_bytes)
        path.write_text(json.dumps({"problem": raw}))
        said = subprocess.run([autopar(), "solve", path, "10", "--threads", "1", "--quiet", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if said.returncode == 0:
            return json.loads(said.stdout)["choice"]
    raise RuntimeError("no choice within ten times the least of every node was found")


def peak_of(raw, choice):
    """The largest load, and whether no cell is forbidden."""
    change = {}
    for (begin, end), usage, value in zip(raw["nodes"]["intervals"], raw["nodes"]["usages"], choice):
        if begin < end:
            change[begin] = change.get(begin, 0) + usage[value]
            change[end] = change.get(end, 0) - usage[value]
    if cost_of({**raw, "usage_limit": sum(map(max, raw["nodes"]["usages"]))}, choice) >= INFINITE:
        raise RuntimeError("a choice is forbidden")
    return max(accumulate(change[time] for time in sorted(change)), default=0)


def least_memory(problem, path):
    """The smallest peak that was found, by our solver and from there on by CP-SAT, and the bound that CP-SAT proves."""
    choice = free_choice(problem, path)
    work = cp_sat(problem, None, SECONDS, 1, None, start=choice)
    next(work)
    better, bound, _ = next(work)
    return min(peak_of(problem.raw, c) for c in (choice, better or choice)), max(int(bound), problem.least_bytes)


def digest_of(raw):
    """Of all that the least memory depends on."""
    nodes = raw["nodes"]
    forbidden = [[c >= 10**18 for c in cells] for cells in (*nodes["costs"], *raw["edges"]["costs"])]
    text = json.dumps([nodes["intervals"], nodes["usages"], raw["edges"]["nodes"], forbidden])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make(directory, graph):
    """Writes the problems of a graph, NAME@FACTOR.json.gz."""
    kept = {row["graph"]: row for row in csv.DictReader(KEPT.open())} if KEPT.exists() else {}
    directory.mkdir(parents=True, exist_ok=True)
    name, path = name_of(graph), directory / "problem.json"
    # What is large is told by the limit, so a first one of the right size is needed.
    rough = dump(graph, 1, path).least_bytes
    problem = dump(graph, int(1.3 * rough), path)
    digest = digest_of(problem.raw)
    if kept.get(name, {}).get("digest") != digest:
        least, proved = least_memory(Problem(path, problem.least_bytes), path)
        kept[name] = {"graph": name, "least": least, "proved": proved, "digest": digest}
        with KEPT.open("w") as file:
            table = csv.DictWriter(file, ["graph", "least", "proved", "digest"], lineterminator="\n")
            table.writeheader()
            table.writerows(kept[n] for n in map(name_of, GRAPHS) if n in kept)
    for factor in FACTORS:
        problem.raw["usage_limit"] = int(factor * int(kept[name]["least"]))
        with gzip.open(directory / f"{name}@{factor}.json.gz", "wt", compresslevel=1) as out:
            json.dump({"problem": problem.raw}, out, separators=(",", ":"))
    path.unlink()
