# SPDX-License-Identifier: Apache-2.0
"""Programs whose shardings the planner finds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax

from .. import _planner
from ..errors import InputError
from ._transfer import reshard


def _hosts(mesh: jax.sharding.Mesh) -> int:
    """Processes count as hosts; their devices must lie in the mesh one process after the other."""
    owners = [device.process_index for device in mesh.devices.flat]
    order = list(dict.fromkeys(owners))
    each = len(owners) // len(order)
    if owners != [process for process in order for _ in range(each)]:
        raise InputError(
            f"the devices of the mesh {mesh.devices.shape} belong to processes {owners}; they must come one process "
            "after the other, with as many of each"
        )
    return len(order)


class AutoSharded:
    """A jitted function whose arguments, results and operators are sharded as planned. Called as the function is;
    arguments that lie elsewhere are moved first. One plan and one compilation for every set of shapes."""

    def __init__(self, function: Callable[..., Any], mesh: jax.sharding.Mesh, jit: dict[str, Any], planning: dict[str, Any]) -> None:
        self._function, self._jit, self._planning = function, jit, planning
        self._hosts = planning.pop("hosts") or _hosts(mesh)
        self._devices = mesh.devices
        self._ready: dict[Any, tuple[_planner.Sharding, Any]] = {}
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def _key(self, arguments: tuple[Any, ...]) -> Any:
        leaves, tree = jax.tree_util.tree_flatten(arguments)
        return tree, tuple((jax.numpy.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in leaves)

    def _prepare(self, arguments: tuple[Any, ...]) -> tuple[_planner.Sharding, Any]:
        key = self._key(arguments)
        if key not in self._ready:
            tree, leaves = key
            shapes = jax.tree_util.tree_unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
            text = jax.jit(self._function, **self._jit).lower(*shapes).as_text(dialect="hlo")
            found = _planner.shard_hlo(text, self._devices.shape, hosts=self._hosts, **self._planning)
            module = ModuleType(f"shardings_of_{self.__name__}")
            exec(compile(found.module, module.__name__, "exec"), module.__dict__)
            mesh = jax.sharding.Mesh(self._devices, tuple(module.MESH))
            self._ready[key] = found, module.lower(self._function, mesh, *shapes, **self._jit).compile()
        return self._ready[key]

    def plan(self, *arguments: Any) -> _planner.Sharding:
        """What was found for such arguments; shapes are enough."""
        return self._prepare(arguments)[0]

    def compiled(self, *arguments: Any) -> Any:
        """The compiled program for such arguments: its input_shardings and output_shardings say where things lie."""
        return self._prepare(arguments)[1]

    def __call__(self, *arguments: Any) -> Any:
        program = self._prepare(arguments)[1]
        leaves, tree = jax.tree_util.tree_flatten(arguments)
        places = jax.tree_util.tree_leaves(program.input_shardings[0], is_leaf=lambda s: s is None)
        # XLA has dropped arguments that are not used.
        used = [n for n, place in enumerate(places) if isinstance(place, jax.sharding.Sharding)]
        for number, leaf in zip(used, reshard([leaves[n] for n in used], [places[n] for n in used])):
            leaves[number] = leaf
        return program(*jax.tree_util.tree_unflatten(tree, leaves))


def auto_shard(
    function: Callable[..., Any],
    mesh: jax.sharding.Mesh,
    cluster: str | os.PathLike[str] | None = None,
    *,
    memory_limit: float | None = None,
    memory_reserve: float | None = None,
    time_limit: float = 0.0,
    hosts: int | None = None,
    donate_argnums: int | Sequence[int] = (),
) -> AutoSharded:
    """Shards a whole function, usually a training step, for the devices of a mesh: it is lowered, its operators are
    planned together (`autopar shard`), and it is jitted with the planned shardings of arguments, results and operators.

    `cluster` is a profile that `autopar probe` has measured; without it Alpa's constants rank the collectives.
    `memory_limit`: bytes that a plan may use of a device; `memory_reserve`: bytes that it leaves free, below 1 a part
    (None: what runtimes need of the profile's memory). The names of the mesh's axes mean nothing here. Processes count
    as hosts unless `hosts` says how many there are. All arguments are positional; `donate_argnums` is jax.jit's, and
    what is donated is taken to be the model's parameters.
    """
    planning = {
        "cluster": cluster,
        "memory_limit": memory_limit,
        "memory_reserve": memory_reserve,
        "time_limit": time_limit,
        "hosts": hosts,
    }
    return AutoSharded(function, mesh, {"donate_argnums": donate_argnums}, planning)
