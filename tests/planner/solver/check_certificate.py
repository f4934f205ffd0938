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

import numpy as np

INFINITE, BIG, PRICE_BITS = 10**18, 2**61, 30


class Refused(Exception):
    pass


def require(condition, sentence):
    if not condition:
        raise Refused(sentence)


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def cost_of(problem, choice):
    """The exact cost of a choice, which must fit."""
    nodes, edges = problem["nodes"], problem["edges"]
    require(len(choice) == len(nodes["costs"]), "the choice has another number of nodes")
    require(all(0 <= s < len(c) for s, c in zip(choice, nodes["costs"])), "a strategy is unknown")
    cost = sum(costs[s] for costs, s in zip(nodes["costs"], choice))
    for scope, cells in zip(edges["nodes"], edges["costs"]):
        at = 0
        for node in scope:
            at = at * len(nodes["costs"][node]) + choice[node]
        cost += cells[at]
    change = {}
    for (low, high), usage, s in zip(nodes["intervals"], nodes["usages"], choice):
        if low < high:
            change[low] = change.get(low, 0) + usage[s]
            change[high] = change.get(high, 0) - usage[s]
    load_now = 0
    for time in sorted(change):
        load_now += change[time]
        require(load_now <= problem.get("usage_limit", load_now), f"time {time} is overfull")
    return cost


def scaled(costs, scale):
    return np.array([BIG if c >= INFINITE else min(c << scale, BIG) for c in costs], np.int64)


def cut(costs):
    return np.minimum(costs, BIG)


class Network:
    """Nodes with alive values, their costs, usages at the priced times, and tables of pairs."""

    def __init__(self, problem, scale, times):
        nodes, edges = problem["nodes"], problem["edges"]
        self.times, self.base = times, 0
        self.cost = [scaled(c, scale) for c in nodes["costs"]]
        self.alive = [np.ones(len(c), bool) for c in self.cost]
        self.gone = [False] * len(self.cost)
        self.usage = []
        for (low, high), usage in zip(nodes["intervals"], nodes["usages"]):
            live = np.array([low <= t < high for t in times], np.int64)
            self.usage.append(np.array(usage, np.int64)[:, None] * live)
        self.always = np.zeros(len(times), np.int64)
        self.table = [{} for _ in self.cost]  # table[a][b][x, y], and its transpose in table[b][a]
        for scope, cells in zip(edges["nodes"], edges["costs"]):
            cells = scaled(cells, scale)
            if len(scope) == 1:
                self.cost[scope[0]] = cut(self.cost[scope[0]] + cells)
            else:
                require(len(scope) == 2, "an edge has three nodes")
                self.add(*scope, cells.reshape(len(self.cost[scope[0]]), -1))

    def add(self, a, b, table):
        old = self.table[a].get(b)
        table = cut(table if old is None else old + table)
        self.table[a][b], self.table[b][a] = table, table.T

    def take(self, a, b):
        del self.table[b][a]
        return self.table[a].pop(b)

    def drop(self, n, x, y):
        """Value x of node n goes: it is impossible, or y costs and uses no more whatever else is."""
        require(self.alive[n][x], "a value goes twice")
        if y < 0:
            require(self.cost[n][x] >= BIG or any(
                (table[x, self.alive[m]] >= BIG).all() for m, table in self.table[n].items()),
                f"value {x} of node {n} is possible")
        else:
            require(y != x and self.alive[n][y], f"value {y} of node {n} is no other one")
            require((self.usage[n][y] <= self.usage[n][x]).all(), f"value {y} of node {n} uses more")
            gain = int(self.cost[n][x]) - int(self.cost[n][y])
            for m, table in self.table[n].items():
                there, instead = table[x, self.alive[m]], table[y, self.alive[m]]
                require(((instead < BIG) | (there >= BIG)).all(), f"node {n} may need value {x}")
                usable = there < BIG
                gain += int((there - instead)[usable].min()) if usable.any() else BIG
            require(gain >= 0, f"value {y} of node {n} costs more than {x}")
        self.alive[n][x] = False

    def contract(self, y, x):
        """Every value of x leaves one of y, so y goes into x."""
        table = self.take(x, y)
        possible = (table < BIG) & self.alive[y]
        require((possible[self.alive[x]].sum(1) == 1).all(), f"node {y} does not follow from {x}")
        follows = possible.argmax(1)
        at = np.arange(len(follows))
        self.cost[x] = cut(cut(self.cost[x] + table[at, follows]) + self.cost[y][follows])
        self.usage[x] = self.usage[x] + self.usage[y][follows]
        for z in list(self.table[y]):
            self.add(x, z, self.take(y, z)[follows])
        self.gone[y] = True

    def separate(self, a, b):
        """The table of a and b is the sum of a vector for each."""
        table, there = self.take(a, b), np.ix_(self.alive[a], self.alive[b])
        cells = table[there]
        rows, columns = cells.min(1) - cells.min(), cells.min(0)
        require((cells == rows[:, None] + columns).all(), f"the edge of {a} and {b} is no sum")
        for n, vector in ((a, rows), (b, columns)):
            self.cost[n][self.alive[n]] = cut(self.cost[n][self.alive[n]] + vector)

    def eliminate(self, n):
        """Node n, whose values use the same, takes its best value given its neighbours'."""
        usage = self.usage[n][self.alive[n]]
        require((usage == usage[0]).all(), f"the usage of node {n} differs")
        self.always = self.always + usage[0]
        cost, others = self.cost[n][self.alive[n]], sorted(self.table[n])
        tables = [self.take(n, m)[self.alive[n]] for m in others]
        require(len(others) <= 2, f"node {n} has more than two neighbours")
        if not others:
            self.base += int(cost.min())
        elif len(others) == 1:
            best = cut(cost[:, None] + tables[0]).min(0)
            self.cost[others[0]] = cut(self.cost[others[0]] + best)
        else:
            first = cut(cost[:, None] + tables[0])
            self.add(*others, np.array([cut(first[:, x, None] + tables[1]).min(0)
                                        for x in range(first.shape[1])]))
        self.gone[n] = True


class Core:
    """What the presolve leaves, with a set of kept values per variable: the problem of a record."""

    def __init__(self, network, limit):
        alive = [n for n in range(len(network.cost)) if not network.gone[n]]
        number = {n: k for k, n in enumerate(alive)}
        kept = network.alive
        self.cost = [network.cost[n][kept[n]] for n in alive]
        self.usage = [network.usage[n][kept[n]] for n in alive]
        self.links = {(number[a], number[b]): network.table[a][b][np.ix_(kept[a], kept[b])]
                      for a in alive for b in network.table[a] if a < b}
        self.time = {t: k for k, t in enumerate(network.times)}
        self.live = [set(usage.any(0).nonzero()[0]) for usage in self.usage]
        self.base, self.always, self.limit = network.base, network.always, limit

    def bound(self, record, keep):
        """The bound of the record's prices and messages, and what each value costs above the least."""
        prices = [(self.time[t], price) for t, price, _ in record["prices"]]
        require(all(price >= 0 for _, price in prices), "a price is negative")
        require(self.limit is not None or not prices, "there is no limit to be priced")
        message = {(a, b): (np.array(x, np.int64), np.array(y, np.int64))
                   for a, b, x, y in record["messages"]}
        total, cost = self.base, []
        for v, values in enumerate(keep):
            paid = np.zeros(len(values), object)
            for k, price in prices:
                if k in self.live[v]:
                    paid = paid + self.usage[v][values, k].astype(object) * price
            paid = [min(int(c) + ((p << self.scale) >> PRICE_BITS), BIG)
                    for c, p in zip(self.cost[v][values], paid)]
            cost.append(np.array(paid, np.int64))
        above = [np.zeros(len(values), np.int64) for values in keep]
        for (a, b), table in self.links.items():
            table = table[np.ix_(keep[a], keep[b])]
            if len(keep[a]) == 1:
                cost[b] = cut(cost[b] + table[0])
            elif len(keep[b]) == 1:
                cost[a] = cut(cost[a] + table[:, 0])
            elif (a, b) in message:
                to_a, to_b = message.pop((a, b))
                require(max(abs(to_a).max(), abs(to_b).max()) <= 2**56, "a message is too large")
                cost[a], cost[b] = cut(cost[a] + to_a), cut(cost[b] + to_b)
                above[a], above[b], least = self.spread(table - to_a[:, None] - to_b, above[a], above[b])
                total += least
            else:
                above[a], above[b], least = self.spread(table, above[a], above[b])
                total += least
        require(not message, "a message belongs to no link")
        total += sum(int(c.min()) for c in cost)
        for t, price, unused in record["prices"]:
            room = self.limit - int(self.always[self.time[t]])
            self.require_unused(self.time[t], keep, room, unused)
            total -= -((-(price * (room - unused) << self.scale)) // 2**PRICE_BITS)
        return total, [cut(c - c.min() + more) for c, more in zip(cost, above)]

    @staticmethod
    def spread(table, rows, columns):
        """Adds what the least cell of each row and column is above the least of all, also given."""
        least = table.min()
        return cut(rows + table.min(1) - least), cut(columns + table.min(0) - least), int(least)

    def require_unused(self, time, keep, room, unused):
        """No choice of kept values uses more than room - unused, but not more than room, at a time.

        The sums are kept as ranges; those nearer than the gap are joined, which only adds sums."""
        items = [np.unique(self.usage[v][values, time]) for v, values in enumerate(keep)]
        room -= sum(int(usage[0]) for usage in items)
        key = (room, unused, tuple(usage.tobytes() for usage in items if len(usage) > 1))
        if unused == 0 or room < 0 or key in self.seen:
            return
        require(unused > 0, "a capacity is larger than the limit allows")
        low = high = np.zeros(1, np.int64)
        for usage in sorted((usage - usage[0] for usage in items), key=lambda usage: usage[-1]):
            low, high = ((ends[:, None] + usage).ravel() for ends in (low, high))
            order = np.argsort(low, kind="stable")
            order = order[low[order] <= room]
            low, high = low[order], np.maximum.accumulate(high[order])
            begins = np.r_[True, low[1:] - high[:-1] > room >> 14]
            low, high = low[begins], high[np.r_[begins[1:], True]]
        require(not ((high > room - unused) & (low <= room)).any(), "room is left that can be used")
        self.seen.add(key)

    def drop(self, record, keep, enough):
        """Values that no solution below the bound has; False when there is no such solution."""
        total, above = None, None
        if "prices" in record:
            total, above = self.bound(record, keep)
            if "drops" not in record:
                require(total >= enough, "a record's bound is below the bound")
                return False
        first = [list(values) for values in keep]
        for v, x in record["drops"]:
            if total is None:
                alone = self.cost[v][x] >= BIG or any(
                    (self.links[a, b][x, keep[b]] if a == v else self.links[a, b][keep[a], x]
                     ).min(initial=BIG) >= BIG for a, b in self.of[v])
                require(alone, f"value {x} of variable {v} is possible")
            else:
                require(total + int(above[v][first[v].index(x)]) >= enough,
                        f"value {x} of variable {v} may be in a better solution")
            keep[v].remove(x)
        return True

    def verify(self, records, bound, scale):
        """Walks through the tree of the records; nothing of it may be left out."""
        self.seen = set()
        self.scale, enough = scale, ((bound - 1) << scale) + 1
        self.of = [[link for link in self.links if v in link] for v in range(len(self.cost))]
        open_sets = [[list(range(len(c))) for c in self.cost]]
        at = 0
        while open_sets:
            require(at < len(records), "the proof ends too early")
            keep = open_sets.pop()
            if any(not values for values in keep):
                continue
            record = records[at]
            at += 1
            if "branch" in record:
                v, x = record["branch"]
                require(x in keep[v], "a branch takes a value that is gone")
                rest = [list(values) for values in keep]
                rest[v].remove(x)
                open_sets.append(rest)
                keep[v] = [x]
                open_sets.append(keep)
            elif self.drop(record, keep, enough):
                open_sets.append(keep)
        require(at == len(records), "the proof goes on behind its end")


def check(problem, certificate):
    """The cost of the choice and the bound, both verified."""
    problem = problem["problem"]
    cost, bound = cost_of(problem, certificate["choice"]), certificate["bound"]
    scale, proof = certificate["scale"], certificate["proof"]
    require(0 <= scale and cost << scale < 2**50, "the scale is too large")
    times = sorted({t for record in proof for t, _, _ in record.get("prices", [])})
    network = Network(problem, scale, times)
    for kind, node, x, y in certificate["presolve"]:
        require(not network.gone[node], f"node {node} is gone")
        if kind == 0:
            network.drop(node, x, y)
        else:
            (network.contract, network.separate, lambda n, _: network.eliminate(n))[kind - 1](node, x)
    Core(network, problem.get("usage_limit")).verify(proof, bound, scale)
    return cost, bound


if __name__ == "__main__":
    try:
        print("cost %d, bound %d" % check(load(sys.argv[1]), load(sys.argv[2])))
    except Refused as refused:
        sys.exit(f"{sys.argv[2]}: {refused}")
