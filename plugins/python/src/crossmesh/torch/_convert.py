# SPDX-License-Identifier: Apache-2.0
"""Tensors that are given a narrower type on their way: their scales, which ranks that share a block agree on, and the one
place where elements change their type."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..conversions import MAXIMA, NARROW, ROUNDED, SCALES, WIDE, WIDEN, Derived, derived
from ..errors import InputError
from ..job import Job
from ..layouts import Layout
from ..maps import Box, common, extents
from ._describe import Described, Tile, dtype_name


def copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Rounded as torch does, into contiguous memory or out of it."""
    wide, narrow = (to, source) if to.dtype == torch.float32 else (source, to)
    if (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16) and wide.device == narrow.device and not wide.is_cuda:
        step = WIDEN if wide is to else NARROW
        wide, narrow = (t.reshape(1, -1) if t.dim() < 2 else t for t in (wide, narrow))
        if all(t.stride(-1) == 1 for t in (wide, narrow)) and not wide.is_neg():
            for index in itertools.product(*map(range, wide.shape[:-2])):
                w, n = wide[index], narrow[index]
                ROUNDED.apply(step, "float32", (w.shape[0], w.shape[1]), wide=_memory(w), narrow=_memory(n))
            return
    to.copy_(source)


def _memory(matrix: torch.Tensor) -> tuple[int, int]:
    return matrix.data_ptr(), matrix.stride(0)


class Made(Described):
    """Values or scales that are made of a source, as if it were one itself."""

    def __init__(self, of: Described, made: Derived) -> None:
        assert of.shape is not None
        if of.dtype not in WIDE:
            raise InputError(f"{of.name} is {of.dtype}; what is quantized is {' or '.join(WIDE)}")
        dtype = made.conversion.scale if made.scales else of.dtype
        super().__init__(made.name, made.shape(of.shape), dtype, of.sizes, of.ranks, of.placements, of.nested)
        self.of, self.made = of, made

    def boxes(self) -> Layout | None:
        return None if self.made.scales else self.of.boxes()

    def tiles(self) -> tuple[Tile, ...]:
        """Of scales: a block's is where its first element is."""
        if not self.made.scales:
            return self.of.tiles()
        listed = ((rank, self.grid(box, first=True)) for rank, box, _ in self.of.tiles())
        return tuple((rank, box, (0,) * len(box)) for rank, box in listed if 0 not in extents(box))

    def grid(self, box: Box, first: bool = False) -> Box:
        """The blocks of which a box has something, or the first element."""
        assert self.of.shape is not None
        sides = self.made.conversion.sides(self.of.shape)
        along = [(-(-low // n) if first else low // n, -(-high // n)) for (low, high), n in zip(box[-2:], sides)]
        return (*box[:-2], *along)

    def cut(self, box: Box) -> list[Box]:
        """The blocks of which a box has only a part."""
        assert self.of.shape is not None
        grid, edges = self.grid(box), set()
        for d, n in zip((-2, -1), self.made.conversion.sides(self.of.shape)):
            for end in box[d]:
                if end % n and end != self.of.shape[d]:
                    edge = list(grid)
                    edge[d] = end // n, end // n + 1
                    edges.add(tuple(edge))
        return sorted(edges)


class Sources(dict[str, Described]):
    """What all ranks know of sources, and of what is made of them."""

    def __missing__(self, name: str) -> Described:
        made = derived(name)
        if made is None or made.source not in self:
            raise KeyError(name)
        return Made(self[made.source], made)


@dataclass
class _Piece:
    """What this rank has of a source, with its blocks."""

    box: Box
    tensor: torch.Tensor
    grid: Box
    scales: torch.Tensor
    maxima: torch.Tensor | None = None


class Scaled:
    """A source whose elements are narrowed here, and the scales of its blocks."""

    def __init__(self, about: Made, mine: Sequence[tuple[Box, torch.Tensor]]) -> None:
        self._about, self._conversion = about, about.made.conversion
        self._pieces = []
        for box, tensor in mine:
            grid = about.grid(box)
            dtype = getattr(torch, self._conversion.scale)
            scales = torch.zeros(extents(grid), dtype=dtype, device=tensor.device)
            self._pieces.append(_Piece(box, tensor, grid, scales))
        # Whoever has a part of a block tells its maximum; of ranks with the same part the first one.
        holders: dict[Box, int] = {}
        for rank, box, _ in about.of.tiles():
            if 0 not in extents(box):
                holders.setdefault(box, rank)
        self.cut = [(rank, box, edge) for box, rank in holders.items() for edge in about.cut(box)]

    def owns(self) -> Iterator[tuple[Box, torch.Tensor]]:
        """The scales that are this rank's to send."""
        for piece in self._pieces:
            box = self._about.grid(piece.box, first=True)
            if 0 not in extents(box):
                yield box, _part(piece.scales, piece.grid, box)

    def _apply(self, step: int, piece: _Piece, box: Box, wide: torch.Tensor, narrow: torch.Tensor | None = None) -> None:
        """One step for a box of a piece, matrix by matrix."""
        assert self._about.of.shape is not None
        sides = self._conversion.sides(self._about.of.shape)
        at = tuple(low - first * n for (low, _), (first, _), n in zip(box[-2:], piece.grid[-2:], sides))
        wide = wide.resolve_neg()
        if wide.is_cuda:
            torch.cuda.current_stream(wide.device).synchronize()  # the conversion has a stream of its own
        for index in itertools.product(*map(range, wide.shape[:-2])):
            place = tuple(i + low - first for i, (low, _), (first, _) in zip(index, box, piece.grid))
            matrix = wide[index] if wide.stride(-1) == 1 else wide[index].contiguous()
            self._conversion.apply(
                step,
                dtype_name(wide.dtype),
                (matrix.shape[0], matrix.shape[1]),
                (at[0], at[1]),
                wide=_memory(matrix),
                narrow=(0, 0) if narrow is None else _memory(narrow[index]),
                maxima=0 if piece.maxima is None else piece.maxima[place].data_ptr(),
                scales=_memory(piece.scales[place]),
            )

    def measure(self) -> None:
        """The maxima of this rank's parts; also the scales where it shares no block."""
        for piece in self._pieces:
            piece.maxima = torch.zeros(extents(piece.grid), device=piece.tensor.device)
            self._apply(MAXIMA, piece, piece.box, piece.tensor)
            if not self.cut:
                self.settle(piece)

    def settle(self, *pieces: _Piece) -> None:
        for piece in pieces or self._pieces:
            self._apply(SCALES, piece, piece.box, piece.tensor)
            piece.maxima = None

    def tell(self, own: int) -> Iterator[bytes]:
        for rank, box, edge in self.cut:
            if rank == own:
                piece = next(p for p in self._pieces if p.box == box)
                assert piece.maxima is not None
                edges = _part(piece.maxima, piece.grid, edge).cpu().contiguous()
                yield ctypes.string_at(edges.data_ptr(), 4 * edges.numel())

    def hear(self, take: Callable[[int, int], bytes]) -> None:
        for rank, _, edge in self.cut:
            told = torch.frombuffer(bytearray(take(rank, 4 * math.prod(extents(edge)))), dtype=torch.float32)
            for piece in self._pieces:
                both = common(edge, piece.grid)
                if both is not None and piece.maxima is not None:
                    here = _part(piece.maxima, piece.grid, both)
                    here.copy_(torch.maximum(here, _part(told.view(extents(edge)), edge, both).to(here.device)))

    def narrow(self, region: Box, to: torch.Tensor, view: torch.Tensor) -> None:
        """Fills what is sent of a region, of which `view` is what this rank has."""
        piece, box = next((p, both) for p in self._pieces if (both := common(p.box, region)) is not None)
        self._apply(NARROW, piece, box, view, to)


def _part(tensor: torch.Tensor, of: Box, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(low - first, high - first) for (low, high), (first, _) in zip(box, of))]


def scale(job: Job, scaled: Sequence[Scaled]) -> None:
    """The scales of what sources hold now, on all ranks that hold it. Collective where a block has several holders."""
    for one in scaled:
        one.measure()
    shared = [one for one in scaled if one.cut]
    if not shared:
        return
    answers = job.allgather(b"".join(told for one in shared for told in one.tell(job.rank)))
    at = [0] * len(answers)

    def take(rank: int, size: int) -> bytes:
        at[rank] += size
        return answers[rank][at[rank] - size : at[rank]]

    for one in shared:
        one.hear(take)
        one.settle()
