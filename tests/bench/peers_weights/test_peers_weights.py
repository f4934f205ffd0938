#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the weight peers move: boxes are those of reshard-bench's plans, the least that a NIC carries is its bound.
What their memory is said to be is theirs alone."""

import json
import mmap
import os
import subprocess
import sys
import tempfile

BENCH = os.environ["RESHARD_BENCH"]
sys.path.insert(0, os.path.join(os.environ["SOURCE_DIR"], "bench/peers_weights"))
sys.dont_write_bytecode = True
try:
    from case import Case, intersect, volume  # noqa: E402
except SystemExit as error:
    print(f"skipped: {error}")
    sys.exit(77)
from rank import Memory  # noqa: E402
from torch_peer import Slot  # noqa: E402
from weights import LAYOUTS, write_plan  # noqa: E402


class Options:
    build, scale = os.path.dirname(os.path.dirname(BENCH)), 16


def expect(what, condition):
    if not condition:
        sys.exit(f"FAILED: {what}")


def check_boxes(name, plan, case):
    """Every task of the plan, made by other code, is in the boxes of its senders and receivers, and they are full."""
    routes, got = plan["routes"], {}
    for transfer in plan["transfers"]:
        task = plan["tasks"][transfer["task"]]
        tensor, box = case.tensors[task["tensor"]], tuple(map(tuple, task["box"]))
        share = (transfer["end"] - transfer["first"]) / volume(box)
        for rank in routes[transfer["route"]]["ranks"]:
            expect(f"{name}: {tensor.name} of rank {rank}", intersect(tensor.dst.box_of_rank[rank], box) == box)
            got[tensor.index, rank] = got.get((tensor.index, rank), 0) + share * volume(box)
        if transfer["parent"] == -1:
            expect(f"{name}: {tensor.name} from {transfer['sender']}",
                   intersect(tensor.src.box_of_rank[transfer["sender"]], box) == box)
    for tensor in case.tensors:
        for rank, box in tensor.dst.box_of_rank.items():
            expect(f"{name}: all of {tensor.name} on rank {rank}", abs(got[tensor.index, rank] - volume(box)) < 1)
            fetched = [part for part, _ in case.fetches(tensor, rank)]
            expect(f"{name}: fetches of {tensor.name}", sum(map(volume, fetched)) == volume(box))


def check_memory():
    """All that a peer held at once, and nothing of what making and checking the tensors took."""
    side = {"mesh": "1", "ranks": [0], "spec": "RR", "partition": "balanced"}
    slot = Slot({"case": "one", "shape": [2048, 4096], "dtype": "bfloat16", "src": side, "dst": side}, 0)
    slot.poison()
    expect("poison", slot.wrong() == slot.bytes)
    garbage = [bytes(64 << 10) for _ in range(1024)]
    keeps_the_heap_long = bytes(64 << 10)
    del garbage
    memory = Memory()
    for _ in range(3):
        with memory:
            with mmap.mmap(-1, 24 << 20) as held:
                for page in range(0, len(held), mmap.PAGESIZE):
                    held[page] = 1
                in_the_heap = [bytes(64 << 10) for _ in range(128)]
            del in_the_heap
            slot.dst_tile.copy_(slot.src_tile)
        expect("all right", slot.wrong() == 0)
    slot.dst_tile[-1, -1] ^= 256
    expect("one byte wrong", slot.wrong() == 1)
    expect(f"32 MiB are {memory.most / 2**20}", abs(memory.most / 2**20 - 32) < 2)
    return keeps_the_heap_long


def main():
    check_memory()
    with tempfile.TemporaryDirectory() as directory:
        for name, (hosts, per_host, _, _, colocated) in LAYOUTS.items():
            with open(write_plan(Options, name, directory), encoding="utf-8") as file:
                plan = json.load(file)
            case = Case(plan, colocated, -1)
            expect(f"{name}: bytes", case.bytes == plan["bytes"])
            least = case.least_carried(per_host)
            if colocated:
                # A host lacks half of the shards, or has all and the other lacks half of the model.
                expect(f"{name}: {least / case.bytes} of the model", abs(least / case.bytes - 0.5) < 0.01)
                continue
            check_boxes(name, plan, case)
            system = os.path.join(directory, "system.json")
            told = subprocess.run([BENCH, "--case", "dense-7b", "--system-config", system, "--scale", "1/16",
                                   "--dry-run", "--ranks-per-host", str(per_host), "-n", str(hosts * per_host), "--nic-gbps", "8",
                                   "--json"], check=True, capture_output=True, text=True).stdout
            bound = json.loads(told)["results"][0]["bound_s"]
            expect(f"{name}: {least / 1e9} s where the bound is {bound}", abs(least / 1e9 / bound - 1) < 0.001)
    print("boxes and bounds agree")


if __name__ == "__main__":
    main()
