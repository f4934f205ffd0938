#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near the predicted times of updates are to measured ones: 30 runs on emulated hosts with shaped NICs (root).

    update_prediction.py BUILD_DIRECTORY [--nic-gbps RATE] [--density PERCENT ...] [--shape ROWSxCOLUMNS] [--runs N] [-o FILE]

Five pairs of layouts, two densities, three patterns. Prints each run's share of the bytes and seconds, predicted and
measured (the median of N commits), the errors, and the median of their sizes for each density, and for the runs that
reshard-bench marks as not comparable. Every byte is checked.
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

LAYOUTS = (("2", "S0R", "2", "RS0"), ("2", "S0R", "2", "RR"), ("1", "RR", "3", "S0R"), ("3", "RS0", "2", "S0R"),
           ("2", "RS0", "1", "RR"))  # fmt: skip
PATTERNS = ("uniform", "rows", "blocks")
COLUMNS = ("src", "dst", "density", "pattern", "share", "predicted share", "s", "predicted s", "error %",
           "not comparable")  # fmt: skip


def measure(options, layout, density, pattern):
    src, src_spec, dst, dst_spec = layout
    first, size = int(src), int(src) + int(dst)
    program = os.path.join(options.build, "bench", "reshard-bench")
    with tempfile.NamedTemporaryFile("r") as report:
        subprocess.run([
            program, "-n", str(size), "--hosts", str(size), "--nic-gbps", options.nic_gbps, "--shape", options.shape,
            "--src-mesh", src, "--dst-mesh", dst, "--src-ranks", f"0-{first - 1}", "--dst-ranks", f"{first}-{size - 1}",
            "--src-spec", src_spec, "--dst-spec", dst_spec, "--dtype", "bf16", "--density", str(density),
            "--pattern", pattern, "-w", "1", "-i", str(options.runs), "-J", report.name,
        ], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        result = json.load(report)["results"][0]
    assert result["wrong"] == 0, "wrong bytes arrived"
    update, seconds = result["update"], result["time_s"]["median"]
    return (f"{src}:{src_spec}", f"{dst}:{dst_spec}", density, pattern, update["sent_share"],
            update["predicted_share"], seconds, update["predicted_s"], 100 * (update["predicted_s"] / seconds - 1),
            result.get("not_comparable", ""))  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD_DIRECTORY")
    parser.add_argument("--nic-gbps", default="0.1", metavar="RATE", help="of a host's NIC (%(default)s)")
    parser.add_argument("--density", nargs="+", type=float, default=[3, 10], metavar="PERCENT", help="%(default)s")
    parser.add_argument("--shape", default="3072x3072", help="of the bfloat16 matrix (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="commits of each (%(default)s)")
    parser.add_argument("-o", "--output", metavar="FILE", help="all figures, as CSV")
    options = parser.parse_args()
    print("{:<7}{:<7}{:>4} {:<8}{:>9}{:>11}{:>9}{:>11}{:>9}".format(*COLUMNS[:4], "share", "predicted", *COLUMNS[6:9]))
    listed = []
    for case in itertools.product(LAYOUTS, options.density, PATTERNS):
        listed.append(measure(options, *case))
        print("{:<7}{:<7}{:>4g} {:<8}{:>9.5f}{:>11.5f}{:>9.4f}{:>11.4f}{:>9.1f} {}"
              .format(*listed[-1]), flush=True)
    for density in (None, *options.density):
        rows = [row for row in listed if density in (None, row[2])]
        shares, times = [100 * abs(row[5] / row[4] - 1) for row in rows], [abs(row[8]) for row in rows]
        print(f"# {len(rows)} runs{f' of {density:g} %' if density else ''}: median error of the time "
              f"{statistics.median(times):.1f} % (worst {max(times):.1f}), of the bytes {statistics.median(shares):.1f} %")
    marked = [row for row in listed if row[9]]
    print(f"# {len(marked)} of them are marked as not comparable by reshard-bench, as ranks waited for processors"
          + (f": {statistics.median(abs(row[8]) for row in marked):.1f} %" if marked else ""))  # fmt: skip
    if options.output:
        with open(options.output, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *listed])


if __name__ == "__main__":
    sys.exit(main())
