# SPDX-License-Identifier: Apache-2.0
"""One rank of a job: its tiles, and the runs, times and checks of one peer."""

import ctypes
import datetime
import importlib
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

from case import Case


class Job:
    """What a peer is given: the case, this rank, and its tiles by name."""

    def __init__(self, plan, colocated, per_host):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.address = f"10.77.0.{self.rank // per_host + 1}"  # as emulated-cluster numbers its hosts
        self.case = Case(plan, colocated, self.rank)
        self.src, self.dst = {}, {}
        for tensor in self.case.tensors:
            for tiles, tile in ((self.src, tensor.src_tile), (self.dst, tensor.dst_tile)):
                if tile is not None:
                    tiles[tensor.name] = tile.view(torch.bfloat16)


def trim():
    """Gives back what this program has freed, which the allocator would keep and a peer's memory be taken for."""
    ctypes.CDLL(None).malloc_trim(0)


class Memory:
    """The most that this process held while it was watched beyond what it held at first, in bytes."""

    def __init__(self):
        trim()
        self.first, self.most = self._field("VmRSS"), 0

    def __enter__(self):
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # forgets the greatest size so far

    def __exit__(self, *_):
        self.most = max(self.most, self._field("VmHWM") - self.first)

    @staticmethod
    def _field(name):
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))


def nic_bytes():
    """What the host's NIC has taken in and sent."""
    with open("/proc/net/dev", encoding="ascii") as file:
        fields = next((line.split(":")[1].split() for line in file if line.strip().startswith("nic0:")), ["0"] * 9)
    return int(fields[0]), int(fields[8])


def largest(value):
    cell = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(cell, op=dist.ReduceOp.MAX)
    return float(cell)


def measure(job, name, runs, density):
    """What a peer's runs came to; `skipped` with the reason when it is not here, or cannot do such a case."""
    for tensor in job.case.tensors:
        tensor.poison()  # so that its memory is there
    try:
        module = importlib.import_module(f"peer_{name}")
        memory, start = Memory(), time.perf_counter()
        with memory:
            peer = module.Peer(job)
    except (ImportError, NotImplementedError) as error:
        return {"skipped": str(error)}
    join_s = largest(time.perf_counter() - start)
    start, used = time.perf_counter(), time.process_time()
    with memory:
        peer.plan()
    used = time.process_time() - used
    result = {"join_s": join_s, "plan_s": largest(time.perf_counter() - start), "plan_cpu_s": largest(used),
              "time_s": [], "wrong": 0, "nic_bytes": 0, "in_bytes": 0}
    for number in range(runs + 1):  # the first connects and is not counted
        if density > 0:
            job.case.change(number, density)
            trim()
        for tensor in job.case.tensors if density == 0 else ():
            tensor.poison()
        dist.barrier()
        before, start = nic_bytes(), time.perf_counter()
        with memory:
            peer.run()
        seconds = largest(time.perf_counter() - start)
        came, left = (now - then for now, then in zip(nic_bytes(), before))
        result["nic_bytes"], result["in_bytes"] = largest(max(came, left)), largest(came)
        result["wrong"] += int(largest(sum(tensor.wrong() for tensor in job.case.tensors)))
        if number > 0:
            result["time_s"].append(seconds)
    result["extra_bytes"] = largest(memory.most)
    result["median_s"] = statistics.median(result["time_s"])
    return result


def run(name, plan, colocated, per_host, runs, density, out):
    """All ranks call it; rank 0 writes the result."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    with open(plan, encoding="utf-8") as file:
        job = Job(json.load(file), colocated, per_host)
    result = {**measure(job, name, runs, density), "bytes": job.case.bytes, "least_bytes": job.case.least_carried(per_host)}
    if job.rank == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # some of the libraries do not survive the interpreter's end
