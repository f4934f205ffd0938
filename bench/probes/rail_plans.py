#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near plans come to the lower bound on hosts with several NICs, where every device has one (or all share one).

Plans the paper's shapes on hosts of eight devices and single tensors between more hosts, or random tensors between unequal
hosts. plan_scale plans whole models. docs/results.md shows its table. CROSSMESH_LIBRARY names the library (default: that of
build/release).
"""
import argparse
import ctypes
import itertools
import random
import time

from planner_runs import positive, run  # which finds the package
from crossmesh import Layout, Mesh, Network, Plan, TensorSpec, _native

# The paper's nine cases on hosts of eight, a host to four, tensor to data parallel; 0 stands for the hosts asked for.
SHAPES = [("nm1", (2, 8), (2, 8), "S0RR", "S0RR"), ("nm2", (2, 8), (2, 8), "RRR", "S0RR"),
          ("nm3", (2, 8), (2, 8), "RS0R", "S0RR"), ("nm4", (2, 8), (2, 8), "RS01R", "S01RR"),
          ("nm5", (2, 8), (2, 8), "S1RR", "S0RR"), ("nm6", (2, 8), (3, 8), "S0RR", "S0RR"),
          ("nm7", (1, 8), (2, 8), "S1RR", "RRR"), ("nm8", (1, 8), (2, 8), "RS1R", "RRR"),
          ("nm9", (2, 8), (2, 8), "RS0R", "RRS0"), ("1 to 4", (1, 8), (4, 8), "RRR", "RRR"),
          ("tp to dp", (1, 8), (1, 8), "RS1R", "RRR"), ("S01R to RS01", (0, 8), (0, 8), "S01RR", "RS01R"),
          ("S0R to RS0", (0, 8), (0, 8), "S0RR", "RS0R"), ("RR to S01R", (0, 8), (0, 8), "RRR", "S01RR"),
          ("S01R to RR", (0, 8), (0, 8), "S01RR", "RRR")]
SPECS = ["RRR", "S0RR", "S1RR", "S01RR", "RS0R", "RS01R", "S0S1R"]


def row(options, name, layouts, network, rails):
    """Plans a tensor and prints its row; returns its distance from the bound."""
    tensor, start = TensorSpec(*layouts, bits=16, name="tensor"), time.perf_counter()
    plan = Plan(tensor, network, strategy=options.strategy, scheduler=options.scheduler)
    spent, hops = time.perf_counter() - start, (_native.PlanHop * max(1, plan._info.hops))()
    _native.lib.xm_plan_simulate(plan._handle, network._handle, 0, hops, ctypes.c_int64())
    ratio = plan.makespan / plan.bound if plan.bound > 0 else 1
    print(f"{name:14} {network.hosts:6} {rails:6} {plan.scheduler:9} {hops[-1].transfer + 1 if plan._info.hops else 0:9} "
          f"{spent:9.3f} {plan.makespan * 1e6:11.1f} {plan.bound * 1e6:11.1f} {ratio:7.4f}", flush=True)
    return ratio


def layout(sizes, spec, first, extents):
    return Layout(Mesh(sizes, range(first, first + sizes[0] * sizes[1])), spec, extents, "balanced")


def shape_rows(options):
    """Equal hosts, whose ranks share out the rails in turn."""
    for name, *sides, src, dst in SHAPES:
        sizes = [(hosts or options.hosts, devices) for hosts, devices in sides]
        half, each = sizes[0][0] * sizes[0][1], options.rails or options.host_ranks
        ranks = range(half + sizes[1][0] * sizes[1][1])
        hosts = [rank // options.host_ranks for rank in ranks]
        rails = [host * each + rank % options.host_ranks % each for rank, host in zip(ranks, hosts)]
        network = Network(hosts, rail_of_rank=rails, nic_bandwidth=options.nic * 1e9 * options.host_ranks,
                          nic_latency=options.nic_latency * 1e-6, host_bandwidth=options.port * 1e9,
                          host_latency=options.port_latency * 1e-6)
        extents = (4096, 2048, 2048)
        row(options, name, (layout(sizes[0], src, 0, extents), layout(sizes[1], dst, half, extents)), network,
            max(rails) + 1)


def random_mesh(number, ranks):
    """A mesh of some of so many ranks."""
    sizes = [number.randint(1, 4), number.randint(1, 4)]
    while sizes[0] * sizes[1] > ranks:
        sizes[sizes[0] < sizes[1]] -= 1
    return sizes


def random_rows(options):
    """One tensor between the first and the last ranks of hosts of one to six ranks with NICs of 10 to 200 Gbit/s, most
    of them the same both ways."""
    number, ratios = random.Random(11), []
    for i in range(options.random):
        own = [number.randint(1, 6) for _ in range(number.randint(4, 10))]
        egress = [1e9 / 8 * number.randint(10, 200) for _ in own]
        ingress = [rate if number.random() < 0.7 else 1e9 / 8 * number.randint(10, 200) for rate in egress]
        hosts = list(itertools.chain.from_iterable([host] * count for host, count in enumerate(own)))
        network = Network(hosts, nic_bandwidth=1e9, nic_latency=5e-6, host_bandwidth=300e9, host_latency=2e-6,
                          egress=egress, ingress=ingress)
        src, dst = random_mesh(number, len(hosts)), random_mesh(number, len(hosts))
        layouts = (layout(src, number.choice(SPECS), 0, (512, 512, 512)),
                   layout(dst, number.choice(SPECS), len(hosts) - dst[0] * dst[1], (512, 512, 512)))
        ratios.append(row(options, f"random {i}", layouts, network, len(own)))
    print(f"# mean {sum(ratios) / len(ratios):.4f}, most {max(ratios):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, kind, default, what in (
            ("host-ranks", positive, 8, "ranks that share a host's fabric"),
            ("rails", int, 0, "NICs of a host that its ranks share out; 0: one for each rank"),
            ("hosts", positive, 8, "hosts on either side, of the single tensors"),
            ("random", int, 0, "plan so many random tensors between unequal hosts instead"),
            ("nic", float, 50, "a rank's share of its host's NICs, GB/s"),
            ("port", float, 450, "port of a rank inside its host, GB/s"),
            ("nic-latency", float, 5, "latency between hosts, us"),
            ("port-latency", float, 2, "latency inside a host, us"),
            ("strategy", str, "auto", "strategy"), ("scheduler", str, "auto", "scheduler")):
        parser.add_argument(f"--{name}", type=kind, default=default, help=what + " (%(default)s)")
    options = parser.parse_args()
    print(f"{'# case':14} {'hosts':>6} {'rails':>6} {'scheduler':9} {'transfers':>9} {'plan s':>9} {'makespan us':>11} "
          f"{'bound us':>11} {'ratio':>7}")
    (random_rows if options.random > 0 else shape_rows)(options)


if __name__ == "__main__":
    run(main)
