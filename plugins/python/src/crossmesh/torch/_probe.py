# SPDX-License-Identifier: Apache-2.0
"""What PyTorch makes of a cluster: times of operators and of collectives, as the ranks of this job run them.

`autopar probe` measures the links with crossmesh's own transport, and arithmetic on registers. A plan that runs in PyTorch
takes PyTorch's operators and the collectives of its process groups; all ranks measure at the same time, so what they take
from each other, processors and memory, is in the numbers.
"""

from __future__ import annotations

import copy
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DeviceMesh, Partial, Placement, Replicate, Shard

from .. import _stage_planner
from ..errors import InputError
from ._apply import apply_alone
from ._describe import dtype_name
from ._export import Loss
from ._partition import BUCKET, redistributed
from ._plan import Plan, plan

__all__ = ["probe"]

SIZES = (32, 128, 512, 2048)  # rows and columns of operators' tensors
SMALLEST = 1024
LEAST, SCALINGS = 5, 4
STEPS = 100  # a model's steps take so many times as long as a size: all other times hang on theirs
Case = tuple[str, float, float, Callable[[], object]]
WAYS: Mapping[str, tuple[Placement, Placement]] = {
    "all-gather": (Shard(0), Replicate()),
    "all-reduce": (Partial(), Replicate()),
    "reduce-scatter": (Partial(), Shard(0)),
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
    same kinds are replaced. Operators run on numbers of `dtypes` of SIZES x SIZES, collectives on 1 KiB, 4 KiB, … up to
    `max_bytes`, as plans run them. Each size takes about `seconds`. `optimizer` makes the update.
    With a `model` and what plan() wants of it, a batch that one device can train on, every rank trains a copy of it too,
    alone and all at once, as apply() runs a plan for one device, and the operators' times are scaled until the planner
    predicts that step: what stands between operators, memory that comes fresh from the system, autograd and the model's
    own shapes are in them then. Where not `afresh`, `cluster` is what
    probe() gave for another model, and is only scaled to this one.
    Returns the same on all ranks: what `plan(cluster=…)` takes, and json.dump() writes.
    """
    if isinstance(cluster, Mapping):
        profile = copy.deepcopy(dict(cluster))
    else:
        with open(cluster, encoding="utf-8") as file:
            profile = json.load(file)
    if afresh:
        _measure(profile, torch.device(device), dtypes, max_bytes, seconds, optimizer)
    if model is not None:
        given = (*example_args, *(() if target is None else (target,)))

        def planned() -> Plan:
            return plan(model, example_args, profile, loss=loss, target=target, micro_batches=micro_batches, stages=1,
                        hosts=1, devices_per_host=1)  # fmt: skip

        found = _step_seconds(model, planned(), given, optimizer, STEPS * seconds)
        for _ in range(SCALINGS):  # what has no entries keeps its price, so that one division is not all
            scale = found / planned().step_seconds
            for entry in profile["op_times"]:
                entry["seconds"] *= scale
        profile["provenance"] += f", scaled to {type(model).__name__} on one of them: a step takes {found:.6g} s"
    return profile


def _measure(
    profile: dict[str, Any], place: torch.device, dtypes: Sequence[torch.dtype], max_bytes: int, seconds: float,
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:  # fmt: skip
    """Puts operators and collectives into a profile."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    hosts = dist.get_world_size() // local
    if hosts * local != dist.get_world_size():
        raise InputError(f"{dist.get_world_size()} ranks are not {local} on each host")
    mesh = init_device_mesh(place.type, (hosts, local), mesh_dim_names=("host", "device"))
    entries = [entry for dtype in dtypes for entry in _operators(dtype, place, seconds, optimizer)]
    if place.type != "cpu":  # nobody else has measured its rates
        rates = profile["device"].setdefault("flop_per_s_of", {})
        for entry in (e for e in entries if e["op"] == "einsum"):
            rates[entry["type"]] = max(rates.get(entry["type"], 0), entry["flops"] / entry["seconds"])
    curves = []
    for axis, shape in _axes(mesh, hosts, local):
        curves += [{**shape, "collective": kind, "library": f"PyTorch {torch.__version__} {dist.get_backend()}",
                    "curve": _curve(axis, *WAYS[kind], max_bytes, seconds, place)} for kind in WAYS]  # fmt: skip
    kinds = {(entry["op"], entry["type"]) for entry in entries}
    kept = [entry for entry in profile.get("op_times", []) if (entry["op"], entry.get("type")) not in kinds]
    profile.update(version=2, op_times=kept + entries, collectives=curves)
    profile["runtime"] = {**profile.get("runtime", {}), "bucket_bytes": BUCKET}
    if curves:
        profile["gradient_overlap"] = _hidden(seconds, place)
    else:
        del profile["collectives"]
    profile["provenance"] = f"{profile['provenance']}; operators and collectives of PyTorch {torch.__version__} on {place.type}, all ranks at once"  # fmt: skip


def _operators(
    dtype: torch.dtype, place: torch.device, seconds: float, optimizer: Callable[..., torch.optim.Optimizer]
) -> list[dict[str, Any]]:
    entries = []
    for n in SIZES:
        for kind, flops, moved, run in _cases(dtype, place, n, optimizer):
            took = _seconds(run, seconds, place)
            entries.append({"op": kind, "flops": flops, "bytes": moved, "seconds": took, "type": dtype_name(dtype)})
    return entries


def _cases(
    dtype: torch.dtype, place: torch.device, n: int, optimizer: Callable[..., torch.optim.Optimizer]
) -> Iterable[Case]:
    """(kind, FLOPs, bytes, run) of every operator on n x n numbers, counted as in docs/cluster-profile.md."""
    a, b = (torch.randn(n, n, device=place, dtype=dtype) for _ in range(2))
    vector, rows = torch.randn(n, device=place, dtype=dtype), torch.randint(0, n, (n,), device=place)
    parameter = torch.nn.Parameter(a.clone())
    parameter.grad = b.clone()
    update = optimizer([parameter], lr=1e-9)
    square, size = float(n * n), dtype.itemsize
    layer_norm = torch.nn.functional.layer_norm
    yield "einsum", 2 * square * n, 3 * square * size, lambda: a @ b
    yield "elementwise", square, 3 * square * size, lambda: a + b
    yield "reduce", square, square * size, lambda: a.sum(0)
    yield "softmax", 5 * square, 2 * square * size, lambda: torch.softmax(a, -1)
    yield "layer_norm", 8 * square, 2 * square * size, lambda: layer_norm(a, (n,), vector, vector)
    yield "embedding", 0.0, 2 * square * size + 8 * n, lambda: a[rows]
    yield "update", 2 * square, 3 * square * size, update.step


def _step_seconds(
    model: torch.nn.Module, alone: Plan, batch: Sequence[torch.Tensor], optimizer: Callable[..., torch.optim.Optimizer],
    seconds: float,
) -> float:
    """Of a copy of the model on this rank, run as plans are: the median of the slowest rank."""
    applied = apply_alone(copy.deepcopy(model), alone, batch[0].device)
    update = applied.optimizer(optimizer, lr=1e-9)

    def step() -> None:
        update.zero_grad()
        applied.step(*batch)
        update.step()

    found = _seconds(step, seconds, batch[0].device)
    applied.close()
    return found


def _axes(mesh: DeviceMesh, hosts: int, local: int) -> Iterable[tuple[DeviceMesh, dict[str, int]]]:
    """The kinds of axes on which groups have at least two devices, no two of them alike."""
    if local > 1:
        yield mesh["device"], {"hosts": 1, "devices_per_host": local, "groups_per_host": 1}
    for some in (n for n in range(2, hosts + 1) if hosts % n == 0):  # a stage may have some of the hosts
        kind, groups = mesh.device_type, hosts // some
        across = init_device_mesh(kind, (groups, some, local), mesh_dim_names=("group", "host", "device"))
        yield across["host"], {"hosts": some, "devices_per_host": 1, "groups_per_host": local}
        if local > 1:
            whole = init_device_mesh(kind, (groups, some * local), mesh_dim_names=("group", "rank"))
            yield whole["rank"], {"hosts": some, "devices_per_host": local, "groups_per_host": 1}


def _curve(
    axis: DeviceMesh, src: Placement, dst: Placement, max_bytes: int, seconds: float, place: torch.device
) -> list[list[float]]:
    """[bytes, seconds] of one collective, bytes being those of the whole tensor; always rising, as profiles are."""
    points: list[list[float]] = []
    asked = SMALLEST
    while asked <= max_bytes:
        side = axis.size() * max(1, math.isqrt(asked // 4) // axis.size())
        part = (side // axis.size(), side) if src == Shard(0) else (side, side)
        given = torch.ones(part, device=place)

        def move(given: torch.Tensor = given) -> object:
            return redistributed(given, axis, (src,), (dst,))

        took = _seconds(move, seconds, place, statistics.mean, torch.randn(512, 512, device=place))
        points.append([4 * side * side, max(took, points[-1][1] * 1.01) if points else took])
        asked *= 4
    return points


def _hidden(seconds: float, place: torch.device) -> float:
    """The part of a bucket's all-reduce over all ranks that hides behind products of matrices of about its time."""
    flat, square = torch.zeros(BUCKET // 4, device=place), torch.randn(512, 512, device=place)

    def products() -> None:
        for _ in range(count):
            torch.mm(square, square)

    def both() -> None:
        work = dist.all_reduce(flat, async_op=True)
        products()
        work.wait()

    moved = _seconds(lambda: dist.all_reduce(flat), seconds, place)
    count = 1
    count = max(1, round(moved / _seconds(products, seconds, place)))
    return min(1.0, max(0.0, 1 - (_seconds(both, seconds, place) - _seconds(products, seconds, place)) / moved))


def _seconds(
    run: Callable[[], object], seconds: float, place: torch.device,
    middle: Callable[[list[float]], float] = statistics.median, product: torch.Tensor | None = None,
) -> float:  # fmt: skip
    """What a run takes on the slowest rank: the middle of as many runs as fit into the time, as many on all ranks.

    Operators are told by their median. Of collectives a step has many, one after the other, so their mean is what counts,
    and a product of matrices stands between them: ranks come at times of their own then, from work, as in training."""

    def once() -> float:
        if product is not None:
            torch.mm(product, product)
        _finish(place)
        begin = time.perf_counter()
        run()
        _finish(place)
        return time.perf_counter() - begin

    once()
    dist.barrier()
    first = torch.tensor(once())
    dist.all_reduce(first, dist.ReduceOp.MAX)
    count = max(LEAST, min(int(seconds / float(first)), 1000))
    dist.barrier()
    found = torch.tensor(middle([once() for _ in range(count)]))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _finish(place: torch.device) -> None:
    if place.type != "cpu":
        torch.accelerator.synchronize()
