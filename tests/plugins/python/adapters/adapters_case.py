# SPDX-License-Identifier: Apache-2.0
"""What the tests of crossmesh.adapters share: a small decoder, as it is trained (TP2 x PP2) and as it is served (TP2),
and weights whose every element depends on its place."""

import ctypes
import multiprocessing
import os
import threading

import torch
import torch._dynamo  # noqa: F401  DTensor imports it late, which would be in each of the forked processes
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Replicate, Shard

import ranks
import torch_case
from crossmesh import errors

TRAINERS, TP, LAYERS = 4, 2, 4
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER, VOCAB = 64, 4, 1, 16, 96, 250
# Without the highest bit of the exponent, so that all values are finite.
INTEGERS = {2: (torch.int16, -0x4001), 4: (torch.int32, -0x40000001)}


def whole(name, shape, dtype, version):
    """Bits that are different everywhere."""
    count = torch.Size(shape).numel()
    seed = int.from_bytes(name.encode(), "little") % 1000003 + 7919 * version
    mixed = torch.arange(count).add_(seed).mul_(2654435761)
    mixed.bitwise_xor_(mixed >> 17)
    integer, mask = INTEGERS[dtype.itemsize]
    return mixed.to(integer).bitwise_and_(mask).view(dtype).reshape(shape)


def stepwise(name, shape, dtype, version):
    """The same where a version changes one element in 37."""
    values = whole(name, shape, dtype, 0).flatten()
    for step in range(1, version + 1):
        values[step % 37 :: 37] = whole(name, shape, dtype, step).flatten()[step % 37 :: 37]
    return values.reshape(shape)


def weights(vocab=VOCAB, hidden=HIDDEN):
    """Name, shape, how tensor parallelism splits it in the trainer, and its pipeline stage."""
    yield "model.embed_tokens.weight", (vocab, hidden), Shard(0), 0
    for layer in range(LAYERS):
        stage, at = layer * 2 // LAYERS, f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,), Replicate(), stage
        yield at + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, hidden), Shard(0), stage
        yield at + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, hidden), Shard(0), stage
        yield at + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, hidden), Shard(0), stage
        yield at + "self_attn.o_proj.weight", (hidden, HEADS * HEAD_DIM), Shard(1), stage
        yield at + "mlp.gate_proj.weight", (INTER, hidden), Shard(0), stage
        yield at + "mlp.up_proj.weight", (INTER, hidden), Shard(0), stage
        yield at + "mlp.down_proj.weight", (hidden, INTER), Shard(1), stage
    yield "model.norm.weight", (hidden,), Replicate(), 1
    yield "lm_head.weight", (vocab, hidden), Shard(0), 1


def join_trainers(rank, port, size=TRAINERS):
    """The trainers have a process group of their own, of which the serving ranks know nothing."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_PORT=str(port))
    torch_case.join()


def training(rank, dtype, version, **sizes):
    """This trainer's shards: TP2 x PP2."""
    stage = rank // TP
    mesh = DeviceMesh("cpu", torch.arange(TP) + TP * stage, _init_backend=False, _rank=rank)
    state = {}
    for name, shape, placement, owner in weights(**sizes):
        if owner == stage:
            state[name] = torch_case.make(whole(name, shape, dtype, version), mesh, [placement])
    return state


def train(state, version):
    """A step of the optimizer, in place."""
    shapes = {name: shape for name, shape, _, _ in weights()}
    for name, tensor in state.items():
        full = whole(name, shapes[name], tensor.dtype, version)
        tensor.to_local().copy_(torch_case.shard(full, tensor.device_mesh, tensor.placements))


class Served(torch.nn.Module):
    """One tensor-parallel rank of the decoder with the fused parameters and the kind of loaders that serving engines
    have: query, key and value in one, gate and up in one, a padded vocabulary, key heads that several ranks share."""

    def __init__(self, rank, dtype, tp=TP, vocab=VOCAB, hidden=HIDDEN):
        super().__init__()
        self.rank, self.tp, self.vocab = rank, tp, vocab
        self.padded = -(-vocab // (8 * tp)) * 8
        query, key = HEADS // tp * HEAD_DIM, max(1, KV_HEADS // tp) * HEAD_DIM
        self.rows = {"q": (0, query), "k": (query, key), "v": (query + key, key)}
        shapes = {"model.embed_tokens.weight": (self.padded, hidden), "lm_head.weight": (self.padded, hidden)}
        for layer in range(LAYERS):
            at = f"model.layers.{layer}."
            shapes[at + "input_layernorm.weight"] = (hidden,)
            shapes[at + "self_attn.qkv_proj.weight"] = (query + 2 * key, hidden)
            shapes[at + "self_attn.o_proj.weight"] = (hidden, query)
            shapes[at + "mlp.gate_up_proj.weight"] = (2 * INTER // tp, hidden)
            shapes[at + "mlp.down_proj.weight"] = (hidden, INTER // tp)
        shapes["model.norm.weight"] = (hidden,)
        self.held = {
            name: torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
            for name, shape in shapes.items()
        }

    def load_weights(self, weights):
        for name, weight in weights:
            head, _, last = name.removesuffix(".weight").rpartition(".")
            if last in ("embed_tokens", "lm_head"):
                first = self.rank * self.padded
                mine = weight.narrow(0, first, min(self.padded, self.vocab - first))
                param = self.held[name]
                param[: mine.shape[0]].data.copy_(mine)
                param[mine.shape[0] :].data.fill_(0)
            elif last in ("q_proj", "k_proj", "v_proj"):
                at, rows = self.rows[last[0]]
                parts = weight.shape[0] // rows  # fewer than ranks where heads are shared
                param = self.held[f"{head}.qkv_proj.weight"].data.narrow(0, at, rows)
                param.copy_(weight.narrow(0, self.rank * parts // self.tp * rows, rows))
            elif last in ("gate_proj", "up_proj"):
                rows = INTER // self.tp
                param = self.held[f"{head}.gate_up_proj.weight"].data.narrow(0, rows * (last == "up_proj"), rows)
                param.copy_(weight.narrow(0, self.rank * rows, rows))
            elif last in ("o_proj", "down_proj"):
                columns = weight.shape[1] // self.tp
                self.held[name].data.copy_(weight.narrow(1, self.rank * columns, columns))
            else:
                self.held[name].data.copy_(weight)


def check(model, dtype, version, where, whole=whole):
    """Every byte of a served model, against one that loads the whole weights by itself."""
    sizes = {"vocab": model.vocab, "hidden": model.held["model.norm.weight"].shape[0]}
    other = Served(model.rank, dtype, model.tp, **sizes)
    other.load_weights((name, whole(name, shape, dtype, version)) for name, shape, _, _ in weights(**sizes))
    for name, parameter in model.held.items():
        assert torch.equal(torch_case.bits(parameter), torch_case.bits(other.held[name])), (where, name, version)


class Peak:
    """The most memory that this process has had since then, less what it had then."""

    def __init__(self):
        ctypes.CDLL(None).malloc_trim(0)  # what has been freed counts as free
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.start = self._read("VmRSS")

    @staticmethod
    def _read(field):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))

    def bytes(self):
        return self._read("VmHWM") - self.start


def leave():
    if dist.is_initialized():
        dist.destroy_process_group()


class Crew:
    """Serving processes that wait for calls, and the client through which the trainer makes them: a control plane."""

    NOTHING = object()  # the answer of what is answered later

    def __init__(self, count):
        self.lock = threading.Lock()
        self.pipes = [multiprocessing.Pipe() for _ in range(count)]

    def serve(self, number, table):
        """In a serving process, until there is nobody any more who calls. Answers that are exceptions are sent back."""
        for other, (caller, callee) in enumerate(self.pipes):
            caller.close()
            if other != number:
                callee.close()
        pipe = self.pipes[number][1]
        while True:
            try:
                name, argument = pipe.recv()
            except EOFError:
                return
            try:
                answer = table(name, argument)
            except Exception as error:
                answer = error
            if answer is not self.NOTHING:
                self.answer(number, answer)

    def answer(self, number, answer):
        """In a serving process, from any thread."""
        with self.lock:
            self.pipes[number][1].send(answer)

    def lead(self):
        """In the process that calls."""
        for _, callee in self.pipes:
            callee.close()

    def look_on(self):
        """In all other processes."""
        for caller, callee in self.pipes:
            caller.close()
            callee.close()

    def dismiss(self):
        """They end."""
        for caller, _ in self.pipes:
            caller.close()

    def send(self, numbers, name, arguments):
        for number, own in zip(numbers, arguments):
            self.pipes[number][0].send((name, own))

    def collect(self, numbers, raises=True):
        """The next answer of each; raises the first exception, one of a rank's own fault before those that follow."""
        answers = []
        for number in numbers:
            caller = self.pipes[number][0]
            if not caller.poll(ranks.TIMEOUT):
                raise TimeoutError(f"number {number} has not answered")
            answers.append(caller.recv())
        failures = [answer for answer in answers if raises and isinstance(answer, Exception)]
        for failure in sorted(failures, key=lambda failure: isinstance(failure, errors.PeerError)):
            raise failure
        return answers

    def call_some(self, numbers, name, arguments, raises=True):
        """On all of these at once."""
        self.send(numbers, name, arguments)
        return self.collect(numbers, raises)

    def call(self, name, argument=None):
        return self.call_some(range(len(self.pipes)), name, [argument] * len(self.pipes))
