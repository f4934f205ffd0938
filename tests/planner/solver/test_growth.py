#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A problem of 131,576 nodes in 60 s and 2 GB of memory, within 2 % of its bound.

Four copies of a problem of the contest, one after the other in time as layers are; some nodes of a copy would rather
have the strategy of the same node in the one before. The answer's cost is reckoned anew, and its bound is not above
four times the optimum of the copies alone, which is known.
"""
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from check_certificate import cost_of  # noqa: E402

COPIES, LINKS, PRICE, OPTIMUM, SECONDS, GAP, MEMORY = 4, 200, 10**5, 84_102_392_579, 60, 0.02, 2 << 30


def grown(path):
    with gzip.open(path) as file:
        problem = json.load(file)["problem"]
    nodes, edges = problem["nodes"], problem["edges"]
    count, end = len(nodes["costs"]), max(high for _, high in nodes["intervals"])
    made = {"name": "grown", "usage_limit": problem["usage_limit"],
            "nodes": {"intervals": [[low + copy * end, high + copy * end] for copy in range(COPIES) for low, high in nodes["intervals"]],
                      "costs": nodes["costs"] * COPIES, "usages": nodes["usages"] * COPIES},
            "edges": {"nodes": [[node + copy * count for node in scope] for copy in range(COPIES) for scope in edges["nodes"]],
                      "costs": edges["costs"] * COPIES}}
    for node in range(0, count * (COPIES - 1), count // LINKS):
        values = range(len(nodes["costs"][node % count]))
        made["edges"]["nodes"].append([node, node + count])
        made["edges"]["costs"].append([PRICE * (a != b) for a in values for b in values])
    return made


def main():
    made = grown(Path(os.environ["SOURCE_DIR"]) / "tests/fixtures/iopddl/C.json.gz")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"problem": made}, file)
        file.flush()
        out = subprocess.run([os.environ["AUTOPAR"], "solve", file.name, str(SECONDS)], check=True, stdout=subprocess.PIPE, text=True).stdout
    choice = json.loads(next(line for line in out.splitlines() if line.startswith("[")))
    cost, bound = map(int, re.search(r"cost (\d+), bound (\d+)", out).groups())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(f"{len(choice)} nodes, cost {cost}, bound {bound}, gap {1 - bound / cost:.3%}, {peak >> 20} MiB")
    assert cost == cost_of(made, choice)
    worst = COPIES * OPTIMUM + PRICE * len(made["edges"]["nodes"])
    assert COPIES * OPTIMUM <= cost and bound <= worst, (cost, bound)
    assert bound >= cost * (1 - GAP) and peak <= MEMORY


if __name__ == "__main__":
    main()
