# SPDX-License-Identifier: Apache-2.0
"""Batches of DTensors between device meshes."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Placement, Replicate, Shard

from ..buffers import Buffer
from ..errors import CrossmeshError, InputError
from ..job import Job
from ..maps import Box, Map, Piece, pieces, refuse
from ..plan import Plan, TensorSpec
from ..reshard import Reshard
from ..update import Commit, Update
from ._convert import Sources, copy, scale
from ._describe import Described, describe_place, describe_tensor, dtype_name, dtype_of, exchange
from ._job import default_job
from ._parts import Item, Part, items, part_of


def _distributed(
    local: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> DTensor:
    """A DTensor of this rank's part."""
    if not shape and mesh.get_coordinate() is None:
        # from_local() takes an empty shape for none, and so that of the part.
        local = local.new_empty(())
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def _reduced(tensor: torch.Tensor) -> torch.Tensor:
    """A Partial is reduced where it lies, by torch itself; all ranks of its mesh do so."""
    if not isinstance(tensor, DTensor) or not any(isinstance(p, Partial) for p in tensor.placements):
        return tensor
    if tensor.device_mesh.get_coordinate() is None:
        # Not of the mesh: it only has to know what those of it will have.
        whole = [Replicate() if isinstance(p, Partial) else p for p in tensor.placements]
        return _distributed(tensor.to_local(), tensor.device_mesh, whole, tensor.shape, tensor.stride())
    return tensor.redistribute(placements=[Replicate() if isinstance(p, Partial) else p for p in tensor.placements])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, when what makes it has ended."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    wait = getattr(local, "wait", None)  # of a functional collective's result
    return (local if wait is None else wait()).detach()


def _is_plain(local: torch.Tensor) -> bool:
    """Whether the memory holds the values row-major, as they are."""
    return local.is_contiguous() and not local.is_conj() and not local.is_neg()


def _counted_from_0(placement: Any, dims: int) -> Placement:
    """With the tensor dimension not counted from the end, as DTensor wants it."""
    if getattr(placement, "dim", 0) >= 0:
        return cast(Placement, placement)
    if hasattr(placement, "split_factor"):
        return cast(Placement, type(placement)(placement.dim + dims, split_factor=placement.split_factor))
    return Shard(placement.dim + dims)


def _stream(tensors: Sequence[torch.Tensor]) -> int | None:
    """The stream that what is in device tensors comes from."""
    if any(t.is_cuda for t in tensors):
        return int(torch.cuda.current_stream().cuda_stream)
    return None


ALIGNMENT = 256
# Bytes of a rank for what is packed or cast on its way, and as many again for C's pack buffers; what needs more takes turns.
STAGING = 32 << 20
# With so much C's reserve, two buffers of 8 MiB at most, is always there.
LEAST_STAGING = 16 << 20
# Each has one of the job's message channels.
MOST_ROUNDS = 64


class _Round:
    """Parts that are moved together. Staged are sources that are not contiguous, or are cast, before a run, and such
    destinations after it."""

    def __init__(self, parts: Sequence[Part], rank: int) -> None:
        self.parts = parts
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.packs: list[Callable[[torch.Tensor, torch.Tensor], None]] = []  # how copies are made
        self.fills: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.late: set[str] = set()
        self.src: list[torch.Tensor | None] = []
        self.dst: list[torch.Tensor | None] = []
        for part in parts:
            for layout, owned, buffers, staged in (
                (part.src, part.item.mine, self.src, self.copies),
                (part.dst, part.item.wanted, self.dst, self.fills),
            ):
                view = None if layout.tile(rank) is None else part_of(owned, part.region)
                lent = view
                if view is not None and _is_staged(view, part.item.wire):
                    lent = torch.empty(0, dtype=part.item.wire, device=view.device)
                    staged.append((lent, view))
                    item = part.item
                    if staged is self.fills:
                        self.late.add(item.source)
                    elif item.scaled is not None and item.dtypes[0] != item.wire:
                        self.packs.append(functools.partial(item.scaled.narrow, part.region))
                    else:
                        self.packs.append(copy)
                buffers.append(lent)

    def place(self, memory: Mapping[torch.device, torch.Tensor]) -> dict[torch.device, int]:
        """Gives what is staged its place in memory that all rounds share. How much it takes."""
        filled: dict[torch.device, int] = {}
        for lent, view in (*self.copies, *self.fills):
            at, size = filled.get(view.device, 0), view.numel() * lent.dtype.itemsize
            filled[view.device] = at + -(-size // ALIGNMENT) * ALIGNMENT
            if view.device in memory:
                lent.set_(memory[view.device][at : at + size].view(lent.dtype).view(view.shape))
        return filled

    def make(self, job: Job, options: dict[str, Any], verify: str | None, update: str | None, memory: int) -> None:
        if update not in (None, "auto"):
            error = InputError(f"update={update!r} is neither auto nor None")
            job._refuse(error)
            raise error
        try:
            specs = [TensorSpec(part.src, part.dst, 8 * part.item.wire.itemsize, part.name) for part in self.parts]
            self.plan = Plan(specs, **options)
        except CrossmeshError as error:
            job._refuse(error)
            raise
        dtypes = ",".join(dtype_name(part.item.wire) for part in self.parts)
        buffers = ([None if view is None else _lend(view) for view in side] for side in (self.src, self.dst))
        kind: Any = Reshard if update is None else Update
        self.reshard: Reshard | Update = kind(
            job, self.plan, *buffers, dtype=dtypes, verify=verify, memory_limit=memory
        )

    def pack(self) -> None:
        for pack, (lent, view) in zip(self.packs, self.copies):
            pack(lent, view)

    def run(self, timeout: float | None) -> Commit | None:
        self.pack()
        commit = None
        if isinstance(self.reshard, Update):
            self.unpack()  # what does not change has to be there
            if any(t.is_cuda for t in (*self.src, *self.dst) if t is not None):
                torch.cuda.current_stream().synchronize()
            commit = self.reshard.commit(timeout=timeout)
        else:
            views = [view for view in (*self.src, *self.dst) if view is not None]
            self.reshard.run(timeout=timeout, stream=_stream(views))
        for lent, view in self.fills:
            copy(view, lent)
        return commit

    def unpack(self) -> None:
        for lent, view in self.fills:
            copy(lent, view)

    def verify(self) -> None:
        if isinstance(self.reshard, Update):
            raise InputError("updates prove themselves in commits: verify='run'")
        self.pack()
        self.unpack()
        self.reshard.verify()


def _is_staged(view: torch.Tensor, wire: torch.dtype) -> bool:
    return not _is_plain(view) or view.dtype != wire


def _lend(local: torch.Tensor) -> Buffer:
    size = local.numel() * local.element_size()
    return Buffer(local.data_ptr(), size, owner=local, device=local.device.type)


class Batch:
    """Items of all ranks, planned together, with what this rank has of them; run as often as wanted.

    All is one scheduling problem, but for what has to be staged and is more than STAGING bytes on some rank: that is
    moved in several rounds, one after the other, in the same memory.
    """

    def __init__(
        self,
        job: Job,
        items: Iterable[Item],
        *,
        strategy: str,
        scheduler: str,
        profile: str | None,
        verify: str | None = None,
        update: str | None = None,
    ) -> None:
        self.commits: list[Commit] = []
        self._job = job
        parts, answers = self._agree(job, items)
        self._scaled = list({id(p.item.scaled): p.item.scaled for p in parts if p.item.scaled is not None}.values())
        self._rounds = [_Round(own, job.rank) for own in _in_rounds(parts, answers)]
        most: dict[torch.device, int] = {}
        for turn in self._rounds:
            for device, size in turn.place({}).items():
                most[device] = max(most.get(device, 0), size)
        memory = {device: torch.empty(size, dtype=torch.uint8, device=device) for device, size in most.items()}
        for turn in self._rounds:
            turn.place(memory)
        options = {"network": job.network(profile), "strategy": strategy, "scheduler": scheduler}
        for turn in self._rounds:
            turn.make(job, options, verify, update, max(LEAST_STAGING, STAGING // len(self._rounds)))

    def _agree(self, job: Job, items: Iterable[Item]) -> tuple[list[Part], list[bytes]]:
        """All parts, and of each rank which of them it has to stage. What is wrong on one rank all of them are told."""
        parts: list[Part] = []
        own, failure = bytearray(), None
        try:
            parts = [part for item in items for part in item.parts()]
            for part in parts:
                views = (part_of(owned, part.region) for owned in (part.item.mine, part.item.wanted))
                own.append(sum(_is_staged(v, part.item.wire) << side for side, v in enumerate(views) if v is not None))
        except CrossmeshError as error:
            failure = error
        text = b"\0" + bytes(own) if failure is None else b"\1" + str(failure).encode()
        answers = [zlib.decompress(answer) for answer in job.allgather(zlib.compress(text))]
        if failure is not None:
            raise failure
        for rank, answer in enumerate(answers):
            if answer[:1] == b"\1":
                raise InputError(f"rank {rank}: {answer[1:].decode()}")
            if len(answer) != len(parts) + 1:
                raise InputError(f"rank {rank} moves {len(answer) - 1} boxes and rank {job.rank} {len(parts)}: the maps "
                                 "are not the same everywhere")  # fmt: skip
        return parts, [answer[1:] for answer in answers]

    @property
    def plan(self) -> Plan:
        """Of the first round, where there are several."""
        return self._rounds[0].plan

    @property
    def late(self) -> set[str]:
        """Sources of which something is in its place only when a run has ended: what is staged, or in a later round."""
        return {source for turn in self._rounds for source in turn.late} | {
            part.item.source for turn in self._rounds[1:] for part in turn.parts
        }

    @property
    def rounds(self) -> int:
        return len(self._rounds)

    def run(self, timeout: float | None = None) -> None:
        with torch.no_grad():
            scale(self._job, self._scaled)
            commits = [turn.run(timeout) for turn in self._rounds]
        self.commits = [commit for commit in commits if commit is not None]

    def changed(self) -> Iterator[tuple[Part, Box, torch.Tensor, torch.Tensor]]:
        """Of an update, what its last run has written on this rank: the box of the source that a part has here, which
        elements of it, row-major, and their values."""
        for turn in self._rounds:
            assert isinstance(turn.reshard, Update)
            for number, part in enumerate(turn.parts):
                view = None if turn.dst[number] is None else part_of(part.item.wanted, part.region)
                tile = part.dst.tile(self._job.rank)
                if view is not None and tile is not None:
                    at = _set_bits(turn.reshard.changed(number))
                    box = tuple((low + t.start, low + t.stop) for (low, _), t in zip(part.region, tile))
                    yield part, box, at, view.reshape(-1)[at]

    def verify(self) -> None:
        with torch.no_grad():
            scale(self._job, self._scaled)
            for turn in self._rounds:
                turn.verify()

    def close(self) -> None:
        for turn in self._rounds:
            turn.reshard.close()


def _set_bits(bits: bytes) -> torch.Tensor:
    """Their numbers. Most bytes of few changes have none, and are not looked into."""
    packed = torch.frombuffer(bytearray(bits) or bytearray(1), dtype=torch.uint8)
    where = packed.nonzero().view(-1)
    row, bit = (packed[where].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1).nonzero(as_tuple=True)
    return where[row] * 8 + bit


def _in_rounds(parts: Sequence[Part], answers: Sequence[bytes]) -> list[list[Part]]:
    """Which parts are moved together; the same on all ranks, of which `answers` are who stages what."""
    first: list[Part] = []
    stages: list[tuple[Part, dict[int, int]]] = []
    total: dict[int, int] = {}
    for number, part in enumerate(parts):
        masks = {rank: answer[number] for rank, answer in enumerate(answers) if answer[number]}
        if not masks:
            first.append(part)
            continue
        stages.append((part, masks))
        for rank, size in _staging(part, masks).items():
            total[rank] = total.get(rank, 0) + size
    most = max(total.values(), default=0)
    limit = max(STAGING, -(-most // MOST_ROUNDS))
    rounds: list[tuple[list[Part], dict[int, int]]] = [(first, {})]
    for part, masks in stages:
        largest = max(_staging(part, masks).values())
        for slab in part.slabs(-(-4 * largest // limit)) if largest > limit // 4 and most > limit else [part]:
            sizes = _staging(slab, masks)
            for held, used in rounds:
                if all(used.get(rank, 0) + size <= limit for rank, size in sizes.items()):
                    break
            else:
                held, used = [], {}
                rounds.append((held, used))
            held.append(slab)
            used.update({rank: used.get(rank, 0) + size for rank, size in sizes.items()})
    return [held for held, _ in rounds if held]


def _staging(part: Part, masks: Mapping[int, int]) -> dict[int, int]:
    """Bytes that ranks stage of it."""
    sizes: dict[int, int] = {}
    for side in (0, 1):
        for rank, size in part.needs(side).items():
            if masks.get(rank, 0) >> side & 1:
                sizes[rank] = sizes.get(rank, 0) + -(-size // ALIGNMENT) * ALIGNMENT
    return sizes


def redistribute(
    dtensor: DTensor | None,
    dst_mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    job: Job | None = None,
    strategy: str = "auto",
    scheduler: str = "auto",
    profile: str | None = None,
    verify: str | None = None,
) -> DTensor:
    """Lays a DTensor on another DeviceMesh, or the same, in other placements.

    All ranks of the job call it, those outside both meshes as well. `dtensor` may be None on ranks that are not in its
    mesh. Shards are torch's, uneven and strided ones included; a Partial source is reduced first, on its mesh. The
    result does not require gradients. Ranks outside `dst_mesh` get a DTensor
    without elements, as from distribute_tensor(). `verify` is a Reshard's.
    """
    job = job or default_job()
    sources: dict[str, torch.Tensor] = {}
    sides: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    fault = ""
    with torch.no_grad():
        try:
            if dtensor is not None:
                sources["tensor"] = _reduced(dtensor)
                sides[0]["tensor"] = describe_tensor("tensor", sources["tensor"])
            sides[1]["tensor"] = describe_place("tensor", dst_mesh, placements)
        except InputError as error:
            fault = str(error)
        known, wanted = exchange(job, sides, fault)
        if "tensor" not in known:
            raise InputError("no rank has given the tensor that is to be redistributed")
        about, place = known["tensor"], wanted["tensor"]
        assert about.shape is not None and about.dtype is not None
        dtype, shape = dtype_of(about.dtype), about.shape
        device: Any = dst_mesh.device_type
        if device == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        place = dataclasses.replace(place, shape=shape, dtype=about.dtype)
        mine, _ = place.part(job.rank)
        local = torch.empty((0,) if mine is None else mine, dtype=dtype, device=device)
        known, wanted = {"tensor": about}, {"tensor": place}
        own = {name: _local(tensor) for name, tensor in sources.items()}
        batch = Batch(
            job,
            items(pieces([], {"tensor": shape}, {"tensor": shape}), known, wanted, job.rank, (own, {"tensor": local})),
            strategy=strategy,
            scheduler=scheduler,
            profile=profile,
            verify=verify,
        )
        try:
            batch.run()
        finally:
            batch.close()
        stride, steps = 1, []
        for extent in reversed(shape):
            steps.append(stride)
            stride *= max(extent, 1)
        counted = [_counted_from_0(p, len(shape)) for p in placements]
        return _distributed(local, dst_mesh, counted, shape, tuple(reversed(steps)))


class StateDictTransfer:
    """Copies the tensors of one state dict into those of another, wherever both lie: made once, run after every update.

    `src` and `dst` are this rank's; on all ranks together they are whole. A rank that only trains has no `dst` (None),
    one that only serves no `src`, and a pipeline stage has the tensors of its layers. Entries are DTensors, or plain
    tensors that are whole on every rank that has them. All tensors are one scheduling problem. Names of `dst` must be
    in `src`, and with `strict` the other way round; shapes and dtypes must be equal, after `maps` (crossmesh.maps), the
    same on all ranks. `verify` is a Reshard's. With update="auto" a run brings what has changed since the last one, each
    chunk as that or whole, whichever takes fewer bytes (crossmesh.Update).
    """

    def __init__(
        self,
        src: Mapping[str, Any] | None,
        dst: Mapping[str, Any] | None,
        *,
        job: Job | None = None,
        maps: Sequence[Map | Piece] = (),
        strict: bool = True,
        strategy: str = "auto",
        scheduler: str = "auto",
        profile: str | None = None,
        verify: str | None = None,
        update: str | None = None,
    ) -> None:
        self._job = job = job or default_job()
        self._partial = {n: t for n, t in sorted((src or {}).items()) if _is_partial(t)}
        with torch.no_grad():
            sources = {n: t for n, t in (src or {}).items() if isinstance(t, torch.Tensor)}
            self._reduced: dict[str, Any] = {name: _reduced(tensor) for name, tensor in self._partial.items()}
            sources.update(self._reduced)
            targets = dict(dst or {})
            sides: tuple[dict[str, Any], dict[str, Any]] = {}, {}
            fault = ""
            try:
                _check_targets(targets)
                for side, tensors in zip(sides, (sources, targets)):
                    for name, tensor in tensors.items():
                        side[name] = describe_tensor(name, tensor)
            except InputError as error:
                fault = str(error)
            known, wanted = exchange(job, sides, fault)
            known = Sources(known)
            given = match(known, wanted, maps, strict)
            own = {name: _local(tensor) for name, tensor in sources.items()}
            there = {name: _local(tensor) for name, tensor in targets.items()}
            self._batch = Batch(
                job,
                items(given, known, wanted, job.rank, (own, there)),
                strategy=strategy,
                scheduler=scheduler,
                profile=profile,
                verify=verify,
                update=update,
            )

    @property
    def plan(self) -> Plan:
        return self._batch.plan

    @property
    def commits(self) -> list[Commit]:
        """With update="auto", what the last run came to on this rank, in each of its rounds."""
        return self._batch.commits

    def run(self, timeout: float | None = None) -> None:
        """Copies what the sources hold now. Collective."""
        with torch.no_grad():
            for name, tensor in self._partial.items():
                if tensor.device_mesh.get_coordinate() is not None:
                    _local(self._reduced[name]).copy_(_local(_reduced(tensor)))
        self._batch.run(timeout)

    def verify(self) -> None:
        """Proves by checksums that destinations hold what sources hold; CorruptDataError names the tensor.
        Collective."""
        self._batch.verify()

    def close(self) -> None:
        self._batch.close()

    def __enter__(self) -> StateDictTransfer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_partial(tensor: Any) -> bool:
    return isinstance(tensor, DTensor) and any(isinstance(p, Partial) for p in tensor.placements)


def _check_targets(targets: Mapping[str, Any]) -> None:
    for name, tensor in targets.items():
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{name} is a {type(tensor).__name__}, not a tensor")
        if _is_partial(tensor):
            raise InputError(f"{name} is Partial on the destination, so it has no one value to be given")


def match(
    known: Mapping[str, Described], wanted: Mapping[str, Described], maps: Sequence[Map | Piece], strict: bool
) -> list[Piece]:
    """The pieces in which sources become targets, with everything told at once that does not fit."""
    if not wanted:
        raise InputError("no rank wants any tensor: dst is empty everywhere")
    faults: list[str] = []
    given: list[Piece] = []
    try:
        sources, targets = ({name: about.shape or () for name, about in side.items()} for side in (known, wanted))
        given = pieces(maps, sources, targets, strict)
    except InputError as error:
        faults.append(str(error))
    straight = [Piece(n, (), (), n, ()) for n in known.keys() & wanted.keys()] if faults and not maps else given
    for piece in straight:
        have, want = known[piece.source].dtype, wanted[piece.target].dtype
        if want != have and piece.cast is None:
            faults.append(f"{piece.target} is {have} in src and {want} in dst; tensors are moved, not converted, where "
                          "no map says so")  # fmt: skip
        elif want != (piece.cast or have):
            faults.append(f"{piece.target} is {want} in dst and the map casts it to {piece.cast}")
    refuse(faults)
    return given


def reshard_state_dict(src: Mapping[str, Any] | None, dst: Mapping[str, Any] | None, **options: Any) -> None:
    """Copies one state dict into another once; see StateDictTransfer, which does it repeatedly. Collective."""
    with StateDictTransfer(src, dst, **options) as transfer:
        transfer.run()
