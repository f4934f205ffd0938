# SPDX-License-Identifier: Apache-2.0
"""Meshes and layouts: where tensors are, and where they should be. They never change."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence

from . import _native
from ._native import lib
from .errors import InputError

__all__ = ["Layout", "Mesh"]

MOST_LINES = 32


class Mesh:
    """An N-dimensional array of ranks, axis 0 varying slowest.

    >>> Mesh((2, 4), range(8, 16))
    Mesh((2, 4), ranks=[8, 9, 10, 11, 12, 13, 14, 15])
    """

    def __init__(self, shape: Sequence[int] | int, ranks: Iterable[int] | None = None) -> None:
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for extent in self.shape:
            count *= extent
        listed = list(range(max(count, 0)) if ranks is None else ranks)
        if len(listed) != count:
            raise InputError(f"a mesh of shape {self.shape} has {count} ranks, not {len(listed)}")
        self.ranks: tuple[int, ...] = tuple(listed)
        handle = ctypes.c_void_p()
        lib.xm_mesh_create(len(self.shape), _native.ints(self.shape), _native.ints(self.ranks), handle)
        self._handle = handle.value
        weakref.finalize(self, lib.xm_mesh_destroy, self._handle).atexit = False

    @classmethod
    def parse(cls, shape: str, ranks: str | None = None, first_rank: int = 0) -> Mesh:
        """`Mesh.parse("2x4", "8-15")`; without ranks those from `first_rank` on."""
        handle = ctypes.c_void_p()
        lib.xm_mesh_parse(shape.encode(), ranks.encode() if ranks else None, first_rank, handle)
        try:
            axes = [lib.xm_mesh_axis_size(handle, a) for a in range(lib.xm_mesh_axes(handle))]
            listed = [lib.xm_mesh_rank(handle, p) for p in range(lib.xm_mesh_size(handle))]
        finally:
            lib.xm_mesh_destroy(handle)
        return cls(axes, listed)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def position(self, rank: int) -> int | None:
        """Row-major position of a rank; None where it is not in the mesh."""
        position: int = lib.xm_mesh_position(self._handle, rank)
        return None if position < 0 else position

    def __contains__(self, rank: object) -> bool:
        return rank in self.ranks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.shape == other.shape and self.ranks == other.ranks

    def __hash__(self) -> int:
        return hash((self.shape, self.ranks))

    def __repr__(self) -> str:
        return f"Mesh({self.shape}, ranks={list(self.ranks)})"


class Layout:
    """How a tensor lies on a mesh: `Layout(mesh, "S01R", (8192, 8192))`.

    The spec has a token for each dimension: `R`, whole, or `S` and the mesh axes that split it, outermost first.
    `partition` is `even` (must divide), `chunk` (torch's rule), `balanced` (numpy.array_split's), or `explicit` with
    `cuts`: for each split dimension its cut points from 0 to the extent, None for one that is whole. Buffers hold
    tiles row-major and without padding.
    """

    def __init__(
        self,
        mesh: Mesh,
        spec: str,
        shape: Sequence[int],
        partition: str = "even",
        cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        self.mesh, self.spec, self.shape = mesh, spec, tuple(shape)
        self.partition = "explicit" if cuts is not None else partition
        parsed, kind = _native.Spec(), ctypes.c_int()
        lib.xm_spec_parse(spec.encode(), parsed)
        if parsed.dims != len(self.shape):
            raise InputError(f"spec {spec} has {parsed.dims} dimensions, the shape {self.shape}")
        extents, handle = _native.int64s(self.shape), ctypes.c_void_p()
        if cuts is None:
            lib.xm_partition_parse(partition.encode(), kind)
            lib.xm_layout_create(mesh._handle, parsed, kind, extents, handle)
        else:
            lib.xm_layout_create_explicit(mesh._handle, parsed, extents, self._cut_arrays(parsed, cuts), handle)
        self._handle = handle.value
        weakref.finalize(self, lib.xm_layout_destroy, self._handle).atexit = False

    def _cut_arrays(self, parsed: _native.Spec, cuts: Sequence[Sequence[int] | None]) -> object:
        """The cuts as C arrays, after a look at their numbers, which C cannot take."""
        if len(cuts) != len(self.shape):
            raise InputError(f"cuts of {len(cuts)} dimensions for the shape {self.shape}")
        pointer = ctypes.POINTER(ctypes.c_int64)
        arrays = (pointer * max(1, len(cuts)))()
        for d, points in enumerate(cuts):
            parts = 1
            for i in range(parsed.axis_count[d]):
                axis = parsed.axes[d][i]
                parts *= self.mesh.shape[axis] if axis < len(self.mesh.shape) else 1
            if points is not None and len(points) != parts + 1:
                raise InputError(f"dimension {d} has {parts} parts: {parts + 1} cuts, not {len(points)}")
            if points is not None:
                arrays[d] = ctypes.cast(_native.int64s(points), pointer)
        return arrays

    def cuts(self, dim: int) -> tuple[int, ...]:
        """The cut points of a dimension, from 0 to its extent."""
        if not 0 <= dim < len(self.shape):
            raise InputError(f"dimension {dim} of a tensor of {len(self.shape)}")
        points = lib.xm_layout_cuts(self._handle, dim)
        return tuple(points[: lib.xm_layout_parts(self._handle, dim) + 1])

    def tile(self, rank: int) -> tuple[slice, ...] | None:
        """What a rank holds, as an index into the whole tensor; None outside the mesh."""
        number = lib.xm_layout_tile_of_rank(self._handle, rank)
        if number < 0:
            return None
        box = _native.Box()
        lib.xm_layout_tile_box(self._handle, number, box)
        return tuple(slice(box.lo[d], box.hi[d]) for d in range(box.dims))

    def tile_shape(self, rank: int) -> tuple[int, ...] | None:
        tile = self.tile(rank)
        return None if tile is None else tuple(s.stop - s.start for s in tile)

    def tile_bytes(self, rank: int, itemsize: int) -> int:
        """Bytes of a rank's buffer; 0 outside the mesh."""
        number: int = lib.xm_layout_buffer_bytes(self._handle, rank, itemsize)
        return number

    def __repr__(self) -> str:
        return f"Layout({self.mesh!r}, {self.spec!r}, {self.shape}, {self.partition!r})"

    def __str__(self) -> str:
        """Which part each rank holds."""
        lines = [f"{self.spec or 'scalar'} {self.shape} on a mesh {self.mesh.shape}, {self.partition}:"]
        for rank in self.mesh.ranks[:MOST_LINES]:
            tile = self.tile(rank) or ()
            lines.append(f"  rank {rank}: [" + ", ".join(f"{part.start}:{part.stop}" for part in tile) + "]")
        if len(self.mesh.ranks) > MOST_LINES:
            lines.append(f"  and {len(self.mesh.ranks) - MOST_LINES} more")
        return "\n".join(lines)

    def _repr_svg_(self) -> str:
        """For notebooks: the tensor, cut into its parts, with the ranks that hold them."""
        from ._svg import draw_layout

        return draw_layout(self)
