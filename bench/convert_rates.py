#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast this processor converts: GB of wide elements a second of one core's processor time, all steps together.

    convert_rates.py [--size MIB] [--repeat N]

The best of the repetitions; a copy of the same memory beside it. Needs numpy, and the package (CROSSMESH_LIBRARY,
PYTHONPATH=plugins/python/src).
"""

import argparse
import time

import numpy

from crossmesh.conversions import CONVERSIONS, MAXIMA, NARROW, ROUNDED, SCALES, WIDEN

COLUMNS = 4096


def best(repeat, size, work):
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return size / min(seconds) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64, help="MiB of wide elements (%(default)s)")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    size = options.size << 20
    wide = (numpy.random.default_rng(1).standard_normal(size // 4).astype(numpy.float32) * 0.02).view(numpy.uint8)
    other = numpy.zeros_like(wide)
    print(f"copy {best(options.repeat, size, lambda: numpy.copyto(other, wide)):.1f} GB/s")
    for dtype, bytes_each in (("bfloat16", 2), ("float32", 4)):
        values = wide.view(numpy.float32)
        if bytes_each == 2:  # the upper half of float32, so that elements are weights again
            values = numpy.concatenate([(values.view(numpy.uint32) >> 16).astype(numpy.uint16)] * 2)
        rows = size // bytes_each // COLUMNS
        for name, conversion in {"bfloat16": ROUNDED, **CONVERSIONS}.items():
            if name == dtype:
                continue
            grid = conversion.grid((rows, COLUMNS))
            scales, maxima = numpy.zeros(grid, conversion.scale), numpy.zeros(grid, numpy.float32)
            memory = {"wide": (values.ctypes.data, COLUMNS), "narrow": (other.ctypes.data, COLUMNS),
                      "scales": (scales.ctypes.data, grid[1]), "maxima": maxima.ctypes.data}  # fmt: skip
            steps = (NARROW,) if conversion is ROUNDED else (MAXIMA, SCALES, NARROW)

            def work(steps, conversion=conversion, memory=memory, dtype=dtype, rows=rows):
                for step in steps:
                    conversion.apply(step, dtype, (rows, COLUMNS), **memory)

            rate = best(options.repeat, size, lambda steps=steps, work=work: work(steps))
            back = best(options.repeat, size, lambda work=work: work((WIDEN,)))
            print(f"{dtype} to {name} {rate:.1f} GB/s, back {back:.1f} GB/s")


if __name__ == "__main__":
    main()
