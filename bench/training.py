#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted and measured steps of one transformer, trained by PyTorch on two ranks with one thread each under three
plans: cut by samples, by features, and into two stages.

    autopar probe -n 2 -o cluster.json
    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 bench/training.py cluster.json [STEPS [ROUNDS]]

Width 256, 4 blocks of 4 heads, vocabulary 4096, sequence 128, batch 16 in 4 micro-batches, AdamW. A machine's rates change
within minutes, so there are ROUNDS (5): in each the ranks measure what PyTorch makes of the cluster (crossmesh.torch.probe),
and train STEPS (8) of each plan, in turns. Ends with 1 where the median of a plan's ratios is not within 10 % of 1, or the
order of the plans is another.
"""
import statistics
import sys
import time

import torch
import torch.distributed as dist
from crossmesh import torch as crossmesh
from torch import nn
from torch.nn import functional

WIDTH, HEADS, WORDS, LENGTH, BATCH, MICRO_BATCHES = 256, 4, 4096, 128, 16, 4
PLANS = {"data": (1, 2, 1), "tensor": (1, 1, 2), "pipeline": (2, 1, 1)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norms[0](x)
        heads = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        x = x + self.out(functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places)))


def loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def seconds_of(applied, optimizer, batch, target):
    """One step, from the time when all ranks begin until the last of them ends."""
    dist.barrier()
    begin = time.perf_counter()
    optimizer.zero_grad()
    applied.step(batch, target)
    optimizer.step()
    dist.barrier()
    return time.perf_counter() - begin


def one_round(cluster, batch, common, steps):
    """Predicted and measured seconds of each plan, on what the ranks have just measured."""
    profile = crossmesh.probe(cluster, model=Transformer(), example_args=(batch,), **common)
    runs = {}
    for name, (stages, data, tensor) in PLANS.items():
        model = Transformer()
        plan = crossmesh.plan(model, (batch,), profile, stages=stages, data_parallel=data, tensor_parallel=tensor, **common)
        applied = crossmesh.apply(model, plan)
        runs[name] = plan.step_seconds, applied, applied.optimizer(torch.optim.AdamW, lr=1e-4), []
    for _ in range(steps + 2):
        for _, applied, optimizer, times in runs.values():
            times.append(seconds_of(applied, optimizer, batch, common["target"]))
    for _, applied, *_ in runs.values():
        applied.close()
    return {name: (predicted, statistics.median(times[2:])) for name, (predicted, _, _, times) in runs.items()}


def main():
    steps, rounds = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((2, 8), (3, 5)))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    batch, target = torch.randint(0, WORDS, (2, BATCH, LENGTH))
    common = {"loss": loss, "target": target, "micro_batches": MICRO_BATCHES}
    found = []
    for number in range(rounds):
        found.append(one_round(sys.argv[1], batch, common, steps))
        if dist.get_rank() == 0:
            print(f"round {number}: ", *(f"{n} {1e3 * p:.0f}/{1e3 * m:.0f}" for n, (p, m) in found[-1].items()), flush=True)
    middle = {n: [statistics.median(r[n][k] for r in found) for k in (0, 1)] for n in PLANS}
    ratios = {n: statistics.median(r[n][0] / r[n][1] for r in found) for n in PLANS}
    for name, (predicted, measured) in middle.items():
        if dist.get_rank() == 0:
            print(f"{name:9} predicted {1e3 * predicted:7.1f} ms  measured {1e3 * measured:7.1f} ms  "
                  f"{100 * (ratios[name] - 1):+6.1f} % (median of {rounds} rounds' ratios)")
    good = all(abs(ratio - 1) <= 0.1 for ratio in ratios.values())
    good = good and sorted(PLANS, key=lambda n: middle[n][0]) == sorted(PLANS, key=lambda n: middle[n][1])
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
