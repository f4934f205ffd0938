# SPDX-License-Identifier: Apache-2.0
"""Parallel plans for modules: torch.export's graph, planned by libautopar.so."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.tensor import Placement, Replicate, Shard

from .. import _stage_planner
from ..errors import InputError, InternalError
from ._export import Loss, batch_of, export_program, micro_batch
from ._operators import Operator, Program, Term
from ._schedule import Order, as_csv, devices_of, in_flight, order_of, read_order
from ._redistribute import Steps, read_sums

__all__ = ["SCHEDULES", "Boundary", "Plan", "Stage", "load_plan", "plan"]

Arguments = Sequence[torch.Tensor] | Mapping[str, torch.Tensor]

_FORMAT = "crossmesh-torch-plan"

Cut = dict[str, tuple[int, ...]]  # mesh axes that cut each factor

# Those that a list of devices can run: one pipeline, whole micro-batches, one version of the parameters.
SCHEDULES = ("1f1b", "gpipe", "eager-1f1b", "eager-1f1b-w", "zb-h1", "zb-h2", *_stage_planner.FOLDED)


def _read_spec(text: str) -> list[tuple[int, ...]]:
    """The mesh axes of every dimension, of "S01R"."""
    return [tuple(int(axis) for axis in axes) for _, axes in re.findall(r"([RS])(\d*)", text)]


def _read_specs(text: str) -> list[list[tuple[int, ...]]]:
    return [_read_spec(part) for part in text.split(",")]


def placements_of(axes: Sequence[tuple[int, ...]], mesh_rank: int = 2) -> tuple[Placement, ...]:
    places: list[Placement] = [Replicate()] * mesh_rank
    for dim, cutting in enumerate(axes):
        for axis in cutting:
            places[axis] = Shard(dim)
    return tuple(places)


def axes_of_term(term: Term, cut: Cut) -> list[tuple[int, ...]]:
    """The mesh axes that cut each dimension, where factors are cut so."""
    return [cut.get(letters[0], ()) for letters in term]


@dataclass(frozen=True)
class Placed:
    """An operator in its stage."""

    operator: Operator
    name: str  # that of its result: what several layers compute each for itself has several names
    operands: tuple[str, ...]  # without constants
    cut: Cut
    result: tuple[Placement, ...]  # after its collectives
    sums: dict[int, Steps]  # by term: how a parameter's gradient, or the result, is summed; without: by one all-reduce


@dataclass(frozen=True)
class Boundary:
    """A tensor that passes from one stage to another, mostly the next, in a micro-batch."""

    source: int  # stages
    target: int
    tensor: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    src: tuple[Placement, ...]
    dst: tuple[Placement, ...]
    seconds: float  # there and, as a gradient, back; of all that passes with it
    strategy: str  # of the resharding that the seconds are for, which apply() runs
    scheduler: str


@dataclass(frozen=True)
class Stage:
    ranks: tuple[int, ...]  # in the order of the mesh
    mesh: tuple[int, int]
    layers: tuple[int, int]
    modules: tuple[str, ...]
    parameters: dict[str, tuple[Placement, ...]]
    forward: float  # seconds of a micro-batch
    backward: float
    memory: int  # bytes of a device
    recompute: bool
    operators: tuple[Placed, ...] = field(repr=False)


@dataclass(frozen=True)
class Plan:
    """Stages, the placements of their parameters, and what a training step is predicted to take. Printable."""

    model: str
    batch: int  # samples of a step
    micro_batches: int
    schedule: str
    order: Order = field(repr=False)  # the passes of each device
    stages: tuple[Stage, ...]
    boundaries: tuple[Boundary, ...]
    step_seconds: float
    document: dict[str, Any] = field(repr=False)  # as docs/plan.md says
    kept: dict[str, Any] = field(repr=False)  # what a file has of it
    program: Program = field(repr=False)

    @property
    def memory(self) -> int:
        """Bytes that the fullest device needs."""
        return max(sum(self.stages[number].memory for number in numbers) for numbers in self.devices)

    @property
    def devices(self) -> list[list[int]]:
        """The stages of each device: of the ranks of a mesh together."""
        return [sorted({entry.stage for entry in passes}) for passes in self.order]

    @property
    def parameters(self) -> dict[str, tuple[int, tuple[Placement, ...]]]:
        """The (first) stage and the placements there of every parameter."""
        return {name: (homes[0], self.stages[homes[0]].parameters[name]) for name, homes in self.homes.items()}

    @property
    def homes(self) -> dict[str, list[int]]:
        """The stages that use each parameter."""
        found: dict[str, list[int]] = {}
        for number, stage in enumerate(self.stages):
            for name in stage.parameters:
                found.setdefault(name, []).append(number)
        return found

    @property
    def digest(self) -> str:
        return _digest(self.kept)

    def save(self, path: str | os.PathLike[str]) -> None:
        """A file that load_plan() reads, without the planner."""
        text = json.dumps({"format": _FORMAT, "version": 1, "digest": self.digest, **self.kept}, indent=1)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")

    def schedule_csv(self) -> str:
        """The passes of each device, for torch.distributed.pipelining's `_load_csv(file)`, torchtitan and NeMo."""
        return as_csv(self.order)

    def arguments(self, program: str) -> list[str]:
        """The plan in the words of "megatron" or "torchtitan", as far as they go: equal meshes, given as data_parallel and
        tensor_parallel, and layers that these programs share out themselves."""
        if self.kept["mesh"] is None:
            raise InputError(f"stages of free meshes have no words in {program}: plan with data_parallel and tensor_parallel")
        (data, tensor), pipeline = self.kept["mesh"], len(self.order)
        chunks, sample = len(self.stages) // pipeline, self.batch // self.micro_batches
        recompute = {stage.recompute for stage in self.stages}
        if len(recompute) > 1:
            raise InputError(f"stages that recompute beside stages that do not have no words in {program}")
        if program == "megatron":
            if self.schedule not in ("1f1b", "interleaved"):
                raise InputError(f"megatron runs 1f1b and interleaved, not {self.schedule}")
            found: dict[str, Any] = {
                "tensor-model-parallel-size": tensor, "pipeline-model-parallel-size": pipeline,
                "micro-batch-size": sample // data, "global-batch-size": self.batch,
            }  # fmt: skip
            if chunks > 1:
                found["num-virtual-stages-per-pipeline-rank"] = chunks
            if True in recompute:
                found |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
            flags = ["--use-distributed-optimizer"] if self.kept["zero"] == 1 else []
            return [text for key, value in found.items() for text in (f"--{key}", str(value))] + flags
        if program != "torchtitan":
            raise InputError(f"no words for '{program}': megatron or torchtitan")
        shard = self.kept["zero"] > 0
        found = {
            "training.global_batch_size": self.batch, "training.local_batch_size": self.batch // data,
            "parallelism.data_parallel_replicate_degree": 1 if shard else data,
            "parallelism.data_parallel_shard_degree": data if shard else 1,
            "parallelism.tensor_parallel_degree": tensor, "parallelism.pipeline_parallel_degree": pipeline,
            "parallelism.pipeline_parallel_microbatch_size": sample // data,
            "parallelism.pipeline_parallel_schedule_csv": "schedule.csv",
            "activation_checkpoint.mode": "full" if True in recompute else "none",
        }  # fmt: skip
        return [f"--{key}={value}" for key, value in found.items()]

    def __str__(self) -> str:
        size = self.batch // self.micro_batches
        lines = [
            f"{self.model}: {_count(len(self.stages), 'stage')}, {_count(self.micro_batches, 'micro-batch', 'es')} of "
            f"{_count(size, 'sample')}, {self.schedule}; a step takes {_time(self.step_seconds)}, "
            f"a device needs {_bytes(self.memory)}"
        ]
        for number, stage in enumerate(self.stages):
            lines.append(
                f"stage {number}: ranks {', '.join(map(str, stage.ranks))} as {stage.mesh[0]} x {stage.mesh[1]}, forward "
                f"{_time(stage.forward)}, backward {_time(stage.backward)}, {_bytes(stage.memory)} a device"
            )
            lines.append(f"  modules: {', '.join(stage.modules)}")
            width = max(map(len, stage.parameters), default=0)
            lines += [f"  {name:<{width}}  {_written(placements)}" for name, placements in stage.parameters.items()]
            for passing in (entry for entry in self.boundaries if entry.source == number):
                lines.append(
                    f"to stage {passing.target}: {tuple(passing.shape)} from {_written(passing.src)} to "
                    f"{_written(passing.dst)}, {_time(passing.seconds)}"
                )
        return "\n".join(lines)


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def _written(placements: Sequence[Placement]) -> str:
    return "[" + ", ".join(f"Shard({p.dim})" if isinstance(p, Shard) else "Replicate()" for p in placements) + "]"


def _time(seconds: float) -> str:
    for unit in ("s", "ms"):
        if seconds >= 1:
            return f"{seconds:.3g} {unit}"
        seconds *= 1e3
    return f"{seconds:.3g} us"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def _cut_of(operator: Operator, operands: list[list[tuple[int, ...]]], result: list[tuple[int, ...]]) -> Cut:
    """The axes of each factor, from the specs of operands; of factors that only the result has, from its own."""
    cut: Cut = {}
    for operand, spec in zip(operator.planned, operands):
        for letters, axes in zip(operand.term, spec):
            if axes:
                cut[letters[0]] = axes
    used = {axis for axes in cut.values() for axis in axes}
    read = {letters[0] for operand in operator.planned for letters in operand.term}
    for letters, axes in zip(operator.result, result):
        own = tuple(axis for axis in axes if axis not in used)
        if own and letters[0] not in read:
            cut[letters[0]] = own
    return cut


def _place(program: Program, layered: Sequence[Mapping[str, Any]], stage: Mapping[str, Any]) -> list[Placed]:
    """The operators of a stage in the order of the graph, which the plan keeps."""
    known = {operator.name: operator for operator in program.operators}
    by_layer: dict[int, list[Mapping[str, Any]]] = {}
    for op in layered:
        by_layer.setdefault(op["layer"], []).append(op)
    placed = []
    for group in stage["sharding"]:
        first, last = group["layers"]
        for layer in range(first, last + 1):
            ops = by_layer[layer]
            if len(ops) != len(group["ops"]):
                raise InternalError(f"the plan has {len(group['ops'])} operators in layer {layer}, the model {len(ops)}")
            for op, planned in zip(ops, group["ops"]):
                operator = known[op["name"].partition("~")[0]]
                result = _read_spec(planned["results"])
                cut = _cut_of(operator, _read_specs(planned["operands"]), result)
                sums = read_sums(planned.get("sums", ""))
                placed.append(Placed(operator, op["name"], tuple(op["operands"]), cut, placements_of(result), sums))
    return placed


def _top_module(path: str) -> str:
    """A path up to its first number: one of the blocks that models are made of."""
    parts = path.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return parts[0]


def _parameters(program: Program, placed: Sequence[Placed]) -> dict[str, tuple[Placement, ...]]:
    """Each as its first operator wants it."""
    found: dict[str, tuple[Placement, ...]] = {}
    for entry in placed:
        for operand in entry.operator.planned:
            if operand.kind == "parameter" and operand.name not in found:
                found[operand.name] = placements_of(axes_of_term(operand.term, entry.cut))
    return {name: found[name] for name in program.parameters if name in found}


def _stage(program: Program, layered: Sequence[Mapping[str, Any]], document: Mapping[str, Any], order: Order, number: int) -> Stage:
    stage = document["stages"][number]
    device = devices_of(order)[number]
    placed = _place(program, layered, stage)
    memory, rows, columns = stage["memory"], *map(int, stage["mesh"].split("x"))
    return Stage(
        ranks=tuple(document["stages"][device]["ranks"]),  # of the first stage there
        mesh=(rows, columns),
        layers=(stage["layers"][0], stage["layers"][1]),
        modules=tuple(dict.fromkeys(_top_module(p.operator.module) for p in placed if p.operator.module)),
        parameters=_parameters(program, placed),
        forward=stage["seconds"]["forward"],
        backward=stage["seconds"]["backward"],
        memory=memory["state_bytes"] + in_flight(order[device], number) * memory["activation_bytes"] + memory["work_bytes"],
        recompute=stage.get("recompute", document["schedule"]["rematerialize"]),
        operators=tuple(placed),
    )


def _boundaries(program: Program, number: int, entry: Mapping[str, Any]) -> list[Boundary]:
    """The tensors of a resharding, which pass together."""
    made = {operator.name: operator for operator in program.operators}
    source, target = entry.get("stages", (number, number + 1))
    first = {"tensor": entry["tensor"], "shape": entry["shape"], "src": entry["src"]["spec"], "dst": entry["dst"]["spec"]}
    return [
        Boundary(
            source=source,
            target=target,
            tensor=tensor["tensor"],
            shape=tuple(tensor["shape"]),
            dtype=made[tensor["tensor"].partition("~")[0]].dtype,
            src=placements_of(_read_spec(tensor["src"])),
            dst=placements_of(_read_spec(tensor["dst"])),
            seconds=entry["predicted"]["forward_s"] + entry["predicted"]["backward_s"],
            strategy=entry["predicted"]["strategy"],
            scheduler=entry["predicted"]["scheduler"],
        )
        for tensor in (first, *entry.get("more", ()))
    ]


def _inputs(given: Arguments, target: torch.Tensor | None) -> tuple[list[torch.Tensor], list[str]]:
    """All tensors of a step, and the keywords of the model's."""
    values = list(given.values() if isinstance(given, Mapping) else given)
    return [*values, *([] if target is None else [target])], list(given) if isinstance(given, Mapping) else []


def _digest(kept: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]


def _made(program: Program, batch: int, kept: dict[str, Any]) -> Plan:
    """From what a file keeps, and the model's program."""
    document = kept["plan"]
    count = document["schedule"]["micro_batches"]
    order = read_order(kept["passes"], len(document["stages"]), count)
    return Plan(
        model=program.name,
        batch=batch,
        micro_batches=count,
        schedule=kept["schedule"],
        order=order,
        stages=tuple(_stage(program, kept["layers"], document, order, n) for n in range(len(document["stages"]))),
        boundaries=tuple(b for n, entry in enumerate(document["reshardings"]) for b in _boundaries(program, n, entry)),
        step_seconds=kept["step_seconds"],
        document=document,
        kept=kept,
        program=program,
    )


def load_plan(
    path: str | os.PathLike[str], model: torch.nn.Module, example_args: Arguments, *,
    loss: Loss | None = None, target: torch.Tensor | None = None,
) -> Plan:  # fmt: skip
    """A plan that Plan.save() has written, for the model, arguments and loss that it was made of; the planner is not
    needed."""
    with open(path, encoding="utf-8") as file:
        try:
            read = json.load(file)
            form, version, digest = read.pop("format"), read.pop("version"), read.pop("digest")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"{path} is no plan of crossmesh.torch: {error}") from error
    if (form, version) != (_FORMAT, 1):
        raise InputError(f"{path} has format '{form}', version {version}, and not {_FORMAT}, version 1")
    if digest != _digest(read):
        raise InputError(f"{path} was changed after it was written: its digest does not match")
    inputs, keywords = _inputs(example_args, target)
    found = [[str(value.dtype), list(value.shape)] for value in inputs]
    if found != read["inputs"]:
        raise InputError(f"{path} is for arguments {read['inputs']} (the target is the last), not {found}")
    if model.training != read["training"]:
        raise InputError(f"{path} was made of the model in {'training' if read['training'] else 'evaluation'} mode")
    batch = batch_of(inputs)
    program = export_program(model, micro_batch(inputs, batch, read["plan"]["schedule"]["micro_batches"], 0), loss, keywords)
    names, planned = [operator.name for operator in program.operators], [entry["name"] for entry in read["layers"]]
    for name, other in itertools.zip_longest(names, sorted(set(n.partition("~")[0] for n in planned), key=_place_in(names))):
        if name != other:
            raise InputError(f"{path} is for another model: it has operator '{other}' where {program.name} has '{name}'")
    return _made(program, batch, read)


def _place_in(names: Sequence[str]) -> Callable[[str], int]:
    places = {name: place for place, name in enumerate(names)}
    return lambda name: places.get(name, len(places))


def _counts(micro_batches: int | Sequence[int] | None, batch: int) -> list[int] | None:
    if micro_batches is None:
        return None
    counts = [micro_batches] if isinstance(micro_batches, int) else sorted(micro_batches)
    for count in counts or [0]:
        if count < 1 or batch % count != 0:
            raise InputError(f"a batch of {batch} samples does not divide into {count} micro-batches")
    return counts


def plan(
    model: torch.nn.Module,
    example_args: Arguments,
    cluster: _stage_planner.Cluster,
    *,
    loss: Loss | None = None,
    target: torch.Tensor | None = None,
    micro_batches: int | Sequence[int] | None = None,
    stages: int | None = None,
    data_parallel: int | None = None,
    tensor_parallel: int | None = None,
    layers: int | str | None = None,
    hosts: int | None = None,
    devices_per_host: int | None = None,
    memory_limit: float | None = None,
    memory_reserve: float | None = None,
    schedule: str = "1f1b",
    virtual_stages: int | None = None,
    recompute: str = "off",
    zero: int = 0,
    time_limit: float = 0.0,
) -> Plan:
    """The parallel plan with the smallest predicted step time for training a model on a cluster.

    `example_args` are the model's arguments for a whole step, by keyword where it is a mapping, and `loss(output, target)` is what is trained, a mean (or
    sum) over samples; without a loss the model gives one number itself, or a mapping with
    it as "loss". Nothing is computed with them but shapes. What
    begins with the batch, the first dimension of the first argument, is cut into micro-batches, the rest belongs to each.
    Buffers, and tensors that are neither arguments nor parameters of the model, are constants.

    `cluster`: a profile that `autopar probe` has measured, a file or its contents (docs/cluster-profile.md); `hosts` and
    `devices_per_host` take that many of its kind. `micro_batches`: their number, or numbers to choose from (None: the
    powers of two, as far as they divide; where the samples cannot be followed through the model, 1). `stages` and the mesh of each, `data_parallel` x `tensor_parallel`, are looked for unless
    given: on such a mesh the first axis cuts the batch, the second one features, heads and the like. `layers`: how many
    parts the stages are made of, or a pattern of modules' paths with one part for each text that matches ("blocks/[0-9]+").
    `memory_limit`: bytes that a plan may use of a device; `memory_reserve`: bytes that it leaves free, below 1 a part
    (None: what runtimes need of the profile's memory). `schedule`: "1f1b", "gpipe", "eager-1f1b", "eager-1f1b-w", "zb-h1",
    "zb-h2", or with several stages to a device ("virtual_stages", 2) "interleaved", "zb-v", "dualpipev", for which the mesh
    is given and `stages` counts all (docs/pipeline-schedules.md). `recompute`: "off", "on", or "auto" for each stage as it makes
    the step shortest. `zero`: what of parameters is cut over ranks that repeat them, 0: nothing, 1: optimizer state.

    Equal models, arguments and options give equal plans on all ranks, unless a `time_limit` in seconds ends the search.
    """
    if schedule not in SCHEDULES:
        raise InputError(f"schedule '{schedule}'; plans of PyTorch models have {', '.join(SCHEDULES)}")
    if (loss is None) != (target is None):
        raise InputError("loss and target are given together, or neither of them")
    inputs, keywords = _inputs(example_args, target)
    batch = batch_of(inputs)
    counts = _counts(micro_batches, batch)
    options = _stage_planner.Options(
        global_batch=batch, micro_batches=counts, stages=stages, data_parallel=data_parallel,
        tensor_parallel=tensor_parallel, layers=layers, hosts=hosts, devices_per_host=devices_per_host,
        memory_limit=memory_limit, memory_reserve=memory_reserve, schedule=schedule, virtual_stages=virtual_stages,
        recompute=recompute, zero=zero, time_limit=time_limit,
    )  # fmt: skip
    exported = counts[0] if counts else 1
    program = export_program(model, micro_batch(inputs, batch, exported, 0), loss, keywords)
    layered, document, simulated = _stage_planner.plan_stages(program.to_graph(), cluster, options)
    count = document["schedule"]["micro_batches"]
    if count != exported:  # what runs has the sizes of its own micro-batch
        planned = [operator.name for operator in program.operators]
        program = export_program(model, micro_batch(inputs, batch, count, 0), loss, keywords)
        if planned != [operator.name for operator in program.operators]:
            options = replace(options, micro_batches=[count])
            layered, document, simulated = _stage_planner.plan_stages(program.to_graph(), cluster, options)
    folded = schedule in _stage_planner.FOLDED
    made = _made(program, batch, {
        "schedule": schedule if folded else document["schedule"]["kind"],
        "step_seconds": 1e-9 * simulated["step_ns"] if folded else document["predicted"]["step_s"],
        "plan": document,
        "layers": [{key: op[key] for key in ("name", "layer", "operands")} for op in layered["ops"]],
        "zero": zero,
        "passes": as_csv(order_of(simulated)).splitlines(),
        "inputs": [[str(value.dtype), list(value.shape)] for value in inputs],
        "keywords": keywords,
        "training": model.training,
        "mesh": [data_parallel or 1, tensor_parallel or 1] if data_parallel or tensor_parallel else None,
    })  # fmt: skip
    limit = memory_limit or document["predicted"].get("memory_limit", 0)
    if limit and made.memory > limit:
        raise InputError(
            f"{made.model} needs {_bytes(made.memory)} of a device with {schedule}'s stages, and may use {_bytes(limit)}"
        )
    if made.program.checkpoints > 0:
        warnings.warn(
            f"{made.program.name} calls torch.utils.checkpoint {made.program.checkpoints} times in a micro-batch; "
            "stages of this plan keep all activations instead, in the plan's memory and when they run",
            stacklevel=2,
        )
    return made
