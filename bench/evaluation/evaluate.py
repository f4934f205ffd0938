#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures crossmesh and its peers on an emulated cluster; report.py makes tables and figures of it.

    evaluate.py BUILD_DIRECTORY [--quick] [--only NAME[,NAME…]] [--output DIRECTORY]

Every experiment leaves documents in the output directory and can be repeated by itself. The cluster
of most of them: 5 hosts of 4 ranks, one NIC of 1 Gbit/s each, whose payload rate is 119.5 MB/s.
"""

import argparse
import glob
import os
import shutil
import signal
import subprocess
import sys

import machine
import report
from documents import PUBLISHED
from lab import Cluster, Failed, fail, say, scratch

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS, RANKS_PER_HOST = 5, 4
# Half of what the others move: two copies of the tensor enter two hosts from one.
DOUBLE = ["nm7", "nm8"]
SINGLE = [f"1m{i}" for i in range(1, 8)] + [f"nm{i}" for i in (1, 2, 3, 4, 5, 6, 9)]

# The cases of `rails`: document, hosts, options. 16 MiB between two hosts, then the paper's cases.
RAIL_CASES = [(name, "2", ["--src-mesh", "1x4", "--dst-mesh", "1x4", "--src-spec", src, "--dst-spec", dst,
                           "--shape", "2048x2048", "--dtype", "int32"])
              for name, src, dst in (("rr", "RR", "RR"), ("s1", "S1R", "RS1"), ("s0", "S0R", "RS0"))]
RAIL_CASES.append(("nm", "5", [f"--case=nm{i}" for i in range(1, 10)] + ["--scale", "1/64"]))


class Evaluation:
    def __init__(self, arguments):
        self.build = os.path.abspath(arguments.build)
        self.output = os.path.abspath(arguments.output)
        self.quick = arguments.quick
        self.few_runs = arguments.short
        os.makedirs(self.output, exist_ok=True)

    def path(self, name):
        return os.path.join(self.output, f"{name}.json")

    def measure(self, cluster, name, output=None):
        """autopar probe on all ranks of the cluster; its profile becomes NAME.json."""
        cluster.job([cluster.program("planner/cli/autopar"), "probe", "-o", self.path(name)],
                    output=output)

    def bench(self, cluster, name, options, profile="cluster"):
        """reshard-bench on all ranks of the cluster; its document becomes NAME.json."""
        cluster.job([cluster.program("bench/reshard-bench"), "--profile", self.path(profile),
                     *options, "-J", self.path(name)])

    def forget(self, name):
        """Removes an experiment's documents, so that none of different runs stand together."""
        pattern = "cluster.json" if name == "probe" else f"{name}[-.]*"
        for path in glob.glob(os.path.join(self.output, pattern)):
            os.remove(path)

    def groups(self, divisor):
        """Cases with the scale at which all have the same bound."""
        if self.quick:
            divisor *= 4
        yield "a", [f"--case={name}" for name in SINGLE] + ["--suite", "alpa", "--scale",
                                                            f"1/{divisor}"]
        yield "b", [f"--case={name}" for name in DOUBLE] + ["--suite", "alpa", "--scale",
                                                            f"1/{2 * divisor}"]

    # Experiments ---------------------------------------------------------------------------------

    def probe(self):
        """The cluster's profile, which all predictions and bounds use."""
        with Cluster(self.build, HOSTS) as cluster:
            self.measure(cluster, "cluster")

    def systems(self):
        """The paper's three systems and auto, then MPI and PyTorch, at a bound of about 0.56 s."""
        runs = ["-w", "1", "-i", "2"]
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                  str(HOSTS * RANKS_PER_HOST), "--mca", "pml", "ob1", "--mca", "btl",
                  "self,vader,tcp", "--mca", "btl_tcp_if_include", "nic0", "--mca",
                  "mpi_yield_when_idle", "1"]  # idle ranks would keep the few cores busy
        with Cluster(self.build, HOSTS) as cluster, scratch() as folder:
            hosts = ",".join(f"{cluster.name}{h}:{RANKS_PER_HOST}" for h in range(HOSTS))
            agent = f"{cluster.tool} exec --name {cluster.name} --"
            for group, cases in self.groups(16):
                self.bench(cluster, f"systems-{group}-crossmesh",
                           cases + ["-w", "1", "-i", "4", "--strategy",
                                    "send_recv,allgather,broadcast,auto", "--scheduler", "auto"])
                cluster.head(mpirun + ["--mca", "plm_rsh_agent", agent, "--host", hosts,
                                       cluster.program("bench/peers/reshard-peer-mpi"), "all",
                                       *cases, *runs, "-J", self.path(f"systems-{group}-mpi")])
                layouts = os.path.join(folder, "cases.json")
                subprocess.run([cluster.program("bench/reshard-bench"), "--dry-run", "-n",
                                str(HOSTS * RANKS_PER_HOST), "--ranks-per-host",
                                str(RANKS_PER_HOST), *cases, "-J", layouts],
                               check=True, stdout=subprocess.DEVNULL)
                cluster.job(["/usr/bin/python3", os.path.join(HERE, "../peers/torch_peer.py"),
                             layouts, *runs, "-J", self.path(f"systems-{group}-torch")],
                            environment=["GLOO_SOCKET_IFNAME=nic0"])

    def ours(self, name, divisor, strategies, runs, scheduler="auto"):
        with Cluster(self.build, HOSTS) as cluster:
            for group, cases in self.groups(divisor):
                self.bench(cluster, f"{name}-{group}",
                           cases + runs + ["--strategy", strategies, "--scheduler", scheduler])

    def large(self):
        """auto by the paper's protocol, at a bound of about 2.2 s."""
        self.ours("large", 4, "auto",
                  ["-w", "1", "-i", "5"] if self.few_runs else ["--protocol", "paper"])

    def short(self):
        """auto and send_recv in more runs, at a bound of about 0.56 s."""
        self.ours("short", 16, "send_recv,auto", ["-w", "1", "-i", "5"])

    def published(self):
        """The strategies as MLSys'23 and Alpa have them (section 5.1), at a bound of about 0.56 s; by the paper's own
        scheduler, because the open shop's many pieces cost more processors than one machine has for 20 ranks."""
        self.ours("published", 16, ",".join(PUBLISHED), ["-w", "1", "-i", "3"], "greedy")

    def ablation(self):
        """What load balance and order are worth (MLSys'23 section 5.3.1)."""
        with Cluster(self.build, HOSTS) as cluster:
            for group, cases in self.groups(8):
                nm = [option for option in cases if "=1m" not in option]
                nm[nm.index("alpa")] = "alpa-ablation"
                self.bench(cluster, f"ablation-{group}", nm + ["-w", "1", "-i", "3"])

    def fanout(self):
        """64 MiB from one rank to two ranks of each of three hosts.

        By Reno, which every Linux has: where one NIC feeds the next, what BBR loses while it looks for a connection's rate
        is lost for all that follow.
        """
        with Cluster(self.build, 4, ranks_per_host=2, congestion="reno") as cluster:
            self.bench(cluster, "fanout",
                       ["--src-mesh", "1x1", "--dst-mesh", "3x2", "--src-ranks", "0",
                        "--dst-ranks", "2-7", "--src-spec", "R", "--dst-spec", "R", "--shape",
                        "16777216", "--dtype", "int32", "--strategy", "send_recv,broadcast",
                        "--scheduler", "auto", "-w", "3", "-i", "10"])

    def nics(self):
        """The same case over one NIC, two equal ones, and two unequal ones a host."""
        for name, shape in (("one", {"nic": "1gbit"}), ("two", {"uneven": "1gbit,1gbit"}),
                            ("unequal", {"uneven": "1gbit,500mbit"})):
            with Cluster(self.build, 4, **shape) as cluster:
                profile = f"nics-{name}-cluster"
                self.measure(cluster, profile, subprocess.DEVNULL)
                self.bench(cluster, f"nics-{name}",
                           ["--case", "nm1", "--case", "nm3", "--case", "nm4", "--scale", "1/8",
                            "--strategy", "auto", "--scheduler", "auto", "-w", "1", "-i", "5"],
                           profile)

    def rails(self):
        """A NIC for each rank, and all NICs for every rank; so slow that cores are no limit."""
        program = Cluster(self.build, 2).program("bench/reshard-bench")
        for kind, more in (("each", []), ("all", ["--all-nics"])):
            for name, hosts, case in RAIL_CASES:
                subprocess.run([program, "--hosts", hosts, "--ranks-per-host", str(RANKS_PER_HOST),
                                "--nic-gbps", "0.05", "--nics-per-host", str(RANKS_PER_HOST), *more,
                                *case, "--strategy", "auto", "--scheduler", "auto", "-w", "1", "-i",
                                "5", "-J", self.path(f"rails-{kind}-{name}")],
                               check=True, stdout=subprocess.DEVNULL)

    def cpu(self):
        """Processor time next to plain sockets that move the same bytes: case nm4."""
        with Cluster(self.build, 4) as cluster:
            self.bench(cluster, "cpu-crossmesh",
                       ["--case", "nm4", "--scale", "1/8", "--strategy", "auto", "--scheduler",
                        "auto", "-w", "1", "-i", "5"])
            with open(os.path.join(self.output, "cpu-sockets.txt"), "w", encoding="utf-8") as file:
                cluster.job([cluster.program("bench/baseline/socket_copy"), "--pairs",
                             "0-7:8-15", "-b", "4MiB", "-w", "1", "-i", "5"], output=file)

    def intra_host(self):
        """Inside a host: against ucx_perftest and the memory's copy rate."""
        with open(os.path.join(self.output, "intra_host.txt"), "w", encoding="utf-8") as file:
            subprocess.run([os.path.join(HERE, "../intra_host.sh"), self.build], check=True,
                           stdout=file)

    def model(self):
        """Weights of a small dense model from 16 training to 16 serving ranks."""
        with Cluster(self.build, 8) as cluster:
            self.measure(cluster, "model-cluster", subprocess.DEVNULL)
            self.bench(cluster, "model",
                       ["--suite", "model", "--case", "dense-7b", "--scale",
                        "1/8" if self.quick else "1/4", "--strategy", "send_recv,auto",
                        "--scheduler", "auto", "-w", "1", "-i", "3"], "model-cluster")


EXPERIMENTS = ["probe", "systems", "large", "short", "published", "ablation", "fanout", "nics", "rails",
               "cpu", "intra_host", "model"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="build directory")
    parser.add_argument("--quick", action="store_true", help="tensors of a quarter of the size")
    parser.add_argument("--short", action="store_true",
                        help="5 runs instead of the paper's 13 in experiment large")
    parser.add_argument("--only", metavar="NAME[,NAME…]",
                        help="some experiments: " + ", ".join(EXPERIMENTS))
    parser.add_argument("--output", help="default: out/paper, with --quick out/paper-quick")
    parser.add_argument("--no-docs", action="store_true",
                        help="leave docs/results.md and its figures alone (--quick does)")
    arguments = parser.parse_args()
    if arguments.output is None:
        arguments.output = "out/paper-quick" if arguments.quick else "out/paper"
    names = arguments.only.split(",") if arguments.only else EXPERIMENTS
    for name in names:
        if name not in EXPERIMENTS:
            parser.error(f"no experiment is called {name}; there are {', '.join(EXPERIMENTS)}")
    if shutil.which("tc") is None:
        fail("tc is missing (package iproute2)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends clusters on the way
    evaluation = Evaluation(arguments)
    for index, name in enumerate(names):
        say(f"{index + 1}/{len(names)}  {name}: "
            + getattr(Evaluation, name).__doc__.splitlines()[0])
        evaluation.forget(name)
        try:
            getattr(evaluation, name)()
        except (Failed, subprocess.CalledProcessError) as error:
            fail(f"{name}: {error}")
        machine.record(evaluation.output, name)
    if names == ["probe"]:
        return 0
    try:
        report.write(evaluation.output, None if arguments.quick or arguments.no_docs else "docs")
    except report.BadDocument as error:
        fail(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
