# SPDX-License-Identifier: Apache-2.0
"""Small models of the kinds that people train, written as their authors write them: nothing in them knows of ranks."""

import torch
import torch.nn.functional as functional
from torch import nn

VOCABULARY, LENGTH, WIDTH = 40, 8, 16


class RotaryAttention(nn.Module):
    """Grouped queries; with `memory`, attention to another sequence."""

    def __init__(self, heads=4, groups=2, causal=True):
        super().__init__()
        self.heads, self.groups, self.each, self.causal = heads, groups, WIDTH // heads, causal
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, groups * self.each, bias=False) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def turn(self, x):
        places = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)
        rates = 100.0 ** (-torch.arange(0, self.each, 2, dtype=x.dtype, device=x.device) / self.each)
        angles = torch.cat([places[:, None] * rates] * 2, -1)
        half = torch.cat([-x[..., self.each // 2 :], x[..., : self.each // 2]], -1)
        return x * angles.cos() + half * angles.sin()

    def forward(self, x, memory=None):
        source = x if memory is None else memory
        q = self.query(x).unflatten(-1, (self.heads, self.each)).transpose(1, 2)
        k, v = (part(source).unflatten(-1, (self.groups, self.each)).transpose(1, 2) for part in (self.key, self.value))
        if memory is None:
            q, k = self.turn(q), self.turn(k)
        repeats = self.heads // self.groups
        k, v = (part.repeat_interleave(repeats, 1) for part in (k, v))
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal and memory is None)
        return self.out(made.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """The best two of four experts for each token, their shares made to add up to one."""

    def __init__(self, count=4, best=2):
        super().__init__()
        self.best, self.router = best, nn.Linear(WIDTH, count, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(count, WIDTH, WIDTH) * 0.2) for _ in range(2))

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        values, places = shares.topk(self.best, -1)
        values = values / values.sum(-1, keepdim=True)
        weight = torch.zeros_like(shares).scatter(-1, places, values)
        made = torch.einsum("bteo,eow->btew", functional.relu(torch.einsum("btw,ewo->bteo", x, self.up)), self.down)
        return (made * weight.unsqueeze(-1)).sum(2)


class Block(nn.Module):
    def __init__(self, inner=Gated, cross=False, causal=True):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3 if cross else 2))
        self.attention, self.inner = RotaryAttention(causal=causal), inner()
        self.cross = RotaryAttention() if cross else None

    def forward(self, x, memory=None):
        x = x + self.attention(self.norms[0](x))
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), memory)
        return x + self.inner(self.norms[1](x))


class Llama(nn.Module):
    """Grouped queries, tied embeddings; what it gives is a dictionary."""

    def __init__(self, blocks=4, inner=Gated, tied=True):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(inner) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
            nn.init.normal_(self.tokens.weight, std=0.02)  # of 1, logits lie so far apart that exp() is of denormal numbers

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(x))}


class T5(nn.Module):
    """An encoder, and a decoder of which every block attends to what the encoder has made."""

    def __init__(self, blocks=2):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.encoder = nn.ModuleList(Block(causal=False) for _ in range(blocks))
        self.decoder = nn.ModuleList(Block(cross=True) for _ in range(blocks))

    def forward(self, ids):
        memory = self.tokens(ids)
        for block in self.encoder:
            memory = block(memory)
        x = self.tokens(ids.roll(1, 1))
        for block in self.decoder:
            x = block(x, memory)
        return {"logits": self.head(x)}


class UNet(nn.Module):
    """Down, up again, and what was on the way down beside what is on the way up."""

    def __init__(self, channels=8):
        super().__init__()

        def step(source, target, stride=1):
            return nn.Sequential(nn.Conv2d(source, target, 3, stride, 1), nn.GroupNorm(2, target), nn.SiLU())

        self.first, self.down1, self.down2 = step(3, channels), step(channels, 2 * channels, 2), step(2 * channels, 4 * channels, 2)
        self.middle = step(4 * channels, 4 * channels)
        self.up1, self.up2 = step(6 * channels, 2 * channels), step(3 * channels, channels)
        self.last = nn.Conv2d(channels, 3, 1)

    def forward(self, x):
        high = self.first(x)
        low = self.down1(high)
        y = self.middle(self.down2(low))
        y = self.up1(torch.cat([functional.interpolate(y, scale_factor=2.0), low], 1))
        y = self.up2(torch.cat([functional.interpolate(y, scale_factor=2.0), high], 1))
        return self.last(y)


class Mixed(nn.Module):
    """As Hugging Face's are called, under autocast, with batch norm over the places of a sequence."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Gated() for _ in range(4))
        self.norm = nn.BatchNorm1d(LENGTH, track_running_stats=False)

    def forward(self, input_ids, labels=None):
        with torch.autocast("cpu", torch.bfloat16):
            x = self.tokens(input_ids)
            for block in self.blocks:
                x = x + block(x)
            logits = self.head(self.norm(x))
        return {"logits": logits, "loss": functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())}


def token_loss(output, target):
    """With the square of the logits' normaliser, as language models are kept from drifting."""
    logits = output["logits"]
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten()) + 1e-3 * logits.logsumexp(-1).square().mean()


def token_batches(steps, size):
    generator = torch.Generator().manual_seed(8)
    for _ in range(steps):
        ids = torch.randint(VOCABULARY, (size, LENGTH + 1), generator=generator)
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def image_batches(steps, size):
    generator = torch.Generator().manual_seed(9)
    for _ in range(steps):
        yield torch.randn(size, 3, 8, 8, generator=generator), torch.randn(size, 3, 8, 8, generator=generator)


def seeded(make):
    def made():
        torch.manual_seed(7)
        return make()

    return made


MODELS = {
    "llama": (seeded(Llama), token_loss, token_batches),
    "moe": (seeded(lambda: Llama(inner=Experts, tied=False)), token_loss, token_batches),
    "t5": (seeded(T5), token_loss, token_batches),
    "unet": (seeded(UNet), functional.mse_loss, image_batches),
}
