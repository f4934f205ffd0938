# SPDX-License-Identifier: Apache-2.0
"""Batches of DTensors between device meshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Placement, Replicate, Shard

from ..buffers import Buffer
from ..errors import CrossmeshError, InputError
from ..job import Job
from ..plan import Plan, TensorSpec
from ..reshard import Reshard
from ._describe import Described, describe_place, describe_tensor, dtype_of, exchange
from ._job import default_job


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


class Batch:
    """Tensors of all ranks, planned together, with this rank's tiles; run as often as wanted.

    `targets[name]` is None where this rank gets nothing. Sources that are not contiguous are copied before each run,
    destinations that are not are filled after it.
    """

    def __init__(
        self,
        job: Job,
        sources: Mapping[str, torch.Tensor],
        known: Mapping[str, Described],
        wanted: Mapping[str, Described],
        targets: Mapping[str, torch.Tensor | None],
        *,
        strategy: str,
        scheduler: str,
        profile: str | None,
        verify: str | None = None,
    ) -> None:
        self._job = job
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._fills: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._locals: list[torch.Tensor] = []
        src: list[Buffer | None] = []
        dst: list[Buffer | None] = []
        specs, dtypes = [], []
        try:
            for name in sorted(wanted):
                have, want = known[name], wanted[name]
                assert have.shape is not None and have.dtype is not None
                bits = 8 * dtype_of(have.dtype).itemsize
                spec = TensorSpec(have.layout(have.shape), want.layout(have.shape), bits, name)
                specs.append(spec)
                dtypes.append(have.dtype)
                src.append(self._source(name, sources.get(name), spec))
                dst.append(self._target(name, targets.get(name), spec))
            self.plan = Plan(specs, job.network(profile), strategy=strategy, scheduler=scheduler)
        except CrossmeshError as error:
            job._refuse(error)
            raise
        self._reshard = Reshard(job, self.plan, src, dst, dtype=",".join(dtypes), verify=verify)

    def _tile(self, name: str, tensor: torch.Tensor | None, shape: tuple[int, ...], side: str) -> torch.Tensor:
        """This rank's part of a tensor, after a look at what it says of itself."""
        rank = self._job.rank
        if tensor is None:
            raise InputError(f"{name}: rank {rank} is in the {side} mesh but has no tensor")
        local = _local(tensor)
        if tuple(local.shape) != shape:
            raise InputError(
                f"{name}: rank {rank} has a {side} shard of shape {tuple(local.shape)} where the "
                f"placements give {shape}"
            )
        if local.device.type not in ("cpu", "cuda"):
            raise InputError(f"{name} is on device {local.device}; only cpu and cuda are moved")
        return local

    def _lend(self, local: torch.Tensor) -> Buffer:
        self._locals.append(local)
        size = local.numel() * local.element_size()
        return Buffer(local.data_ptr(), size, owner=local, device=local.device.type)

    def _source(self, name: str, tensor: torch.Tensor | None, spec: TensorSpec) -> Buffer | None:
        shape = spec.src.tile_shape(self._job.rank)
        if shape is None:
            return None
        local = self._tile(name, tensor, shape, "source")
        if not _is_plain(local):
            packed = torch.empty_like(local, memory_format=torch.contiguous_format)
            self._copies.append((packed, local))
            local = packed
        return self._lend(local)

    def _target(self, name: str, tensor: torch.Tensor | None, spec: TensorSpec) -> Buffer | None:
        shape = spec.dst.tile_shape(self._job.rank)
        if shape is None:
            return None
        local = self._tile(name, tensor, shape, "destination")
        if not _is_plain(local):
            packed = torch.empty_like(local, memory_format=torch.contiguous_format)
            self._fills.append((local, packed))
            local = packed
        return self._lend(local)

    def run(self, timeout: float | None = None) -> None:
        with torch.no_grad():
            for packed, local in self._copies:
                packed.copy_(local)
            self._reshard.run(timeout=timeout, stream=_stream(self._locals))
            for local, packed in self._fills:
                local.copy_(packed)

    def verify(self) -> None:
        self._reshard.verify()

    def close(self) -> None:
        self._reshard.close()


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
    mesh. Shards are torch's, uneven ones included; a Partial source is reduced first, on its mesh; a _StridedShard is
    handled where its shards are boxes. The result does not require gradients. Ranks outside `dst_mesh` get a DTensor
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
        mine = place.layout(shape).tile_shape(job.rank)
        local = torch.empty((0,) if mine is None else mine, dtype=dtype, device=device)
        batch = Batch(
            job,
            sources,
            known,
            wanted,
            {"tensor": None if mine is None else local},
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
    in `src`, and with `strict` the other way round; shapes and dtypes must be equal. `verify` is a Reshard's.
    """

    def __init__(
        self,
        src: Mapping[str, Any] | None,
        dst: Mapping[str, Any] | None,
        *,
        job: Job | None = None,
        strict: bool = True,
        strategy: str = "auto",
        scheduler: str = "auto",
        profile: str | None = None,
        verify: str | None = None,
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
            _match(known, wanted, strict)
            self._batch = Batch(
                job,
                sources,
                known,
                wanted,
                targets,
                strategy=strategy,
                scheduler=scheduler,
                profile=profile,
                verify=verify,
            )

    @property
    def plan(self) -> Plan:
        return self._batch.plan

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


def _match(known: Mapping[str, Described], wanted: Mapping[str, Described], strict: bool) -> None:
    if not wanted:
        raise InputError("no rank wants any tensor: dst is empty everywhere")
    for name, want in wanted.items():
        have = known.get(name)
        if have is None:
            raise InputError(f"{name} is wanted but no rank has it in its src")
        if have.shape != want.shape:
            raise InputError(f"{name} has shape {have.shape} in src and {want.shape} in dst")
        if have.dtype != want.dtype:
            raise InputError(f"{name} is {have.dtype} in src and {want.dtype} in dst; tensors are moved, not converted")
    if strict:
        for name in known:
            if name not in wanted:
                raise InputError(f"{name} is in src but no rank wants it (strict=False allows that)")


def reshard_state_dict(src: Mapping[str, Any] | None, dst: Mapping[str, Any] | None, **options: Any) -> None:
    """Copies one state dict into another once; see StateDictTransfer, which does it repeatedly. Collective."""
    with StateDictTransfer(src, dst, **options) as transfer:
        transfer.run()
