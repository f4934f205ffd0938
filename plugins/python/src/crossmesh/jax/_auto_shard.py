# SPDX-License-Identifier: Apache-2.0
"""Programs whose shardings the planner finds."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from .. import _planner
from ..errors import InputError
from ._transfer import reshard
from .shardings import Shardings


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


def _several(numbers: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Numbers of arguments, as jax.jit takes them."""
    listed = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return tuple(sorted({number % count if -count <= number < count else number for number in listed}))


@dataclass(frozen=True)
class _Call:
    """A call without its static arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    statics: tuple[tuple[int, Any], ...]


class AutoSharded:
    """A jitted function whose arguments, results and operators are sharded as planned. Called as the function is;
    arguments that lie elsewhere are moved first. One plan and one compilation for every set of shapes, and of static
    arguments."""

    def __init__(self, function: Callable[..., Any], mesh: jax.sharding.Mesh, jit: dict[str, Any], planning: dict[str, Any],
                 plans: str | os.PathLike[str] | None) -> None:  # fmt: skip
        self._function, self._mesh, self._jit, self._planning = function, mesh, jit, planning
        self._hosts = planning.pop("hosts") or _hosts(mesh)
        self._ready: dict[Any, tuple[_planner.Sharding, Any]] = {}
        self._given = [] if plans is None else _read(plans)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def _split(self, arguments: tuple[Any, ...]) -> _Call:
        static = _several(self._jit["static_argnums"], len(arguments))
        statics = tuple((number, arguments[number]) for number in static)

        def call(*others: Any) -> Any:
            whole = list(others)
            for number, value in statics:
                whole.insert(number, value)
            made = self._function(*whole)
            return made if self._jit["out_shardings"] is None else self._pinned(made)

        return _Call(call, tuple(a for n, a in enumerate(arguments) if n not in static), statics)

    def _places(self, demanded: Any, tree: Any) -> list[Any]:
        """The demanded shardings of a tree's leaves, None where there is none; a demand holds for all below it."""
        def is_demand(x: Any) -> bool:
            return x is None or isinstance(x, (jax.sharding.PartitionSpec, jax.sharding.Sharding))

        def place(x: Any) -> Any:
            return jax.sharding.NamedSharding(self._mesh, x) if isinstance(x, jax.sharding.PartitionSpec) else x

        try:
            spread = jax.tree_util.tree_map(
                lambda d, part: [place(d)] * jax.tree_util.tree_structure(part).num_leaves, demanded, tree, is_leaf=is_demand)
        except (TypeError, ValueError) as error:
            raise InputError(f"the demanded shardings are no tree that fits: {error}") from None
        return [one for part in jax.tree_util.tree_leaves(spread, is_leaf=lambda x: isinstance(x, list)) for one in part]

    def _pinned(self, made: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten(made)
        places = self._places(self._jit["out_shardings"], made)
        return jax.tree_util.tree_unflatten(
            tree, [x if place is None else jax.lax.with_sharding_constraint(x, place) for x, place in zip(leaves, places)])

    def _text(self, call: _Call, shapes: Any, options: dict[str, Any]) -> str:
        """The program, with what was demanded of its arguments; they have to be named in the text, so all are kept."""
        if self._jit["in_shardings"] is not None:
            leaves, tree = jax.tree_util.tree_flatten(shapes)
            places = self._places(self._jit["in_shardings"], shapes)
            shapes = jax.tree_util.tree_unflatten(tree, [
                leaf if place is None else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
                for leaf, place in zip(leaves, places)])
        text: str = jax.jit(call.function, **options).lower(*shapes).as_text(dialect="hlo")
        return text

    def _planned(self, call: _Call, shapes: Any, options: dict[str, Any]) -> tuple[_planner.Sharding, Any]:
        names = self._mesh.axis_names
        for found in self._given:
            with contextlib.suppress(ValueError):
                return found, Shardings(found.tables, names).lower(call.function, self._mesh, *shapes, **options).compile()
        found = _planner.shard_hlo(
            self._text(call, shapes, options), self._mesh.devices.shape, hosts=self._hosts, **self._planning)
        return found, Shardings(found.tables, names).lower(call.function, self._mesh, *shapes, **options).compile()

    def _prepare(self, arguments: tuple[Any, ...]) -> tuple[_planner.Sharding, Any, _Call]:
        call = self._split(arguments)
        leaves, tree = jax.tree_util.tree_flatten(call.arguments)
        shapes = [jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in leaves]
        key = tree, tuple((shape.shape, shape.dtype) for shape in shapes), call.statics
        if key not in self._ready:
            static = [number for number, _ in call.statics]
            donated = _several(self._jit["donate_argnums"], len(arguments))
            options = {"donate_argnums": tuple(n - sum(s < n for s in static) for n in donated if n not in static)}
            self._ready[key] = self._planned(call, jax.tree_util.tree_unflatten(tree, shapes), options)
        return *self._ready[key], call

    def plan(self, *arguments: Any) -> _planner.Sharding:
        """What was found for such arguments; shapes are enough."""
        return self._prepare(arguments)[0]

    def compiled(self, *arguments: Any) -> Any:
        """The compiled program for such arguments: its input_shardings and output_shardings say where things lie."""
        return self._prepare(arguments)[1]

    def specs(self, *arguments: Any) -> tuple[Any, Any]:
        """PartitionSpecs on the mesh for such arguments, static ones left out, and for the results: two trees. None is of
        an argument that is not used."""
        program = self.compiled(*arguments)
        specs: tuple[Any, Any] = jax.tree_util.tree_map(
            lambda place: place.spec, (program.input_shardings[0], program.output_shardings),
            is_leaf=lambda x: isinstance(x, jax.sharding.Sharding))  # fmt: skip
        return specs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plans that were made so far, for the `plans` of another process or day."""
        document = {"format": _FORMAT, "plans": [asdict(found) for found, _ in self._ready.values()]}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)

    def __call__(self, *arguments: Any) -> Any:
        _, program, call = self._prepare(arguments)
        leaves, tree = jax.tree_util.tree_flatten(call.arguments)
        places = jax.tree_util.tree_leaves(program.input_shardings[0], is_leaf=lambda s: s is None)
        # XLA has dropped arguments that are not used.
        used = [n for n, place in enumerate(places) if isinstance(place, jax.sharding.Sharding)]
        for number, leaf in zip(used, reshard([leaves[n] for n in used], [places[n] for n in used])):
            leaves[number] = leaf
        return program(*jax.tree_util.tree_unflatten(tree, leaves))


_FORMAT = "crossmesh plans of auto_shard"


def _read(path: str | os.PathLike[str]) -> list[_planner.Sharding]:
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise InputError(f"{os.fspath(path)}: these are no plans that AutoSharded.save() has written")
    return [_planner.Sharding(**plan) for plan in document["plans"]]


def auto_shard(
    function: Callable[..., Any],
    mesh: jax.sharding.Mesh,
    cluster: str | os.PathLike[str] | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    memory_limit: float | None = None,
    memory_reserve: float | None = None,
    time_limit: float = 0.0,
    hosts: int | None = None,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    plans: str | os.PathLike[str] | None = None,
) -> AutoSharded:
    """Shards a whole function, usually a training step, for the devices of a mesh: it is lowered, its operators are
    planned together (`autopar shard`), and it is jitted with the planned shardings of arguments, results and operators.

    `cluster` is a profile that `autopar probe` has measured; without it Alpa's constants rank the collectives.
    `in_shardings`, `out_shardings`: PartitionSpecs or shardings of the mesh that the plan has to keep to, as trees or
    beginnings of trees of the arguments (a tuple, without static ones) and of the results; None leaves the choice to the
    plan. `memory_limit`: bytes that a plan may use of a device; `memory_reserve`: bytes that it leaves free, below 1 a
    part (None: what runtimes need of the profile's memory). Processes count as hosts unless `hosts` says how many there
    are. All arguments are positional; `static_argnums` and `donate_argnums` are jax.jit's, and what is donated is taken
    to be the model's parameters. `plans`: a file of AutoSharded.save(); a program that it has a plan for is not planned
    again.
    """
    planning = {
        "cluster": cluster,
        "memory_limit": memory_limit,
        "memory_reserve": memory_reserve,
        "time_limit": time_limit,
        "hosts": hosts,
    }
    jit = {"in_shardings": in_shardings, "out_shardings": out_shardings, "static_argnums": static_argnums,
           "donate_argnums": donate_argnums}  # fmt: skip
    return AutoSharded(function, mesh, jit, planning, plans)
