#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans models on clusters that ship with crossmesh, and prints one table: time of a step, model FLOPs
utilisation, memory, and what others have published.

    hardware.py [--autopar PATH] [--clusters h100-8x8,...] [--models llama3-8b,...] [--batch 1024]

A model that does not fit gets twice as many hosts until it does. Utilisation counts three forward passes of
the model's FLOPs, attention without a causal mask, of the data sheet's dense 16-bit FLOP/s.
"""
import argparse
import json
import re
import subprocess
import sys

# Dense 16-bit FLOP/s of the data sheets.
PEAKS = {"h100": 989.4e12, "a100": 312e12, "mi300x": 1307.4e12, "gb200": 2500e12, "p3": 125e12}
# Model FLOP/s of a device as published, of which number type, and where.
PUBLISHED = {
    ("h100", "llama3-8b"): (697e12, 1979e12, "FP8, 8 GPUs, 8k tokens: NeMo 24.07"),
    ("h100", "llama3-70b"): (738e12, 1979e12, "FP8, 64 GPUs, 8k tokens: NeMo 24.07"),
    ("h100", "mixtral-8x7b"): (468e12, 989.4e12, "BF16: Megatron Core 0.9"),
    # 14.8e12 tokens of 37e9 used parameters in 2.664e6 hours of a GPU.
    ("h100", "deepseek-v3"): (6 * 37e9 * 14.8e12 / (2.664e6 * 3600), 989.4e12,
                              "FP8 and BF16, 2048 H800, from its report's hours, of BF16"),
}
HEAD = ("cluster", "devices", "model", "stages", "step", "MFU %", "GiB", "published %", "published how")
MOST_HOSTS = 128


def person(seconds):
    """A time as a person reads it: two units, or two or three digits."""
    if seconds >= 172800:
        return f"{seconds / 86400:.2g} days"
    if seconds >= 3600:
        return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60} min"
    if seconds >= 100:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.{max(0, 3 - len(str(int(seconds * factor))))}f} {unit}"
    return ""


def table(head, rows):
    """Lines of a table of Markdown that also reads well on a terminal."""
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    lines = ["| " + " | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)) + " |" for row in [head, *rows]]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def plan(autopar, cluster, model, batch, hosts=0, more=()):
    """A plan as JSON, with the cluster's devices; None and the sentence where there is none."""
    command = [autopar, "plan", "--cluster", cluster, "--model", model, "--global-batch", str(batch), "--json", *more]
    command += ["--hosts", str(hosts)] if hosts else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip().rsplit("\n", 1)[-1]
    return json.loads(done.stdout), ""


def forward_flops(autopar, model):
    """FLOPs of the forward pass of one sample."""
    told = subprocess.run([autopar, "import", model, "--batch", "1"], capture_output=True, text=True, check=True).stdout
    return float(re.search(r"forward +\d+ operators +(\S+) FLOP", told).group(1))


def memory(stage):
    """GiB of the device of a stage."""
    has = stage["memory"]
    return (has["state_bytes"] + has["activation_bytes"] * has["in_flight"] + has["work_bytes"]) / 2**30


def row(autopar, cluster, model, batch, more=()):
    """One row of the table; the sentence instead of numbers where no plan fits."""
    kind = cluster.split("-")[0]
    hosts = 0
    found, why = plan(autopar, cluster, model, batch, hosts, more)
    while found is None and "does not fit" in why and hosts < MOST_HOSTS:
        hosts = 2 * int(re.search(r"on (\d+) x \d+ devices", why).group(1))
        found, why = plan(autopar, cluster, model, batch, hosts, more)
    if found is None:
        return (cluster, "", model, "", why, "", "", "", "")
    devices = found["cluster"]["hosts"] * found["cluster"]["devices_per_host"]
    step = found["predicted"]["step_s"]
    utilised = 3 * forward_flops(autopar, model) * batch / (devices * PEAKS[kind] * step)
    there = PUBLISHED.get((kind, model))
    return (cluster, devices, model, len(found["stages"]), person(step), f"{100 * utilised:.0f}",
            f"{max(memory(stage) for stage in found['stages']):.0f}",
            f"{100 * there[0] / there[1]:.0f}" if there else "", there[2] if there else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--autopar", default="autopar")
    parser.add_argument("--clusters", default="h100-8x8")
    parser.add_argument("--models", default="llama3-8b,llama3-70b,mixtral-8x7b,deepseek-v3")
    parser.add_argument("--time-limit", default="600", help="seconds for each plan")
    parser.add_argument("--batch", type=int, default=1024, help="samples of a step, 4096 tokens each")
    args = parser.parse_args()
    rows = [row(args.autopar, cluster, model, args.batch, ("--time-limit", args.time_limit))
            for cluster in args.clusters.split(",") for model in args.models.split(",")]
    print("\n".join(table(HEAD, rows)))
    sys.exit(0 if all(cells[5] for cells in rows) else 1)


if __name__ == "__main__":
    main()
