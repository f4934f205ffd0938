# SPDX-License-Identifier: Apache-2.0
"""What PyTorch makes of a cluster: times of operators and of collectives, as the ranks of this job run them.

`autopar probe` measures the links with crossmesh's own transport, and arithmetic on registers. A plan that runs in PyTorch
takes PyTorch's operators and the collectives of its process groups; all ranks measure at the same time, so what they take
from each other, processors and memory, is in the numbers.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Partial, Placement, Replicate, Shard

from .. import _stage_planner
from ..errors import InputError
from ._apply import apply_alone
from ._describe import dtype_name
from ._execute import Crossing
from ._export import Loss, batch_of, micro_batch
from ._gradients import BUCKET, bucket_bytes
from ._groups import mesh_of
from ._job import default_job
from ._operator_times import Rows, Seconds, collective_seconds, entries_of, halves, operator_seconds, rows_of, seconds_in_turns
from ._operators import elements
from ._plan import Boundary, Plan, plan
from ._redistribute import redistributed

__all__ = ["probe"]

SIZES = (4, 32, 128, 512, 2048)  # rows and columns of operators' tensors
SMALLEST, LEAST = 1024, 5
TURNS, EACH_TURN = 3, 3  # steps at least
PRODUCT = 256  # rows and columns of what is multiplied between
WORK = 6e-3  # seconds between collectives: layers take such, after which threads sleep and caches are cold
MEETINGS = 20  # runs of a collective at least: each waits for the last of its ranks
MESSAGE = 16384
LONG = 3  # times `seconds`: what takes longer is the last size of its curve
UPDATED = 8
FEW = 2  # samples of a small micro-batch
STEPS = 100  # a model's steps take so many times as long as a size: all other times hang on theirs
Case = tuple[str, float, float, Callable[[], object]]
Axis = tuple[DeviceMesh, Mapping[str, int]]
Size = tuple[Plan, Sequence[torch.Tensor], float]  # its batch, and for how long it runs in a turn
Step = tuple[Plan, tuple[float, float], Rows]  # what passes and update take, and operators
WAYS: Mapping[str, tuple[Placement, Placement]] = {
    "all-gather": (Shard(1), Replicate()),
    "all-reduce": (Partial(), Replicate()),
    "reduce-scatter": (Partial(), Shard(1)),
    "all-to-all": (Shard(0), Shard(1)),
}


def probe(
    cluster: _stage_planner.Cluster,
    *,
    device: torch.device | str = "cpu",
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    max_bytes: int = 16 << 20,
    seconds: float = 0.1,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    model: torch.nn.Module | None = None,
    example_args: Sequence[torch.Tensor] = (),
    loss: Loss | None = None,
    target: torch.Tensor | None = None,
    micro_batches: int = 1,
    afresh: bool = True,
) -> dict[str, Any]:
    """A cluster profile with the times of PyTorch's operators and of the collectives of its process groups.

    All ranks of the default group call it, on a quiet cluster, with as many threads as training will have; they are
    numbered host by host, equally many on each. `cluster` is what `autopar probe` has measured there; its entries of the
    same kinds are replaced, and curves of links by what tensors take from stage to stage. Operators run on numbers of
    `dtypes` of SIZES x SIZES (up to the first that takes `seconds`), collectives and ways between stages on 1 KiB, 4 KiB, …
    up to `max_bytes`, as plans run them, from 64 KiB on none after one that takes three times `seconds`. Each size takes about
    `seconds`. `optimizer` makes the update.
    With a `model` and what plan() wants of it, a batch that one device can train on, every rank trains a copy of it too,
    alone and all at once, as apply() runs a plan for one device: the whole batch, and as many micro-batches of two samples,
    and of a number between, in TURNS, as a machine's speed changes.
    What its operators take there, with all that stands between them, replaces the entries of their kinds, scaled until the
    planner predicts the step of each of these sizes. Collectives take as much more as one of them adds to the step where
    they stand between its operators. Where not `afresh`, `cluster` is what probe() gave without a model.
    Returns the same on all ranks: what `plan(cluster=…)` takes, and json.dump() writes.
    """
    if isinstance(cluster, Mapping):
        profile = copy.deepcopy(dict(cluster))
    else:
        with open(cluster, encoding="utf-8") as file:
            profile = json.load(file)
    place = torch.device(device)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    hosts = dist.get_world_size() // local
    if hosts * local != dist.get_world_size():
        raise InputError(f"{dist.get_world_size()} ranks are not {local} on each host")
    mesh = mesh_of(place.type, torch.arange(hosts * local).reshape(hosts, local), ("host", "device"))
    if afresh:
        _measure(profile, mesh, place, dtypes, max_bytes, seconds, optimizer)
    if model is not None:
        inputs = [*example_args, *(() if target is None else (target,))]
        whole, sizes = batch_of(inputs), list[Size]()
        for parts in _divisors(whole, micro_batches):
            given = micro_batch(inputs, whole, parts, 0)
            args, wanted = (given, None) if target is None else (given[:-1], given[-1])
            alone = plan(model, args, profile, loss=loss, target=wanted, micro_batches=micro_batches, stages=1, hosts=1,
                         devices_per_host=1)  # fmt: skip
            sizes.append((alone, given, STEPS / parts * seconds / TURNS))
        steps, more = _train(profile, mesh, model, sizes, optimizer)
        profile["runtime"]["bucket_bytes"] = bucket_bytes(p.nbytes for p in model.parameters() if p.requires_grad)
        scales, update = _fit_all(profile, steps)
        for collective in profile.get("collectives", []):
            collective["curve"] = [[nbytes, max(took + more, took / 2)] for nbytes, took in collective["curve"]]
        seconds_of = ", ".join(f"{sum(took):.6g} s for {alone.batch}" for alone, took, _ in steps)
        profile["provenance"] += (
            f", {min(scales):.3g} to {max(scales):.3g} times as long (an update {update:.3g} times), so that {type(model).__name__} "
            f"takes {seconds_of} samples on one of them; between its operators a collective {1e3 * more:+.3g} ms"
        )
    return profile


def _divisors(samples: int, micro_batches: int) -> list[int]:
    """Of the batch, for micro-batches of its own size, of FEW samples, and of a size between."""
    if samples % (FEW * micro_batches):
        return [1]
    most = samples // (FEW * micro_batches)
    return sorted({1, max(n for n in range(1, math.isqrt(most) + 1) if most % n == 0), most})


def _train(
    profile: dict[str, Any], mesh: DeviceMesh, model: torch.nn.Module, sizes: Sequence[Size],
    optimizer: Callable[..., torch.optim.Optimizer],
) -> tuple[list[Step], float]:  # fmt: skip
    """Steps of each size, and how many seconds more than in the profile collectives take there."""
    passes_s: list[list[float]] = [[] for _ in sizes]
    updates_s, splits, more, operators = list[float](), list[tuple[float, float]](), list[float](), list[Seconds]()
    for turn in range(TURNS):
        for number, (alone, given, seconds) in enumerate(sizes):
            passes = _Passes(model, alone, given, optimizer)
            steps_s, after_s = _step_samples(passes.step, passes.update, seconds, given[0].device)
            passes_s[number] += steps_s
            updates_s += after_s
            if turn == 0:
                operators.append(passes.operator_seconds())
            if number == len(sizes) // 2:
                splits.append(passes.halves())
                more.append(passes.more_of_collectives(profile, mesh, operators[number]))
            passes.close()
    for key, values in zip(("split_factor", "weight_share"), zip(*splits)):
        profile["runtime"][key] = statistics.median(values)
    update_s = statistics.median(updates_s)
    steps: list[Step] = []
    for (alone, *_), samples, seconds_of in zip(sizes, passes_s, operators):
        took = statistics.median(samples)
        steps.append((alone, (took, update_s), rows_of(alone, seconds_of, took / alone.micro_batches)))
    return steps, statistics.median(more)


def _fit_all(profile: dict[str, Any], steps: Sequence[Step]) -> tuple[list[float], float]:
    """Has the operators of each size of a micro-batch take as many times as long as the planner needs to predict its step, and
    updates so for the first; returns how many times. What is run as one is priced one by one, with what has no entry, and
    that is not the same share of a small micro-batch as of a large one."""
    tables = [rows for *_, rows in steps]
    scales, update = [1.0] * len(tables), 1.0
    for last in (False, False, False, True):  # some operators are of one size in all of them, so more than once
        entries = entries_of(tables, scales)
        kinds = {(entry["op"], entry["type"]) for entry in entries}
        profile["op_times"] = [e for e in profile["op_times"] if (e["op"], e.get("type")) not in kinds] + entries
        if not last:
            fits = [_fit(profile, alone, took) for alone, took, _ in steps]
            scales, update = [scale * times for scale, (times, _) in zip(scales, fits)], fits[0][1]
    for entry in profile["op_times"]:
        entry["seconds"] *= update if entry["op"] == "update" else 1.0
    return scales, update


def _fit(profile: Mapping[str, Any], alone: Plan, took: tuple[float, float]) -> tuple[float, float]:
    """How many times as long operators and updates must take for the planner to predict a step's passes and its update, in
    which predictions are linear."""

    def predicted(times: float) -> tuple[float, float]:
        scaled = [{**e, "seconds": e["seconds"] * (1 if e["op"] == "update" else times)} for e in profile["op_times"]]
        options = _stage_planner.Options(alone.batch, [alone.micro_batches], stages=1, hosts=1, devices_per_host=1)
        found = _stage_planner.plan_stages(alone.program.to_graph(), {**profile, "op_times": scaled}, options)[1]
        update = float(found["stages"][0]["seconds"]["update"])
        return float(found["predicted"]["step_s"]) - update, update

    (once, update), (twice, _) = predicted(1), predicted(2)
    # What has no entries keeps its price.
    return max((took[0] - (2 * once - twice)) / (twice - once), 1e-3), took[1] / update


def _measure(
    profile: dict[str, Any], mesh: DeviceMesh, place: torch.device, dtypes: Sequence[torch.dtype], max_bytes: int,
    seconds: float, optimizer: Callable[..., torch.optim.Optimizer],
) -> None:  # fmt: skip
    """Puts operators and collectives into a profile."""
    entries = [entry for dtype in dtypes for entry in _operators(dtype, place, seconds, optimizer)]
    if place.type != "cpu":  # nobody else has measured its rates
        rates = profile["device"].setdefault("flop_per_s_of", {})
        for entry in (e for e in entries if e["op"] == "einsum"):
            rates[entry["type"]] = max(rates.get(entry["type"], 0), entry["flops"] / entry["seconds"])
    curves, work = [], _products(PRODUCT, WORK, WORK, place)
    for axis, shape in _axes(mesh):
        curves += [{**shape, "collective": kind, "library": f"PyTorch {torch.__version__} {dist.get_backend()}",
                    "curve": _curve(axis, *WAYS[kind], max_bytes, seconds, place, work)} for kind in WAYS]  # fmt: skip
    kinds = {(entry["op"], entry["type"]) for entry in entries}
    kept = [entry for entry in profile.get("op_times", []) if (entry["op"], entry.get("type")) not in kinds]
    profile.update(version=2, op_times=kept + entries, collectives=curves)
    between, sends = _between(mesh, max_bytes, seconds, place)
    profile["runtime"] = {**profile.get("runtime", {}), "bucket_bytes": BUCKET, **sends}
    for kind, curve in between.items():
        profile["curves"][kind] = curve
        profile["curves"].pop(f"{kind}_hot", None)
    if curves:
        profile["gradient_overlap"] = _hidden(min(BUCKET, max_bytes), seconds, place)
    else:
        del profile["collectives"]
    profile["provenance"] = f"{profile['provenance']}; operators and collectives of PyTorch {torch.__version__} on {place.type}, all ranks at once"  # fmt: skip


def _operators(
    dtype: torch.dtype, place: torch.device, seconds: float, optimizer: Callable[..., torch.optim.Optimizer]
) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for n in SIZES:
        for kind, flops, moved, run in _cases(dtype, place, n, optimizer):
            took = _seconds(run, seconds, place) / (UPDATED if kind == "update" else 1)
            entries.append({"op": kind, "flops": flops, "bytes": moved, "seconds": took, "type": dtype_name(dtype)})
        if max(entry["seconds"] for entry in entries) > seconds:  # the next size would take 64 times as long
            break
    return entries


def _cases(
    dtype: torch.dtype, place: torch.device, n: int, optimizer: Callable[..., torch.optim.Optimizer]
) -> Iterable[Case]:
    """(kind, FLOPs, bytes, run) of every operator on n x n numbers, counted as in docs/cluster-profile.md; an optimizer
    has many parameters, so UPDATED of them are run."""
    a, b = (torch.randn(n, n, device=place, dtype=dtype) for _ in range(2))
    vector, rows = torch.randn(n, device=place, dtype=dtype), torch.randint(0, n, (n,), device=place)
    parameters = [torch.nn.Parameter(a.clone()) for _ in range(UPDATED)]
    for parameter in parameters:
        parameter.grad = b.clone()
    update = optimizer(parameters, lr=1e-9)
    square, size = float(n * n), dtype.itemsize
    layer_norm = torch.nn.functional.layer_norm
    yield "einsum", 2 * square * n, 3 * square * size, lambda: a @ b
    yield "elementwise", square, 3 * square * size, lambda: a + b
    yield "reduce", square, square * size, lambda: a.sum(0)
    yield "softmax", 5 * square, 2 * square * size, lambda: torch.softmax(a, -1)
    yield "layer_norm", 8 * square, 2 * square * size, lambda: layer_norm(a, (n,), vector, vector)
    yield "embedding", 0.0, 2 * square * size + 8 * n, lambda: a[rows]
    yield "update", 2 * square, 3 * square * size, update.step


class _Passes:
    """Steps of a copy of the model on this rank, run as plans are."""

    def __init__(
        self, model: torch.nn.Module, alone: Plan, batch: Sequence[torch.Tensor], optimizer: Callable[..., torch.optim.Optimizer]
    ) -> None:
        self._place, self._alone, self._batch = batch[0].device, alone, batch
        self._applied = apply_alone(copy.deepcopy(model), alone, self._place)
        self._optimizer = self._applied.optimizer(optimizer, lr=1e-9)

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._applied.step(*self._batch)

    def update(self) -> None:
        self._optimizer.step()

    def operator_seconds(self) -> Seconds:
        return operator_seconds(self._applied, self.step, LEAST)

    def halves(self) -> tuple[float, float]:
        return halves(self._applied, self.step, EACH_TURN, functools.partial(_finish, self._place))

    def more_of_collectives(self, profile: Mapping[str, Any], mesh: DeviceMesh, seconds: Seconds) -> float:
        """How many seconds more than in the profile a collective adds between the operators: that of the first kind of axis, of
        about the bytes that half of them make at most."""
        axis, shape = next(iter(_axes(mesh)), (None, {}))
        if axis is None or not profile.get("collectives"):
            return 0.0
        curve = next(c["curve"] for c in profile["collectives"] if c["collective"] == "all-reduce" and c.items() >= shape.items())
        made = [o.operator for o in self._alone.stages[0].operators]
        typical = statistics.median(elements(o.shape) * o.dtype.itemsize for o in made)
        nbytes, priced = min(curve, key=lambda point: abs(math.log(point[0] / max(typical, 1))))
        given = torch.ones(int(nbytes) // 4, device=self._place)
        took = collective_seconds(
            self._applied, functools.partial(_once, self.step, self._place), EACH_TURN, seconds, WORK,
            lambda: redistributed(given, axis, *((way,) for way in WAYS["all-reduce"])),
        )  # fmt: skip
        return took - float(priced)

    def close(self) -> None:
        self._applied.close()


def _axes(mesh: DeviceMesh) -> Iterable[Axis]:
    """The kinds of axes on which groups have at least two devices, no two of them alike."""
    hosts, local = mesh.mesh.shape
    if local > 1:
        yield mesh["device"], {"hosts": 1, "devices_per_host": local, "groups_per_host": 1}
    for some in (n for n in range(2, hosts + 1) if hosts % n == 0):  # a stage may have some of the hosts
        kind = mesh.device_type
        across = mesh_of(kind, mesh.mesh.reshape(-1, some, local), ("group", "host", "device"))
        yield across["host"], {"hosts": some, "devices_per_host": 1, "groups_per_host": local}
        if local > 1:
            whole = mesh_of(kind, mesh.mesh.reshape(-1, some * local), ("group", "rank"))
            yield whole["rank"], {"hosts": some, "devices_per_host": local, "groups_per_host": 1}


def _curve(
    axis: DeviceMesh, src: Placement, dst: Placement, max_bytes: int, seconds: float, place: torch.device,
    work: Callable[[], object],
) -> list[list[float]]:  # fmt: skip
    """[bytes, seconds] of one collective, bytes being those of the whole tensor."""

    def point(asked: int) -> list[float]:
        side = axis.size() * max(1, math.isqrt(asked // 4) // axis.size())
        shape = [side // axis.size() if src == Shard(dim) else side for dim in range(2)]
        given = torch.ones(shape, device=place)
        took = _meeting_seconds(lambda: redistributed(given, axis, (src,), (dst,)), seconds, place, work)
        return [4 * side * side, took]

    return _points(max_bytes, seconds, point)


def _points(max_bytes: int, seconds: float, point: Callable[[int], list[float]]) -> list[list[float]]:
    """Of 1 KiB, 4 KiB, …; the next size, of four times the bytes, is left to be told by those that there are where it would take
    long and there are enough for a slope."""
    points: list[list[float]] = []
    for asked in _bytes_until(max_bytes):
        points.append(point(asked))
        if len(points) > 3 and points[-1][1] > LONG * seconds:
            break
    return _rising(points)


def _between(
    mesh: DeviceMesh, max_bytes: int, seconds: float, place: torch.device
) -> tuple[dict[str, list[list[float]]], dict[str, float]]:
    """[bytes, seconds] of one way from device to device, on one host and on two, as pipelines go it; and what a message of
    some kilobytes keeps devices busy on the farthest way: starting it takes more than its bytes."""
    hosts, local = mesh.mesh.shape
    pairs = {
        "intra_host": [(host * local, host * local + 1) for host in range(hosts) if local > 1],
        "inter_host": [(host * local, (host + 1) * local) for host in range(0, hosts - 1, 2)],
    }
    sends: dict[str, float] = {}
    short = min(MESSAGE, _bytes_until(max_bytes)[-1])

    def point(some: Sequence[tuple[int, int]], asked: int) -> list[float]:
        way = _Way(some, asked, place)
        took = way.seconds(seconds)
        if asked == short:
            sends["send_s"] = way.busy_seconds(took)
        way.close()
        return [asked, took]

    found = {k: _points(max_bytes, seconds, functools.partial(point, some)) for k, some in pairs.items() if some}
    return found, sends


class _Way:
    """A tensor's way between the devices of pairs, there and back."""

    def __init__(self, pairs: Sequence[tuple[int, int]], nbytes: int, place: torch.device) -> None:
        ends = Boundary(0, 1, "x", (nbytes // 4,), torch.float32, (Replicate(),), (Replicate(),), 0.0, "auto", "auto")
        meshes = [tuple(mesh_of(place.type, torch.tensor([rank]), ("rank",)) for rank in pair) for pair in pairs]
        job = default_job(progress_thread=True)
        self._ways = [Crossing([ends], (src, dst), 1, job, place, None, None) for src, dst in meshes]
        self._mine = next((way for way, pair in zip(self._ways, pairs) if dist.get_rank() in pair), None)
        self._first = any(dist.get_rank() == source for source, _ in pairs)
        self._value = {("x", ends.src): torch.ones(nbytes // 4, device=place)}
        self._place, self._square = place, _square(place)

    def seconds(self, seconds: float) -> float:
        """From when a pass has ended on one device until the next device has what it gave: half of what there and back
        take beside the products between. Devices compute before, while and after they send, as passes follow each other."""
        took = self._trips(2)
        return self._trips(max(MEETINGS // 2, min(int(seconds / took), 1000))) / 2

    def busy_seconds(self, way: float) -> float:
        """For how long a message keeps its two devices from computing. Both compute all the time, as in the middle of a
        pipeline: who waits now and then has time to spare that those do not have."""
        before = time.perf_counter()
        self._multiply(MEETINGS)
        products = torch.tensor(time.perf_counter() - before)
        dist.all_reduce(products, dist.ReduceOp.MIN)
        count = 1 + int(2 * way * MEETINGS / float(products))
        found = torch.tensor([self._stream(count, True) - self._stream(count, False) for _ in range(LEAST)])
        dist.all_reduce(found)
        more: float = statistics.median(found.tolist()) / (len(self._ways) * MEETINGS)
        return max(0.0, more)

    def close(self) -> None:
        for way in self._ways:
            way.close()

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self._square, self._square)
        _finish(self._place)

    def _trips(self, count: int) -> float:
        """All pairs' seconds of a trip there and back, without products."""
        dist.barrier()
        begin, spent, mine = time.perf_counter(), 0.0, self._mine
        if mine is not None:
            mine.begin(count, True)
        for k in range(count if mine is not None else 0):
            assert mine is not None
            if not self._first:
                mine.arrived(k)
            before = time.perf_counter()
            self._multiply(1)
            spent += time.perf_counter() - before
            (mine.send if self._first else mine.send_back)(k, self._value)
            if not self._first:
                mine.release(k)
            torch.mm(self._square, self._square)
            if self._first:
                mine.come_back(k)
                mine.release(k)
        found = torch.tensor((time.perf_counter() - begin if self._first else 0.0) - spent)
        if mine is not None:
            mine.wait()
        dist.all_reduce(found)
        return max(float(found) / (len(self._ways) * count), 1e-9)

    def _stream(self, products: int, sends: bool) -> float:
        """What this device takes to compute MEETINGS times, with a message after each or without; who receives looks for it
        when the next one has been computed, so that nobody waits."""
        mine = self._mine
        dist.barrier()
        if mine is not None and sends:
            mine.begin(MEETINGS, False)
        begin = time.perf_counter()
        for k in range(MEETINGS if mine is not None else 0):
            assert mine is not None
            self._multiply(products)
            if sends and self._first:
                mine.send(k, self._value)
            elif sends and k > 0:
                mine.arrived(k - 1)
                mine.release(k - 1)
        took = time.perf_counter() - begin
        if mine is not None and sends:
            if not self._first:
                mine.arrived(MEETINGS - 1)
                mine.release(MEETINGS - 1)
            mine.wait()
        return took


def _bytes_until(most: int) -> list[int]:
    return [SMALLEST << 2 * n for n in range(16) if SMALLEST << 2 * n <= most]


def _rising(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """Always more for more bytes, as profiles have it: neighbours that are the other way round have about their mean."""
    blocks: list[tuple[float, int]] = []
    for _, seconds in points:
        blocks.append((seconds, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [((a * m + b * n) / (m + n), m + n)]
    rising = [mean * (1 + (2 * n - count + 1) / 200) for mean, count in blocks for n in range(count)]
    for n in range(1, len(rising)):
        rising[n] = max(rising[n], rising[n - 1] * 1.001)
    return [[nbytes, seconds] for (nbytes, _), seconds in zip(points, rising)]


def _hidden(nbytes: int, seconds: float, place: torch.device) -> float:
    """The part of such an all-reduce over all ranks that hides behind products of matrices of about its time. It is told by
    a difference, so the all-reduce, the products and both take turns, as a machine's speed changes."""
    flat = torch.zeros(nbytes // 4, device=place)

    def moves() -> None:
        dist.all_reduce(flat)

    products = _products(512, _seconds(moves, seconds, place), seconds, place)

    def both() -> None:
        work = dist.all_reduce(flat, async_op=True)
        products()
        work.wait()

    runs = [functools.partial(_once, run, place) for run in (moves, products, both)]
    moved, computed, together = seconds_in_turns(runs, MEETINGS // 2)
    return min(1.0, max(0.0, 1 - (together - computed) / moved))


def _seconds(run: Callable[[], object], seconds: float, place: torch.device) -> float:
    """The slowest rank's median of as many runs as fit into the time, as many on all ranks."""
    found = torch.tensor(statistics.median(_samples(run, seconds, place, LEAST)))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _step_samples(
    step: Callable[[], object], update: Callable[[], object], seconds: float, place: torch.device
) -> tuple[list[float], list[float]]:
    """What steps, and the updates after them, take on the slowest rank: all wait for it, and it is seldom the same one. An
    update by itself would find in the caches what a step has put out of them."""
    updates: list[float] = []

    def whole() -> None:
        step()
        updates.append(_once(update, place))

    both = _samples(whole, seconds, place, EACH_TURN)
    after = updates[-len(both) :]
    found = torch.tensor([[took - last for took, last in zip(both, after)], after])
    dist.all_reduce(found, dist.ReduceOp.MAX)
    steps, slowest = found.tolist()
    return steps, slowest


def _meeting_seconds(run: Callable[[], object], seconds: float, place: torch.device, work: Callable[[], object]) -> float:
    """What a collective takes. A step has many, one after the other, so the mean counts, that of all ranks, too: who comes
    late does not wait. Work stands between them: ranks come at times of their own then, as in training."""
    found = torch.tensor(statistics.mean(_samples(run, seconds, place, MEETINGS, work)))
    dist.all_reduce(found)
    size: int = dist.get_world_size()
    return float(found) / size


def _once(run: Callable[[], object], place: torch.device) -> float:
    _finish(place)
    begin = time.perf_counter()
    run()
    _finish(place)
    return time.perf_counter() - begin


def _samples(
    run: Callable[[], object], seconds: float, place: torch.device, least: int, work: Callable[[], object] = lambda: None
) -> list[float]:
    def once() -> float:
        work()
        return _once(run, place)

    once()
    dist.barrier()
    begin = time.perf_counter()
    once()
    first = torch.tensor(time.perf_counter() - begin)
    dist.all_reduce(first, dist.ReduceOp.MAX)
    count = max(least, min(int(seconds / float(first)), 1000))
    dist.barrier()
    return [once() for _ in range(count)]


def _square(place: torch.device) -> torch.Tensor:
    return torch.randn(PRODUCT, PRODUCT, device=place)


def _products(rows: int, last: float, seconds: float, place: torch.device) -> Callable[[], None]:
    """Products of matrices that together take about `last`, as many on all ranks."""
    square = torch.randn(rows, rows, device=place)
    count = max(1, round(last / _seconds(lambda: torch.mm(square, square), seconds, place)))

    def products() -> None:
        for _ in range(count):
            torch.mm(square, square)

    return products


def _finish(place: torch.device) -> None:
    if place.type != "cpu":
        torch.accelerator.synchronize()
