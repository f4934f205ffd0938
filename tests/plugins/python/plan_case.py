# SPDX-License-Identifier: Apache-2.0
"""A small transformer, as its author would write it: nothing in it knows of ranks."""

import torch
import torch.nn.functional as functional
from torch import nn

VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS = 48, 8, 32, 4, 2


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        y = self.before(x)
        heads = [
            part(y).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        attention = functional.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=self.dropout.p)
        x = x + self.dropout(self.out(attention.transpose(1, 2).reshape(batch, length, width)))
        return x + self.down(self.dropout(functional.gelu(self.up(self.between(x)))))


class Transformer(nn.Module):
    def __init__(self, blocks=BLOCKS, width=WIDTH, heads=HEADS, tied=False, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(logits, target):
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def make_model(**options):
    torch.manual_seed(7)
    return Transformer(**options)


def batches(steps, size):
    generator = torch.Generator().manual_seed(8)
    for _ in range(steps):
        ids = torch.randint(VOCABULARY, (size, LENGTH + 1), generator=generator)
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


# 4 devices on each of 2 hosts; slow enough that cutting work pays.
CLUSTER = {
    "version": 1, "name": "test", "provenance": "assumed, for tests", "hosts": 2, "devices_per_host": 4,
    "device": {"flop_per_s": 1e9, "memory_bytes": 1e9, "memory_bytes_per_s": 1e10},
    "nic": {"bytes_per_s": 1e9},
    "curves": {
        "self": [[8, 1e-7], [1048576, 1e-4]],
        "intra_host": [[8, 1e-6], [1048576, 2e-4]],
        "inter_host": [[8, 5e-6], [1048576, 1e-3]],
    },
}  # fmt: skip

# Four hosts of a device each, every other one four times as fast.
UNEQUAL = {
    **CLUSTER, "hosts": 4, "devices_per_host": 1,
    "device": {**CLUSTER["device"], "hosts": [
        {name: share * value for name, value in CLUSTER["device"].items()} for share in (4, 1, 4, 1)
    ]},
}  # fmt: skip
