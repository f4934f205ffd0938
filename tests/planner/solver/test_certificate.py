#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Certificates of `autopar solve` against brute force, and against a program that trusts nobody.

test_certificate.py small: random problems and the contest's problem G. test_certificate.py large:
the other problems of the contest that are here. The checker must also refuse what is not so.
"""
import copy
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from check_certificate import INFINITE, Refused, check, cost_of, load  # noqa: E402

FIXTURES = Path(os.environ["SOURCE_DIR"]) / "tests/fixtures/iopddl"
OPTIMUM = {"A": 6548553650, "C": 84102392579, "G": 217039}


def certificate_of(problem, seconds, scratch):
    path = Path(scratch) / "certificate.json"
    subprocess.run([os.environ["AUTOPAR"], "solve", problem, str(seconds), "--quiet", "--certificate", path],
                   check=True, stdout=subprocess.DEVNULL)
    return load(path)


def random_problem(source):
    """A few nodes with tight memory, forbidden pairs and parallel edges."""
    nodes = source.randint(3, 7)
    sizes = [source.randint(1, 4) for _ in range(nodes)]
    intervals = [sorted(source.sample(range(7), 2)) for _ in range(nodes)]
    usages = [[source.randint(0, 20) for _ in range(size)] for size in sizes]
    scopes = [source.sample(range(nodes), 2) for _ in range(source.randint(nodes - 1, 2 * nodes))]
    dear = source.choice((10, 10**6))
    cells = [[INFINITE if source.random() < 0.15 else source.randint(0, dear) for _ in range(sizes[a] * sizes[b])]
             for a, b in scopes]
    problem = {"nodes": {"intervals": intervals, "usages": usages,
                         "costs": [[source.randint(0, dear) for _ in range(size)] for size in sizes]},
               "edges": {"nodes": scopes, "costs": cells}}
    if source.random() < 0.8:
        problem["usage_limit"] = int(source.uniform(1.0, 1.6) * sum(min(u) for u in usages)) + 1
    return {"problem": problem}


def brute_force(problem):
    best = None
    for choice in itertools.product(*(range(len(c)) for c in problem["nodes"]["costs"])):
        try:
            cost = cost_of(problem, choice)
        except Refused:
            continue
        best = cost if best is None else min(best, cost)
    return best if best is None or best < INFINITE else None


def refuses(problem, certificate, what):
    try:
        check(problem, certificate)
    except (Refused, IndexError, KeyError):
        return
    sys.exit(f"FAIL: the checker takes {what}")


def test_refusals(problem, certificate):
    """Each of these is a lie that would prove too much, or says something else than it did."""
    def changed(change):
        other = copy.deepcopy(certificate)
        change(other)
        return other

    duals = [record for record in certificate["proof"] if "prices" in record]
    # A bound that is no optimum may have been rounded down a little.
    more = 1 if certificate["bound"] == cost_of(problem["problem"], certificate["choice"]) else certificate["bound"] // 10**6
    refuses(problem, changed(lambda c: c.update(bound=c["bound"] + more)), f"a bound that is higher by {more}")
    refuses(problem, changed(lambda c: c["proof"].pop()), "a proof without its end")
    refuses(problem, changed(lambda c: c["choice"].pop()), "a choice without its last node")
    refuses(problem, changed(lambda c: c["presolve"].insert(0, [0, 0, 0, 1])), "a value dropped for no reason")
    if any(record["messages"] for record in duals):
        def spoil(c):
            for record in c["proof"]:
                for link in record.get("messages", []):
                    link[2][0] += 1 << 45
                    link[3] = [m + (1 << 45) for m in link[3]]
        refuses(problem, changed(spoil), "messages that leave less than nothing")
    if any(record["prices"] for record in duals):
        def unused(c):
            for record in c["proof"]:
                for price in record.get("prices", []):
                    price[2] += problem["problem"]["usage_limit"]
        refuses(problem, changed(unused), "a capacity that is lowered too far")


def test_random(count, scratch):
    source, solved = random.Random(7), 0
    while solved < count:
        problem = random_problem(source)
        best = brute_force(problem["problem"])
        if best is None:
            continue
        path = Path(scratch) / "problem.json"
        path.write_text(json.dumps(problem))
        certificate = certificate_of(path, 20, scratch)
        found = check(problem, certificate)
        if found != (best, best):
            sys.exit(f"FAIL: problem {solved}: {found}, not {best}")
        refuses(problem, {**certificate, "bound": best + 1}, f"too much of problem {solved}")
        solved += 1


def test_contest(name, seconds, scratch):
    """The certified bound is the optimum that CBC proved."""
    path = FIXTURES / f"{name}.json.gz"
    problem, certificate = load(path), certificate_of(path, seconds, scratch)
    cost, bound = check(problem, certificate)
    if (cost, bound) != (OPTIMUM[name], OPTIMUM[name]):
        sys.exit(f"FAIL: {name}: cost {cost}, bound {bound}")
    if name != "A":  # a walk through its proof takes a minute
        test_refusals(problem, certificate)


def test_graph(scratch):
    """A graph whose presolve contracts again after it has dropped what does not fit together, which it does for no
    certificate: both ways must find the same."""
    path, data = Path(scratch) / "graph.json", Path(os.environ["SOURCE_DIR"]) / "tests/fixtures"
    subprocess.run([os.environ["AUTOPAR"], "shard", data / "hlo/transformer1.hlo", "--mesh", "16", "--hosts", "2", "--cluster",
                    data / "profiles/p3-16xlarge-8x8.json", "--memory-limit", "296595", "--dump-problem", path], check=True)
    said = subprocess.run([os.environ["AUTOPAR"], "solve", path, "60", "--quiet", "--json"], check=True, stdout=subprocess.PIPE)
    cost, certified = json.loads(said.stdout)["cost"], check(load(path), certificate_of(path, 60, scratch))
    if certified != (cost, cost):
        sys.exit(f"FAIL: the graph: cost {cost}, certified {certified}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        if sys.argv[1] == "small":
            test_random(20 if "TEST_SHARE" in os.environ or "TEST_FEW" in os.environ else 40, directory)
            test_contest("G", 60, directory)
            test_graph(directory)
        else:
            test_contest("A", 60, directory)
            test_contest("C", 60, directory)
