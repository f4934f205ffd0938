# SPDX-License-Identifier: Apache-2.0
"""Maps from the tensors of one program to those of another: other names, fused, split, transposed, cast.

Every map comes down to pieces: a box of a source is a box of a target, its dimensions in another order, perhaps in
another dtype. Pieces only name boxes, so that a plan of them moves each byte once and no rank ever has a whole tensor.

    >>> pieces([fuse("*.qkv", ["*.q", "*.k", "*.v"]), cast("*", "bfloat16")],
    ...        {"0.q": (8, 4), "0.k": (2, 4), "0.v": (2, 4)}, {"0.qkv": (12, 4)})

In a pattern a `*` is any text and a `#` a number; the n-th of the one side is the n-th of the other. Maps are applied in
their order. `crossmesh.torch.record()` finds the pieces of a program's own loader. See docs/weight-maps.md.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .conversions import CONVERSIONS, Derived, derived
from .errors import InputError

__all__ = ["Box", "Map", "Piece", "cast", "check", "drop", "fuse", "pieces", "quantize", "rename", "split", "stack",
           "tie", "transpose", "unstack"]  # fmt: skip

MOST_FAULTS = 40
Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, extent) for extent in shape)


def extents(box: Box) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def common(box: Box, other: Box) -> Box | None:
    """What two boxes have in common; None where that is no element."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other))
    return both if all(high > low for low, high in both) else None


def show(box: Box) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in box) + "]"


class Piece(NamedTuple):
    """`target[at]` is `source[box]`, dimension d of it the source's dimension `axes[d]`: -1 is one that the source has
    not, of one element. Dimensions of the source that are not in `axes` have one element in the box. `cast` is the
    target's dtype where that may be another one. Without a source the target's program fills the box by itself, as it
    does padding."""

    source: str
    box: Box
    axes: tuple[int, ...]
    target: str
    at: Box
    cast: str | None = None

    def cut(self, box: Box) -> Piece | None:
        """The part of it that is in a box of the target."""
        at = common(self.at, box)
        if at is None:
            return None
        source = list(self.box)
        for (low, _), (first, last), axis in zip(self.at, at, self.axes):
            if axis >= 0:
                start = source[axis][0] - low
                source[axis] = first + start, last + start
        return self._replace(box=tuple(source), at=at)

    def after(self, inner: Piece) -> Piece | None:
        """What another piece, whose target is this one's source, brings into this one's target."""
        part = inner.cut(self.box)
        if part is None:
            return None
        at, axes = list(self.at), list(self.axes)
        for d, axis in enumerate(self.axes):
            if axis >= 0:
                shift = self.at[d][0] - self.box[axis][0]
                at[d], axes[d] = (part.at[axis][0] + shift, part.at[axis][1] + shift), part.axes[axis]
        return Piece(part.source, part.box, tuple(axes), self.target, tuple(at), self.cast or part.cast)


class Tensor(NamedTuple):
    """What a map has made of sources; the pieces' target is this."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, name: str, shape: Sequence[int]) -> Tensor:
        everything = whole(shape)
        return cls(tuple(shape), (Piece(name, everything, tuple(range(len(shape))), "", everything),))

    def part(self, box: Box) -> Tensor:
        inside = (piece.cut(box) for piece in self.pieces)
        moved = [p._replace(at=tuple((a - c, b - c) for (a, b), (c, _) in zip(p.at, box))) for p in inside if p]
        return Tensor(extents(box), tuple(moved))

    def along(self, axis: int, low: int, high: int) -> Tensor:
        return self.part((*whole(self.shape[:axis]), (low, high), *whole(self.shape[axis + 1 :])))

    def permuted(self, order: Sequence[int]) -> Tensor:
        def turn(items: Sequence[object]) -> tuple[object, ...]:
            return tuple(items[d] for d in order)

        turned = [p._replace(at=turn(p.at), axes=turn(p.axes)) for p in self.pieces]  # type: ignore[arg-type]
        return Tensor(tuple(self.shape[d] for d in order), tuple(turned))

    def within(self) -> Tensor:
        """With a new dimension, of one element, before all others."""
        inner = [p._replace(at=((0, 1), *p.at), axes=(-1, *p.axes)) for p in self.pieces]
        return Tensor((1, *self.shape), tuple(inner))

    def without(self) -> Tensor:
        """Without its first dimension, of one element."""
        return Tensor(self.shape[1:], tuple(p._replace(at=p.at[1:], axes=p.axes[1:]) for p in self.pieces))


def join(parts: Sequence[Tensor], axis: int) -> Tensor:
    moved: list[Piece] = []
    first = 0
    for part in parts:
        for piece in part.pieces:
            low, high = piece.at[axis]
            moved.append(piece._replace(at=(*piece.at[:axis], (low + first, high + first), *piece.at[axis + 1 :])))
        first += part.shape[axis]
    shape = parts[0].shape
    return Tensor((*shape[:axis], first, *shape[axis + 1 :]), tuple(moved))


Table = dict[str, Tensor]
# Changes a table; what it cannot do it says as sentences.
Map = Callable[[Table], Iterator[str]]


def _found(pattern: str, names: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Names of a pattern, by what its wildcards stand for, in the order of the numbers."""
    wild = {"*": "(.*?)", "#": "([0-9]+)"}
    expression = re.compile("".join(wild.get(part, re.escape(part)) for part in re.split(r"([*#])", pattern)))
    matches = [(match.groups(), name) for name in names if (match := expression.fullmatch(name))]
    return dict(sorted(matches, key=lambda m: [(len(t), t) if t.isdigit() else (0, t) for t in m[0]]))


def _filled(pattern: str, texts: Sequence[str]) -> str:
    rest = iter(texts)
    return re.sub(r"[*#]", lambda _: next(rest, ""), pattern)


def _put(table: Table, name: str, tensor: Tensor) -> Iterator[str]:
    if name in table:
        yield f"{name} is made by two maps, or is there already"
    table[name] = tensor


def rename(pattern: str, name: str) -> Map:
    def do(table: Table) -> Iterator[str]:
        taken = {texts: table.pop(old) for texts, old in _found(pattern, table).items()}
        for texts, tensor in taken.items():
            yield from _put(table, _filled(name, texts), tensor)

    return do


def tie(pattern: str, name: str) -> Map:
    """The tensor has a second name, as tied embeddings have."""

    def do(table: Table) -> Iterator[str]:
        for texts, old in _found(pattern, table).items():
            yield from _put(table, _filled(name, texts), table[old])

    return do


def drop(pattern: str) -> Map:
    """The target does without."""

    def do(table: Table) -> Iterator[str]:
        for name in _found(pattern, table).values():
            del table[name]
        yield from ()

    return do


def cast(pattern: str, dtype: str) -> Map:
    """The target may have this dtype, such as "bfloat16": values are rounded as torch does."""

    def do(table: Table) -> Iterator[str]:
        for name in _found(pattern, table).values():
            made = table[name]
            table[name] = made._replace(pieces=tuple(p._replace(cast=dtype) for p in made.pieces))
        yield from ()

    return do


def quantize(pattern: str, kind: str, scale: str = "") -> Map:
    """The target has elements of 8 bits (crossmesh.conversions): "fp8_blocks", "mxfp8" or "int8_rows", and their scales
    under the name `scale`, in which `*` is the tensor's. Tensors of less than two dimensions stay as they are. Maps that
    fuse, split or stack come after it, and take the scales as well where their patterns end in `*`."""

    def do(table: Table) -> Iterator[str]:
        if kind not in CONVERSIONS:
            yield f"quantize: {kind!r} is not one of {', '.join(CONVERSIONS)}"
            return
        conversion = CONVERSIONS[kind]
        for name in _found(pattern, table).values():
            made = table[name]
            if len(made.shape) < 2:
                continue
            source = made.pieces[0].source
            if made != Tensor.of(source, made.shape):
                yield f"{name} is quantized after another map has fused, split, turned or cast it: quantize comes first"
                continue
            values, scales = Derived(source, kind, False), Derived(source, kind, True)
            moved = Tensor.of(values.name, made.shape)
            table[name] = moved._replace(pieces=(moved.pieces[0]._replace(cast=conversion.dtype),))
            under = scale.replace("*", name) if scale else name + conversion.suffix
            yield from _put(table, under, Tensor.of(scales.name, scales.shape(made.shape)))

    return do


def transpose(pattern: str, axes: Sequence[int] | None = None) -> Map:
    """Dimensions in this order, else in the reverse one."""

    def do(table: Table) -> Iterator[str]:
        for name in _found(pattern, table).values():
            dims = len(table[name].shape)
            order = tuple(reversed(range(dims))) if axes is None else tuple(axes)
            if sorted(order) != list(range(dims)):
                yield f"{name} of {dims} dimensions cannot be transposed to the order {order}"
            else:
                table[name] = table[name].permuted(order)

    return do


def fuse(name: str, patterns: Sequence[str], *, axis: int = 0, groups: int = 1) -> Map:
    """Several tensors become one, along a dimension. With `groups` each is cut into so many equal parts, and the first
    parts of all come before their second: query, key and value with as many groups as there are key heads."""

    def do(table: Table) -> Iterator[str]:
        found = [_found(pattern, table) for pattern in patterns]
        for texts in dict.fromkeys(itertools.chain(*found)):
            target = _filled(name, texts)
            missing = [_filled(p, texts) for p, f in zip(patterns, found) if texts not in f]
            if missing:
                yield f"{target} needs {' and '.join(missing)}, which no rank has"
                continue
            own = [table.pop(f[texts]) for f in found]
            shapes = [made.shape for made in own]
            if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) > 1:
                yield f"{target} cannot be fused of tensors of shapes {' and '.join(map(str, shapes))} along {axis}"
            elif any(len(shape) <= axis or shape[axis] % groups for shape in shapes):
                yield f"{target}: shapes {' and '.join(map(str, shapes))} have no {groups} equal groups along {axis}"
            else:
                steps = [made.shape[axis] // groups for made in own]
                parts = [made.along(axis, g * s, (g + 1) * s) for g in range(groups) for made, s in zip(own, steps)]
                yield from _put(table, target, join(parts, axis))

    return do


def split(pattern: str, names: Sequence[str], shares: Sequence[int], *, axis: int = 0, groups: int = 1) -> Map:
    """The way back of `fuse`: the parts' extents are as `shares`."""

    def do(table: Table) -> Iterator[str]:
        for texts, old in _found(pattern, table).items():
            made = table.pop(old)
            if len(made.shape) <= axis or made.shape[axis] % (groups * sum(shares)):
                yield f"{old} of shape {made.shape} has no {groups} groups of shares {tuple(shares)} along {axis}"
                continue
            unit, first = made.shape[axis] // (groups * sum(shares)), 0
            step = unit * sum(shares)
            for name, share in zip(names, shares):
                at = [g * step + first for g in range(groups)]
                parts = [made.along(axis, low, low + share * unit) for low in at]
                yield from _put(table, _filled(name, texts), join(parts, axis))
                first += share * unit

    return do


def stack(name: str, pattern: str) -> Map:
    """Tensors whose names differ in a number, the pattern's last `#`, become one with a new first dimension: experts.
    The others of its wildcards are `name`'s."""
    place = len(re.findall(r"[*#]", pattern[: pattern.rindex("#")]))

    def do(table: Table) -> Iterator[str]:
        groups: dict[tuple[str, ...], dict[int, str]] = {}
        for texts, old in _found(pattern, table).items():
            groups.setdefault((*texts[:place], *texts[place + 1 :]), {})[int(texts[place])] = old
        for texts, members in groups.items():
            target, own = _filled(name, texts), [table.pop(members[i]) for i in sorted(members)]
            absent = sorted(set(range(max(members))) - members.keys())
            if absent:
                yield f"{target} needs number {absent[0]} of {pattern}, which no rank has"
            elif len({made.shape for made in own}) > 1:
                yield f"{target} cannot be stacked of tensors of several shapes"
            else:
                yield from _put(table, target, join([made.within() for made in own], 0))

    return do


def unstack(pattern: str, name: str) -> Map:
    """The way back of `stack`: the last `#` of `name` is the number."""
    place = len(re.findall(r"[*#]", name[: name.rindex("#")]))

    def do(table: Table) -> Iterator[str]:
        for texts, old in _found(pattern, table).items():
            made = table.pop(old)
            for i in range(made.shape[0]):
                own = _filled(name, (*texts[:place], str(i), *texts[place:]))
                yield from _put(table, own, made.along(0, i, i + 1).without())

    return do


def refuse(faults: Iterable[str]) -> None:
    """All of them at once, each one once."""
    told = list(dict.fromkeys(faults))
    if len(told) > MOST_FAULTS:
        told[MOST_FAULTS:] = [f"and {len(told) - MOST_FAULTS} more"]
    if told:
        raise InputError("; ".join(told))


def coverage(shape: Sequence[int], boxes: Iterable[Box]) -> tuple[Box | None, Box | None]:
    """A box that is in two of these, and one that is in none of them."""
    listed = sorted(boxes)
    active: list[Box] = []
    twice: Box | None = None
    never: Box | None = None
    for box in listed:
        active = [other for other in active if not box or other[0][1] > box[0][0]]
        if twice is None:
            twice = next((c for other in active if (c := common(other, box)) is not None), None)
        active.append(box)
    if twice is not None or sum(math.prod(extents(box)) for box in listed) != math.prod(shape):
        never = untouched(whole(shape), tuple(listed))
    return twice, never


@functools.lru_cache(4096)
def untouched(box: Box, boxes: tuple[Box, ...]) -> Box | None:
    """A box within this one that none of those touches."""
    if not all(high > low for low, high in box):
        return None
    inside = next((c for other in boxes if (c := common(box, other)) is not None), None)
    if inside is None:
        return box
    for d, ((low, high), (first, last)) in enumerate(zip(box, inside)):
        for side in ((low, first), (last, high)):
            left = untouched((*box[:d], side, *box[d + 1 :]), boxes)
            if left is not None:
                return left
        box = (*box[:d], (first, last), *box[d + 1 :])
    return None


def check(
    given: Iterable[Piece],
    sources: Mapping[str, Sequence[int]],
    targets: Mapping[str, Sequence[int]],
    strict: bool = True,
) -> Iterator[str]:
    """What is wrong with pieces, as sentences: all names that are missing, surplus (`strict`) or have another shape,
    and every target with an element that is written twice or never."""
    written: dict[str, list[Box]] = {name: [] for name in targets}
    used = set()
    for piece in given:
        made = derived(piece.source)
        used.add(piece.source if made is None else made.source)
        checked = ((piece.source, piece.box, sources), (piece.target, piece.at, targets))[0 if piece.source else 1 :]
        if piece.target not in targets:
            yield f"{piece.target} is made of {piece.source} but no rank wants it"
            continue
        written[piece.target].append(piece.at)
        for name, box, shapes in checked:
            shape = shapes.get(name)
            if made is not None and name == piece.source and made.source in shapes:
                shape = made.shape(shapes[made.source])
            if shape is None:
                yield f"{name} is wanted but no rank has it"
            elif len(shape) != len(box) or any(low < 0 or high > n for (low, high), n in zip(box, shape)):
                yield f"{name} has shape {tuple(shape)}, in which {show(box)} is no box"
    for name in sources.keys() - used if strict else ():
        yield f"{name} is in src but no rank wants it (strict=False allows that)"
    for name, boxes in written.items():
        if not boxes and 0 not in targets[name]:
            yield f"{name} is wanted but no rank has it"
        elif all(len(box) == len(targets[name]) for box in boxes):
            twice, never = coverage(targets[name], boxes)
            if twice is not None:
                yield f"{name}: {show(twice)} is written twice"
            if never is not None:
                yield f"{name}: {show(never)} is never written"


def pieces(
    maps: Sequence[Map | Piece],
    sources: Mapping[str, Sequence[int]],
    targets: Mapping[str, Sequence[int]],
    strict: bool = True,
) -> list[Piece]:
    """The pieces that maps come to for tensors of these shapes, or those that are given, all checked."""
    given = [piece for piece in maps if isinstance(piece, Piece)]
    faults: list[str] = []
    if given and len(given) < len(maps):
        raise InputError("maps are either pieces or named maps, not both")
    if not given:
        table = {name: Tensor.of(name, shape) for name, shape in sources.items()}
        for change in maps:
            assert not isinstance(change, Piece)
            faults += change(table)
        for name, made in sorted(table.items()):
            if name in targets and made.shape != tuple(targets[name]):
                faults.append(f"{name} has shape {made.shape} in src and {tuple(targets[name])} in dst")
            elif name in targets:
                given += [piece._replace(target=name) for piece in made.pieces]
            elif strict:
                faults.append(f"{name} is in src but no rank wants it (strict=False allows that)")
        fitting = {name: shape for name, shape in targets.items()
                     if name not in table or table[name].shape == tuple(shape)}  # fmt: skip
        faults += check(given, sources, fitting, strict=False)
    else:
        faults += check(given, sources, targets, strict)
    refuse(faults)
    return given
