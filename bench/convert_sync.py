#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much shorter a sync of bfloat16 weights is when they are quantized on their way: on an emulated cluster (root).

    convert_sync.py BUILD_DIRECTORY [--nic RATE] [--mib SIZE] [--runs N]

Two trainers on one host have the rows of matrices, cut within blocks of 128 rows; two servers on another host have them
in columns. Runs as they are and quantized take turns; what arrives is compared in the end. Prints medians, their ratio,
the processor time of a trainer, and the bytes that the servers' NIC took in. Needs torch and the package.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "evaluation"), os.path.join(HERE, "../plugins/python/src")]
COLUMNS, TENSORS = 4096, 8
WAYS = ("bfloat16", "fp8_blocks", "mxfp8", "int8_rows")


def taken_in():
    with open("/proc/net/dev", encoding="ascii") as file:
        return next(int(line.split(":")[1].split()[0]) for line in file if line.strip().startswith("nic0:"))


def quantized(full, kind):
    """A matrix and its scales, made at once; tests compare these kernels with torch."""
    import torch

    from crossmesh.conversions import CONVERSIONS, MAXIMA, NARROW, SCALES

    made = CONVERSIONS[kind]
    grid = made.grid(full.shape)
    narrow = torch.empty(full.shape, dtype=getattr(torch, made.dtype))
    scales, maxima = torch.zeros(grid, dtype=getattr(torch, made.scale)), torch.zeros(grid)
    for step in (MAXIMA, SCALES, NARROW):
        made.apply(step, "bfloat16", tuple(full.shape), wide=(full.data_ptr(), COLUMNS), maxima=maxima.data_ptr(),
                   narrow=(narrow.data_ptr(), COLUMNS), scales=(scales.data_ptr(), grid[1]))  # fmt: skip
    return {"": narrow, made.suffix: scales}


def run_rank(mib, runs):
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

    from crossmesh import maps
    from crossmesh.torch import StateDictTransfer

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, meshes = dist.get_rank(), [DeviceMesh("cpu", torch.tensor(ranks)) for ranks in ([0, 1], [2, 3])]
    side = rank // 2
    rows = (mib << 20) // (2 * COLUMNS * TENSORS) // 128 * 128 + 100

    def whole(i):
        generator = torch.Generator().manual_seed(i)
        return (torch.randn(rows, COLUMNS, generator=generator) * 0.02).to(torch.bfloat16)

    def mine(full):
        """Of the rows on a trainer, of the columns on a server; scales are whole there."""
        placement = Shard(side) if full.shape[1] == COLUMNS else Replicate()
        local = full.chunk(2, side)[rank % 2].contiguous() if full.shape[1] == COLUMNS else full
        return DTensor.from_local(local, meshes[side], [placement], run_check=False, shape=full.shape,
                                  stride=full.stride())  # fmt: skip

    src = {f"{i}.weight": mine(whole(i)) for i in range(TENSORS)} if side == 0 else None
    moves, targets = {}, {}
    for way in WAYS:
        given = [] if way == "bfloat16" else [maps.quantize("*", way)]
        if side == 1:
            made = {f"{i}.weight{key}": tensor for i in range(TENSORS)
                    for key, tensor in ({"": whole(i)} if not given else quantized(whole(i), way)).items()}  # fmt: skip
            targets[way] = {name: mine(tensor) for name, tensor in made.items()}
        dst = {name: mine(torch.zeros_like(tensor)) for name, tensor in made.items()} if side == 1 else None
        moves[way] = StateDictTransfer(src, dst, maps=given), dst
    figures = {way: [] for way in WAYS}
    for number in range(runs + 1):  # the first connects and is not counted
        for way, (transfer, _) in moves.items():
            dist.barrier()
            before, start, used = taken_in(), time.perf_counter(), time.process_time()
            transfer.run()
            used = time.process_time() - used
            dist.barrier()
            seconds = time.perf_counter() - start
            told = [None] * 4
            dist.all_gather_object(told, (seconds, used, taken_in() - before))
            if number > 0:
                figures[way].append((max(t[0] for t in told), told[0][1], told[2][2]))
    for way, target in targets.items():
        for name, tensor in target.items():
            arrived = moves[way][1][name].to_local().view(torch.uint8)
            assert torch.equal(arrived, tensor.to_local().view(torch.uint8)), f"rank {rank}: {way} {name} is wrong"
    dist.barrier()
    if rank == 0:
        print(f"# {TENSORS} matrices of {rows} x {COLUMNS}, {runs} runs; every byte right")
        first = statistics.median(f[0] for f in figures["bfloat16"])
        for way, listed in figures.items():
            seconds, used, taken = (statistics.median(column) for column in zip(*listed))
            ratio = statistics.median(f[0] / b[0] for f, b in zip(listed, figures["bfloat16"]))
            print(f"{way:<12}{seconds:8.3f} s {seconds / first:6.3f} (of runs beside each other {ratio:.3f}), trainer "
                  f"{used:.3f} s of processor, {taken / 1e6:.1f} MB into the servers' host", flush=True)  # fmt: skip
    dist.barrier()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD_DIRECTORY")
    parser.add_argument("--nic", default="1gbit", metavar="RATE", help="of a host's NIC (%(default)s)")
    parser.add_argument("--mib", type=int, default=128, help="of all weights in bfloat16 (%(default)s)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options.mib, options.runs)
    from lab import Cluster, Failed

    build = os.path.abspath(options.build)
    with tempfile.TemporaryFile("w+") as log, Cluster(build, 2, 2, nic=options.nic) as cluster:
        command = [sys.executable, os.path.abspath(__file__), build, "--rank", "--mib", str(options.mib)]
        try:
            cluster.job([*command, "--runs", str(options.runs)], limit=600, errors=log, environment=[
                "GLOO_SOCKET_IFNAME=nic0", "UCX_NET_DEVICES=nic0", "OMP_NUM_THREADS=1",
                f"CROSSMESH_LIBRARY={build}/libcrossmesh.so"])  # fmt: skip
        except Failed as error:
            log.seek(0)
            sys.exit(f"{error}\n{log.read()[-4000:]}")


if __name__ == "__main__":
    main()
