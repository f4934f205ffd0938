# SPDX-License-Identifier: Apache-2.0
"""A problem of the contest's format as arrays that models are made from, and what a choice is worth."""
import os
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/planner/solver"))
from check_certificate import INFINITE, Refused, cost_of, load  # noqa: E402,F401


class Problem:
    """Nodes, one table for each pair of neighbours, and the moments at which the limit can be exceeded.

    Of moments with the same tensors or fewer only the largest stays, and only what values use above the
    node's least counts: `room` is what that leaves of the limit."""

    def __init__(self, path, limit=None):
        self.raw = load(path)["problem"]
        if limit is not None:
            self.raw["usage_limit"] = limit
        nodes, edges = self.raw["nodes"], self.raw["edges"]
        self.costs = [np.minimum(np.array(c, np.int64), INFINITE) for c in nodes["costs"]]
        self.at = np.cumsum([0] + [len(c) for c in self.costs])
        self.tables = {}
        for scope, cells in zip(edges["nodes"], edges["costs"]):
            cells = np.minimum(np.array(cells, np.int64), INFINITE)
            if len(scope) == 1:
                self.costs[scope[0]] = np.minimum(self.costs[scope[0]] + cells, INFINITE)
                continue
            a, b = scope
            cells = cells.reshape(len(self.costs[a]), -1)
            key, cells = ((a, b), cells) if a < b else ((b, a), cells.T)
            self.tables[key] = np.minimum(self.tables.get(key, 0) + cells, INFINITE)
        least = [min(usage) for usage in nodes["usages"]]
        self.above = [np.array(usage, np.int64) - low for usage, low in zip(nodes["usages"], least)]
        self.find_moments(np.array(nodes["intervals"], np.int64).reshape(-1, 2), least)

    def find_moments(self, interval, least):
        live = interval[:, 0] < interval[:, 1]
        times = np.unique(interval[live])
        begin, end = np.searchsorted(times, interval.clip(times[0], times[-1]).T) if live.any() else interval.T

        def over_time(bytes_of):
            change = np.zeros(len(times) + 1, np.int64)
            np.add.at(change, begin[live], bytes_of[live])
            np.add.at(change, end[live], -bytes_of[live])
            return change.cumsum()[:-1]

        base = over_time(np.array(least, np.int64))
        most = base + over_time(np.array([above.max() for above in self.above], np.int64))
        self.least_bytes, self.most_bytes = int(base.max(initial=0)), int(most.max(initial=0))
        limit = self.raw.get("usage_limit", self.most_bytes)
        ends = np.zeros(len(times) + 1, bool)
        ends[end[live]] = True
        moments = np.flatnonzero(ends[1:] & (most > limit))
        self.room, self.base = limit - base[moments], base[moments]
        # Per node the moments it is live at, as a range, empty where its values use the same.
        matters = live & np.array([above.any() for above in self.above], bool)
        self.first = np.where(matters, np.searchsorted(moments, begin), 0)
        self.last = np.where(matters, np.searchsorted(moments, end), 0)
        self.terms = int(sum((above > 0).sum() * (to - at) for above, at, to in zip(self.above, self.first, self.last)))

    def worth(self, choice):
        """The exact cost, by the checker of certificates; the reason where the choice is refused."""
        try:
            cost = cost_of(self.raw, [int(value) for value in choice])
        except Refused as refused:
            return None, str(refused)
        return (cost, "") if cost < INFINITE else (None, "forbidden")


def autopar():
    return os.environ.get("AUTOPAR", str(ROOT / "build/release/planner/cli/autopar"))
