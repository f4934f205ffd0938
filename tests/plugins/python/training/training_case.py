# SPDX-License-Identifier: Apache-2.0
"""A model trained as planned beside the same model in one process: losses, gradient norms and parameters."""

import itertools

import torch
import torch.distributed as dist

import torch_case
from crossmesh.torch import apply

# Four devices of a host, on which transfers are cheap beside passes.
CLUSTER = {
    "version": 1, "name": "test", "provenance": "assumed, for tests", "hosts": 1, "devices_per_host": 4,
    "device": {"flop_per_s": 1e9, "memory_bytes": 1e9, "memory_bytes_per_s": 1e10},
    "nic": {"bytes_per_s": 1e9},
    "curves": {
        "self": [[8, 1e-7], [1048576, 1e-4]],
        "intra_host": [[8, 1e-6], [1048576, 2e-4]],
        "inter_host": [[8, 5e-6], [1048576, 1e-3]],
    },
}  # fmt: skip

MAX_NORM = 0.5


def alone(make, loss, batches, micro_batches=1, rate=3e-3):
    """One process: losses, norms of all gradients before they are clipped, and the parameters in the end."""
    model, losses, norms = make(), [], []
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for batch in batches:
        optimizer.zero_grad()
        total = 0.0
        for part in zip(*(value.chunk(micro_batches) for value in batch)):
            found = loss(model(*part[:-1]), part[-1]) / micro_batches
            found.backward()
            total += found.item()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        optimizer.step()
        losses.append(total)
    return losses, norms, {name: p.detach() for name, p in model.named_parameters()}


def train(made, make, batches, expected, rate=3e-3, **how):
    """As many steps of a plan, and the comparison."""
    applied = apply(make(), made, **how)
    optimizer = applied.optimizer(torch.optim.AdamW, lr=rate)
    losses, norms = [], []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(applied.step(*batch).item())
        norms.append(applied.clip_grad_norm_(MAX_NORM).item())
        optimizer.step()
    torch.testing.assert_close(losses, expected[0][: len(losses)], rtol=1e-4, atol=0)
    torch.testing.assert_close(norms, expected[1][: len(norms)], rtol=1e-4, atol=0)
    return applied


def several(rank, cases):
    """Plans one after the other: (plan, make, batches, expected, options)."""
    torch_case.join()
    for made, make, batches, expected, how in cases:
        train(made, make, batches, expected, **how).close()
    dist.barrier()
    torch_case.leave()
