#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the cost of stage boundaries changes in plans: a table in Markdown.

    cross_mesh_plans.py --autopar build/release/planner/cli/autopar --profiles tests/fixtures/profiles

Each model is planned twice on each cluster profile, with boundaries in the objective and with
`--no-cross-mesh`, and both plans are simulated event by event. Exit status 1 unless on slow links
some plan changes and its simulated step gets at least 10 % faster, and on fast links none gets
more than 2 % faster.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

CASES = (("wresnet-250m", 1536), ("wresnet-1b", 1536), ("gpt-350m", 256), ("moe-380m", 1024))
PROFILES = (("gigabit-links-4x4", True), ("slow-links-4x4", True), ("fast-links-4x4", False))


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plan(autopar, model, batch, profile, directory, *options):
    """The plan and its simulated step in seconds."""
    path = os.path.join(directory, "plan.json")
    run(autopar, "plan", "--model", model, "--cluster", profile, "--global-batch", str(batch),
        "-o", path, *options)
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    simulated = json.loads(run(autopar, "simulate", path, "--json"))
    return found, simulated["step_ns"] * 1e-9


def stages(found):
    """Layers of each stage and where it runs."""
    return ", ".join(f"{s['layers'][1] - s['layers'][0] + 1} on {s['submesh']} as {s['mesh']}"
                     for s in found["stages"])


def boundary_seconds(found):
    return sum(r["predicted"]["forward_s"] + r["predicted"]["backward_s"]
               for r in found["reshardings"])


def recomputing(found):
    """Which stages recompute: all, none or some."""
    if found["schedule"]["rematerialize"]:
        return ", recomputing"
    some = [str(i) for i, s in enumerate(found["stages"]) if s.get("recompute")]
    return f", recomputing in {' '.join(some)}" if some else ""


def describe(found):
    schedule = found["schedule"]
    return (f"{schedule['micro_batches']} micro-batch"
            f"{'es' if schedule['micro_batches'] > 1 else ''}"
            f"{recomputing(found)}: {stages(found)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--autopar", required=True)
    parser.add_argument("--profiles", required=True, help="folder of the cluster profiles")
    parser.add_argument("--models", default=",".join(name for name, _ in CASES),
                        help="only these, separated by commas")
    parser.add_argument("--micro-batches", help="only these numbers of them, separated by commas")
    parser.add_argument("--links", default=",".join(name for name, _ in PROFILES),
                        help="only these profiles, separated by commas")
    arguments = parser.parse_args()
    counts = ["--micro-batches", arguments.micro_batches] if arguments.micro_batches else []
    cases = [case for case in CASES if case[0] in arguments.models.split(",")]
    failed = False
    print("| links | model | stages chosen without boundaries | its step, s | with them | "
          "its step, s | faster | boundaries per micro-batch, s |\n|--|--|--|--|--|--|--|--|")
    profiles = [one for one in PROFILES if one[0] in arguments.links.split(",")]
    for name, slow in profiles:
        profile = os.path.join(arguments.profiles, name + ".json")
        gains = []
        for model, batch in cases:
            with tempfile.TemporaryDirectory() as directory:
                free, free_step = plan(arguments.autopar, model, batch, profile, directory,
                                       "--no-cross-mesh", *counts)
                ours, step = plan(arguments.autopar, model, batch, profile, directory, *counts)
            gain = 1 - step / free_step
            gains.append(gain)
            same = describe(free) == describe(ours)
            print(f"| {name} | {model} | {describe(free)} | {free_step:.3f} | "
                  f"{'the same' if same else describe(ours)} | {step:.3f} | {100 * gain:.1f} % | "
                  f"{boundary_seconds(free):.4f} → {boundary_seconds(ours):.4f} |", flush=True)
        if slow and max(gains) < 0.10:
            print(f"{name}: no plan gets 10 % faster", file=sys.stderr)
            failed = True
        if not slow and max(gains) > 0.02:
            print(f"{name}: a plan gets more than 2 % faster", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
