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


def run(python, *options):
    """What a small comparison came to, and its rows."""
    with tempfile.TemporaryDirectory() as directory:
        table = os.path.join(directory, "table.csv")
        done = subprocess.run([os.path.join(SOURCES, "bench/peers_weights/weights.py"), BUILD, "--python", python, "--scale",
                               "16", "--nic", "200mbit", "--runs", "1", "--layouts", "tp8-tp2", "--csv", table, *options],
                              capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        with open(table, encoding="utf-8") as file:
            return done, list(csv.DictReader(file))


def main():
    python = next((path for path in INTERPRETERS if os.path.exists(path)), None)
    if python is None or subprocess.run([python, "-c", "import torch"], check=False).returncode != 0:
        print("skipped: neither build/peers-python nor build/python has PyTorch")
        return 77
    if os.geteuid() != 0:
        print("skipped: emulated hosts need root")
        return 77
    done, rows = run(python)
    _, updates = run(python, "--density", "2", "--peers", "update,changes")
    right = [row for row in rows if row["wrong"] == "0" and float(row["to_bound"]) > 0.5]
    skipped = sum("  skipped: " in line for line in done.stdout.splitlines())
    changed = {row["peer"]: float(row["in_models"]) for row in updates if row["wrong"] == "0"}
    ours, theirs = (min((v for k, v in changed.items() if word in k), default=0) for word in ("crossmesh", "torch"))
    extra = [float(row["extra_mib"]) for row in (*rows, *updates) if "crossmesh" in row["peer"]]
    fine = len(extra) == 2 and 0 < min(extra) and max(extra) <= 64  # docs/weights.md
    fine = fine and done.returncode == 0 and 0 < ours < theirs / 2 and len(right) + skipped == len(rows) == 6 and len(right) >= 3
    print("every byte right" if fine else "FAILED")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
