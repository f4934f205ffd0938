# SPDX-License-Identifier: Apache-2.0
"""The lower bound of plans, and the plans, against an independent linear program, on random problems with rails and
domains.

The program relaxes the schedule: of every slice y[u, v] bytes go from rank u to rank v, so much that each receiver's
share of them is a flow of the whole slice from the ranks that hold it, and in T seconds every rail, port and uplink
carries what uses it. Ranks that neither hold nor need a slice have none of it.
"""

import math
import random
import unittest

import numpy
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

import crossmesh

PROBLEMS = 200
NVLINK, FREE = 1.6e10, 1e14  # a port beside NICs of 1e9 bytes/s


def tile(layout_mesh, spec, shape, rank):
    """Per dimension the half-open range that a rank holds under `S01`-like specs given as lists of axes."""
    position, coordinates = layout_mesh.ranks.index(rank), []
    for extent in reversed(layout_mesh.shape):
        coordinates.append(position % extent)
        position //= extent
    coordinates.reverse()
    box = []
    for axes, extent in zip(spec, shape):
        part = 0
        parts = math.prod(layout_mesh.shape[a] for a in axes)
        for axis in axes:
            part = part * layout_mesh.shape[axis] + coordinates[axis]
        box.append((extent * part // parts, extent * (part + 1) // parts))
    return tuple(box)


def inside(cell, box):
    return all(low <= at < high for at, (low, high) in zip(cell, box))


def slices(tensors):
    """Bytes by (ranks that hold, ranks that need and do not hold), over all elements of all tensors."""
    found = {}
    for src, src_spec, dst, dst_spec, shape in tensors:
        owners = {rank: tile(src, src_spec, shape, rank) for rank in src.ranks}
        takers = {rank: tile(dst, dst_spec, shape, rank) for rank in dst.ranks}
        for cell in numpy.ndindex(*shape):
            holders = frozenset(rank for rank, box in owners.items() if inside(cell, box))
            receivers = frozenset(rank for rank, box in takers.items() if inside(cell, box)) - holders
            if receivers:
                key = holders, receivers
                found[key] = found.get(key, 0) + 1
    return found


class Program:
    """Rows and columns of the linear program."""

    def __init__(self, network):
        self.network, self.columns = network, 1  # column 0 is T
        self.rows, self.right, self.entries, self.load = 0, [], [], {}

    def column(self):
        self.columns += 1
        return self.columns - 1

    def row(self, entries, right):
        """The sum of entries is at most `right`."""
        self.entries += [(self.rows, column, value) for column, value in entries]
        self.right.append(right)
        self.rows += 1

    def resources(self, u, v):
        n = self.network
        if n["host"][u] == n["host"][v]:
            return [(("port out", u), n["port"]), (("port in", v), n["port"])]
        used = [(("out", n["rail"][u]), n["egress"][n["rail"][u]]), (("in", n["rail"][v]), n["ingress"][n["rail"][v]])]
        racks = n["rack"][n["host"][u]], n["rack"][n["host"][v]]
        if n["uplink"] and racks[0] != racks[1]:
            used += [(("up", racks[0]), n["uplink"]), (("down", racks[1]), n["uplink"])]
        return used

    def add(self, holders, receivers, size):
        ranks = sorted(holders | receivers)
        # Nothing is sent to a holder, so the holders are one source.
        edges = {(u, v): self.column() for u in ranks for v in ranks if u != v and v not in holders}
        for (u, v), y in edges.items():
            for resource, rate in self.resources(u, v):
                self.load.setdefault(resource, []).append((y, size / rate))
        for receiver in receivers:
            flow = {edge: self.column() for edge in edges if edge[0] != receiver}
            for edge, f in flow.items():
                self.row([(f, 1), (edges[edge], -1)], 0)
            for rank in set(ranks) - holders:
                into = [(f, -1) for (u, v), f in flow.items() if v == rank]
                out = [(f, 1) for (u, v), f in flow.items() if u == rank]
                self.row(into + out, -1 if rank == receiver else 0)

    def solve(self):
        for used in self.load.values():
            self.row([*used, (0, -1)], 0)
        rows, columns, values = zip(*self.entries)
        matrix = coo_matrix((values, (rows, columns)), shape=(self.rows, self.columns))
        cost = numpy.zeros(self.columns)
        cost[0] = 1
        answer = linprog(cost, A_ub=matrix.tocsr(), b_ub=self.right, bounds=(0, None), method="highs")
        assert answer.status == 0, answer.message
        return answer.fun


def random_network(rng):
    hosts = [h for h in range(rng.randint(2, 4)) for _ in range(rng.randint(1, 3))]
    rails, rail_of = 0, []
    for host in range(max(hosts) + 1):
        own = hosts.count(host)
        used = rng.randint(1, own)
        rail_of += [rails + i % used for i in range(own)]
        rails += used
    equal = rng.random() < 0.5
    rates = [[1e9 if equal else rng.choice([5e8, 1e9, 2e9, 4e9]) for _ in range(rails)] for _ in range(2)]
    racks = [h % 2 for h in range(max(hosts) + 1)]
    return {
        "host": hosts,
        "rail": rail_of,
        "egress": rates[0],
        "ingress": rates[1],
        # A domain's fabric as fast as NVLink is beside a NIC, or free.
        "port": rng.choice([NVLINK, FREE]),
        "rack": racks,
        "uplink": rng.choice([0.0, 0.0, 1.5e9]),
    }


def random_side(rng, ranks, shape):
    count = rng.randint(1, len(ranks))
    chosen = rng.sample(ranks, count)
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    first = rng.choice(divisors)
    mesh = crossmesh.Mesh((first, count // first), chosen)
    spec = [[], []]
    for axis in range(2):
        dimension = rng.choice([None, 0, 1])
        if dimension is not None:
            spec[dimension].append(axis)
    text = "".join("S" + "".join(map(str, axes)) if axes else "R" for axes in spec)
    fits = all(extent % math.prod(mesh.shape[a] for a in axes) == 0 for axes, extent in zip(spec, shape))
    return (mesh, spec, text) if fits else random_side(rng, ranks, shape)


class Bound(unittest.TestCase):
    def test_bound_is_the_linear_program(self):
        rng, tight, above = random.Random(15), 0, []
        for number in range(PROBLEMS):
            network = random_network(rng)
            ranks, shape, tensors, batch = list(range(len(network["host"]))), (12, 12), [], []
            unit = 1 << 20  # elements of the linear program are squares of so many bytes
            for _ in range(rng.randint(1, 2)):
                src, dst = random_side(rng, ranks, shape), random_side(rng, ranks, shape)
                tensors.append((src[0], src[1], dst[0], dst[1], shape))
                whole = (shape[0] * 1024, shape[1] * 1024)
                batch.append(
                    crossmesh.TensorSpec(
                        crossmesh.Layout(src[0], src[2], whole), crossmesh.Layout(dst[0], dst[2], whole), 8
                    )
                )
            made = crossmesh.Network(
                network["host"],
                nic_latency=0,
                host_latency=0,
                host_bandwidth=network["port"],
                rack_of_host=network["rack"],
                uplink_bandwidth=network["uplink"],
                rail_of_rank=network["rail"],
                rail_egress=network["egress"],
                rail_ingress=network["ingress"],
            )
            plan = crossmesh.Plan(batch, made)
            program, found = Program(network), slices(tensors)
            for (holders, receivers), count in found.items():
                program.add(holders, receivers, count * unit)
            least = program.solve() if found else 0.0
            gap = plan.bound / least if least else 1.0
            self.assertLessEqual(plan.bound, least * 1.000001 + 2e-9, f"problem {number}: no bound")
            self.assertGreater(gap, 0.998 if network["port"] == FREE else 0.8, f"problem {number}")
            tight += gap > 0.998
            # In less time the whole nanoseconds of each message count.
            above += [plan.makespan / least] if least > 1e-5 else []
        # Ports of NVLink's speed bind now and then, and the bound has them device by device only.
        self.assertGreater(tight, 0.97 * PROBLEMS)
        # Receivers beside a holder take all over their ports, none of it over a NIC of their own.
        self.assertLess(sum(above) / len(above), 1.005)
        self.assertLess(max(above), 1.1)


if __name__ == "__main__":
    unittest.main()
