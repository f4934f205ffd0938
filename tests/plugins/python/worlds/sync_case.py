# SPDX-License-Identifier: Apache-2.0
"""A trainer and its servers, each a launch of its own: `torchrun … sync_case.py ROLE ADDRESS SIZE MODE`.

The trainer has a small Llama (grouped queries, tied embeddings) under FSDP2 and tensor parallelism on 2 x 2 ranks, the
servers have its parameters in another cut on 3. What a parameter holds is a function of its name, the version and the
element's index, which the trainer writes and the servers compute by themselves.
"""

import ctypes
import os
import signal
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import crossmesh
from crossmesh.torch import WeightSync

# Vocabulary, width, layers, heads, heads of keys, inner width.
SIZES = {
    "small": (960, 96, 2, 6, 3, 200),
    "50m": (16000, 768, 6, 12, 6, 2048),
    "1b": (32000, 2304, 16, 36, 12, 5760),
}
SECRET = "a secret for tests only"
SYNCS = 20
STEPS = 4  # between two versions


class Block(torch.nn.Module):
    def __init__(self, width, heads, kv, inner):
        super().__init__()
        self.head = width // heads
        sizes = {"q": (width, width), "k": (kv * self.head, width), "v": (kv * self.head, width), "o": (width, width),
                 "gate": (inner, width), "up": (inner, width), "down": (width, inner)}  # fmt: skip
        for name, (rows, columns) in sizes.items():
            setattr(self, name, torch.nn.Linear(columns, rows, bias=False))
        self.before, self.between = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)

    def forward(self, x):
        normed = self.before(x)
        q, k, v = (part(normed).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.down(torch.nn.functional.silu(self.gate(normed)) * self.up(normed))


class Llama(torch.nn.Module):
    def __init__(self, vocabulary, width, layers, heads, kv, inner):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, kv, inner) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(width)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.embed.weight.T


def make(size):
    with torch.device("meta"):
        return Llama(*SIZES[size]).to(torch.bfloat16)


def trained(size):
    """The model on 2 x 2 ranks. Linear layers are cut twice; norms and embeddings by FSDP2 only."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = make(size)
    plan = {name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
    plan |= {name: RowwiseParallel() for name in ("o", "down")}
    for block in model.blocks:
        if size != "small":  # three heads of keys do not divide
            parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    model.to_empty(device="cpu")
    return model


def served(size):
    """Its parameters on 3 ranks, in chunks that do not divide."""
    mesh = init_device_mesh("cpu", (3,))
    state = {}
    for name, parameter in make(size).named_parameters():
        kind = name.split(".")[-2]
        cut = Replicate() if parameter.ndim == 1 else Shard(1 if kind in ("o", "down") else 0)
        shape, _ = compute_local_shape_and_global_offset(parameter.shape, mesh, [cut])
        local = torch.ones(shape, dtype=torch.bfloat16)  # memory that is there
        state[name] = DTensor.from_local(local, mesh, [cut], run_check=False, shape=parameter.shape,
                                         stride=parameter.stride())  # fmt: skip
    return state


def content(name, version, tensor):
    """What this rank's part of a tensor has to hold: bits that differ everywhere, all values finite."""
    shape, first = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    index = torch.zeros((1,) * len(shape), dtype=torch.int32)
    for dim, (extent, start) in enumerate(zip(shape, first)):
        steps = torch.arange(start, start + extent, dtype=torch.int32) * tensor.stride()[dim]
        index = index + steps.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    index += zlib.crc32(name.encode()) % 1000003 + 7919 * version
    mixed = index.mul_(-1640531527)
    mixed.bitwise_xor_(mixed >> 15)
    return mixed.to(torch.int16).bitwise_and_(-0x4001)


def write(state, version):
    for name, parameter in state.items():
        parameter.to_local().view(torch.int16).copy_(content(name, version, parameter))


def wrong(state, version):
    """Names of what differs on this rank."""
    return [n for n, t in state.items() if not torch.equal(t.to_local().view(torch.int16), content(n, version, t))]


def steps(model, count):
    """Forward and backward, in which the parameters are read."""
    torch.manual_seed(dist.get_rank())
    ids = torch.randint(0, model.embed.num_embeddings, (1, 16))
    for _ in range(count):
        model(ids).float().logsumexp(-1).mean().backward()
        model.zero_grad()


class Peak:
    """The most memory that this process has had since then, less what it had then."""

    def __init__(self):
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.start = self._read("VmRSS")

    @staticmethod
    def _read(field):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))

    def bytes(self):
        return self._read("VmHWM") - self.start


def say(*words):
    # In one piece: the others write to the same pipe.
    os.write(1, (" ".join(map(str, (os.environ["ROLE"], dist.get_rank(), *words))) + "\n").encode())


def train(address, size, mode):
    model = trained(size)
    state = dict(model.named_parameters())
    if size != "1b":
        write(state, 0)
        steps(model, 1)
    write(state, 0)
    peak = Peak()
    meeting = crossmesh.rendezvous(address, "trainer", secret=SECRET, skew=60)
    with WeightSync(meeting, src=state, strict=True) as sync:
        sync.start()
        sync.wait()
        say("delivered", 0)
        say(f"setup {sync.setup_seconds:.3f} extra {peak.bytes()}")
        if mode == "time":
            measure(model, sync)
            return
        delivered = 1
        while delivered < (SYNCS if size != "1b" else 2):
            write(state, sync.version + 1)
            began = time.monotonic()
            sync.start()
            if size != "1b":
                steps(model, 1)
            sync.wait()
            delivered += sync.servers
            if sync.servers:
                say("delivered", sync.version)
            else:
                time.sleep(0.2)  # nobody to wait for
            say(f"seconds {time.monotonic() - began:.3f}")
        dist.barrier()


def measure(model, sync):
    """Steps with and without transfers, in turns. Once before, so that what is made once is there."""
    cpu = 0.0
    seconds = [0.0, 0.0]
    for turn in range(-1, 6):
        with_sync = turn % 2
        dist.barrier()
        began, used = time.monotonic(), sync.cpu_seconds
        for _ in range(4):
            if with_sync:
                sync.start()
            steps(model, STEPS)
            if with_sync:
                sync.wait()
        dist.barrier()
        if turn >= 0:
            seconds[with_sync] += time.monotonic() - began
            cpu += sync.cpu_seconds - used
    count = 3 * 4 * STEPS
    say(f"steps a second {count / seconds[0]:.3f} without, {count / seconds[1]:.3f} with; {count // STEPS} transfers",
        f"took {cpu:.3f} s of this rank's processor")  # fmt: skip


def serve(address, size, mode):
    state = served(size)
    peak = Peak()
    doomed = mode == "doomed" and dist.get_rank() == 1
    with WeightSync(crossmesh.rendezvous(address, "server", secret=SECRET, skew=60), dst=state) as sync:
        try:
            while True:
                sync.start()
                if mode == "layers":
                    first = sync.wait_for("embed.weight")
                    assert first in (sync.version, sync.version + 1)
                version = sync.wait()
                if version == 0:
                    say(f"setup {sync.setup_seconds:.3f} extra {peak.bytes()}")
                if mode != "time":
                    say("verified" if not wrong(state, version) else "wrong", version)
                if doomed and version == 6:
                    os.kill(os.getpid(), signal.SIGKILL)
        except crossmesh.AbortedError as error:
            say("ended:", error, f"cpu {sync.cpu_seconds:.3f}")


if __name__ == "__main__":
    os.environ["ROLE"] = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"trainer": train, "server": serve}[sys.argv[1]](*sys.argv[2:])
    dist.destroy_process_group()
