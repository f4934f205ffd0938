# SPDX-License-Identifier: Apache-2.0
"""Conversions bit by bit against torch and, where it is there, ml_dtypes: test_convert.py [ELEMENTS, of all kinds]."""

import sys
import unittest

import numpy
import torch

from crossmesh.conversions import CONVERSIONS, MAXIMA, NARROW, ROUNDED, SCALES, WIDEN

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

ELEMENTS = int(sys.argv.pop()) if sys.argv[-1].isdigit() else 1 << 22
ROWS, COLUMNS = 512, 2048
ROUNDS = max(4, -(-ELEMENTS // (4 * ROWS * COLUMNS)))


def values(seed, dtype):
    """Weights, ties, denormals, and all bits there are; NaN and infinities also one here and there."""
    torch.manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (ROWS, COLUMNS), dtype=torch.int64).to(torch.int32)
    kind = seed % 4
    if kind == 0:
        x = torch.randn(ROWS, COLUMNS) * 2.0 ** float(torch.randint(-20, 20, ()))
    elif kind == 1:
        x = ((bits & 0x01FF8000) | 0x3C000000 | (bits & -(2**31))).view(torch.float32)
    elif kind == 2:
        x = ((bits & 0x007FFFFF) | (bits & -(2**31))).view(torch.float32).clone()
        x[::3] *= 2.0**20
    else:
        x = bits.view(torch.float32)
    if kind < 3:
        x = x.clone()
        for value in (float("nan"), float("inf"), -float("inf"), -0.0):
            x.view(-1)[torch.randint(0, x.numel(), (2,))] = value
    return x.to(dtype)


def convert(conversion, x):
    narrow = torch.empty(x.shape, dtype=getattr(torch, conversion.dtype))
    memory = {"wide": (x.data_ptr(), COLUMNS), "narrow": (narrow.data_ptr(), COLUMNS)}
    dtype = str(x.dtype).removeprefix("torch.")
    if conversion is ROUNDED:
        conversion.apply(NARROW, dtype, tuple(x.shape), **memory)
        return narrow, None, memory, dtype
    grid = conversion.grid(x.shape)
    maxima, scales = torch.zeros(grid), torch.zeros(grid, dtype=getattr(torch, conversion.scale))
    memory.update(maxima=maxima.data_ptr(), scales=(scales.data_ptr(), grid[1]))
    for step in (MAXIMA, SCALES, NARROW):
        conversion.apply(step, dtype, tuple(x.shape), **memory)
    return narrow, scales, memory, dtype


def blocks(x, conversion):
    """As a view of four dimensions: blocks and what is in them."""
    rows, columns = conversion.sides(x.shape)
    return x.view(ROWS // rows, rows, COLUMNS // columns, columns)


def reference(name, x):
    """Scales and narrow elements, as torch has them."""
    wide = blocks(x, CONVERSIONS[name]).float()
    most = wide.abs().amax((1, 3))
    if name == "fp8_blocks":
        scale = most.clamp(1e-4) / 448.0
    elif name == "int8_rows":
        scale = (most / 127.0).clamp(2.0**-23)
    else:
        mantissa, exponent = torch.frexp(most.double() / 448.0)
        exponent = (exponent - (mantissa == 0.5).int()).clamp(-127, 127)
        exponent[most == 0], exponent[most.isinf()] = -127, 127
        scale = (2.0 ** exponent.double()).float()
        scale[most.isnan()] = float("nan")
        byte = torch.where(most.isnan(), 255, exponent + 127).to(torch.uint8)
    product = wide * (1.0 / scale)[:, None, :, None]
    if name == "int8_rows":
        narrow = product.round().clamp(-127, 127).nan_to_num(0).to(torch.int8)
    else:
        narrow = product.to(torch.float8_e4m3fn)
    return byte if name == "mxfp8" else scale, narrow.view(x.shape), product.view(x.shape)


class Conversions(unittest.TestCase):
    def equal(self, mine, theirs, about):
        """Bit by bit, but that one NaN is as good as another."""
        same = mine.view(torch.uint8) == theirs.view(torch.uint8) if mine.element_size() == 1 else \
            mine.view(torch.int16 if mine.element_size() == 2 else torch.int32) == \
            theirs.view(torch.int16 if mine.element_size() == 2 else torch.int32)  # fmt: skip
        if not bool(same.all()) and mine.is_floating_point():
            same |= mine.float().isnan() & theirs.float().isnan()
        self.assertTrue(bool(same.all()), about)

    def rounds(self):
        for seed in range(ROUNDS):
            for dtype in (torch.float32, torch.bfloat16) if seed < 8 else (torch.bfloat16,):
                yield f"seed {seed}, {dtype}", values(seed, dtype)

    def test_bfloat16(self):
        for seed in range(ROUNDS):
            x = values(seed, torch.float32)
            mine, _, memory, _ = convert(ROUNDED, x)
            self.equal(mine, x.to(torch.bfloat16), seed)
            if ml_dtypes is not None:
                with numpy.errstate(invalid="ignore"):
                    theirs = x.numpy().astype(ml_dtypes.bfloat16).view(numpy.int16)
                self.assertTrue(bool((mine.view(torch.int16).numpy() == theirs).all()), seed)
            ROUNDED.apply(WIDEN, "float32", (ROWS, COLUMNS), **memory)
            self.equal(x, mine.float(), seed)

    def scaled(self, name):
        for about, x in self.rounds():
            mine, scales, memory, dtype = convert(CONVERSIONS[name], x)
            scale, narrow, product = reference(name, x)
            self.equal(scales, scale, about)
            self.equal(mine, narrow, about)
            if ml_dtypes is not None and name != "int8_rows":
                # It makes NaN of what is too large, where torch takes the largest; of the products only infinity is.
                with numpy.errstate(invalid="ignore"):
                    theirs = torch.from_numpy(product.numpy().astype(ml_dtypes.float8_e4m3fn).view(numpy.uint8))
                theirs[product.isinf()] = mine.view(torch.uint8)[product.isinf()]
                self.equal(mine, theirs.view(torch.float8_e4m3fn), about)
            CONVERSIONS[name].apply(WIDEN, dtype, (ROWS, COLUMNS), **memory)
            factor = scale if name != "mxfp8" else torch.where(scale == 255, float("nan"), 2.0 ** (scale.double() - 127))
            back = blocks(narrow.float(), CONVERSIONS[name]) * factor.float()[:, None, :, None]
            self.equal(x, back.view(x.shape).to(x.dtype), about)

    def test_fp8_blocks(self):
        self.scaled("fp8_blocks")

    def test_mxfp8(self):
        self.scaled("mxfp8")

    def test_int8_rows(self):
        self.scaled("int8_rows")


if __name__ == "__main__":
    print(f"{4 * ROUNDS * ROWS * COLUMNS} elements and more, numbers of torch {torch.__version__}"
          f"{'' if ml_dtypes is None else f' and ml_dtypes {ml_dtypes.__version__}'}", flush=True)  # fmt: skip
    unittest.main()
