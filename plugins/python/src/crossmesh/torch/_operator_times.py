# SPDX-License-Identifier: Apache-2.0
"""What each operator of a model takes where it runs: marks in the passes of a plan for one device, forward where operators
begin, backward where the gradients of what they made are there. What stands between two marks, autograd's and the
executor's own work too, is the first one's; what follows the last gradient, as memory is given back, is no operator's."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._stage_planner import Work, training_works
from ._apply import Applied
from ._operators import Operator
from ._partition import StageModule
from ._plan import Plan

__all__ = ["collective_seconds", "entries_of", "halves", "operator_seconds", "rows_of", "seconds_in_turns"]

Marks = list[tuple[float, int]]
Seconds = Mapping[str, tuple[float, float]]
Rows = dict[tuple[str, int], tuple[Work, float]]  # of an operator and of those of its backward pass, what each takes


@contextlib.contextmanager
def _runs(module: StageModule, around: Callable[[int, Any], Any]) -> Iterator[None]:
    """For a while each operator's run, by its number, is another one around it."""
    runs = [entry.run for entry in module._steps]
    for number, entry in enumerate(module._steps):
        entry.run = around(number, entry.run)
    try:
        yield
    finally:
        for run, entry in zip(runs, module._steps):
            entry.run = run


def operator_seconds(applied: Applied, step: Callable[[], object], count: int) -> Seconds:
    """Forward and backward of a micro-batch by the name of what is run, the mean of `count` steps on all ranks. Where
    operators run as one, a product and its bias, the name is that of the last."""
    module = applied.stages[0]
    spent = torch.zeros(len(module._steps), 2, dtype=torch.float64)
    marks: tuple[Marks, Marks] = [], []
    ends: list[float] = []

    def returned(number: int, _: torch.Tensor) -> None:
        if not marks[1]:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: ends.append(time.perf_counter()))
        marks[1].append((time.perf_counter(), number))

    def marked(number: int, run: Any) -> Any:
        def begin(parts: Any, local: Any) -> torch.Tensor:
            marks[0].append((time.perf_counter(), number))
            made: torch.Tensor = run(parts, local)
            if made.requires_grad:
                made.register_hook(functools.partial(returned, number))
            return made

        return begin

    def ended(way: int, run: Any) -> Any:
        def whole(*arguments: Any, **named: Any) -> Any:
            found = run(*arguments, **named)
            times = [at for at, _ in marks[way][1:]] + (ends or [time.perf_counter()])
            for (at, number), after in zip(marks[way], times):
                spent[number, way] += after - at
            marks[way].clear()
            ends.clear()
            return found

        return whole

    passes = module.forward_pass, module.backward_pass
    setattr(module, "forward_pass", ended(0, passes[0]))
    setattr(module, "backward_pass", ended(1, passes[1]))
    with _runs(module, marked):
        for _ in range(count):
            step()
    setattr(module, "forward_pass", passes[0])
    setattr(module, "backward_pass", passes[1])
    dist.all_reduce(spent)
    spent /= count * applied.plan.micro_batches * dist.get_world_size()
    return {entry.key: (there, back) for entry, (there, back) in zip(module._steps, spent.tolist())}


def halves(applied: Applied, step: Callable[[], object], count: int, finish: Callable[[], None]) -> tuple[float, float]:
    """How many times as long a backward pass in halves takes as a whole one, and the second half's part of both: medians of
    `count` neighbours, as a machine's speed changes, on all ranks in the mean."""
    module = applied.stages[0]
    passed, spent = module.backward_pass, torch.zeros(3, count)
    place: tuple[int, int] = (0, 0)

    def timed(k: int, grads: Any, split: bool) -> Any:
        finish()
        begin = time.perf_counter()
        found = passed(k, grads, bool(place[0]))
        finish()
        spent[place] += time.perf_counter() - begin
        if place[0]:
            begin = time.perf_counter()
            module.weight_pass(k)
            finish()
            spent[2, place[1]] += time.perf_counter() - begin
        return found

    setattr(module, "backward_pass", timed)
    for place in ((split, n) for n in range(count) for split in range(2)):
        module.splits = bool(place[0])
        step()
    module.splits = False
    setattr(module, "backward_pass", passed)
    whole, first, second = spent.clamp(min=1e-9)
    found = torch.stack([((first + second) / whole).median(), (second / (first + second)).median()])
    dist.all_reduce(found)
    factor, share = (found / dist.get_world_size()).tolist()
    return max(1.0, factor), share


def _evenly(seconds: Seconds, each: float) -> set[tuple[int, int]]:
    """About every `each` seconds of a micro-batch an operator, by number and direction: the same ones on all ranks."""
    times = list(seconds.values())
    passes = [(n, 0) for n in range(len(times))] + [(n, 1) for n in reversed(range(len(times)))]
    found, since = set(), 0.0
    for number, way in passes:
        since += times[number][way]
        if since >= each:
            found.add((number, way))
            since = 0.0
    return found or {passes[-1]}


def seconds_in_turns(runs: Sequence[Callable[[], float]], count: int) -> list[float]:
    """Medians of `count` runs of each, on the slowest rank. They take turns, as a machine's speed changes."""
    spent = torch.zeros(len(runs), count)
    for n in range(count):
        for row, run in zip(spent, runs):
            dist.barrier()
            row[n] = run()
    found = spent.median(dim=1).values
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return [float(seconds) for seconds in found]


def collective_seconds(
    applied: Applied, step: Callable[[], float], count: int, seconds: Seconds, each: float, move: Callable[[], object]
) -> float:
    """What a collective between the model's operators adds to a step: medians of `count` steps with one about every `each`
    of the operators' seconds, and of as many without, which take turns, on the slowest rank. Ranks wait for
    each other there, who have come at times of their own, and what follows finds its data gone from the nearest caches."""
    module = applied.stages[0]
    moves, active = 0, False
    places = _evenly(seconds, each)

    def pause(place: tuple[int, int]) -> None:
        nonlocal moves
        if active and place in places:
            moves += 1
            with torch.no_grad():
                move()

    def followed(number: int, run: Any) -> Any:
        def begin(parts: Any, local: Any) -> torch.Tensor:
            made: torch.Tensor = run(parts, local)
            pause((number, 0))
            if made.requires_grad:
                made.register_hook(lambda _: pause((number, 1)))
            return made

        return begin

    def once(moving: bool) -> float:
        nonlocal active
        active = moving
        return step()

    with _runs(module, followed):
        without, with_them = seconds_in_turns([functools.partial(once, False), functools.partial(once, True)], count)
    return (with_them - without) * count / max(moves, 1)


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


def rows_of(plan: Plan, seconds: Seconds, pass_s: float) -> Rows:
    """By operator what it and its backward pass, as the planner has them, take: `seconds` beside each other, in all `pass_s` of
    a micro-batch without the marks, which take time themselves. The time of a view is that of the operator before it."""
    works, found = training_works(plan.program.to_graph()), {}
    scale, last = pass_s / sum(there + back for there, back in seconds.values()), None
    for operator, there, back in _shared([placed.operator for placed in plan.stages[0].operators], seconds):
        there, back = scale * there, scale * back
        own, backward = works[operator.name]
        if operator.view or "float" not in own.dtype or own.nbytes == 0:
            if last is not None:
                found[last] = found[last][0], found[last][1] + there + back
            continue
        # The gradient of a product is products, of as many operands as have one; of others it is found at once for all.
        others = [work for work in backward if work.kind != own.kind]
        alike = 1 + len(backward) - len(others)
        moved = sum(work.nbytes for work in others)
        parts = [(own, (there + back) / alike if alike > 1 else there), *((w, back * w.nbytes / moved) for w in others)]
        for number, (work, part) in enumerate(parts):
            last = operator.name, number
            found[last] = work, part
    return found


def entries_of(tables: Sequence[Rows], times: Sequence[float]) -> list[dict[str, Any]]:
    """Entries of a profile (docs/cluster-profile.md), from the same operators on batches of different sizes, the largest
    first, which take `times` as long for each size. Smaller parts than those of the last are taken to go on as between the
    first and the last."""
    rows = [(work, more * took) for table, more in zip(tables, times) for work, took in table.values()]
    for key in [key for key in tables[0] if key in tables[-1]] if len(tables) > 1 else ():
        (whole, large), (work, small) = tables[0][key], tables[-1][key]
        large, small = times[0] * large, times[-1] * small
        share = work.nbytes / whole.nbytes
        floor = (small - share * large) / (1 - share) if share < 1 else small
        eighth = dataclasses.replace(work, flops=work.flops / 8, nbytes=work.nbytes / 8)
        rows.append((eighth, max(floor + (small - floor) / 8, small / 8)))
    alike: dict[Work, list[float]] = {}
    for work, seconds in rows:
        alike.setdefault(work, []).append(seconds)
    return [
        {"op": w.kind, "flops": w.flops, "bytes": w.nbytes, "seconds": max(sum(times) / len(times), 1e-9), "type": w.dtype}
        for w, times in alike.items()
    ]
