#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_certificate.py PROBLEM CERTIFICATE: verifies what `autopar solve --certificate` wrote.

It shares no code with the solver. docs/solver.md has the format and why each rule is sound. Costs
are integers in units of 2^-scale; what is forbidden costs BIG, and larger sums are cut to BIG,
which only makes the problem cheaper. Prints "cost C, bound B"; exit 1 and a sentence otherwise.
"""
import gzip
import json
import sys
from pathlib import Path

import numpy as np

INFINITE, BIG, PRICE_BITS = 10**18, 2**61, 30


class Refused(Exception):
    pass


def require(condition, sentence):
    if not condition:
        raise Refused(sentence)


def load(path):
    data = Path(path).read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def cost_of(problem, choice):
    """The exact cost of a choice, which must fit."""
    nodes, edges = problem["nodes"], problem["edges"]
    sizes, change, used = [len(costs) for costs in nodes["costs"]], {}, 0
    require(len(choice) == len(sizes) and all(0 <= s < size for s, size in zip(choice, sizes)), "the choice is of another problem")
    cost = sum(costs[s] for costs, s in zip(nodes["costs"], choice))
    for scope, cells in zip(edges["nodes"], edges["costs"]):
        cost += cells[np.ravel_multi_index([choice[n] for n in scope], [sizes[n] for n in scope])]
    for (low, high), usage, s in zip(nodes["intervals"], nodes["usages"], choice):
        for time, more in ((low, usage[s]), (high, -usage[s])) if low < high else ():
            change[time] = change.get(time, 0) + more
    for time in sorted(change):
        used += change[time]
        require(used <= problem.get("usage_limit", used), f"time {time} is overfull")
    return cost


def cut(costs):
    return np.minimum(costs, BIG)


class Network:
    """Nodes with the values that are left, their costs, usages at the priced times, and tables of pairs."""

    def __init__(self, problem, scale, times):
        def scaled(costs):
            return np.array([BIG if c >= INFINITE else min(c << scale, BIG) for c in costs], np.int64)

        nodes, edges = problem["nodes"], problem["edges"]
        self.scale, self.limit, self.base, self.seen = scale, problem.get("usage_limit"), 0, set()
        self.time = {t: k for k, t in enumerate(times)}
        self.cost = [scaled(costs) for costs in nodes["costs"]]
        self.alive = [np.arange(len(costs)) for costs in self.cost]
        self.usage = [np.array(usage, np.int64)[:, None] * np.array([low <= t < high for t in times], np.int64)
                      for (low, high), usage in zip(nodes["intervals"], nodes["usages"])]
        self.gone, self.always = [False] * len(self.cost), np.zeros(len(times), np.int64)
        self.table = [{} for _ in self.cost]  # table[a][b][x, y], and its transpose in table[b][a]
        for scope, cells in zip(edges["nodes"], edges["costs"]):
            require(len(scope) == len(set(scope)) < 3, "an edge has three nodes, or one twice")
            if len(scope) == 1:
                self.cost[scope[0]] = cut(self.cost[scope[0]] + scaled(cells))
            else:
                self.add(*scope, scaled(cells).reshape(len(self.cost[scope[0]]), -1))

    def add(self, a, b, table):
        table = cut(table + self.table[a].get(b, 0))
        self.table[a][b], self.table[b][a] = table, table.T

    def take(self, a, b):
        del self.table[b][a]
        return self.table[a].pop(b)

    def remove(self, n, x):
        require(x in self.alive[n], f"value {x} of node {n} goes twice")
        self.alive[n] = self.alive[n][self.alive[n] != x]

    def require_impossible(self, n, x):
        require(self.cost[n][x] >= BIG or any((table[x, self.alive[m]] >= BIG).all() for m, table in self.table[n].items()),
                f"value {x} of node {n} is possible")

    def drop(self, n, x, y):
        """Value x of node n goes: it is impossible, or y costs and uses no more whatever else is."""
        if y < 0:
            self.require_impossible(n, x)
        else:
            require(y != x and y in self.alive[n], f"value {y} of node {n} is no other one")
            require((self.usage[n][y] <= self.usage[n][x]).all(), f"value {y} of node {n} uses more")
            gain = int(self.cost[n][x]) - int(self.cost[n][y])
            for m, table in self.table[n].items():
                there, instead = table[x, self.alive[m]], table[y, self.alive[m]]
                require(((instead < BIG) | (there >= BIG)).all(), f"node {n} may need value {x}")
                gain += int((there - instead)[there < BIG].min(initial=BIG))
            require(gain >= 0, f"value {y} of node {n} costs more than {x}")
        self.remove(n, x)

    def contract(self, y, x, _):
        """Every value of x leaves one of y, so y goes into x."""
        table = self.take(x, y)
        possible = table[:, self.alive[y]] < BIG
        require((possible[self.alive[x]].sum(1) == 1).all(), f"node {y} does not follow from {x}")
        follows = self.alive[y][possible.argmax(1)]
        self.cost[x] = cut(cut(self.cost[x] + table[np.arange(len(follows)), follows]) + self.cost[y][follows])
        self.usage[x] = self.usage[x] + self.usage[y][follows]
        for z in list(self.table[y]):
            self.add(x, z, self.take(y, z)[follows])
        self.gone[y] = True

    def separate(self, a, b, _):
        """The table of a and b is the sum of a vector for each."""
        cells = self.take(a, b)[np.ix_(self.alive[a], self.alive[b])]
        rows, columns = cells.min(1) - cells.min(), cells.min(0)
        require((cells == rows[:, None] + columns).all(), f"the edge of {a} and {b} is no sum")
        for n, vector in ((a, rows), (b, columns)):
            self.cost[n][self.alive[n]] = cut(self.cost[n][self.alive[n]] + vector)

    def eliminate(self, n, *_):
        """Node n, whose values use the same, takes its best value given its neighbours'."""
        usage, others = self.usage[n][self.alive[n]], sorted(self.table[n])
        require((usage == usage[0]).all(), f"the usage of node {n} differs")
        require(len(others) <= 2, f"node {n} has more than two neighbours")
        self.always = self.always + usage[0]
        best = self.cost[n][self.alive[n]].reshape(-1, 1, 1)  # then [own value, one neighbour's, the other's]
        for m, shape in zip(others, ((len(best), -1, 1), (len(best), 1, -1))):
            best = cut(best + self.take(n, m)[self.alive[n]].reshape(shape))
        best = best.min(0)
        if len(others) == 2:
            self.add(*others, best)
        elif others:
            self.cost[others[0]] = cut(self.cost[others[0]] + best[:, 0])
        else:
            self.base += int(best[0, 0])
        self.gone[n] = True

    def bound(self, record):
        """The bound of the record's prices and messages, and what each value costs above the least."""
        prices = [(self.time[t], price) for t, price, _ in record["prices"]]
        require(all(price >= 0 and self.limit is not None for _, price in prices), "a price is negative, or there is no limit to be priced")
        message = {(self.left[a], self.left[b]): (np.array(x, np.int64), np.array(y, np.int64))
                   for a, b, x, y in record["messages"]}
        total, cost, above = self.base, {}, {n: np.zeros(len(self.alive[n]), np.int64) for n in self.left}
        for n in self.left:
            paid = sum((self.usage[n][self.alive[n], k].astype(object) * price for k, price in prices if k in self.live[n]),
                       np.zeros(len(self.alive[n]), object))
            cost[n] = np.array([min(int(c) + ((p << self.scale) >> PRICE_BITS), BIG)
                                for c, p in zip(self.cost[n][self.alive[n]], paid)], np.int64)
        for a, b in self.links:
            table = self.table[a][b][np.ix_(self.alive[a], self.alive[b])]
            if len(table) == 1:
                cost[b] = cut(cost[b] + table[0])
            elif len(table[0]) == 1:
                cost[a] = cut(cost[a] + table[:, 0])
            else:
                to_a, to_b = message.pop((a, b), (0 * table[:, 0], 0 * table[0]))
                require(max(abs(to_a).max(), abs(to_b).max()) <= 2**56, "a message is too large")
                cost[a], cost[b], table = cut(cost[a] + to_a), cut(cost[b] + to_b), table - to_a[:, None] - to_b
                above[a], above[b] = (cut(above[n] + table.min(axis) - table.min()) for n, axis in ((a, 1), (b, 0)))
                total += int(table.min())
        require(not message, "a message belongs to no link")
        total += sum(int(c.min()) for c in cost.values())
        for t, price, unused in record["prices"]:
            room = self.limit - int(self.always[self.time[t]])
            self.require_unused(self.time[t], room, unused)
            total -= -((-(price * (room - unused) << self.scale)) // 2**PRICE_BITS)
        return total, {n: cut(c - c.min() + above[n]) for n, c in cost.items()}

    def require_unused(self, time, room, unused):
        """No choice of kept values uses more than room - unused, but not more than room, at a time.

        The sums are kept as ranges; those nearer than the gap are joined, which only adds sums."""
        items = [np.unique(self.usage[n][self.alive[n], time]) for n in self.left]
        room -= sum(int(usage[0]) for usage in items)
        key = (room, unused, tuple(usage.tobytes() for usage in items if len(usage) > 1))
        if unused == 0 or room < 0 or key in self.seen:
            return
        require(unused > 0, "a capacity is larger than the limit allows")
        low = high = np.zeros(1, np.int64)
        for usage in sorted((usage - usage[0] for usage in items), key=lambda usage: usage[-1]):
            low, high = ((ends[:, None] + usage).ravel() for ends in (low, high))
            order = np.argsort(low, kind="stable")[:(low <= room).sum()]
            low, high = low[order], np.maximum.accumulate(high[order])
            begins = np.r_[True, low[1:] - high[:-1] > room >> 14]
            low, high = low[begins], high[np.r_[begins[1:], True]]
        require(not ((high > room - unused) & (low <= room)).any(), "room is left that can be used")
        self.seen.add(key)

    def verify(self, records, bound):
        """Walks through the tree of the records; nothing of it may be left out."""
        self.left = [n for n, gone in enumerate(self.gone) if not gone]
        self.links = [(a, b) for a in self.left for b in self.table[a] if a < b]
        self.live = [set(usage.any(0).nonzero()[0]) for usage in self.usage]
        named, enough = list(self.alive), ((bound - 1) << self.scale) + 1
        records, open_sets = iter(records), [self.alive]
        while open_sets:
            self.alive = open_sets.pop()
            if not all(len(self.alive[n]) for n in self.left):
                continue
            record = next(records, None)
            require(record is not None, "the proof ends too early")
            if "branch" in record:
                n = self.left[record["branch"][0]]
                x = named[n][record["branch"][1]]
                require(x in self.alive[n], "a branch takes a value that is gone")
                open_sets += [[*self.alive], [*self.alive]]  # the last one is looked at first
                open_sets[-2][n], open_sets[-1][n] = self.alive[n][self.alive[n] != x], np.array([x])
                continue
            first, (total, above) = list(self.alive), self.bound(record) if "prices" in record else (None, None)
            closed = total is not None and "drops" not in record
            require(not closed or total >= enough, "a record's bound is below the bound")
            for v, x in () if closed else record["drops"]:  # values that no solution below the bound has
                n, x = self.left[v], named[self.left[v]][x]
                if total is None:
                    self.require_impossible(n, x)
                else:
                    require(total + int(above[n][first[n] == x].max(initial=0)) >= enough,
                            f"value {x} of node {n} may be in a better solution")
                self.remove(n, x)
            open_sets += [] if closed else [self.alive]
        require(next(records, None) is None, "the proof goes on behind its end")


def check(problem, certificate):
    """The cost of the choice and the bound, both verified."""
    problem = problem["problem"]
    cost, bound = cost_of(problem, certificate["choice"]), certificate["bound"]
    scale, proof = certificate["scale"], certificate["proof"]
    require(0 <= scale and cost << scale < 2**50, "the scale is too large")
    network = Network(problem, scale, sorted({t for record in proof for t, _, _ in record.get("prices", [])}))
    for kind, node, x, y in certificate["presolve"]:
        require(not network.gone[node], f"node {node} is gone")
        (network.drop, network.contract, network.separate, network.eliminate)[kind](node, x, y)
    network.verify(proof, bound)
    return cost, bound


if __name__ == "__main__":
    try:
        print("cost %d, bound %d" % check(load(sys.argv[1]), load(sys.argv[2])))
    except Refused as refused:
        sys.exit(f"{sys.argv[2]}: {refused}")
