# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements, as the planner's: reshapes, transpositions, parts and what is put together of parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ._lowering import Letters, handles
from ._operators import MAX_DIM_FACTORS, Recorder, Term, Value, elements, permuted


def _suffix_products(shape: Sequence[int]) -> list[int]:
    products = [1]
    for extent in reversed(shape):
        products.append(products[-1] * extent)
    return products[::-1]


def _match(letters: Letters, source: Sequence[int], target: Sequence[int]) -> tuple[Term, Term, dict[str, int], str]:
    """Terms of a reshape: the factors that both shapes are made of. Where there are none, whole dimensions."""
    sizes: dict[str, int] = {}
    whole = ""
    terms: tuple[list[str], list[str]] = ([], [])
    places = [0, 0]
    shapes = (list(source), list(target))

    def fresh(extent: int) -> str:
        (letter,) = letters.take(1)
        sizes[letter] = extent
        return letter

    while places[0] < len(source) or places[1] < len(target):
        for side in (0, 1):  # dimensions of one element belong to nothing
            while places[side] < len(shapes[side]) and shapes[side][places[side]] == 1:
                terms[side].append(fresh(1))
                places[side] += 1
        if places[0] >= len(source) and places[1] >= len(target):
            break
        ends = [places[0] + 1, places[1] + 1]
        while (products := [elements(shapes[side][places[side] : ends[side]]) for side in (0, 1)])[0] != products[1]:
            ends[0 if products[0] < products[1] else 1] += 1
        parts = [shapes[side][places[side] : ends[side]] for side in (0, 1)]
        bounds = [_suffix_products(part) for part in parts]
        marks = sorted({*bounds[0], *bounds[1]}, reverse=True)
        # The factors lie between neighbouring products, if these divide each other.
        nested = all(larger % smaller == 0 for larger, smaller in zip(marks, marks[1:])) and all(
            sum(lower < mark <= upper for mark in marks) <= MAX_DIM_FACTORS
            for bound in bounds for upper, lower in zip(bound, bound[1:])
        )  # fmt: skip
        atoms = {larger: fresh(larger // smaller) for larger, smaller in zip(marks, marks[1:])} if nested else {}
        for side in (0, 1):
            for extent, upper, lower in zip(parts[side], bounds[side], bounds[side][1:]):
                inside = "".join(letter for mark, letter in atoms.items() if lower < mark <= upper)
                if not inside:
                    inside = fresh(extent)
                    whole += inside
                terms[side].append(inside)
        places = ends
    return tuple(terms[0]), tuple(terms[1]), sizes, whole


def _reshaped(recorder: Recorder, value: Value, target: Sequence[int], dtype: torch.dtype, suffix: str = "") -> Value:
    target = list(target)
    if -1 in target:
        target[target.index(-1)] = elements(value.shape) // -elements(target)
    if tuple(target) == value.shape:
        return value
    if 0 in value.shape:
        raise recorder.refuse("a reshape of a tensor without elements has no sharding rule")
    source, result, sizes, whole = _match(Letters(), value.shape, target)
    return recorder.emit(
        "reshape", lambda parts, local: parts[0].reshape(local.shape(result)), [(value, source)], result, dtype,
        suffix=suffix, whole=whole, sizes=sizes, linear=True, view=True,
    )  # fmt: skip


@handles("view", "reshape", "_unsafe_view")
def _view(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    return _reshaped(recorder, a.self, a.size if hasattr(a, "size") else a.shape, dtype)


@handles("flatten")
def _flatten(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    shape, rank = list(a.self.shape), a.self.rank
    first, last = a.start_dim % rank, a.end_dim % rank
    return _reshaped(recorder, a.self, [*shape[:first], elements(shape[first : last + 1]), *shape[last + 1 :]], dtype)


@handles("unflatten")
def _unflatten(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    shape, dim, sizes = list(a.self.shape), a.dim % a.self.rank, list(a.sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[dim] // -elements(sizes)
    return _reshaped(recorder, a.self, [*shape[:dim], *sizes, *shape[dim + 1 :]], dtype)


@handles("unsqueeze")
def _unsqueeze(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    shape = list(a.self.shape)
    shape.insert(a.dim % (len(shape) + 1), 1)
    return _reshaped(recorder, a.self, shape, dtype)


@handles("squeeze")
def _squeeze(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    given = getattr(a, "dim", None)
    rank = a.self.rank
    dims = set(range(rank)) if given is None else {dim % rank for dim in ([given] if isinstance(given, int) else given)}
    return _reshaped(recorder, a.self, [n for dim, n in enumerate(a.self.shape) if n != 1 or dim not in dims], dtype)


def _moved(recorder: Recorder, value: Value, order: Sequence[int], dtype: torch.dtype) -> Value:
    if value.kind in ("parameter", "constant"):
        return permuted(value, order)
    term = Letters().take(value.rank)
    order = tuple(dim % value.rank for dim in order)
    return recorder.emit(
        "reshape", lambda parts, _: parts[0].permute(order), [(value, term)], tuple(term[dim] for dim in order), dtype,
        linear=True, view=True,
    )  # fmt: skip


@handles("permute")
def _permute(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    return _moved(recorder, a.self, [dim % a.self.rank for dim in a.dims], dtype)


@handles("transpose", "t")
def _transpose(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    order = list(range(a.self.rank))
    if order:
        first, second = getattr(a, "dim0", 0) % len(order), getattr(a, "dim1", len(order) - 1) % len(order)
        order[first], order[second] = order[second], order[first]
    return _moved(recorder, a.self, order, dtype)


def _expanded(recorder: Recorder, value: Value, size: Sequence[int], dtype: torch.dtype, suffix: str = "") -> Value:
    letters = Letters()
    term = letters.take(value.rank)
    new = len(size) - value.rank
    result: list[str] = []
    sizes = {}
    for place, extent in enumerate(size):
        kept = value.shape[place - new] if place >= new else None
        if kept is not None and extent in (-1, kept):
            result.append(term[place - new])
        else:
            result += letters.take(1)
            sizes[result[-1]] = extent
    if not sizes:
        return value
    made = tuple(result)
    return recorder.emit(
        "reshape", lambda parts, local: parts[0].expand(local.shape(made)), [(value, term)], made, dtype,
        suffix=suffix, sizes=sizes, linear=True, view=True,
    )  # fmt: skip


@handles("expand", "broadcast_to")
def _expand(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    return _expanded(recorder, a.self, a.size, dtype)


@handles("expand_as")
def _expand_as(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    return _expanded(recorder, a.self, a.other.shape, dtype)


@handles("broadcast_tensors")
def _broadcast_tensors(recorder: Recorder, a: SimpleNamespace, _: torch.dtype) -> tuple[Value, ...]:
    shape = torch.broadcast_shapes(*(value.shape for value in a.tensors))
    return tuple(
        _expanded(recorder, value, shape, value.dtype, f"/{place}") for place, value in enumerate(a.tensors)
    )


@handles("repeat_interleave")
def _repeat(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    """Each part of a dimension several times, one after the other: the heads of grouped queries."""
    value: Value = a.self
    if not isinstance(getattr(a, "repeats", None), int) or a.dim is None:
        raise recorder.refuse("repeat_interleave without a number and a dimension has no sharding rule")
    letters = Letters()
    term, (times,) = letters.take(value.rank), letters.take(1)
    dim = a.dim % value.rank
    result = tuple(letter + times if place == dim else letter for place, letter in enumerate(term))
    return recorder.emit(
        "reshape", lambda parts, _: parts[0].repeat_interleave(a.repeats, dim), [(value, term)], result, dtype,
        sizes={times: a.repeats}, linear=True,
    )  # fmt: skip


def _narrowed(recorder: Recorder, value: Value, dim: int, first: int, extent: int, step: int, suffix: str) -> Value:
    letters = Letters()
    term, (part,) = letters.take(value.rank), letters.take(1)
    result = tuple(part if place == dim else letter for place, letter in enumerate(term))

    place = (*[slice(None)] * dim, slice(first, first + (extent - 1) * step + 1, step))
    return recorder.emit(
        "reshape", lambda parts, _: parts[0][place], [(value, term)], result, value.dtype,
        suffix=suffix, whole=term[dim] + part, sizes={part: extent}, linear=True,
    )  # fmt: skip


@handles("slice")
def _slice(recorder: Recorder, a: SimpleNamespace, _: torch.dtype) -> Value:
    value: Value = a.self
    dim = a.dim % value.rank
    first, last, step = slice(a.start, a.end, a.step).indices(value.shape[dim])
    extent = max(0, math.ceil((last - first) / step))
    if extent == value.shape[dim]:
        return value
    if extent == 0:
        raise recorder.refuse("a slice without elements has no sharding rule")
    return _narrowed(recorder, value, dim, first, extent, step, "")


@handles("narrow")
def _narrow(recorder: Recorder, a: SimpleNamespace, _: torch.dtype) -> Value:
    dim = a.dim % a.self.rank
    return _narrowed(recorder, a.self, dim, a.start % a.self.shape[dim], a.length, 1, "")


def _selected(recorder: Recorder, value: Value, dim: int, index: int, suffix: str = "") -> Value:
    term = Letters().take(value.rank)
    result = tuple(letter for place, letter in enumerate(term) if place != dim)
    return recorder.emit(
        "reshape", lambda parts, _: parts[0].select(dim, index), [(value, term)], result, value.dtype,
        suffix=suffix, whole=term[dim], linear=True,
    )  # fmt: skip


@handles("select")
def _select(recorder: Recorder, a: SimpleNamespace, _: torch.dtype) -> Value:
    dim = a.dim % a.self.rank
    return _selected(recorder, a.self, dim, a.index % a.self.shape[dim])


@handles("unbind")
def _unbind(recorder: Recorder, a: SimpleNamespace, _: torch.dtype) -> tuple[Value, ...]:
    dim = a.dim % a.self.rank
    return tuple(_selected(recorder, a.self, dim, index, f"/{index}") for index in range(a.self.shape[dim]))


def _pieces(recorder: Recorder, value: Value, dim: int, extents: Sequence[int]) -> tuple[Value, ...]:
    firsts = [sum(extents[:place]) for place in range(len(extents))]
    return tuple(
        _narrowed(recorder, value, dim, first, extent, 1, f"/{place}")
        for place, (first, extent) in enumerate(zip(firsts, extents))
    )


@handles("split", "split_with_sizes", "chunk")
def _split(recorder: Recorder, a: SimpleNamespace, _: torch.dtype) -> tuple[Value, ...]:
    dim = a.dim % a.self.rank
    extent = a.self.shape[dim]
    given: Any = getattr(a, "split_sizes", getattr(a, "split_size", None))
    if hasattr(a, "chunks"):
        given = -(-extent // a.chunks)
    if isinstance(given, int):
        given = [min(given, extent - first) for first in range(0, extent, given)]
    return _pieces(recorder, a.self, dim, given)


def _joined(recorder: Recorder, values: Sequence[Value], dim: int, dtype: torch.dtype, suffix: str) -> Value:
    letters = Letters()
    term = letters.take(values[0].rank)
    own = letters.take(len(values))
    (joint,) = letters.take(1)

    def of(letter: str) -> Term:
        return tuple(letter if place == dim else other for place, other in enumerate(term))

    return recorder.emit(
        "reshape", lambda parts, _: torch.cat(parts, dim), [(value, of(letter)) for value, letter in zip(values, own)],
        of(joint), dtype, suffix=suffix, whole="".join(own) + joint,
        sizes={joint: sum(value.shape[dim] for value in values)}, linear=True,
    )  # fmt: skip


@handles("cat", "concat", "concatenate")
def _cat(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    values: list[Value] = list(a.tensors)
    dim = a.dim % values[0].rank
    made = values[0]
    for place, value in enumerate(values[1:]):
        made = _joined(recorder, [made, value], dim, dtype, f"/{place}" if len(values) > 2 else "")
    return made


@handles("stack")
def _stack(recorder: Recorder, a: SimpleNamespace, dtype: torch.dtype) -> Value:
    dim = a.dim % (a.tensors[0].rank + 1)
    values = [
        _reshaped(recorder, value, [*value.shape[:dim], 1, *value.shape[dim:]], dtype, f"/{place}")
        for place, value in enumerate(a.tensors)
    ]
    made: Value = _cat(recorder, SimpleNamespace(tensors=values, dim=dim), dtype)
    return made
