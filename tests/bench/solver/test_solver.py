#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/solver.sh --quick: what two solvers prove is the same cost, no bound is above a solution, and a second run has
nothing left to do. Skipped where the peers are not installed."""
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ["SOURCE_DIR"])
PYTHON = os.environ.get("SOLVER_PYTHON", ROOT / "build/solver/python/bin/python3")


def run(out, *more):
    said = subprocess.run([ROOT / "bench/solver.sh", "--quick", "--out", out, *more], stdout=subprocess.PIPE, check=True, text=True).stdout
    with open(Path(out) / "results.csv") as file:
        return list(csv.DictReader(file)), said


def main():
    if not Path(PYTHON).exists() or not shutil.which("toulbar2") or not shutil.which("cbc"):
        print("the solvers are not installed: bench/solver.sh installs them")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as out:
        rows, said = run(out)
        assert len(rows) == 12 * 5, f"{len(rows)} rows"
        assert len(run(out)[0]) == len(rows), "rows are run twice"
        assert "claims a bound" not in said and "refused" not in said, said
        # On a busy machine two seconds may prove nothing at all.
        rows, said = run(out, "--only", "onnx.*@1.02", "--seconds", "20")
        agreed = 0
        for name in {row["instance"] for row in rows}:
            proved = [int(row["cost"]) for row in rows if row["instance"] == name and row["proved"] == "1"]
            assert max(proved, default=0) <= min(proved, default=0) * (1 + 1e-6), f"{name}: {proved}"
            agreed += len(proved) > 1
        assert agreed > 0, said


if __name__ == "__main__":
    main()
