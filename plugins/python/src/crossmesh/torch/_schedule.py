# SPDX-License-Identifier: Apache-2.0
"""The order of a pipeline's passes, device by device: data that the planner makes and the executor runs.

A pass is written as torch.distributed.pipelining writes it, "3F0": stage 3, forward, micro-batch 0. B is a whole backward
pass; I and W are its halves, for what came in and for the weights. Transfers follow from the passes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import InputError

__all__ = ["Order", "Pass", "as_csv", "devices_of", "in_flight", "order_of", "read_order"]


class Pass(NamedTuple):
    stage: int
    kind: str  # "F", "B", "I" or "W"
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = tuple[tuple[Pass, ...], ...]


def order_of(simulation: Mapping[str, Any]) -> Order:
    """Of what `autopar simulate --json` prints (docs/pipeline-schedules.md)."""
    split = any(op["pass"] == "weight" for device in simulation["devices"] for op in device["ops"])
    kinds = {"forward": "F", "backward": "I" if split else "B", "weight": "W"}
    return tuple(
        tuple(Pass(op["stage"], kinds[op["pass"]], op["micro_batch"]) for op in device["ops"] if op["pass"] in kinds)
        for device in simulation["devices"]
    )


def as_csv(order: Order) -> str:
    """A line for each device, as `_PipelineScheduleRuntime._load_csv(file, "compute_only")` reads them."""
    return "".join(",".join(map(str, passes)) + "\n" for passes in order)


def read_order(lines: Iterable[str], stages: int, micro_batches: int) -> Order:
    """From such lines, after a look at whether they can be run."""
    order = []
    for line in lines:
        found = [re.fullmatch(r"(\d+)([FBIW])(\d+)", text.strip()) for text in line.split(",")]
        if None in found:
            raise InputError(f"a schedule's line '{line[:40]}' is no list of passes such as 0F0,0B0")
        order.append(tuple(Pass(int(m[1]), m[2], int(m[3])) for m in found if m))
    _check(tuple(order), stages, micro_batches)
    return tuple(order)


def _check(order: Order, stages: int, micro_batches: int) -> None:
    """Run in turn, as far as each pass has what it needs, all devices come to their end, and nothing is left out."""
    done: set[Pass] = set()
    left = [list(passes) for passes in order]

    def ready(entry: Pass) -> bool:
        stage, kind, k = entry
        if kind == "F":
            return stage == 0 or Pass(stage - 1, "F", k) in done
        if kind == "W":
            return Pass(stage, "I", k) in done
        after = stage == stages - 1 or any(Pass(stage + 1, half, k) in done for half in "BI")
        return Pass(stage, "F", k) in done and after

    moved = True
    while moved:
        moved = False
        for passes in left:
            while passes and ready(passes[0]) and passes[0] not in done:
                done.add(passes.pop(0))
                moved = True
    for device, passes in enumerate(left):
        if passes:
            raise InputError(f"the schedule stops at pass {passes[0]} of device {device}: what it needs never comes before")
    for stage in range(stages):
        for k in range(micro_batches):
            halves = [Pass(stage, kind, k) in done for kind in "FBIW"]
            if halves not in ([True, True, False, False], [True, False, True, True]):
                raise InputError(f"the schedule does not do stage {stage} of micro-batch {k} once, forward and backward")
    if any(entry.stage >= stages or entry.micro_batch >= micro_batches for entry in done):
        raise InputError(f"the schedule has passes beyond its {stages} stages and {micro_batches} micro-batches")


def devices_of(order: Order) -> dict[int, int]:
    """The device of each stage."""
    return {entry.stage: device for device, passes in enumerate(order) for entry in passes}


def in_flight(passes: Sequence[Pass], stage: int) -> int:
    """Micro-batches of a stage that are held at once, those that wait for their weight half included."""
    now = most = 0
    last = "W" if any(entry.kind == "W" for entry in passes) else "B"
    for entry in passes:
        if entry.stage == stage:
            now += (entry.kind == "F") - (entry.kind == last)
            most = max(most, now)
    return most
