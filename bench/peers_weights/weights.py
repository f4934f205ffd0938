#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weight transfer side by side: crossmesh and what others use, on the same layouts and the same shaped NICs.

    weights.py BUILD_DIRECTORY [--python INTERPRETER] [--peers NAME,…] [--layouts NAME,…] [--scale K] [--nic RATE]

The model is dense-7b of the model suite with all sizes divided by K. For every layout an emulated cluster is made,
and each peer runs in a job of its own: once to connect, then the timed runs. Every byte is checked after every run.
docs/peers.md tells what the peers do. Exit status 1: a byte was wrong, or a peer failed.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(SOURCES, "bench/evaluation"))
from lab import Cluster, Failed, read  # noqa: E402

# What each is called in the table.
PEERS = {
    "ours": "crossmesh StateDictTransfer",
    "megatron": "Megatron-Core, planner over gloo",
    "nemo": "NeMo-RL, striped over gloo",
    "mooncake": "Mooncake transfer engine, TCP",
    "nixl": "NIXL, UCX TCP",
    "gather": "torch, gather and broadcast",
    "update": "crossmesh, update",
    "changes": "torch, changes gathered, broadcast",
}
UPDATES = ("update", "changes")  # with --density; the others move everything

# Hosts, ranks on each, training and serving; where the last is true, serving from the first rank on, too.
LAYOUTS = {
    "fsdp-tp": (8, 2, {"num_gpus": 8, "fsdp_size": 8}, {"num_gpus": 8, "tp_size": 2, "dp_size": 4}, False),
    "tp-tp": (8, 2, {"num_gpus": 8, "tp_size": 8}, {"num_gpus": 8, "tp_size": 2, "dp_size": 4}, False),
    "tp8-tp1": (2, 4, {"num_gpus": 8, "tp_size": 8}, {"num_gpus": 8, "dp_size": 8}, True),
    "tp8-tp2": (2, 4, {"num_gpus": 8, "tp_size": 8}, {"num_gpus": 8, "tp_size": 2, "dp_size": 4}, True),
    "fsdp-tp8": (4, 4, {"num_gpus": 8, "fsdp_size": 8}, {"num_gpus": 8, "tp_size": 8}, False),
    "tp4-tp8": (2, 4, {"num_gpus": 4, "tp_size": 4}, {"num_gpus": 8, "tp_size": 8}, True),
}

# The share of a NIC's rate that TCP's headers leave at MTU 1500, and bytes/s of a unit.
PAYLOAD, UNITS = 0.9564, {"gbit": 1e9 / 8, "mbit": 1e6 / 8}
COLUMNS = ("layout", "peer", "median_s", "bound_s", "to_bound", "to_ours", "nic_models", "in_models", "join_s", "plan_s",
           "plan_cpu_s", "extra_mib", "wrong")


def bytes_per_second(nic):
    for unit, factor in UNITS.items():
        if nic.endswith(unit):
            return float(nic.removesuffix(unit)) * factor * PAYLOAD
    raise argparse.ArgumentTypeError(f"'{nic}' is no rate such as 1gbit or 500mbit")


def write_plan(options, name, directory):
    """The tensors and their layouts, from the model suite."""
    _, _, train, generation, _ = LAYOUTS[name]
    system, plan = os.path.join(directory, "system.json"), os.path.join(directory, f"{name}.json")
    with open(system, "w", encoding="utf-8") as file:
        json.dump({"train": train, "generation": generation}, file)
    bench = os.path.join(options.build, "bench/reshard-bench")
    subprocess.run([bench, "--case", "dense-7b", "--system-config", system, "--scale", f"1/{options.scale}", "--dry-run",
                    "--nic-gbps", "1", "--dump-plan", plan], check=True, stdout=subprocess.DEVNULL)
    return plan


def run_peer(options, cluster, name, peer, plan, directory):
    out = os.path.join(directory, "result.json")
    _, per_host, _, _, colocated = LAYOUTS[name]
    command = [options.python, os.path.abspath(__file__), options.build, "--rank", peer, plan, str(int(colocated)),
               str(per_host), str(options.runs), str(options.density), out]
    with open(os.path.join(directory, "log"), "w+", encoding="utf-8") as log:
        try:
            cluster.job(command, limit=options.limit, output=log, errors=log, environment=[
                "GLOO_SOCKET_IFNAME=nic0", "UCX_NET_DEVICES=nic0", "OMP_NUM_THREADS=1", "PYTHONWARNINGS=ignore",
                f"CROSSMESH_LIBRARY={options.build}/libcrossmesh.so"])
        except Failed as error:
            log.seek(0)
            said = [line.strip() for line in log if "Error" in line or "Exception" in line]
            return {"failed": (said or [str(error).split(":", maxsplit=1)[0]])[0]}
    return read(out)


def run_layout(options, name, directory):
    """A row for each peer, ours first, so that the others have something to be compared with."""
    hosts, per_host = LAYOUTS[name][:2]
    plan = write_plan(options, name, directory)
    ours, rows = None, []
    print(f"# {name}: {hosts} hosts of {per_host} ranks, NICs of {options.nic}", flush=True)
    with Cluster(options.build, hosts, per_host, nic=options.nic) as cluster:
        for peer in options.peers:
            row = {"layout": name, "peer": PEERS[peer], **run_peer(options, cluster, name, peer, plan, directory)}
            if "median_s" in row:
                row["bound_s"] = row["least_bytes"] / options.rate
                ours = row["median_s"] if ours is None else ours
                row["to_bound"] = row["median_s"] / row["bound_s"]
                row["to_ours"] = row["median_s"] / ours if ours else float("nan")
                row["nic_models"] = row["nic_bytes"] / row["bytes"]
                row["in_models"] = row["in_bytes"] / row["bytes"]
                row["extra_mib"] = row["extra_bytes"] / 2**20
            rows.append(row)
            print_row(row)
    return rows


def print_row(row):
    reason = [f"{word}: {row[word]}" for word in ("skipped", "failed") if word in row]
    figures = "".join(f"{row[c]:11.3f}" if c != "wrong" else f"{row[c]:8d}" for c in COLUMNS[2:]) if not reason else ""
    print(f"{row['layout']:<9}{row['peer']:<34}{figures or '  ' + reason[0]}", flush=True)


def run_cluster(options):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster ends, too
    options.rate, options.build = bytes_per_second(options.nic), os.path.abspath(options.build)
    rows = []
    print("# " + " ".join(f"{c:>10}" for c in COLUMNS[2:]))
    with tempfile.TemporaryDirectory(prefix="crossmesh-") as directory:
        for name in options.layouts:
            rows += run_layout(options, name, directory)
    if options.csv:
        with open(options.csv, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    bad = [row for row in rows if "failed" in row or row.get("wrong")]
    print(f"# Every byte right: {'no' if bad else 'yes'}")
    return 1 if bad else 0


def names_of(known):
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(known)}")
        return names

    return parse


def main():
    if sys.argv[2:3] == ["--rank"]:
        from rank import run

        peer, plan, colocated, per_host, runs, density, out = sys.argv[3:]
        run(peer, plan, colocated == "1", int(per_host), int(runs), float(density), out)
    own = os.path.join(SOURCES, "build/peers-python/bin/python")
    parser = argparse.ArgumentParser(prog="weights", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD_DIRECTORY")
    parser.add_argument("--python", default=own if os.path.exists(own) else sys.executable,
                        help="interpreter that has torch and the peers (default: build/peers-python's, else this one)")
    parser.add_argument("--peers", type=names_of(PEERS), metavar="NAME,…",
                        help=f"of {', '.join(PEERS)} (default: all, without --density but for {' and '.join(UPDATES)})")
    parser.add_argument("--layouts", type=names_of(LAYOUTS), default=list(LAYOUTS), metavar="NAME,…",
                        help=f"of {', '.join(LAYOUTS)} (default: all)")
    parser.add_argument("--scale", type=int, default=4, metavar="K", help="divides all sizes of the model (default 4)")
    parser.add_argument("--nic", default="1gbit", metavar="RATE", help="of a host's NIC (default 1gbit)")
    parser.add_argument("--density", type=float, default=0, metavar="PERCENT",
                        help="elements that change between runs: updates beside what moves everything (default: none)")
    parser.add_argument("--runs", type=int, default=3, help="timed runs (default 3)")
    parser.add_argument("--limit", type=int, default=120, metavar="SECONDS", help="of one peer's job (default 120)")
    parser.add_argument("--csv", metavar="FILE", help="write the table to a file")
    options = parser.parse_args()
    options.peers = options.peers or [name for name in PEERS if options.density > 0 or name not in UPDATES]
    if not 0 <= options.density <= 100 or (options.density == 0 and set(options.peers) & set(UPDATES)):
        parser.error(f"{' and '.join(UPDATES)} need --density of more than 0 and at most 100")
    return run_cluster(options)


if __name__ == "__main__":
    sys.exit(main())
