#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every weight peer that can be imported here moves every byte, on emulated hosts; the others say why they do not."""

import csv
import os
import subprocess
import sys
import tempfile

SOURCES, BENCH = os.environ["SOURCE_DIR"], os.environ["RESHARD_BENCH"]
BUILD = os.path.dirname(os.path.dirname(BENCH))
INTERPRETERS = [os.path.join(SOURCES, "build", name, "bin/python") for name in ("peers-python", "python")]


def main():
    python = next((path for path in INTERPRETERS if os.path.exists(path)), None)
    if python is None or subprocess.run([python, "-c", "import torch"], check=False).returncode != 0:
        print("skipped: neither build/peers-python nor build/python has PyTorch")
        return 77
    if os.geteuid() != 0:
        print("skipped: emulated hosts need root")
        return 77
    with tempfile.TemporaryDirectory() as directory:
        table = os.path.join(directory, "table.csv")
        done = subprocess.run([os.path.join(SOURCES, "bench/peers_weights/weights.py"), BUILD, "--python", python, "--scale",
                               "16", "--nic", "200mbit", "--runs", "1", "--layouts", "tp8-tp2", "--csv", table],
                              capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        with open(table, encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    right = [row for row in rows if row["wrong"] == "0" and float(row["to_bound"]) > 0.5]
    skipped = sum("  skipped: " in line for line in done.stdout.splitlines())
    fine = done.returncode == 0 and len(right) + skipped == len(rows) == 6 and len(right) >= 3
    print("every byte right" if fine else "FAILED")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
