# SPDX-License-Identifier: Apache-2.0
"""Searches for placements on twelve graphs – the files of DNN-partitioning, DLRMs, U-Nets and networks of Inception's kind –
against an integer programme of the paper's definition (arXiv:2006.16423, section 4) that HiGHS solves, or bounds, by itself.

Prints a table: nodes and devices, the optimum or what is known of it, and each search's gap. Environment: SOURCE_DIR, AUTOPAR."""

import json
import os
import random
import re
import subprocess
import tempfile
import unittest

import numpy
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

SEARCHES = {"part": "scotch", "rl": "colocrl", "BRKGA": "regal"}
SECONDS = 1.5 if "TEST_SHARE" in os.environ else 6.0  # for each of HiGHS' bounds


class Graph:
    """Operators with their times and the time of each output, in the files' form."""

    def __init__(self, accelerators, seed):
        self.draw = random.Random(seed)
        self.nodes, self.edges, self.accelerators = [], [], accelerators

    def add(self, time, output, *inputs):
        time, output = (round(x * self.draw.uniform(0.8, 1.2), 4) for x in (time, output))
        self.nodes.append({"id": len(self.nodes), "supportedOnFpga": True, "cpuLatency": 1e3 * time, "fpgaLatency": time,
                           "isBackwardNode": False, "size": 1.0, "output": output})
        self.edges += [{"sourceId": i, "destId": len(self.nodes) - 1, "cost": self.nodes[i]["output"]} for i in sorted(set(inputs))]
        return len(self.nodes) - 1

    def text(self):
        nodes = [{key: value for key, value in node.items() if key != "output"} for node in self.nodes]
        return {"maxSizePerFPGA": 1e6, "maxFPGAs": self.accelerators, "maxCPUs": 0, "nodes": nodes, "edges": self.edges}


def dlrm(tables, accelerators, seed):
    """Tables are looked up side by side, and interact with the bottom layers' answer (arXiv:1906.00091, figure 1)."""
    graph = Graph(accelerators, seed)
    bottom = graph.add(1, 0.4)
    for _ in range(3):
        bottom = graph.add(2, 0.4, bottom)
    looked_up = [graph.add(graph.draw.choice((1, 2, 4, 8)), 0.3) for _ in range(tables)]
    top = graph.add(3, 0.5, bottom, *looked_up)
    for _ in range(4):
        top = graph.add(2, 0.4, top)
    return graph.text()


def unet(depth, accelerators, seed):
    """Down and up again, with a skip at each level (arXiv:1505.04597, figure 1)."""
    graph, skips = Graph(accelerators, seed), []
    at = graph.add(1, 1.0)
    for level in range(depth):
        at = graph.add(4, 1.6 / 2**level, graph.add(3, 1.6 / 2**level, at))
        skips.append(at)
        at = graph.add(0.5, 0.4 / 2**level, at)
    at = graph.add(4, 0.1, at)
    for level in reversed(range(depth)):
        at = graph.add(3, 1.6 / 2**level, graph.add(4, 1.6 / 2**level, graph.add(0.5, 0.8 / 2**level, at), skips[level]))
    graph.add(1, 0.1, at)
    return graph.text()


def inception(blocks, accelerators, seed):
    """Four branches between two concatenations in each block (arXiv:1409.4842, figure 2b)."""
    graph = Graph(accelerators, seed)
    at = graph.add(3, 0.5)
    for _ in range(blocks):
        ends = [graph.add(1, 0.2, at), graph.add(4, 0.3, graph.add(1, 0.2, at)), graph.add(2, 0.2, graph.add(1, 0.1, at)),
                graph.add(1, 0.2, graph.add(0.5, 0.3, at))]
        at = graph.add(0.2, 0.5, *ends)
    graph.add(1, 0.1, at)
    return graph.text()


def file(name):
    with open(os.path.join(os.environ["SOURCE_DIR"], f"tests/fixtures/dnn-partitioning/{name}.json"), encoding="utf-8") as source:
        return json.load(source)


def graphs():
    for name in "bert24_training", "resnet50_training", "bert_l-3_training":
        yield name, file(name)
    for i, (size, accelerators) in enumerate(((8, 3), (12, 4), (20, 6))):
        yield f"dlrm-{size}", dlrm(size, accelerators, i)
    for i, (size, accelerators) in enumerate(((3, 2), (4, 3), (5, 4))):
        yield f"u-net-{size}", unet(size, accelerators, i)
    for i, (size, accelerators) in enumerate(((3, 2), (5, 3), (9, 4))):
        yield f"inception-{size}", inception(size, accelerators, i)


def solve(graph, seconds):
    """The least largest load, as far as HiGHS comes: (bound, load of the best placement or infinity). A device pays once for each
    output that it sends or receives; operators of one colour stay together; CPUs pay nothing for outputs."""
    place = {node["id"]: i for i, node in enumerate(graph["nodes"])}
    groups = {}
    group_of = [groups.setdefault(("colour", node["colorClass"]) if "colorClass" in node else i, len(groups))
                for i, node in enumerate(graph["nodes"])]
    accelerators = graph["maxFPGAs"]
    devices = accelerators + graph["maxCPUs"]
    output = {place[edge["sourceId"]]: edge["cost"] for edge in graph["edges"]}
    sends = sorted(output)
    column = {node: len(groups) * devices + k * accelerators for k, node in enumerate(sends)}
    last = len(groups) * devices + len(sends) * accelerators
    rows, low, high = [], [], []

    def row(terms, at_least, at_most):
        rows.append(terms)
        low.append(at_least)
        high.append(at_most)

    for g in range(len(groups)):
        row([(g * devices + d, 1) for d in range(devices)], 1, 1)
    between = {(place[e["sourceId"]], group_of[place[e["destId"]]]) for e in graph["edges"]}
    for node, to in sorted(between):
        for d in range(accelerators if group_of[node] != to else 0):
            for sign in (1, -1):
                row([(column[node] + d, 1), (group_of[node] * devices + d, sign), (to * devices + d, -sign)], 0, numpy.inf)
    upper = numpy.ones(last + 1)
    upper[last] = numpy.inf
    for i, node in enumerate(graph["nodes"]):
        if not node["supportedOnFpga"]:
            upper[group_of[i] * devices:group_of[i] * devices + accelerators] = 0
    for d in range(devices):
        key = "fpgaLatency" if d < accelerators else "cpuLatency"
        load = [(group_of[i] * devices + d, node[key]) for i, node in enumerate(graph["nodes"])]
        load += [(column[node] + d, output[node]) for node in sends] if d < accelerators else []
        row([*load, (last, -1)], -numpy.inf, 0)
        if d < accelerators:
            row([(group_of[i] * devices + d, node["size"]) for i, node in enumerate(graph["nodes"])], 0, graph["maxSizePerFPGA"])
    entries = [(i, c, v) for i, terms in enumerate(rows) for c, v in terms]
    row_of, column_of, value = zip(*entries)
    matrix = csr_matrix((value, (row_of, column_of)), shape=(len(rows), last + 1))
    cost = numpy.zeros(last + 1)
    cost[last] = 1
    whole = numpy.zeros(last + 1)
    whole[:len(groups) * devices] = 1
    found = milp(cost, constraints=LinearConstraint(matrix, low, high), integrality=whole, bounds=Bounds(0, upper),
                 options={"time_limit": seconds})
    return found.mip_dual_bound, found.fun if found.fun is not None else numpy.inf


def search(path, planner):
    words = [os.environ["AUTOPAR"], "plan", "--like", planner, path, "--seed", "7"]
    said = [subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout for _ in range(2)]
    if said[0] != said[1]:
        raise AssertionError(f"{' '.join(words)} gave two answers:\n{said[0]}{said[1]}")
    return float(re.search(r"([\d.]+) not contiguous \(", said[0]).group(1))


class PlacementGraphs(unittest.TestCase):
    def test_searches_are_near_the_optimum(self):
        near, proved = dict.fromkeys(SEARCHES, 0), 0
        print(f"\n{'# graph':20} {'nodes':>6} {'devices':>8} {'best known':>11} {'bound':>9}  " + " ".join(f"{s:>8}" for s in SEARCHES))
        with tempfile.TemporaryDirectory() as folder:
            for name, graph in graphs():
                path = os.path.join(folder, name + ".json")
                with open(path, "w", encoding="utf-8") as target:
                    json.dump(graph, target)
                loads = {word: search(path, planner) for word, planner in SEARCHES.items()}
                bound, placed = solve(graph, SECONDS)
                best = min(placed, *loads.values())
                optimal = bound >= best * (1 - 2e-4)
                proved += optimal
                print(f"{name:20} {len(graph['nodes']):6} {graph['maxFPGAs'] + graph['maxCPUs']:8} {best:11.4f} "
                      f"{'optimal' if optimal else f'{bound:.4f}':>9}  " + " ".join(f"{100 * (loads[s] / best - 1):7.2f}%" for s in loads))
                for word, load in loads.items():
                    self.assertGreaterEqual(load, bound * (1 - 1e-4), f"{name}: {word} is below what HiGHS has proved")
                    self.assertLessEqual(load, loads["part"] * (1 + 1e-6), f"{name}: {word} is worse than part")
                    near[word] += load <= 1.05 * best
        print(f"within 5 % of the best known: {near}; {proved} optima are proved")
        for word, count in near.items():
            self.assertGreaterEqual(count, 10, word)
        self.assertGreaterEqual(proved, 3)


if __name__ == "__main__":
    unittest.main()
