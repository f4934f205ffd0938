# SPDX-License-Identifier: Apache-2.0
"""Weights of one program into those of another: the part that is the same for all frameworks."""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..errors import AbortedError, CrossmeshError, InputError
from ..job import Job
from ..layouts import Layout, Mesh
from ..plan import Plan
from ..torch._describe import Described, describe_tensor, dtype_name, dtype_of, exchange
from ..torch._transfer import Batch
from ._tracing import Box, Piece, trace

Tracer = Callable[[Mapping[str, Described]], dict[str, list[Piece]]]


class WeightTransfer:
    """Copies the weights that some ranks of a job have into memory of other ranks: made once, run for every version.

    Unlike a StateDictTransfer it joins programs that have torch ranks of their own. `src` are this rank's weights by
    name: DTensors, or tensors that are whole on each rank that has them, or shards that `about` describes as
    describe_tensor() does. Torch's rank 0 of the sending program is rank `first_rank` of the job. `dst` are this rank's
    tensors for them, or `receiving(model.load_weights)`. Names that nobody wants stay where they are; `strict` refuses
    them. All weights are one scheduling problem. Collective.
    """

    def __init__(
        self,
        job: Job,
        src: Mapping[str, torch.Tensor] | None = None,
        dst: Mapping[str, torch.Tensor] | Tracer | None = None,
        *,
        about: Mapping[str, dict[str, Any]] | None = None,
        first_rank: int = 0,
        strict: bool = False,
        strategy: str = "auto",
        scheduler: str = "auto",
        profile: str | None = None,
    ) -> None:
        self.job = job
        known = self._tell(src or {}, about or {}, first_rank)
        pieces: dict[str, list[Piece]] = {}
        failure: Exception | None = None
        try:
            if callable(dst):
                pieces = dst(known)
            elif dst is not None:
                pieces = {name: _own_piece(name, tensor) for name, tensor in dst.items()}
        except Exception as error:
            failure = error  # the others have to hear of it first
        wanted = _gather(job, known, pieces, failure, strict)
        sources, targets, senders = {}, {}, {}
        for key, grid in wanted.items():
            senders[key] = known[grid.weight]
            if src and grid.weight in src:
                sources[key] = src[grid.weight]
            if len(pieces.get(grid.weight, ())) > grid.turn:
                targets[key] = pieces[grid.weight][grid.turn].tensor
        self.unwanted = sorted(known.keys() - {grid.weight for grid in wanted.values()})
        self._batch = Batch(
            job, sources, senders, wanted, targets, strategy=strategy, scheduler=scheduler, profile=profile
        )

    def _tell(
        self, src: Mapping[str, torch.Tensor], about: Mapping[str, dict[str, Any]], first_rank: int
    ) -> dict[str, Described]:
        side: dict[str, Any] = {}
        fault = ""
        try:
            for name, tensor in src.items():
                side[name] = dict(about[name]) if name in about else describe_tensor(name, tensor)
                if "ranks" in side[name]:
                    side[name]["ranks"] = [rank + first_rank for rank in side[name]["ranks"]]
        except InputError as error:
            fault = str(error)
        return exchange(self.job, (side, {}), fault)[0]

    @property
    def plan(self) -> Plan:
        return self._batch.plan

    def run(self, timeout: float | None = None) -> None:
        """Copies what the sources hold now. Collective."""
        self._batch.run(timeout)

    def settle(self) -> None:
        """After a run: returns when all ranks have what they want, so that from then on each may leave at will. A rank
        that leaves while others are still in here has got this far, so nobody is missing anything. Collective."""
        with contextlib.suppress(AbortedError):
            self.job.barrier()

    def verify(self) -> None:
        """Proves by checksums that destinations hold what sources hold. Collective."""
        self._batch.verify()

    def close(self) -> None:
        self._batch.close()


def receiving(load_weights: Callable[[Any], Any]) -> Tracer:
    """A `dst` for a model with that `load_weights()`."""

    def pieces(known: Mapping[str, Described]) -> dict[str, list[Piece]]:
        weights = {}
        for name, about in known.items():
            assert about.shape is not None and about.dtype is not None
            weights[name] = about.shape, dtype_of(about.dtype)
        return trace(load_weights, weights)

    return pieces


def _own_piece(name: str, tensor: torch.Tensor) -> list[Piece]:
    """Of a DTensor this rank's shard, else the tensor as a whole."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}, not a tensor")
    if not isinstance(tensor, DTensor):
        return [Piece(tuple((0, extent) for extent in tensor.shape), tensor)]
    entry = describe_tensor(name, tensor)
    mesh = tensor.device_mesh
    about = Described(name, tuple(tensor.shape), entry["dtype"], tuple(entry["mesh"]), entry["ranks"],
                      entry["placements"])  # fmt: skip
    position = mesh.get_coordinate()
    if position is None:
        return []
    tile = about.layout(tuple(tensor.shape)).tile(int(mesh.mesh[tuple(position)]))
    assert tile is not None
    return [Piece(tuple((s.start, s.stop) for s in tile), tensor.to_local())]


@dataclass
class _Grid(Described):
    """A weight as the receiving ranks share it out."""

    weight: str = ""
    turn: int = 0  # which of a rank's pieces of the weight
    spec: str = ""
    cuts: Sequence[Sequence[int] | None] = ()

    def layout(self, shape: tuple[int, ...]) -> Layout:
        assert self.sizes is not None
        return Layout(Mesh(self.sizes, self.ranks), self.spec, shape, cuts=self.cuts)


def _gather(
    job: Job,
    known: Mapping[str, Described],
    pieces: Mapping[str, Sequence[Piece]],
    failure: Exception | None,
    strict: bool,
) -> dict[str, _Grid]:
    """Tells all ranks what each of them takes. Raises where one cannot, or where it does not fit, on all of them: all
    that does not fit at once."""
    mine: Any = [[name, dtype_name(piece.tensor.dtype), piece.box] for name, own in pieces.items() for piece in own]
    if failure is not None:
        mine = str(failure) or type(failure).__name__
    answers = [json.loads(zlib.decompress(a)) for a in job.allgather(zlib.compress(json.dumps(mine).encode()))]
    if failure is not None:
        raise failure
    holders: dict[tuple[str, int], dict[Box, list[int]]] = {}
    faults: dict[str, str] = {}
    for rank, answer in enumerate(answers):
        if isinstance(answer, str):
            raise InputError(f"rank {rank}: {answer}")
        turns: dict[str, int] = {}
        for name, dtype, listed in answer:
            about = known.get(name)
            if about is None:
                faults.setdefault(name, f"{name} is wanted by rank {rank} but no rank has it")
                continue
            if about.dtype != dtype:
                faults.setdefault(name, f"{name} is {about.dtype} where it comes from and {dtype} on rank {rank}; "
                                        "tensors are moved, not converted")  # fmt: skip
            box: Box = tuple((low, high) for low, high in listed)
            turn = turns.setdefault(name, 0)
            turns[name] += 1
            if all(high > low for low, high in box):
                holders.setdefault((name, turn), {}).setdefault(box, []).append(rank)
    wanted = {}
    for (name, turn), boxes in sorted(holders.items()):
        key = name if turn == 0 else f"{name} ({turn + 1})"
        try:
            wanted[key] = _lay_out(key, known[name], turn, boxes)
        except InputError as error:
            faults.setdefault(name, str(error))
    for name in sorted(known.keys() - {name for name, _ in holders} if strict else ()):
        faults.setdefault(name, f"{name} is wanted by no rank")
    if faults:
        raise InputError("; ".join(faults.values()))
    if not wanted:
        raise InputError("no rank wants any of the weights")
    return wanted


def _lay_out(key: str, about: Described, turn: int, boxes: Mapping[Box, list[int]]) -> _Grid:
    """Boxes of several ranks as one layout: they have to be a grid over the whole weight, each on as many ranks."""
    assert about.shape is not None
    shape, name = about.shape, about.name
    some = next(iter(boxes))
    if len(some) != len(shape) or any(high > extent for (_, high), extent in zip(some, shape)):
        raise InputError(f"{name} has shape {shape}, but rank {boxes[some][0]} wants the box {_show(some)} of it")
    points = [sorted({end for box in boxes for end in box[d]}) for d in range(len(shape))]
    copies = len(boxes[some])
    cells = itertools.product(*([(a, b) for a, b in zip(along, along[1:])] for along in points))
    ranks: list[int] = []
    for cell in cells:
        if cell not in boxes:
            raise InputError(f"{name}: the receiving ranks do not take it as a grid; none of them takes {_show(cell)}")
        if len(boxes[cell]) != copies:
            raise InputError(
                f"{name}: {len(boxes[cell])} ranks take {_show(cell)} where {copies} take {_show(some)}; all parts "
                "have to be on equally many"
            )
        ranks += boxes[cell]
    whole = all(along[0] == 0 and along[-1] == extent for along, extent in zip(points, shape))
    if not whole or len(ranks) != sum(map(len, boxes.values())):
        raise InputError(f"{name}: the receiving ranks take only parts of it, or parts that overlap")
    tokens: list[str] = []
    sizes: list[int] = []
    cuts: list[Sequence[int] | None] = []
    for along in points:
        split = len(along) > 2
        tokens.append(f"S{len(sizes)}" if split else "R")
        cuts.append(along if split else None)
        if split:
            sizes.append(len(along) - 1)
    return _Grid(key, shape, about.dtype, (*sizes, copies), ranks, [], name, turn, "".join(tokens), cuts)


def _show(box: Box) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in box) + "]"


def close_quietly(job: Job | None, reason: str) -> None:
    """Leaves a job without waiting for the others, who are told why."""
    if job is not None and not job.closed:
        with contextlib.suppress(CrossmeshError):  # it has been left all the same
            job.close(reason)
