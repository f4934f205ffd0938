#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""autopar shard --dump-problem: what the solver finds for the file alone has the memory and, up to the unit of the file's
integers, the cost of the plan that autopar shard makes itself under two limits."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

AUTOPAR = os.environ["AUTOPAR"]
SOURCE = Path(os.environ["SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "tests/planner/solver"))
from check_certificate import cost_of, load  # noqa: E402

SHARD = [AUTOPAR, "shard", "mlp2", "--mesh", "2x4", "--batch", "1024", "--cluster", SOURCE / "tests/fixtures/profiles/lab-2x4.json"]


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def main(file):
    units = []
    for limit in (500 << 10, 800 << 10):
        options = ["--memory-limit", str(limit)]
        plan = json.loads(output(*SHARD, *options, "--time-limit", "20", "--json"))
        assert output(*SHARD, *options, "--dump-problem", file) == b"", "something is printed"
        problem = load(file)["problem"]
        found = json.loads(output(AUTOPAR, "solve", file, "20", "--quiet", "--json"))
        assert plan["optimal"] and found["optimal"], "nothing is proved"
        assert problem["usage_limit"] == limit and found["peak_usage"] == plan["memory_bytes"], (found["peak_usage"], plan["memory_bytes"])
        assert cost_of(problem, found["choice"]) == found["cost"]
        units.append(found["cost"] / plan["objective"])
    assert abs(units[0] / units[1] - 1) < 1e-6, units


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory) / "problem.json")
