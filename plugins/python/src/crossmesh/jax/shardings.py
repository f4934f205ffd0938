# SPDX-License-Identifier: Apache-2.0
"""What exported tables do: they find the operators of a traced function and constrain them.

`autopar shard --export-jax` writes tables, in JSON, that say how the planner cuts the operators of one HLO module. JAX's tracing
gives no names to operators, so they are found again in the order of the program: products, convolutions, gathers,
scatters and reductions by that order, the others by what they are applied to. A missing one raises an error, because
constraints on the wrong operators would be worse than none.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import partial_eval
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ..errors import InputError

Shape = tuple[int, ...]
# A tensor by the plan's number; None needs no data, and a tuple is what XLA has merged into the step after it.
Name = Any
# Number and sharding of a result, and the ways of its operands to the shardings that they are used in.
Row = tuple[Any, Any, dict[Any, tuple[Any, ...]]]

# Primitives and the opcodes they become; in the order of the program ...
_ANCHORS = {"dot_general": "dot", "conv_general_dilated": "convolution", "gather": "gather", "scatter": "scatter",
            "scatter-add": "scatter", "scatter-mul": "scatter", "scatter-min": "scatter", "scatter-max": "scatter",
            "reduce_sum": "reduce", "reduce_max": "reduce", "reduce_min": "reduce", "reduce_prod": "reduce",
            "reduce_and": "reduce", "reduce_or": "reduce", "argmax": "reduce", "argmin": "reduce"}
# ... and by what they are applied to, where the opcode is not the name with hyphens.
_OTHERS = {"add_any": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "neg": "negate",
           "exp": "exponential", "log1p": "log-plus-one", "expm1": "exponential-minus-one", "max": "maximum",
           "min": "minimum", "pow": "power", "select_n": "select", "sin": "sine", "cos": "cosine",
           "convert_element_type": "convert", "eq": "compare", "ne": "compare", "lt": "compare", "le": "compare",
           "gt": "compare", "ge": "compare", "rev": "reverse", "sharding_constraint": "custom-call",
           "cumsum": "reduce-window", "cumprod": "reduce-window", "cummax": "reduce-window",
           "cummin": "reduce-window", "reduce_window_sum": "reduce-window", "reduce_window_max": "reduce-window",
           "reduce_window_min": "reduce-window", "round": "round-nearest-even",
           "select_and_scatter_add": "select-and-scatter"}
_TUPLES = ("top_k", "sort", "argmax", "argmin")
_ANY_ORDER = ("add", "multiply", "maximum", "minimum", "and", "or", "select")
_SAME = ("stop_gradient", "copy", "copy_p", "reduce_precision", "random_wrap", "random_unwrap")
_MOVES = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose")
_CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr",
          "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
          "custom_vjp_call_jaxpr": "fun_jaxpr"}
_UNKNOWN = -1


def _power(x: Any, y: int) -> Any:
    if y < 0:
        return jax.lax.div(jax.lax.full_like(x, 1), _power(x, -y))
    half = _power(x, y // 2) if y > 3 else x
    made = jax.lax.mul(half, half) if y > 1 else x
    return jax.lax.mul(made, x) if y % 2 and y > 1 else made


def _split(x: Any, sizes: Sequence[int], axis: int) -> list[Any]:
    ends = list(itertools.accumulate(sizes))
    return [jax.lax.slice_in_dim(x, end - size, end, axis=axis) for size, end in zip(sizes, ends)]


def _unstack(x: Any, axis: int) -> list[Any]:
    return [jax.lax.squeeze(part, (axis,)) for part in _split(x, (1,) * x.shape[axis], axis)]


# Primitives that JAX lowers to several operators.
_AS: dict[str, Callable[..., Any]] = {"integer_pow": _power, "split": _split, "unstack": _unstack,
       "square": lambda x: jax.lax.mul(x, x),
       "logistic": lambda x, **_: jax.lax.div(
           jax.lax.full_like(x, 1), jax.lax.add(jax.lax.full_like(x, 1), jax.lax.exp(jax.lax.neg(x)))),
       "stack": lambda *xs, axis: jax.lax.concatenate(
           [jax.lax.expand_dims(x, (axis,)) for x in xs], axis)}


# One object per traced function or loop body. Each row of the plan's table is taken at most once as an anchor,
# because a function that runs an operator twice has two rows for it.
class _Plan:
    """What is left of the plan's operators while a function is traced."""

    def __init__(self, mesh: Mesh, operators: Sequence[Any], loops: Sequence[Any]) -> None:
        self.mesh = mesh
        self.anchors: dict[str, list[tuple[Shape | None, Row, set[Name]]]] = {}
        self.others: dict[Any, list[Row]] = {}
        self.moves: dict[Name, list[tuple[Shape, Row]]] = {}
        self.used: set[Name] = set()
        self.loops = list(loops)
        self.order = {row[3]: i for i, row in enumerate(operators)}
        for opcode, operands, shape, made, spec, paths in operators:
            row = (made, spec, paths)
            if opcode in _ANCHORS.values():
                self.anchors.setdefault(opcode, []).append((shape, row, set(operands)))
            else:
                row = (made, spec, {operands[number]: path for number, path in paths.items()})
                self.others.setdefault((*self.key(opcode, operands), shape), []).append(row)
            if opcode in ("broadcast", "reshape", "transpose") and len(operands) == 1:
                self.moves.setdefault(operands[0], []).append((shape, row))

    # Operators that are no anchors are found by what they are applied to, so their key must survive what XLA does to
    # them: it swaps the operands of commutative operators, and it folds constants, which therefore have no name here.
    def key(self, opcode: str, operands: tuple[Name, ...]) -> tuple[str, tuple[Name, ...]]:
        """What tells an operator: XLA orders some operands anew, and constants are nobody's."""
        while operands and operands[-1] is None:
            operands = operands[:-1]
        if opcode in _ANY_ORDER:
            operands = tuple(sorted(o for o in operands if o is not None))
        return opcode, operands

    def anchor(self, opcode: str, operands: tuple[Name, ...], shape: Shape) -> Row:
        rows = self.anchors.get(opcode, [])
        known = {o for o in operands if o not in (None, _UNKNOWN)}
        # The order of the program is not always that of its text: what is applied to the same goes before.
        fit = [row for row in rows if row[0] in (None, shape) and known and known <= row[2]]
        fit = fit or [row for row in rows if row[0] in (None, shape)]
        if not fit:
            raise ValueError(f"this function is not the one that was sharded: {opcode} makes {shape} "
                             f"where the plan has {rows[0][0] if rows else 'no more of them'}")
        rows.remove(fit[0])
        return fit[0][1]

    def first(self, rows: Iterable[Row]) -> Row | None:
        """The first row of the program that was not yet taken; rows are told by what they make."""
        rows = sorted(rows, key=lambda row: (row[0] in self.used, self.order[row[0]]))
        if rows:
            self.used.add(rows[0][0])
        return rows[0] if rows else None

    def other(self, opcode: str, operands: tuple[Name, ...], shape: Shape) -> Row | None:
        return self.first(self.others.get((*self.key(opcode, operands), shape), []))

    # Behind what was not found only some operands are known, or none: then the only row there is will do.
    def guess(self, opcode: str, operands: tuple[Name, ...], shape: Shape) -> Row | None:
        """The next row that goes with the operands that are known."""
        known = {o for o in operands if o not in (None, _UNKNOWN)}
        fit = [row for key, rows in self.others.items()
               if key[0] == opcode and key[2] == shape and known <= set(key[1])
               for row in rows if row[0] not in self.used]
        return self.first(fit) if known or len(fit) == 1 else None

    # Broadcasts, reshapes and transposes do not match one to one between JAX and HLO, so up to four of them in a
    # row are skipped; what JAX has between two that HLO has merged is called by where it came from, in a tuple.
    # The limit on the steps ends the recursion.
    def moved(self, operand: Name, shape: Shape, steps: int = 3) -> Iterator[Row]:
        """The rows of this shape that a few moves lead to; the first of them tells the way in."""
        for made, (result, spec, paths) in self.moves.get(operand, []):
            way_in = {operand: paths[operand]} if operand in paths else {}
            if made == shape:
                yield result, spec, way_in
            elif steps:
                for row in self.moved(result, shape, steps - 1):
                    # A later step that gathers all gathers what goes into the first one.
                    whole = result in row[2] and not any(row[2][result][-1])
                    yield row[0], row[1], {operand: (P(),)} if whole else way_in

    def widened(self, opcode: str, eqn: Any, operands: tuple[Name, ...], shape: Shape) -> Row | None:
        """An operator some of whose operands have dimensions of 1 that are broadcast on the way."""
        ways: list[list[tuple[Name, dict[Any, Any]]]]
        ways = [[(o, {})] if o is None or v.aval.shape in (shape, ()) else
                [(o, {}), *((row[0], row[2]) for row in self.moved(o, shape))]
                for v, o in zip(eqn.invars, operands)]
        found = []
        for way in itertools.product(*ways):
            for made, spec, paths in self.others.get(
                    (*self.key(opcode, tuple(o for o, _ in way)), shape), []):
                found.append((made, spec, dict(itertools.chain(
                    paths.items(), *(way_in.items() for _, way_in in way)))))
        return self.first(found)

    def find(self, eqn: Any, operands: tuple[Name, ...]) -> Row | None:
        name, shape = eqn.primitive.name, eqn.outvars[0].aval.shape
        if name in _MOVES and operands[0] not in (None, _UNKNOWN):
            source = operands[0][0] if isinstance(operands[0], tuple) else operands[0]
            return self.first(self.moved(source, shape)) or ((source,), None, {})
        operands = tuple(_UNKNOWN if isinstance(o, tuple) else o for o in operands)
        if name in _ANCHORS and eqn.params.get("axes") != ():
            return self.anchor(_ANCHORS[name], operands, shape)
        if name in _SAME or name == "rev" and all(shape[d] == 1 for d in eqn.params["dimensions"]):
            return operands[0], None, {}
        if all(o is None for o in operands):
            return None
        opcode = _OTHERS.get(name, name.replace("_", "-"))
        found = None if _UNKNOWN in operands else self.widened(opcode, eqn, operands, shape)
        return found or self.guess(opcode, operands, shape)

    def pin(self, value: Any, spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, NamedSharding(self.mesh, spec))

    def run(
        self, jaxpr: Any, consts: Iterable[Any], arguments: Iterable[Any], tensors: Iterable[Name]
    ) -> tuple[list[Any], list[Name]]:
        """Evaluates; `tensors` are the plan's names of the arguments, None for what needs no data."""
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments)))
        names = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*(None for _ in consts), *tensors)))

        def read(v: Any) -> Any:
            return v.val if hasattr(v, "val") else values[v]

        def name_of(v: Any) -> Name:
            return None if hasattr(v, "val") else names[v]

        for eqn in jaxpr.eqns:
            given, operands = [read(v) for v in eqn.invars], tuple(name_of(v) for v in eqn.invars)
            if eqn.primitive.name in _CALLS:
                inner = eqn.params[_CALLS[eqn.primitive.name]]
                made, called = self.run(inner.jaxpr, inner.consts, given, operands)
            elif eqn.primitive.name in ("checkpoint", "remat2"):
                made, called = self.checkpoint(eqn, given, operands)
            elif eqn.primitive.name in _AS:
                inner = jax.make_jaxpr(functools.partial(_AS[eqn.primitive.name], **eqn.params))(*given)
                made, called = self.run(inner.jaxpr, inner.consts, given, operands)
            elif eqn.primitive.name == "scan":
                made, called = self.scan(eqn, given, operands)
            else:
                made, called = self.apply(eqn, given, operands)
            values.update(zip(eqn.outvars, made))
            names.update(zip(eqn.outvars, called))
        return [read(v) for v in jaxpr.outvars], [name_of(v) for v in jaxpr.outvars]

    # A checkpointed body is traced again with the constraints inside it and bound to the same primitive, so that
    # what JAX computes twice stays computed twice.
    def checkpoint(self, eqn: Any, given: list[Any], operands: tuple[Name, ...]) -> tuple[list[Any], list[Name]]:
        called: list[Name] = []

        def inside(*arguments: Any) -> list[Any]:
            made, names = self.run(eqn.params["jaxpr"], (), arguments, operands)
            called.extend(names)
            return made

        inner = jax.make_jaxpr(inside)(*given)
        body = inner.jaxpr.replace(
            constvars=(), invars=[*inner.jaxpr.constvars, *inner.jaxpr.invars],
            debug_info=inner.jaxpr.debug_info._replace(arg_names=None))
        return eqn.primitive.bind(*inner.consts, *given, **{**eqn.params, "jaxpr": body}), called

    # Loops are matched in the order of the program, and the shapes of what they carry guard against a wrong
    # match.
    def loop(self, eqn: Any) -> Any:
        """The plan's loop that a scan became: the next one, if it carries what the scan does."""
        consts, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        shapes = [v.aval.shape for v in (*eqn.invars[consts:consts + carried], *eqn.outvars[carried:])]
        if not self.loops or [row[0] for row in self.loops[0][0][1:1 + len(shapes)]] != shapes:
            return None
        loop = self.loops.pop(0)
        return loop if eqn.params["unroll"] == 1 else None  # else its body is there several times

    def carry(self, values: Iterable[Any], ways: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Values on their ways into the shardings that a loop keeps them in."""
        made = []
        for x, way in zip(values, ways):
            for spec in way if x.ndim else ():
                x = self.pin(x, spec)
            made.append(x)
        return made

    def part(self, stack: Name, shape: Shape) -> tuple[Name, Any]:
        """What a round takes out of a stack: its number and sharding."""
        for made, _, _ in self.others.get(("dynamic-slice", (stack,), (1, *shape)), ()):
            for result, spec, _ in self.moved(made, shape):
                return result, spec
        return _UNKNOWN, None

    def stacked(self, value: Any, name: Name, row: Sequence[Any]) -> Any:
        """A round's part of a stack, on its way into it."""
        for shape, (part, _, paths) in self.moves.get(name, ()):
            if shape == (1, *value.shape):
                for spec in paths.get(name, ()):
                    value = self.pin(value, spec)
                for _, _, paths in self.others.get(
                        ("dynamic-update-slice", (row[2], part), row[0]), ()):
                    for spec in paths.get(part, ()):
                        value = self.pin(value, P(*spec[1:]))
                break
        return value

    # JAX leaves the stacks of a scan's results to XLA, which would choose their shardings itself. The scan is
    # therefore rebuilt with the stacks among what it carries, where constraints can hold them. Stacks of extended
    # types, such as random keys, leave the scan as it is.
    def scan(self, eqn: Any, given: list[Any], operands: tuple[Name, ...]) -> tuple[list[Any], list[Name]]:
        """A scan whose stacks are carried like the rest, so that they keep their shardings, too."""
        loop = self.loop(eqn)
        body, consts, carried, length, reverse = (eqn.params[key] for key in (
            "jaxpr", "num_consts", "num_carry", "length", "reverse"))
        stacks = [v.aval for v in eqn.outvars[carried:]]
        if loop is None or any(jax.dtypes.issubdtype(s.dtype, jax.dtypes.extended) for s in stacks):
            return self.apply(eqn, given, operands)
        state, operators, loops = loop
        rows = state[1:1 + len(eqn.outvars)]
        ins, rounds = ([row[way] for row in rows] for way in (4, 5))
        keeps = [way[-1:] for way in ins]
        kept = {row[1]: row[4] for row in state if row[1] is not None and row[1] == row[2]}
        given = self.carry(given, [kept.get(o, ()) for o in operands])

        def a_round(state: Any, parts: Any) -> Any:
            number, values = state
            plan = _Plan(self.mesh, operators, loops)
            values = plan.carry(values, keeps)
            taken = [plan.part(o, x.shape) if o in kept else (None if o is None else _UNKNOWN, None)
                     for x, o in zip(parts, operands[consts + carried:])]
            names = [*(o if o in kept or o is None else _UNKNOWN for o in operands[:consts]),
                     *(row[2] for row in rows[:carried]), *(name for name, _ in taken)]
            parts = [x if spec is None else plan.pin(x, spec) for x, (_, spec) in zip(parts, taken)]
            made, called = plan.run(body.jaxpr, body.consts,
                                    [*given[:consts], *values[:carried], *parts], names)
            if any(left for o, left in plan.anchors.items() if o != "reduce"):
                raise ValueError("this function is not the one that was sharded: a loop of the plan has "
                                 "more operators")
            made[carried:] = [
                jax.lax.dynamic_update_index_in_dim(stack, plan.stacked(x, name, row), number, 0)
                for stack, x, name, row in
                zip(values[carried:], made[carried:], called[carried:], rows[carried:])]
            return (number + (-1 if reverse else 1), plan.carry(made, rounds)), None

        values = [*given[consts:consts + carried], *(jax.numpy.zeros(s.shape, s.dtype) for s in stacks)]
        (_, made), _ = jax.lax.scan(
            a_round, (np.int32(length - 1 if reverse else 0), self.carry(values, ins)),
            given[consts + carried:], length=length, reverse=reverse)
        return self.carry(made, keeps), [row[3] for row in rows]

    # A gather that fills is several operators to XLA; the last of them selects.
    def filled(self, value: Any, name: Name) -> tuple[Any, Name]:
        """What a gather makes, and its number: after the selection that fills in what it did not find."""
        for (opcode, operands, shape), rows in self.others.items():
            if opcode == "select" and name in operands and shape == value.shape:
                row = self.first(rows)
                assert row is not None  # a list of rows is never empty
                made, spec, paths = row
                for step in (*paths.get(name, ()), spec):
                    value = self.pin(value, step)
                return value, made
        return value, name

    # Puts the constraints around a primitive: first on the operands, along the way that the plan reshards them,
    # then on the first result. An operator that was not found runs without constraints and makes values of
    # unknown name; behind these, only anchors are found again.
    def apply(self, eqn: Any, given: list[Any], operands: tuple[Name, ...]) -> tuple[list[Any], list[Name]]:
        found = self.find(eqn, operands)
        anchor = found and eqn.primitive.name in _ANCHORS
        for i, operand in enumerate(operands):
            for spec in found[2].get(i if anchor else operand, ()) if found else ():
                given[i] = self.pin(given[i], spec)
        if found and eqn.primitive.name.startswith("scatter") and operands[0] is None:
            given[0] = self.pin(given[0], found[1])  # XLA cuts the updates as it finds what they go into
        made = eqn.primitive.bind(*given, **eqn.params)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        free = all(o is None for o in operands)
        if free:  # whole everywhere: each device takes its part by itself
            made = [self.pin(x, P()) if v.aval.shape else x for v, x in zip(eqn.outvars, made)]
        elif found and found[1] is not None:
            made[0] = self.pin(made[0], found[1])
        called = [None if free else _UNKNOWN] * len(made)
        if found and found[0] is not None:
            called[0] = found[0]
        if eqn.primitive.name in _TUPLES and not free and called[0] == _UNKNOWN:
            for i, x in enumerate(made):
                row = self.other("get-tuple-element", (), x.shape)
                if row:
                    made[i], called[i] = self.pin(x, row[1]), row[0]
        if found and eqn.primitive.name == "gather" and str(eqn.params["mode"]).endswith("FILL_OR_DROP"):
            made[0], called[0] = self.filled(made[0], called[0])
        return made, called


def _stored(aval: Any) -> Shape:
    """The shape that XLA sees: a typed random key is numbers to it."""
    shape: Shape = aval.shape
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, aval.dtype)).shape
    return shape


def _check(what: str, avals: Iterable[Any], table: Sequence[Any]) -> None:
    if [_stored(a) for a in avals] != [row[1] for row in table]:
        raise ValueError(f"this function is not the one that was sharded: its {what} have "
                         "other shapes")


def _rows(table: Any, spec: Callable[[Any], P]) -> tuple[Any, ...]:
    return tuple((name, tuple(shape), spec(cut), tensor) for name, shape, cut, tensor in table)


def _operators(table: Any, spec: Callable[[Any], P]) -> tuple[Any, ...]:
    return tuple(
        (opcode, tuple(operands), None if shape is None else tuple(shape), made, None if cut is None else spec(cut),
         {int(number): tuple(map(spec, way)) for number, way in ways.items()})
        for opcode, operands, shape, made, cut, ways in table)


def _loops(table: Any, spec: Callable[[Any], P]) -> tuple[Any, ...]:
    return tuple(
        (tuple((tuple(shape), *numbers, tuple(map(spec, ways_in)), tuple(map(spec, rounds)))
               for shape, *numbers, ways_in, rounds in state),
         _operators(operators, spec), _loops(loops, spec))
        for state, operators, loops in table)


def load(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> Shardings:
    """The tables that `autopar shard --export-jax` has written. `names`: of the mesh's axes, else x, y, z and w."""
    with open(path, encoding="utf-8") as file:
        return Shardings(json.load(file), names)


class Shardings:
    """The document of an export: mesh, parameters, results, operators and loops, with PartitionSpecs of its axes'
    names."""

    def __init__(self, document: dict[str, Any], names: Sequence[str] | None = None) -> None:
        if document.get("format") != "autopar shardings for JAX":
            raise InputError("these are not shardings that `autopar shard --export-jax` has written")
        sizes = document["mesh"]
        names = tuple("xyzw"[: len(sizes)] if names is None else names)
        if len(names) != len(sizes):
            raise InputError(f"{len(names)} names for the {len(sizes)} axes of the mesh {sizes}")

        def spec(cuts: Sequence[Sequence[int]]) -> P:
            return P(*(tuple(names[a] for a in cut) if len(cut) > 1 else names[cut[0]] if cut else None for cut in cuts))

        self.document, self.mesh = document, dict(zip(names, sizes))
        self.parameters, self.results = _rows(document["parameters"], spec), _rows(document["results"], spec)
        self.operators, self.loops = _operators(document["operators"], spec), _loops(document["loops"], spec)

    def make_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh of the plan over the first devices, or over those given."""
        shape = tuple(self.mesh.values())
        devices = jax.devices() if devices is None else devices
        return Mesh(np.array(devices[: math.prod(shape)]).reshape(shape), tuple(self.mesh))

    def lower(self, function: Callable[..., Any], mesh: Mesh, *arguments: Any, **options: Any) -> Any:
        """Lowers `function` with the plan's shardings; .compile() of the result takes the same arguments.

        `options` are those of jax.jit, such as donate_argnums; shapes are enough as arguments.
        """
        tree = jax.tree_util.tree_structure(arguments)
        closed, made = jax.make_jaxpr(function, return_shape=True)(*arguments)
        jaxpr, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
        consts = dict(zip(closed.jaxpr.constvars, closed.consts))
        parameters = [v.aval for v, u in zip(closed.jaxpr.invars, used) if u]
        _check("arguments", parameters, self.parameters)
        _check("results", [v.aval for v in jaxpr.outvars], self.results)

        def place(aval: Any, row: Any) -> NamedSharding:
            return NamedSharding(mesh, P(*row[2][: len(aval.shape)]))

        rows = iter(zip(parameters, self.parameters))
        places = [place(*next(rows)) if u else NamedSharding(mesh, P()) for u in used]

        def sharded(*arguments: Any) -> Any:
            given = [a for a, u in zip(jax.tree_util.tree_leaves(arguments), used) if u]
            plan = _Plan(mesh, self.operators, self.loops)
            made, _ = plan.run(
                jaxpr, [consts[v] for v in jaxpr.constvars], given, [row[3] for row in self.parameters]
            )
            # Reductions may be left: lowering makes some of its own, such as a gather's check of its indices.
            missing = sorted(o for o, rows in plan.anchors.items() if rows and o != "reduce")
            if missing:
                raise ValueError(
                    f"this function is not the one that was sharded: the plan has more operators of {missing}"
                )
            return jax.tree_util.tree_unflatten(out, made)

        out = jax.tree_util.tree_structure(made)
        results = [place(v.aval, row) for v, row in zip(jaxpr.outvars, self.results)]
        return jax.jit(
            sharded,
            in_shardings=jax.tree_util.tree_unflatten(tree, places),
            out_shardings=jax.tree_util.tree_unflatten(out, results),
            **options,
        ).lower(*arguments)
