# SPDX-License-Identifier: Apache-2.0
"""Which part of every weight a serving rank keeps, found out by asking its model.

A serving model's `load_weights()` is given whole weights and copies what belongs to its rank: rows of a fused
projection, a share of the vocabulary, its experts. Here it is given weights without memory (on torch's meta device),
and each copy out of one is written down instead of made. So the loader of any model says where the bytes have to
go, and no rank ever needs a whole weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import CrossmeshError, InputError

Box = tuple[tuple[int, int], ...]
LoadWeights = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]


class Piece(NamedTuple):
    """A box of a weight, and the memory for it, a view of the same shape."""

    box: Box
    tensor: torch.Tensor


def trace(
    load_weights: LoadWeights,
    weights: Mapping[str, tuple[Sequence[int], torch.dtype]],
    held: Mapping[str, Sequence[Piece]] | None = None,
) -> dict[str, list[Piece]]:
    """Calls `load_weights` with weights of these shapes and dtypes, and says which boxes of them it stores where.

    Nothing is written to what is stored in, unless a loader that was traced is called once more with the pieces, `held`,
    of which its copies are made then. A loader that does more than slice and copy is refused, by the weight's name.
    """
    recorder = _Recorder(held)
    with torch.no_grad():
        try:
            with recorder:
                load_weights(recorder.offer(weights))
        except CrossmeshError:
            raise
        except Exception as error:
            raise InputError(
                f"{recorder.current}: the model's load_weights() failed on a weight without values "
                f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'})"
            ) from error
    return recorder.pieces


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, held: Mapping[str, Sequence[Piece]] | None) -> None:
        super().__init__()
        self.pieces: dict[str, list[Piece]] = {}
        self._held = {(name, piece.box): piece.tensor for name, pieces in (held or {}).items() for piece in pieces}
        self.current = "(no weight yet)"
        self._wholes: dict[int, tuple[str, torch.Tensor]] = {}  # by storage
        self._computed: dict[int, tuple[str, str, torch.Tensor]] = {}

    def offer(self, weights: Mapping[str, tuple[Sequence[int], torch.dtype]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, (shape, dtype) in weights.items():
            whole = torch.empty(tuple(shape), dtype=dtype, device="meta")
            self._wholes[_storage(whole)] = name, whole
            self.current = name
            yield name, whole

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.ops.aten.copy_.default and args[1].device.type == "meta":
            key = _storage(args[1])
            if key in self._wholes:
                self._keep(*self._wholes[key], args[0], args[1])
                return args[0]
            if key in self._computed:
                name, what, _ = self._computed[key]
                raise InputError(
                    f"{name}: the model's load_weights() computes ({what}) with the weight before it stores it; "
                    "crossmesh moves bytes only"
                )
        result = function(*args, **(kwargs or {}))
        for given in args:
            if isinstance(given, torch.Tensor) and given.device.type == "meta":
                self._follow(str(function), given, result)
        return result

    def _follow(self, what: str, given: torch.Tensor, result: Any) -> None:
        """What comes of a weight and is no view of it."""
        key = _storage(given)
        name = self._wholes[key][0] if key in self._wholes else self._computed.get(key, ("",))[0]
        for made in result if isinstance(result, (tuple, list)) else [result]:
            if name and isinstance(made, torch.Tensor) and made.device.type == "meta":
                if _storage(made) not in self._wholes:
                    self._computed.setdefault(_storage(made), (name, what, made))

    def _keep(self, name: str, whole: torch.Tensor, target: torch.Tensor, view: torch.Tensor) -> None:
        if target.dtype != view.dtype:
            raise InputError(
                f"{name} is sent as {_short(view.dtype)} and the model stores {_short(target.dtype)}; tensors are "
                "moved, not converted"
            )
        if target.shape != view.shape:
            raise InputError(f"{name}: the model stores {tuple(view.shape)} elements in {tuple(target.shape)}")
        if view.numel() > 0:
            piece = _piece(name, whole, target.detach(), view)
            self.pieces.setdefault(name, []).append(piece)
            if self._held and target.device.type != "meta":
                piece.tensor.copy_(self._held[name, piece.box])


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _piece(name: str, whole: torch.Tensor, target: torch.Tensor, view: torch.Tensor) -> Piece:
    """The box of `whole` that `view` is, and `target` with its dimensions in the order of the whole's."""
    low, rest = [], view.storage_offset()
    for stride in whole.stride():
        first, rest = divmod(rest, stride)
        low.append(first)
    extents, order = [1] * whole.dim(), []
    for i in reversed(range(view.dim())):
        if view.shape[i] == 1:
            target = target.select(i, 0)
    for extent, stride in zip(view.shape, view.stride()):
        if extent == 1:
            continue
        for d in range(whole.dim()):
            if whole.stride(d) == stride and low[d] + extent <= whole.shape[d] and d not in order:
                extents[d] = extent
                order.append(d)
                break
        else:
            raise InputError(
                f"{name}: the model's load_weights() takes elements that are no box of the weight (shape "
                f"{tuple(view.shape)}, strides {tuple(view.stride())} of {tuple(whole.shape)})"
            )
    target = target.permute([order.index(d) for d in sorted(order)])
    for d in range(whole.dim()):
        if d not in order:
            target = target.unsqueeze(d)
    return Piece(tuple((first, first + extent) for first, extent in zip(low, extents)), target)
