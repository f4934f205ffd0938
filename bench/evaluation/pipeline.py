#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step times of parallel plans on an emulated cluster: as predicted, and as measured by pipeline-bench.

    pipeline.py BUILD_DIRECTORY [--quick] [--runs N] [--output DIRECTORY] [--report]

The cluster has 4 hosts of 4 ranks and a NIC of 1 Gbit/s each; its network is probed, its devices are assumed.
"""

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys

import machine
from lab import Cluster, Failed, fail, read, say

HOSTS, RANKS_PER_HOST = 4, 4
# Messages come and go, and share NICs. A control that estimates rates (BBR) goes on for long at the rate that a
# connection had while it shared, and stops each for 200 ms every 10 s; the classic one, which every kernel has, does not.
CONGESTION = "reno"
STAGES = [2, 3, 4]
MICRO_BATCHES = [4, 8, 16]
# Where each number of stages and of micro-batches occurs under several schedules, and each schedule with several of them.
CHOICES = [(2, 4, "1f1b"), (2, 8, "gpipe"), (2, 8, "1f1b"), (2, 16, "eager-1f1b"), (2, 16, "zb-h1"),
           (3, 4, "gpipe"), (3, 8, "1f1b"), (3, 8, "eager-1f1b"), (3, 16, "zb-h1"),
           (4, 4, "1f1b"), (4, 8, "gpipe"), (4, 8, "zb-h1"), (4, 16, "1f1b"), (4, 16, "eager-1f1b")]
# Samples of a step, and the speed of a device, such that steps take about a second and transfers matter.
MODELS = {"gpt-125m": {"batch": 32, "flop_per_s": 2e12}, "wresnet-250m": {"batch": 32, "flop_per_s": 2.5e12}}
DEVICE = {"memory_bytes": 16e9, "memory_bytes_per_s": 4e11}
GOALS = {"error": 0.10, "spearman": 0.90, "pick": 1.03}


class Evaluation:
    def __init__(self, arguments):
        self.build = os.path.abspath(arguments.build)
        self.output = os.path.abspath(arguments.output)
        self.choices = CHOICES[::3] if arguments.quick else CHOICES
        self.runs = arguments.runs
        os.makedirs(self.output, exist_ok=True)

    def path(self, *names):
        return os.path.join(self.output, "-".join(names))

    def autopar(self, *options):
        """True when it has found something; anything else than "no solution" is a failure."""
        command = [os.path.join(self.build, "planner/cli/autopar"), *[str(o) for o in options]]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode not in (0, 2):
            raise Failed(f"{' '.join(command)}: {result.stderr.strip()}")
        if result.returncode != 0:
            print(f"   {result.stderr.strip()}", flush=True)
        return result.returncode == 0

    def device(self, model):
        """The probed profile with the device that the model's passes are timed for."""
        profile = read(self.path("probed.json"))
        profile["device"] = {"flop_per_s": MODELS[model]["flop_per_s"], **DEVICE}
        profile["provenance"] += "; the device is assumed"
        with open(self.path(model, "cluster.json"), "w", encoding="utf-8") as file:
            json.dump(profile, file, indent=1)
        return self.path(model, "cluster.json")

    def plans(self, model):
        """Files of different plans, the planner's own pick first."""
        cluster = self.device(model)
        options = ["--model", model, "--cluster", cluster, "--global-batch", MODELS[model]["batch"]]
        files = [self.path(model, "pick.json")]
        if not self.autopar("plan", *options, "--micro-batches", ",".join(map(str, MICRO_BATCHES)), "--schedule", "auto",
                            "-o", files[0]):
            raise Failed(f"{model} has no plan")
        known = {self.digest(files[0])}
        for stages, micro_batches, schedule in self.choices:
            file = self.path(model, str(stages), str(micro_batches), f"{schedule}.json")
            if self.autopar("plan", *options, "--stages", stages, "--micro-batches", micro_batches, "--schedule",
                            schedule, "-o", file) and self.digest(file) not in known:
                known.add(self.digest(file))
                files.append(file)
        return files

    @staticmethod
    def digest(file):
        """Of what runs: stages, boundaries and schedule, whatever the planner says of how it found them."""
        plan = read(file)
        what = [plan[key] for key in ("schedule", "stages", "reshardings")]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def run(self):
        with Cluster(self.build, HOSTS, RANKS_PER_HOST, congestion=CONGESTION) as cluster:
            say("probe")
            cluster.job([cluster.program("planner/cli/autopar"), "probe", "-o", self.path("probed.json")])
            for model in MODELS:
                say(model)
                files = self.plans(model)
                cluster.job([cluster.program("bench/pipeline-bench"), *files, "--profile",
                             self.path(model, "cluster.json"), "-i", str(self.runs), "-J",
                             self.path(model, "measured.json")])
        machine.record(self.output, "pipeline")


def ranks(values):
    """Places in order, equal ones sharing the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for index in order[first:last + 1]:
            places[index] = (first + last) / 2
        first = last + 1
    return places


def spearman(one, other):
    return statistics.correlation(ranks(one), ranks(other))


def report(evaluation):
    """Prints the table and the verdicts; whether all demands are met."""
    rows, met = [], True

    def verdict(text, value, good):
        nonlocal met
        met = met and good
        print(f"  {text:64} {value:>9}  {'met' if good else 'MISSED'}")

    print(f"\n# {'plan':34} {'stages':>20} {'micro':>5} {'schedule':13} {'transfers':>9} {'predicted':>10} "
          f"{'measured':>10} {'error':>7}")
    for model in MODELS:
        results = read(evaluation.path(model, "measured.json"))["results"]
        for one in sorted(results, key=lambda result: result["step_s"]["median"]):
            share = 1 - one["predicted_free_s"] / one["predicted_s"]
            print(f"  {os.path.basename(one['plan']):34} {'+'.join(one['submeshes']):>20} {one['micro_batches']:5} "
                  f"{one['schedule']:13} {100 * share:7.1f} % {one['predicted_s']:8.3f} s "
                  f"{one['step_s']['median']:8.3f} s {100 * one['error']:+6.1f} %")
        rows.append((model, results))
    everything = [one for _, results in rows for one in results]
    print(f"\n# {len(everything)} plans of {len(rows)} models, {sum(one['wrong'] for one in everything)} wrong bytes")
    error = statistics.median(abs(one["error"]) for one in everything)
    verdict(f"median size of the error <= {100 * GOALS['error']:.0f} %", f"{100 * error:.1f} %", error <= GOALS["error"])
    for model, results in rows:
        measured = [one["step_s"]["median"] for one in results]
        order = spearman([one["predicted_s"] for one in results], measured)
        verdict(f"{model}: ranking, Spearman >= {GOALS['spearman']}", f"{order:.3f}", order >= GOALS["spearman"])
        pick = measured[0] / min(measured)
        verdict(f"{model}: the planner's pick <= {GOALS['pick']} x the fastest", f"{pick:.3f}", pick <= GOALS["pick"])
    verdict("no wrong byte", "", not any(one["wrong"] for one in everything))
    return met


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="build directory")
    parser.add_argument("--quick", action="store_true", help="a third of the plans")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each plan (default 5)")
    parser.add_argument("--output", default="out/pipeline", help="for plans and documents (default: out/pipeline)")
    parser.add_argument("--report", action="store_true", help="only read the documents of the last time")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the cluster on the way
    evaluation = Evaluation(arguments)
    try:
        if not arguments.report:
            evaluation.run()
        return 0 if report(evaluation) else 1
    except (Failed, subprocess.CalledProcessError, OSError) as error:
        fail(str(error))


if __name__ == "__main__":
    sys.exit(main())
