#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of a model's weights a training step changes, and what an update of them takes.

    bench/updates_training.py --steps 60 -o updates.csv --picture docs/img/updates.svg

A GPT of 30 million parameters learns the bytes of this repository's documentation, in float32 with AdamW. After every
step its weights, as bfloat16, are committed to a second process (crossmesh.torch.StateDictTransfer with update="auto"),
which compares all of them with what the trainer has. The CSV has a row for each step: learning rate, loss, per cent of
the elements that changed, per cent of the bytes of everything that were sent, seconds of the commit. Needs PyTorch.
"""

import argparse
import csv
import hashlib
import os
import pathlib
import secrets
import socket
import time

import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, WIDTH, HEADS, CONTEXT, BATCH = 9, 512, 8, 128, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.letters(text) + self.places.weight))


def digest(weights: dict[str, torch.Tensor]) -> str:
    seen = hashlib.sha256()
    for _, tensor in sorted(weights.items()):
        seen.update(tensor.view(torch.int16).numpy())
    return seen.hexdigest()


class Training:
    """Of the model that `weights` are a copy of."""

    def __init__(self, rate: float, weights: dict[str, torch.Tensor], model: Gpt) -> None:
        text = b"".join(path.read_bytes() for path in sorted(ROOT.glob("docs/*.md")))
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.model, self.weights = model, weights
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        self.choice = torch.Generator().manual_seed(1)
        self.copy()

    def step(self) -> float:
        at = torch.randint(len(self.text) - CONTEXT - 1, (BATCH,), generator=self.choice)
        part = torch.stack([self.text[i : i + CONTEXT + 1] for i in at]).long()
        loss = nn.functional.cross_entropy(self.model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.copy()
        return loss.item()

    def copy(self) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.weights[name].copy_(parameter)


def follow(rank: int, options: argparse.Namespace) -> list[list[str]]:
    """What both processes do; rank 0 trains. Its rows."""
    from crossmesh import Job
    from crossmesh.torch import StateDictTransfer

    torch.manual_seed(1)
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    model, job, rows = Gpt(), Job.from_env(), []
    weights = {name: torch.zeros_like(p, dtype=torch.bfloat16) for name, p in model.named_parameters()}
    elements = sum(tensor.numel() for tensor in weights.values())
    training = Training(options.rate, weights, model) if rank == 0 else None
    sides = (weights, None) if rank == 0 else (None, weights)
    with StateDictTransfer(*sides, job=job, update="auto") as transfer:
        for step in range(options.steps + 1):
            loss = training.step() if training is not None and step > 0 else 0.0
            job.barrier()
            begin = time.perf_counter()
            transfer.run()
            seconds, commit = time.perf_counter() - begin, transfer.commits[0]
            first, second = job.allgather(digest(weights).encode())
            if first != second:
                raise SystemExit(f"step {step}: the second process has other weights")
            if step > 0 and rank == 0:
                rows.append([str(step), f"{options.rate:g}", f"{loss:.4f}", f"{100 * commit.changed / elements:.4f}",
                             f"{100 * commit.sent_bytes / commit.dense_bytes:.4f}", f"{seconds:.4f}"])  # fmt: skip
    job.close()
    return rows


def draw(rows: list[list[str]], rate: float) -> str:
    """Changed elements and sent bytes over steps, as a picture."""
    width, height, left, top = 720, 260, 60, 20
    most = max(float(row[4]) for row in rows) * 1.1
    lines = []
    for column, colour, name in ((3, "#4477aa", "elements that changed"), (4, "#ee6677", "bytes sent, of everything")):
        points = " ".join(f"{left + i * (width - left - 20) / max(1, len(rows) - 1):.1f},"
                          f"{top + (height - top - 40) * (1 - float(row[column]) / most):.1f}"
                          for i, row in enumerate(rows))  # fmt: skip
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{width - 230}" y="{top + 16 * (column - 2)}" fill="{colour}">{name}</text>')
    for share in range(5):
        y = top + (height - top - 40) * (1 - share / 4)
        lines.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{most * share / 4:.2g} %</text>')
        lines.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
    lines.append(f'<text x="{left}" y="{height - 12}" fill="#555">step 1 … {len(rows)}; AdamW, learning rate {rate:g}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(lines)}</svg>\n')  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rate", type=float, default=1e-6, help="of AdamW (1e-6, as in reinforcement learning)")
    parser.add_argument("-o", dest="csv", default="-", help="where the rows go (standard output)")
    parser.add_argument("--picture", help="an SVG of them")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]), WORLD_SIZE="2",
                          XM_JOB_SECRET=secrets.token_hex())  # fmt: skip
    child = os.fork()
    os.environ["RANK"] = str(int(child == 0))
    if child == 0:
        follow(1, options)
        os._exit(0)
    rows = follow(0, options)
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("the second process has failed")
    with open(1 if options.csv == "-" else options.csv, "w", newline="", closefd=options.csv != "-") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "rate", "loss", "changed_percent", "sent_percent", "commit_s"])
        writer.writerows(rows)
    if options.picture:
        pathlib.Path(options.picture).write_text(draw(rows, options.rate), encoding="utf-8")


if __name__ == "__main__":
    main()
