# SPDX-License-Identifier: Apache-2.0
"""Arrays and trees of them, from wherever they lie to other shardings."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..buffers import Buffer
from ..errors import CrossmeshError, InputError
from ..job import Job
from ..plan import Plan, TensorSpec
from ..reshard import Reshard
from ._devices import Devices, default_devices
from ._sharding import Placed

PLANS = 64  # that are kept

_plans: OrderedDict[Any, Plan] = OrderedDict()


@dataclass
class Leaf:
    """One array on its way."""

    name: str
    given: Any  # jax.Array, or what describes one that has no shard here
    dtype: np.dtype[Any]
    target: Any
    src: Placed
    dst: Placed


def _leaf(name: str, x: Any, target: Any, devices: Devices) -> Leaf:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise InputError(f"{name} is of {x.dtype}, which cannot be moved")
    if x.sharding is None:
        raise InputError(f"{name} has no sharding; a process outside its mesh gives ShapeDtypeStruct(..., sharding=)")
    dtype = np.dtype(x.dtype)
    src = Placed(f"{name} as it is", x.shape, x.sharding, devices.rank_of)
    dst = Placed(f"{name} as it is wanted", x.shape, target, devices.rank_of)
    return Leaf(name, x, dtype, target, src, dst)


def _plan(leaves: list[Leaf], devices: Devices, strategy: str, scheduler: str, profile: str | None) -> Plan:
    """All leaves as one scheduling problem. What was planned before is not planned again."""
    job = devices.first
    key = (job.host_of_rank, strategy, scheduler, profile,
           tuple((leaf.name, leaf.dtype.itemsize, leaf.src.key, leaf.dst.key) for leaf in leaves))  # fmt: skip
    plan = _plans.pop(key, None)
    if plan is None:
        specs = [TensorSpec(l.src.layout(), l.dst.layout(), 8 * l.dtype.itemsize, l.name) for l in leaves]
        plan = Plan(specs, job.network(profile), strategy=strategy, scheduler=scheduler)
    _plans[key] = plan
    while len(_plans) > PLANS:
        _plans.popitem(last=False)
    return plan


def _shard(leaf: Leaf, device: Any) -> Any:
    """The source's shard on a device, as something Buffer understands."""
    shards = getattr(leaf.given, "addressable_shards", ())
    data = next((shard.data for shard in shards if shard.device == device), None)
    if data is None:
        raise InputError(f"{leaf.name} has a shard on {device}, but this process gave a {type(leaf.given).__name__}")
    if device.platform == "cpu":
        return np.ascontiguousarray(np.asarray(data))
    data.block_until_ready()
    return Buffer(data.unsafe_buffer_pointer(), data.nbytes, owner=data, device="cuda")


def _room(leaf: Leaf, shape: tuple[int, ...], device: Any) -> Any:
    """Memory for a shard of the destination."""
    if device.platform == "cpu":
        return np.empty(shape, leaf.dtype)
    with jax.default_device(device):
        fresh = jax.numpy.empty(shape, leaf.dtype).block_until_ready()
    return fresh


def _lend(room: Any) -> Any:
    if isinstance(room, np.ndarray):
        return room
    return Buffer(room.unsafe_buffer_pointer(), room.nbytes, owner=room, device="cuda")


def _move(
    job: Job, device: Any, plan: Plan, leaves: list[Leaf], timeout: float | None, verify: str | None
) -> list[Any]:
    """One rank's part: its new shards, None where it gets none."""
    try:
        shards = [_shard(leaf, device) if job.rank in leaf.src.ranks else None for leaf in leaves]
        tiles = [spec.dst.tile_shape(job.rank) for spec in plan.tensors]
        rooms = [None if tile is None else _room(leaf, tile, device) for leaf, tile in zip(leaves, tiles)]
    except CrossmeshError as error:
        job._refuse(error)
        raise
    lent = [None if room is None else _lend(room) for room in rooms]
    names = ",".join(str(leaf.dtype) for leaf in leaves)
    with Reshard(job, plan, shards, lent, dtype=names, verify=verify) as moving:
        moving.run(timeout=timeout)
    return [room if room is None or not isinstance(room, np.ndarray) else jax.device_put(room, device) for room in rooms]


def _assemble(shape: tuple[int, ...], dtype: Any, target: Any, shards: list[Any]) -> Any:
    """The array that local shards are part of."""
    if shards:
        return jax.make_array_from_single_device_arrays(shape, target, shards)
    try:
        return jax.make_array_from_single_device_arrays(shape, target, [], dtype=dtype)
    except (TypeError, ValueError):  # versions that know no arrays without local shards
        return jax.ShapeDtypeStruct(shape, dtype, sharding=target)


def _from_host(x: Any, target: Any) -> Any:
    """An array that all processes have alike."""
    whole = np.asarray(x)
    whole = whole.astype(jax.dtypes.canonicalize_dtype(whole.dtype), copy=False)
    places = target.addressable_devices_indices_map(whole.shape)
    return _assemble(whole.shape, whole.dtype, target, [jax.device_put(whole[i], d) for d, i in places.items()])


def _stays(x: Any, target: Any) -> bool:
    return bool(x.sharding is not None and x.sharding.is_equivalent_to(target, len(x.shape)))


def _as_it_is(x: Any, target: Any) -> Any:
    """With the sharding that was asked for, which means the same."""
    if x.sharding == target:
        return x
    shards = [shard.data for shard in getattr(x, "addressable_shards", ())]
    return _assemble(x.shape, x.dtype, target, shards)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "array"


def reshard(
    tree: Any,
    shardings: Any,
    *,
    devices: Devices | None = None,
    strategy: str = "auto",
    scheduler: str = "auto",
    profile: str | None = None,
    timeout: float | None = None,
    verify: str | None = None,
) -> Any:
    """Lays the arrays of a tree in other shardings, on the same devices, others, or those of other processes.

    `shardings` is one sharding for all, or a tree of them that fits. All arrays are one scheduling problem. All
    processes of the program call it with the same tree of shapes and shardings. A process without a device of an array's
    mesh gives jax.ShapeDtypeStruct(shape, dtype, sharding=...), and gets an array without local shards where it has no
    device of the new mesh. Other leaves, NumPy arrays and numbers, are taken to be equal everywhere. Bits are copied;
    nothing is converted. `verify` is a Reshard's.
    """
    leaves, shape = jax.tree_util.tree_flatten_with_path(tree)
    if isinstance(shardings, jax.sharding.Sharding):
        targets = [shardings] * len(leaves)
    else:
        targets = jax.tree_util.tree_flatten(shardings, is_leaf=lambda s: isinstance(s, jax.sharding.Sharding))[0]
    if len(targets) != len(leaves):
        raise InputError(f"{len(targets)} shardings for {len(leaves)} arrays")
    results: list[Any] = [None] * len(leaves)
    keys: dict[int, Any] = {}  # typed random keys move as their numbers
    moving: list[tuple[int, Leaf]] = []
    for number, ((path, x), target) in enumerate(zip(leaves, targets)):
        if not isinstance(x, (jax.Array, jax.ShapeDtypeStruct)):
            results[number] = _from_host(x, target)
        elif _stays(x, target):
            results[number] = _as_it_is(x, target)
        else:
            if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
                keys[number], x = jax.random.key_impl(x), jax.random.key_data(x)
            devices = devices or default_devices()
            moving.append((number, _leaf(_name(path), x, target, devices)))
    if moving:
        assert devices is not None
        only = [leaf for _, leaf in moving]
        plan = _plan(only, devices, strategy, scheduler, profile)
        parts = devices.each(lambda job, device: _move(job, device, plan, only, timeout, verify))
        for place, (number, leaf) in enumerate(moving):
            shards = [part[place] for part in parts if part[place] is not None]
            results[number] = _assemble(leaf.src.shape, leaf.dtype, leaf.target, shards)
    for number, kind in keys.items():
        results[number] = jax.random.wrap_key_data(results[number], impl=kind)
    return jax.tree_util.tree_unflatten(shape, results)


def device_put(x: Any, sharding: jax.sharding.Sharding, **options: Any) -> jax.Array:
    """jax.device_put() that also works between meshes of different processes; see reshard(), whose options it takes."""
    moved: jax.Array = reshard(x, sharding, **options)
    return moved
