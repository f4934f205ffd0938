# SPDX-License-Identifier: Apache-2.0
"""Weights of one program into those of another: the part that is the same for all frameworks."""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from ..conversions import derived
from ..errors import AbortedError, CrossmeshError, InputError
from ..job import Job
from ..maps import Box, Map, Piece, check, extents, pieces, refuse, show, untouched, whole
from ..plan import Plan
from ..torch._convert import Sources
from ..torch._describe import Described, describe_tensor, dtype_name, dtype_of, exchange, own_rank
from ..torch._parts import Holder, Holdings, Item, Own, owns, received
from ..torch._tracing import trace
from ..torch._transfer import Batch
from ..update import Commit

Tracer = Callable[[Mapping[str, Described]], dict[str, list[Own]]]


# The last place that an int32 can have.
MOST_PLACES = (1 << 31) - 1


class Change(NamedTuple):
    """What has changed of a weight: places in it, row-major, as int32, and the values there."""

    name: str
    shape: tuple[int, ...]
    places: torch.Tensor
    values: torch.Tensor


def _places(at: torch.Tensor, box: Box, shape: Sequence[int]) -> torch.Tensor:
    """Elements of a box as those of the whole."""
    places, stride = torch.zeros_like(at), 1
    for (low, high), extent in zip(reversed(box), reversed(shape)):
        places += (at % (high - low) + low) * stride
        at, stride = at // (high - low), stride * extent
    return places.to(torch.int32)


class WeightTransfer:
    """Copies the weights that some ranks of a job have into memory of other ranks: made once, run for every version.

    Unlike a StateDictTransfer it joins programs that have torch ranks of their own. `src` are this rank's weights by
    name: DTensors, or tensors that are whole on each rank that has them, or shards that `about` describes as
    describe_tensor() does. Torch's rank 0 of the sending program is rank `first_rank` of the job. `dst` are this rank's
    tensors for them, under the names that `maps` (crossmesh.maps) make, or `receiving(model.load_weights)`. Names that
    nobody wants stay where they are; `strict` refuses them. All weights are one scheduling problem. Collective.
    """

    def __init__(
        self,
        job: Job,
        src: Mapping[str, torch.Tensor] | None = None,
        dst: Mapping[str, torch.Tensor] | Tracer | None = None,
        *,
        about: Mapping[str, dict[str, Any]] | None = None,
        first_rank: int = 0,
        maps: Sequence[Map | Piece] = (),
        strict: bool = False,
        strategy: str = "auto",
        scheduler: str = "auto",
        profile: str | None = None,
        update: str | None = None,
    ) -> None:
        self.job = job
        known = self._tell(src or {}, about or {}, first_rank)
        own: dict[str, list[Own]] = {}
        failure: Exception | None = None
        try:
            if callable(dst):
                own = dst(known)
            elif dst is not None:
                own = _own_boxes(known, dst, maps, job.rank)
        except Exception as error:
            failure = error  # the others have to hear of it first
        names = sorted(dst) if isinstance(dst, Mapping) and not maps else sorted(own)
        wanted = _gather(job, known, own, names, failure, strict)
        self.unwanted = sorted(known.keys() - {_source(name) for name, _ in wanted})
        have = {name: _mine(known[name], tensor, job.rank) for name, tensor in (src or {}).items()}
        self._batch = Batch(
            job,
            _items(known, wanted, have, own),
            strategy=strategy,
            scheduler=scheduler,
            profile=profile,
            update=update,
        )
        self._shapes = {name: about.shape or () for name, about in known.items()}

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
        return Sources(exchange(self.job, (side, {}), fault)[0])

    @property
    def plan(self) -> Plan:
        return self._batch.plan

    @property
    def late(self) -> set[str]:
        """Weights of which something is in its place only when a run has ended."""
        return self._batch.late

    def run(self, timeout: float | None = None) -> None:
        """Copies what the sources hold now. Collective."""
        self._batch.run(timeout)

    @property
    def commits(self) -> list[Commit]:
        """With update="auto", what the last run came to on this rank."""
        return self._batch.commits

    def changed(self) -> list[Change]:
        """With update="auto", what the last run has written here, by the names and places of the sources."""
        found: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for part, box, at, values in self._batch.changed():
            name, shape = part.item.source, self._shapes[part.item.source]
            if part.item.scaled is not None or math.prod(shape) > MOST_PLACES:
                why = "is quantised on its way" if part.item.scaled is not None else f"has {math.prod(shape)} elements"
                raise InputError(f"{name} {why}, and changes are told by elements of the source, in 31 bits")
            if at.numel() > 0:
                found.setdefault(name, []).append((_places(at, box, shape), values))
        return [
            Change(name, self._shapes[name], *(torch.cat(side) for side in zip(*listed)))
            for name, listed in found.items()
        ]

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


def receiving(load_weights: Callable[[Any], Any], model: Any = None) -> Tracer:
    """A `dst` for a model with that `load_weights()`, which may cast floating-point weights. Of the parameters of a
    module `model` none may be loaded in part, or twice."""

    def boxes(known: Mapping[str, Described]) -> dict[str, list[Own]]:
        weights = shapes_of(known)
        found = trace(load_weights, weights, model if isinstance(model, torch.nn.Module) else None)
        loaded = {piece.target for piece in found.pieces}
        shapes = {name: tuple(tensor.shape) for name, tensor in found.targets.items() if name in loaded}
        refuse(check(found.pieces, {name: shape for name, (shape, _) in weights.items()}, shapes, strict=False))
        own = found.owns()
        refuse(
            f"{name} is sent as {dtype_name(weights[name][1])} and the model stores {dtype_name(one.tensor.dtype)}; only "
            "floating-point weights are converted"
            for name, listed in own.items()
            for one in listed
            if one.tensor.dtype != weights[name][1]
            and not (one.tensor.is_floating_point() and weights[name][1].is_floating_point)
        )
        return own

    return boxes


def shapes_of(known: Mapping[str, Described]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What a loader is given weights of."""
    shapes = {}
    for name, about in known.items():
        assert about.shape is not None and about.dtype is not None
        shapes[name] = about.shape, dtype_of(about.dtype)
    return shapes


def _own_boxes(
    known: Mapping[str, Described], dst: Mapping[str, Any], maps: Sequence[Map | Piece], rank: int
) -> dict[str, list[Own]]:
    """Where boxes of sources go in this rank's tensors."""
    shapes = {}
    for name, tensor in dst.items():
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{name} is a {type(tensor).__name__}, not a tensor")
        shapes[name] = tuple(tensor.shape)
    own: dict[str, list[Own]] = {}
    faults = []
    for piece in pieces(maps, {name: about.shape or () for name, about in known.items()}, shapes, strict=False):
        if not piece.source:
            continue
        tensor = dst[piece.target]
        have, want = known[piece.source].dtype, dtype_name(tensor.dtype)
        if want != (piece.cast or have):
            faults.append(f"{piece.target} is {piece.cast or have} where it comes from and {want} on rank {rank}; tensors "
                          "are moved, not converted, where no map says so")  # fmt: skip
        own.setdefault(piece.source, []).extend(received(piece, _held(piece.target, tensor)))
    refuse(faults)
    return own


def _held(name: str, tensor: torch.Tensor) -> list[Own]:
    """Of a DTensor this rank's boxes, else the tensor as a whole."""
    if not isinstance(tensor, DTensor):
        return [Own(whole(tensor.shape), tensor.detach())]
    entry = describe_tensor(name, tensor)
    rank = own_rank(tensor.device_mesh)
    if rank is None:
        return []
    about = Described(name, tuple(tensor.shape), entry["dtype"], tuple(entry["mesh"]), entry["ranks"],
                      entry["placements"], "nested" in entry)  # fmt: skip
    return _mine(about, tensor, rank)


def _mine(about: Described, tensor: torch.Tensor, rank: int) -> list[Own]:
    return owns(about.name, about, rank, tensor.to_local() if isinstance(tensor, DTensor) else tensor, "source")


def _source(name: str) -> str:
    """Of what is made of a weight its name."""
    made = derived(name)
    return name if made is None else made.source


Wanted = dict[tuple[str, int], dict[str, list[Holder]]]


def _gather(
    job: Job,
    known: Mapping[str, Described],
    own: Mapping[str, Sequence[Own]],
    names: Sequence[str],
    failure: Exception | None,
    strict: bool,
) -> Wanted:
    """What all ranks take: by weight and the number of a rank's box of it, by the dtype that it is stored in. Raises
    where one rank cannot, on all of them. `names`: of the weights that this rank asks for, as far as they are known."""
    fault = None if failure is None else str(failure) or type(failure).__name__
    boxes = [[name, dtype_name(one.tensor.dtype), one.box] for name, listed in own.items() for one in listed]
    text = json.dumps([fault, names, boxes]).encode()
    answers = [json.loads(zlib.decompress(a)) for a in job.allgather(zlib.compress(text))]
    asked = {_source(name) for _, listed, _ in answers for name in listed}
    surplus = [f"{name} is wanted by no rank" for name in known if strict and name not in asked]
    for rank, (fault, listed, _) in enumerate(answers):
        if fault is not None:
            prefix = f"rank {rank}: " if failure is None or rank != job.rank else ""
            raise InputError("; ".join([prefix + fault, *(surplus if listed else ())])) from failure
    wanted: Wanted = {}
    taken: dict[str, list[Box]] = {}
    for rank, (_, _, taking) in enumerate(answers):
        turns: dict[str, int] = {}
        for name, dtype, listed in taking:
            box: Box = tuple((low, high) for low, high in listed)
            turns[name] = turns.get(name, -1) + 1
            if 0 not in extents(box):
                wanted.setdefault((name, turns[name]), {}).setdefault(dtype, []).append((rank, box))
                taken.setdefault(name, []).append(box)
    if not wanted:
        raise InputError("no rank wants any of the weights")
    left = {name: untouched(whole(known[name].shape or ()), tuple(boxes)) for name, boxes in taken.items()}
    faults = [f"{name}: no receiving rank takes {show(box)} of it" for name, box in left.items() if box is not None]
    refuse(faults + surplus)
    return wanted


def _items(
    known: Mapping[str, Described], wanted: Wanted, have: Mapping[str, list[Own]], own: Mapping[str, list[Own]]
) -> Iterator[Item]:
    holdings = Holdings(known, lambda name: have.get(name, []))
    for (name, turn), by_dtype in sorted(wanted.items()):
        about = known[name]
        source, held, scaled = holdings.of(name)
        assert about.shape is not None and about.dtype is not None
        for dtype, holders in by_dtype.items():
            mine = own.get(name, [])[turn : turn + 1]
            yield Item(
                name if turn == 0 else f"{name} ({turn + 1})",
                source,
                whole(about.shape),
                (dtype_of(about.dtype), dtype_of(dtype)),
                tuple((rank, box) for rank, box, _ in about.tiles()),
                tuple(holders),
                held,
                [one for one in mine if dtype_name(one.tensor.dtype) == dtype],
                scaled=scaled,
            )


def close_quietly(job: Job | None, reason: str) -> None:
    """Leaves a job without waiting for the others, who are told why."""
    if job is not None and not job.closed:
        with contextlib.suppress(CrossmeshError):  # it has been left all the same
            job.close(reason)
