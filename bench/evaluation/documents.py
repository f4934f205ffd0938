# SPDX-License-Identifier: Apache-2.0
"""What evaluate.py left in its output directory, for the tables, figures and goals of report.py."""

import json
import os
import re
import statistics

STRATEGIES = ["send_recv", "allgather", "broadcast", "auto"]
# As they were published; the last is the one that the others are compared with.
PUBLISHED = ["send_recv", "local_allgather", "global_allgather", "alpa", "broadcast"]
SCHEDULERS = ["naive", "balance", "dfs", "greedy", "openshop"]
PEERS = ["openmpi-alltoallw", "openmpi-isend", "openmpi-bcast", "torch-gather_broadcast",
         "torch-batch_isend_irecv"]
CASES = [f"1m{i}" for i in range(1, 8)] + [f"nm{i}" for i in range(1, 10)]
# The documents with results of reshard-bench, by experiment.
OURS = {
    "systems": ["systems-a-crossmesh", "systems-b-crossmesh"],
    "large": ["large-a", "large-b"],
    "short": ["short-a", "short-b"],
    "ablation": ["ablation-a", "ablation-b"],
    "published": ["published-a", "published-b"],
    "fanout": ["fanout"],
    "nics": ["nics-one", "nics-two", "nics-unequal"],
    "rails": [f"rails-{kind}-{case}" for kind in ("each", "all") for case in ("rr", "s1", "s0", "nm")],
    "cpu": ["cpu-crossmesh"],
    "model": ["model"],
}


class BadDocument(Exception):
    """A document that cannot be what evaluate.py wrote; the text says which and why."""


class Documents:
    """All are optional: what is not there is None or empty."""

    def __init__(self, directory):
        self.directory = directory

    def text(self, name):
        try:
            with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def document(self, name):
        text = self.text(f"{name}.json")
        try:
            return None if text is None else json.loads(text)
        except json.JSONDecodeError as error:
            raise BadDocument(f"{name}.json is not JSON: {error}") from None

    def first(self, names):
        """The first document of several that is there."""
        return next(filter(None, map(self.document, names)), None)

    def results(self, names):
        """The measured results of several documents."""
        found = []
        for name in names:
            document = self.document(name)
            found += [one for one in (document or {}).get("results", []) if "time_s" in one]
        return found

    def by_case(self, names, key):
        """{case: {value of the key: result}}, in the order of the paper."""
        table = {}
        for result in self.results(names):
            table.setdefault(result["case"], {})[result.get(key)] = result
        return {case: table[case] for case in sorted(table, key=order)}

    def systems(self):
        """{case: {strategy or peer: result}} of the cases that auto ran."""
        table = self.by_case(OURS["systems"], "strategy")
        for result in self.results([f"systems-{group}-{peer}" for group in "ab"
                                    for peer in ("mpi", "torch")]):
            ours = table.get(result["case"], {}).get("auto")
            if ours is not None and ours["bytes"] != result["bytes"]:
                raise BadDocument(f"case {result['case']}: {result['peer']} moved "
                                  f"{result['bytes']} B, crossmesh {ours['bytes']} B")
            table.setdefault(result["case"], {})[result["peer"]] = result
        return {case: table[case] for case in sorted(table, key=order) if "auto" in table[case]}

    def nics(self):
        """{case: {one, two, unequal: result}}"""
        table = {}
        for kind in ("one", "two", "unequal"):
            for result in self.results([f"nics-{kind}"]):
                table.setdefault(result["case"], {})[kind] = result
        return {case: table[case] for case in sorted(table, key=order) if "one" in table[case]}

    def rails(self):
        """{case or specs: {each, all: result}}"""
        table = {}
        for kind in ("each", "all"):
            for result in self.results([name for name in OURS["rails"] if f"-{kind}-" in name]):
                own = f"{result['src']['spec']} → {result['dst']['spec']}"
                table.setdefault(own if result["case"] == "own" else result["case"], {})[kind] = result
        return {case: row for case, row in table.items() if "each" in row}

    def sockets(self):
        """(seconds, processor seconds) of socket_copy, or None."""
        for line in (self.text("cpu-sockets.txt") or "").splitlines():
            fields = line.split()
            if len(fields) == 8 and not line.startswith("#"):
                return float(fields[2]) * 1e-6, float(fields[5]) * 1e-6
        return None

    def cpu(self):
        """(result of ours, seconds and processor seconds of plain sockets), or None."""
        ours, sockets = self.results(OURS["cpu"]), self.sockets()
        return (ours[0], *sockets) if ours and "cpu_s" in ours[0] and sockets else None

    def intra_host(self):
        """Rows (what, GB/s, against, GB/s, per cent, goal in per cent)."""
        rows = []
        for line in (self.text("intra_host.txt") or "").splitlines():
            match = re.match(r"([^#].*?)\s+(\d+\.\d{3}) (\S.*?)\s+(\d+\.\d{3})\s+([\d.]+)\s+(\d+)$",
                             line)
            if match:
                what, ours, against, theirs, percent, goal = match.groups()
                rows.append((what, float(ours), against, float(theirs), float(percent),
                             float(goal)))
        return rows

    def errors(self, experiments=tuple(OURS)):
        """(relative error of the simulation, what) of every result, the worst first."""
        found = []
        for experiment in experiments:
            for name in OURS[experiment]:
                found += [(one["makespan_s"] / median(one) - 1,
                           f"{name}: {one['case']}, {one['strategy']}, {one['scheduler']}")
                          for one in self.results([name])]
        return sorted(found, key=lambda pair: (-abs(pair[0]), pair[1]))

    def wrong(self):
        """(wrong bytes, results that were checked) of all documents."""
        names = [name for group in OURS.values() for name in group]
        names += [f"systems-{group}-{peer}" for group in "ab" for peer in ("mpi", "torch")]
        checked = [one["wrong"] for one in self.results(names) if "wrong" in one]
        return sum(checked), len(checked)


def order(case):
    """Key: 1m1 … 1m7, nm1 … nm9, then others by name."""
    return (CASES.index(case) if case in CASES else len(CASES), case)


def median(result):
    return result["time_s"]["median"]


def over_bound(result):
    return median(result) / result["bound_s"]


def fraction(result):
    return result["bound_s"] / median(result)


def ratio(result, reference):
    """How many times the reference's time it took."""
    return median(result) / median(reference)


def ideal_ratio(result, reference):
    """The same of the simulated times."""
    return result["makespan_s"] / reference["makespan_s"]


def best_peer(row):
    """The name of the fastest peer of a case of Documents.systems(), or None."""
    return min((peer for peer in PEERS if peer in row), key=lambda peer: median(row[peer]),
               default=None)


def median_error(errors):
    return statistics.median(abs(error) for error, _ in errors)
