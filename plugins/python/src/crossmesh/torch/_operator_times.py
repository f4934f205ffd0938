# SPDX-License-Identifier: Apache-2.0
"""What each operator of a model takes where it runs: marks in the passes of a plan for one device, forward where operators
begin, backward where the gradients of what they made are there. What stands between two marks, autograd's and the
executor's own work too, is the first one's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._apply import Applied
from ._describe import dtype_name
from ._operators import Operator, elements
from ._plan import Plan

__all__ = ["collective_seconds", "entries_of", "operator_seconds", "split_factor"]

Marks = list[tuple[float, int]]
Seconds = Mapping[str, tuple[float, float]]
LEAST_BYTES = 4096


def operator_seconds(applied: Applied, step: Callable[[], object], count: int) -> Seconds:
    """Forward and backward of a micro-batch by the name of what is run, the mean of `count` steps on all ranks. Where
    operators run as one, a product and its bias, the name is that of the last."""
    module = applied.stages[0]
    spent = torch.zeros(len(module._steps), 2, dtype=torch.float64)
    marks: tuple[Marks, Marks] = [], []

    def marked(number: int, run: Any) -> Any:
        def begin(parts: Any, local: Any) -> torch.Tensor:
            marks[0].append((time.perf_counter(), number))
            made: torch.Tensor = run(parts, local)
            if made.requires_grad:
                made.register_hook(lambda _: marks[1].append((time.perf_counter(), number)))
            return made

        return begin

    def ended(way: int, run: Any) -> Any:
        def whole(*arguments: Any, **named: Any) -> Any:
            found = run(*arguments, **named)
            times = [at for at, _ in marks[way][1:]] + [time.perf_counter()]
            for (at, number), after in zip(marks[way], times):
                spent[number, way] += after - at
            marks[way].clear()
            return found

        return whole

    for number, entry in enumerate(module._steps):
        entry.run = marked(number, entry.run)
    setattr(module, "forward_pass", ended(0, module.forward_pass))
    setattr(module, "backward_pass", ended(1, module.backward_pass))
    for _ in range(count):
        step()
    dist.all_reduce(spent)
    spent /= count * applied.plan.micro_batches * dist.get_world_size()
    return {entry.key: (there, back) for entry, (there, back) in zip(module._steps, spent.tolist())}


def split_factor(applied: Applied, step: Callable[[], object], count: int, finish: Callable[[], None]) -> float:
    """How many times as long a backward pass in halves takes as a whole one: the median of `count` neighbours, as a machine's
    speed changes, on all ranks in the mean."""
    module = applied.stages[0]
    passed, spent = module.backward_pass, torch.zeros(2, count)
    place: tuple[int, int] = (0, 0)

    def timed(k: int, grads: Any, split: bool) -> Any:
        finish()
        begin = time.perf_counter()
        found = passed(k, grads, bool(place[0]))
        if place[0]:
            module.weight_pass(k)
        finish()
        spent[place] += time.perf_counter() - begin
        return found

    setattr(module, "backward_pass", timed)
    for place in ((halves, n) for n in range(count) for halves in range(2)):
        module.splits = bool(place[0])
        step()
    module.splits = False
    setattr(module, "backward_pass", passed)
    factor = (spent[1] / spent[0].clamp(min=1e-9)).median()
    dist.all_reduce(factor)
    size: int = dist.get_world_size()
    return max(1.0, float(factor) / size)


def collective_seconds(
    applied: Applied, step: Callable[[], float], count: int, each: float, move: Callable[[], object]
) -> float:
    """What a collective between the model's operators adds to a step: medians of `count` steps with one about every `each`
    seconds of forward and backward passes, and of as many without, which take turns, on the slowest rank. Ranks wait for
    each other there, who have come at times of their own, and what follows finds its data gone from the nearest caches."""
    module = applied.stages[0]
    spent, moves, active, every = torch.zeros(2, count), 0, False, 1

    def pause(number: int) -> None:
        nonlocal moves
        if active and number % every == 0:
            moves += 1
            with torch.no_grad():
                move()

    def followed(number: int, run: Any) -> Any:
        def begin(parts: Any, local: Any) -> torch.Tensor:
            made: torch.Tensor = run(parts, local)
            pause(number)
            if made.requires_grad:
                made.register_hook(lambda _: pause(number))
            return made

        return begin

    alone = torch.tensor(step())
    dist.all_reduce(alone, dist.ReduceOp.MAX)
    passed = 2 * len(module._steps) * applied.plan.micro_batches
    every = max(1, round(each * passed / float(alone)))
    runs = [entry.run for entry in module._steps]
    for number, entry in enumerate(module._steps):
        entry.run = followed(number, entry.run)
    for n in range(count):
        for active in (False, True):
            dist.barrier()
            spent[int(active), n] = step()
    for run, entry in zip(runs, module._steps):
        entry.run = run
    found = spent.median(dim=1).values
    dist.all_reduce(found, dist.ReduceOp.MAX)
    without, with_them = map(float, found)
    return (with_them - without) * count / max(moves, 1)


def _bytes(operator: Operator, gradient: bool) -> float:
    """What is read and written; for a gradient the operands once more."""
    shapes = [[elements([operator.sizes[letter] for letter in letters]) for letters in o.term] for o in operator.planned]
    read = sum(elements(shape) for shape in shapes)
    return float((read * (1 + gradient) + elements(operator.shape)) * operator.dtype.itemsize)


def _shared(operators: Sequence[Operator], seconds: Seconds) -> Iterator[tuple[Operator, float, float]]:
    """Each operator's time: those that run as one share theirs as their FLOPs."""
    joined: list[Operator] = []
    for operator in operators:
        joined.append(operator)
        if operator.name in seconds:
            there, back = seconds[operator.name]
            work = sum(other.flops for other in joined)
            for other in joined:
                part = other.flops / work if len(joined) > 1 else 1.0
                yield other, there * part, back * part
            joined = []


def _sizes(plan: Plan, seconds: Seconds, pass_s: float) -> list[tuple[str, str, float, float, float]]:
    """(kind, type, FLOPs, bytes, seconds), which are `pass_s` together; the time of a view, or of one that does next to
    nothing, is that of the operator before it."""
    found: list[tuple[str, str, float, float, float]] = []
    scale = pass_s / sum(there + back for there, back in seconds.values())
    for operator, there, back in _shared([placed.operator for placed in plan.stages[0].operators], seconds):
        there, back = scale * there, scale * back
        if operator.view or operator.kind == "reduce" or not operator.dtype.is_floating_point or _bytes(operator, False) < LEAST_BYTES:
            if found:
                found[-1] = (*found[-1][:4], found[-1][4] + there + back)
            continue
        kind = dtype_name(operator.dtype)
        # The gradient of a product is products, of which there are as many as of operands.
        if operator.kind != "einsum" and not operator.linear and back > 0:
            found.append(("gradient", kind, operator.flops, _bytes(operator, True), back))
        each = (there + back) / 3 if operator.kind == "einsum" and back > 0 else there
        found.append((operator.kind, kind, operator.flops, _bytes(operator, False), each))
    return found


def entries_of(runs: Sequence[tuple[Plan, Seconds, float]], times: Sequence[float]) -> list[dict[str, Any]]:
    """Entries of a profile (docs/cluster-profile.md), from the same operators on batches of different sizes, the largest
    first: what they take beside each other, and a micro-batch's passes without the marks, which take time themselves; `times`
    as long for each size. Smaller parts than those of the last are taken to go on as between the first and the last."""
    tables = [_sizes(made, seconds, pass_s * more) for (made, seconds, pass_s), more in zip(runs, times)]
    if len(tables) > 1:
        beyond = []
        for (*_, large), (kind, of, flops, moved, small), whole in zip(tables[0], tables[-1], tables[0]):
            share = moved / whole[3]
            floor = (small - share * large) / (1 - share) if share < 1 else small
            beyond.append((kind, of, flops / 8, moved / 8, max(floor + (small - floor) / 8, small / 8)))
        tables.append(beyond)
    alike: dict[tuple[str, str, float, float], list[float]] = {}
    for *key, seconds in (row for table in tables for row in table):
        alike.setdefault(tuple(key), []).append(seconds)  # type: ignore[arg-type]
    return [
        {"op": kind, "flops": flops, "bytes": moved, "seconds": max(sum(times) / len(times), 1e-9), "type": of}
        for (kind, of, flops, moved), times in alike.items()
    ]
