# SPDX-License-Identifier: Apache-2.0
"""The pieces that a program's own loader comes to, found out by running it.

A loader is given whole weights and copies what belongs to its rank: rows of a fused projection, a share of the
vocabulary, its experts. Here it is given weights without memory (on torch's meta device), and what it copies is
written down instead. So the loader of any model says where the bytes have to go, and no rank ever needs a whole weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import CrossmeshError, InputError
from ..maps import Box, Piece, Tensor, check, refuse, whole
from ._describe import dtype_name
from ._parts import Own, part_of, turned

Weights = Mapping[str, tuple[Sequence[int], torch.dtype]]
Load = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]
MOST_BOXES = 4096
aten = torch.ops.aten
COPIES = (aten.clone.default, aten._to_copy.default, aten.cat.default, aten.stack.default)
FILLS = (aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)


def record(
    load: Load, weights: Weights, targets: torch.nn.Module | Mapping[str, torch.Tensor] | None = None
) -> list[Piece]:
    """The pieces in which `load(iterator of names and tensors)` takes weights of these shapes and dtypes, for `maps=`
    of a transfer. Targets are a module's parameters, or these tensors, or those of the dictionary that `load` returns;
    they may be on the meta device.

    Loaders may slice, transpose, reshape, concatenate, stack, cast and copy, and fill what no weight is for. One that
    computes with a weight is refused by the weight's name, as are all weights of which it takes no element, and targets
    with an element that is written twice or never.
    """
    found = trace(load, weights, targets)
    shapes = {name: shape for name, (shape, _) in weights.items()}
    refuse(check(found.pieces, shapes, {name: tuple(t.shape) for name, t in found.targets.items()}))
    return found.pieces


@dataclass
class Recording:
    pieces: list[Piece] = field(default_factory=list)
    targets: dict[str, torch.Tensor] = field(default_factory=dict)

    def owns(self) -> dict[str, list[Own]]:
        """By source, which boxes of it go where."""
        found: dict[str, list[Own]] = {}
        for piece in self.pieces:
            target = self.targets[piece.target]
            view = part_of([Own(whole(target.shape), target)], piece.at)
            if piece.source and view is not None:
                found.setdefault(piece.source, []).append(Own(piece.box, turned(piece, view)))
        return found


def trace(
    load: Load, weights: Weights, targets: torch.nn.Module | Mapping[str, torch.Tensor] | None = None
) -> Recording:
    """As record(), without a check. Weights are not written to targets; what is filled is."""
    recorder = _Recorder()
    with torch.no_grad():
        try:
            for name, tensor in _named(targets).items():
                recorder.aim(name, tensor)
            with recorder:
                result = load(recorder.offer(weights))
            for name, tensor in (result if isinstance(result, dict) else _named(targets)).items():
                recorder.replace(name, tensor)
        except CrossmeshError:
            raise
        except Exception as error:
            raise InputError(
                f"{recorder.current}: the model's load_weights() failed on a weight without values "
                f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'})"
            ) from error
    return recorder.found


def play(load: Load, weights: Weights, held: Mapping[str, Sequence[Own]]) -> None:
    """Calls a loader that was traced once more, and makes its copies out of these boxes of the weights."""
    player = _Player(held)
    with torch.no_grad(), player:
        load(player.offer(weights))


def _named(targets: torch.nn.Module | Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    named = dict(targets.named_parameters()) if isinstance(targets, torch.nn.Module) else dict(targets or {})
    return {name: tensor.detach() for name, tensor in named.items()}


class _Base(NamedTuple):
    """A tensor that has memory of its own, and what is in it."""

    name: str
    tensor: torch.Tensor
    pieces: list[Piece]


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.found = Recording()
        self.current = "(no weight yet)"
        self._bases: dict[int, _Base] = {}  # by storage: weights, and what is made of them
        self._aims: dict[int, _Base] = {}
        self._computed: dict[int, tuple[str, str, torch.Tensor]] = {}

    def offer(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        for name, (shape, dtype) in weights.items():
            given = torch.empty(tuple(shape), dtype=dtype, device="meta")
            self._bases[_storage(given)] = _Base(name, given, list(Tensor.of(name, given.shape).pieces))
            self.current = name
            yield name, given

    def aim(self, name: str, tensor: torch.Tensor) -> _Base:
        base = _Base(name, tensor, self.found.pieces)
        self.found.targets[name] = tensor
        return self._aims.setdefault(_storage(tensor), base)

    def replace(self, name: str, tensor: torch.Tensor) -> None:
        """A target that is now, or has become, what was made of weights."""
        if _storage(tensor) in self._bases or _storage(tensor) in self._computed:
            target = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            if name in self.found.targets:
                target = torch.empty_like(self.found.targets[name], device="meta")
            self.aim(name, target)
            self._copy(target, tensor)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        flat = [t for a in args for t in (a if isinstance(a, (tuple, list)) else [a]) if isinstance(t, torch.Tensor)]
        if function is aten.copy_.default and self._is_made(args[1]):
            self._copy(args[0], args[1])
            return args[0]
        if function in FILLS and _storage(args[0]) in self._aims:
            self._fill(args[0])
        if function in COPIES and any(map(self._is_made, flat)):
            kwargs.pop("device", None)  # there are no values that could go to another
            return self._made_by(function, args, kwargs)
        result = function(*args, **kwargs)
        for given in flat:
            if given.device.type == "meta":
                self._follow(str(function), given, result)
        return result

    def _is_made(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "meta" and (_storage(tensor) in self._bases or _storage(tensor) in self._computed)

    def _made_by(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """The result of an operation that only copies."""
        result: torch.Tensor = function(*args, **kwargs)
        self._bases[_storage(result)] = _Base(self.current, result, [])
        if isinstance(args[0], torch.Tensor):
            self._copy(result, args[0])
            return result
        axis, first = args[1] if len(args) > 1 else kwargs.get("dim", 0), 0
        for part in args[0]:
            extent = 1 if function is aten.stack.default else part.shape[axis]
            room = result.narrow(axis, first, extent)
            self._copy(room.squeeze(axis) if function is aten.stack.default else room, part)
            first += extent
        return result

    def _follow(self, what: str, given: torch.Tensor, result: Any) -> None:
        """What comes of a weight and is no view of it."""
        base = self._bases.get(_storage(given))
        name = base.name if base is not None else self._computed.get(_storage(given), ("",))[0]
        for made in result if isinstance(result, (tuple, list)) else [result]:
            if name and isinstance(made, torch.Tensor) and made.device.type == "meta":
                if _storage(made) not in self._bases and _storage(made) not in self._aims:
                    self._computed.setdefault(_storage(made), (name, what, made))

    def _room(self, target: torch.Tensor) -> _Base:
        """What a copy goes to: a target, something made, or memory that nobody has named."""
        key = _storage(target)
        base = self._aims.get(key) or self._bases.get(key)
        if base is None:
            base = _Base(f"target {len(self.found.targets)}", target.detach(), self.found.pieces)
            self.found.targets[base.name] = base.tensor
        return base

    def _fill(self, target: torch.Tensor) -> None:
        base = self._aims[_storage(target)]
        for _, at, _ in _boxes(base.name, target, (target, base.tensor)) if target.numel() else ():
            base.pieces.append(Piece("", (), (-1,) * len(at), base.name, at))

    def _copy(self, target: torch.Tensor, view: torch.Tensor) -> None:
        if _storage(view) in self._computed:
            name, what, _ = self._computed[_storage(view)]
            raise InputError(
                f"{name}: the model's load_weights() computes ({what}) with the weight before it stores it; "
                "crossmesh moves bytes only"
            )
        base = self._bases[_storage(view)]
        name = base.name
        if target.shape != view.shape:
            raise InputError(f"{name}: the model stores {tuple(view.shape)} elements in {tuple(target.shape)}")
        if view.numel() == 0:
            return
        cast = None if target.dtype == view.dtype else dtype_name(target.dtype)
        room = self._room(target)
        for box, at, axes in _boxes(name, view, (base.tensor, room.tensor), target):
            outer = Piece("", box, axes, room.name, at, cast)
            made = [outer.after(inner) for inner in base.pieces]
            room.pieces.extend(piece for piece in made if piece is not None)


class _Player(_Recorder):
    """Copies to memory are made, out of what is held; those between what has no memory are followed as before."""

    def __init__(self, held: Mapping[str, Sequence[Own]]) -> None:
        super().__init__()
        self._held = {(name, own.box): own.tensor for name, listed in held.items() for own in listed}

    def _copy(self, target: torch.Tensor, view: torch.Tensor) -> None:
        if target.device.type == "meta":
            if _storage(target) in self._bases:
                super()._copy(target, view)
            return
        base = self._bases[_storage(view)]
        for box, at, axes in _boxes(base.name, view, (base.tensor, target), target) if view.numel() else ():
            for inner in base.pieces:
                piece = Piece("", box, axes, "", at).after(inner)
                room = None if piece is None else part_of([Own(whole(target.shape), target.detach())], piece.at)
                if piece is not None and room is not None:
                    turned(piece, room).copy_(self._held[piece.source, piece.box])


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


Steps = tuple[int, int]
Found = tuple[Box, Box, tuple[int, ...]]


def _boxes(
    name: str, view: torch.Tensor, bases: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor | None = None
) -> list[Found]:
    """Boxes of both bases between which a copy of a view to another one copies, and the axes of that."""
    other = view if target is None else target
    dims = [(n, (s, t)) for n, s, t in zip(view.shape, view.stride(), other.stride()) if n > 1]
    at = (view.storage_offset() - bases[0].storage_offset(), other.storage_offset() - bases[1].storage_offset())
    merged = True
    while merged:
        merged = False
        for one, two in itertools.permutations(dims, 2):
            if all(a == two[0] * b for a, b in zip(one[1], two[1])):
                dims = [d for d in dims if d is not one and d is not two] + [(one[0] * two[0], two[1])]
                merged = True
                break
    found = _match(dims, at, bases, [MOST_BOXES])
    if found is None:
        raise InputError(
            f"{name}: the model's load_weights() takes elements that are no box of the weight (shape "
            f"{tuple(view.shape)}, strides {tuple(view.stride())} of {tuple(bases[0].shape)})"
        )
    return found


def _match(
    dims: list[tuple[int, Steps]], at: Steps, bases: tuple[torch.Tensor, torch.Tensor], left: list[int]
) -> list[Found] | None:
    """Finds a dimension of both bases for each of these. One that is several of a base is cut into them, one that is
    none of it is taken step by step; None where that comes to too many boxes."""
    sides: list[tuple[list[int], dict[int, int]]] = []
    for side, base in enumerate(bases):
        low = _start(at[side], base)
        taken: dict[int, int] = {}
        if low is None:
            return None
        for k, (n, steps) in enumerate(dims):
            axis = next((d for d in range(base.dim()) if base.stride(d) == steps[side] and base.shape[d] > 1
                         and d not in taken.values()), None)  # fmt: skip
            if axis is not None and low[axis] + n <= base.shape[axis]:
                taken[k] = axis
                continue
            rest = [*dims[:k], *dims[k + 1 :]]
            if axis is not None and low[axis] == 0 and n % base.shape[axis] == 0:
                inner = base.shape[axis]
                outer = (n // inner, (steps[0] * inner, steps[1] * inner))
                return _match([*rest, outer, (inner, steps)], at, bases, left)
            parts = [_match(rest, (at[0] + i * steps[0], at[1] + i * steps[1]), bases, left)
                     for i in range(n if n <= left[0] else 0)]  # fmt: skip
            if not parts or any(part is None for part in parts):
                return None
            return [box for part in parts for box in part or ()]
        sides.append((low, taken))
    left[0] -= 1
    return [_found(dims, sides, bases)] if left[0] >= 0 else None


def _start(offset: int, base: torch.Tensor) -> list[int] | None:
    """The index of the element at that offset."""
    low = [0] * base.dim()
    for d in sorted(range(base.dim()), key=lambda d: -base.stride(d)):
        if base.shape[d] > 1 and base.stride(d) > 0:
            low[d] = min(offset // base.stride(d), base.shape[d] - 1)
            offset -= low[d] * base.stride(d)
    return low if offset == 0 else None


def _found(
    dims: list[tuple[int, Steps]],
    sides: list[tuple[list[int], dict[int, int]]],
    bases: tuple[torch.Tensor, torch.Tensor],
) -> Found:
    boxes = []
    for (low, taken), base in zip(sides, bases):
        extent = {axis: dims[k][0] for k, axis in taken.items()}
        boxes.append(tuple((low[d], low[d] + extent.get(d, 1)) for d in range(base.dim())))
    sources = {sides[1][1][k]: axis for k, axis in sides[0][1].items()}
    return boxes[0], boxes[1], tuple(sources.get(d, -1) for d in range(bases[1].dim()))
