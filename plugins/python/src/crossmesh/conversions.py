# SPDX-License-Identifier: Apache-2.0
"""Narrower types for tensors on their way, with a scale for each block: what they are, and the kernels that make them.

A map (crossmesh.maps.quantize) makes two tensors of one: its values, and the scales of its blocks. Until they are made
they have names of their own, "w as mxfp8" and "w as mxfp8 scales". See docs/conversions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from . import _abi, _native
from ._native import lib

__all__ = ["CONVERSIONS", "Conversion", "Derived", "derived"]

MAXIMA, SCALES, NARROW, WIDEN = (_abi.XM_CONVERT_MAXIMA, _abi.XM_CONVERT_SCALES, _abi.XM_CONVERT_NARROW,
                                 _abi.XM_CONVERT_WIDEN)  # fmt: skip
# Elements that xm_convert() reads.
WIDE = ("float32", "bfloat16")


class Conversion(NamedTuple):
    """`block`: rows and columns of one, 0 for all of a row. `suffix`: of the scales' name, as checkpoints have it."""

    kind: int
    dtype: str
    block: tuple[int, int] = (1, 0)
    scale: str = "float32"
    suffix: str = ""

    def sides(self, shape: Sequence[int]) -> tuple[int, int]:
        """Rows and columns of a block in a tensor of that shape."""
        return self.block[0], self.block[1] or max(1, shape[-1])

    def grid(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the scales."""
        rows, columns = self.sides(shape)
        return (*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // columns))

    def apply(
        self,
        step: int,
        dtype: str,
        size: tuple[int, int],
        at: tuple[int, int] = (0, 0),
        *,
        wide: tuple[int, int] = (0, 0),
        narrow: tuple[int, int] = (0, 0),
        maxima: int = 0,
        scales: tuple[int, int] = (0, 0),
    ) -> None:
        """One step (<crossmesh/convert.h>) for a tile whose wide elements have that dtype: of `size`, `at` a row and a
        column of where the maxima and scales start. Memory is an address and a stride; maxima have the scales'."""
        lib.xm_convert(
            _native.ConvertParams(
                kind=self.kind, float32=dtype == "float32", rows=size[0], columns=size[1], row=at[0], column=at[1],
                wide=wide[0], wide_stride=wide[1], narrow=narrow[0], narrow_stride=narrow[1], maxima=maxima,
                scales=scales[0], scale_stride=scales[1],
            ),
            step,
        )  # fmt: skip


ROUNDED = Conversion(_abi.XM_CONVERT_BFLOAT16, "bfloat16")
CONVERSIONS = {
    "fp8_blocks": Conversion(_abi.XM_CONVERT_FP8_BLOCKS, "float8_e4m3fn", (128, 128), "float32", "_scale_inv"),
    "mxfp8": Conversion(_abi.XM_CONVERT_MXFP8, "float8_e4m3fn", (1, 32), "uint8", "_scale"),
    "int8_rows": Conversion(_abi.XM_CONVERT_INT8_ROWS, "int8", (1, 0), "float32", "_scale"),
}


class Derived(NamedTuple):
    """What a source's name says of one that is made of another."""

    source: str
    kind: str
    scales: bool

    @property
    def conversion(self) -> Conversion:
        return CONVERSIONS[self.kind]

    @property
    def name(self) -> str:
        return f"{self.source} as {self.kind}" + " scales" * self.scales

    def shape(self, of: Sequence[int]) -> tuple[int, ...]:
        return self.conversion.grid(of) if self.scales else tuple(of)


def derived(name: str) -> Derived | None:
    """None for a tensor that is moved as it is."""
    source, middle, kind = name.removesuffix(" scales").rpartition(" as ")
    return Derived(source, kind, name.endswith(" scales")) if middle and kind in CONVERSIONS else None
