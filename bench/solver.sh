#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Our solver beside toulbar2, CBC, HiGHS and CP-SAT, in the same time: on the public instances of the ASPLOS'25 contest
# and on 200 problems from HLO, ONNX and the built-in models with limits at 1.02 to 2 times the least memory.
#
# Usage: bench/solver.sh                everything -> out/solver/results.csv, summary.md
#        bench/solver.sh --quick        12 problems of 2 s -> out/solver-quick
#        bench/solver.sh --help         all options. Rows that are in the CSV already are not run again.
# The instances of the contest are looked for in ../shared/data/iopddl (--data) and tests/fixtures/iopddl.
# SOLVER_PYTHON=PROGRAM: a Python that has packaging/solver-packages.txt already.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

if ! command -v toulbar2 >/dev/null || ! command -v cbc >/dev/null; then
    install_packages solvers || exit 1
fi
python=${SOLVER_PYTHON:-build/solver/python/bin/python3}
if [ ! -x "$python" ]; then
    say "installing Python packages into build/solver/python"
    /usr/bin/python3 -m venv build/solver/python
    build/solver/python/bin/python3 -m pip install -q -r packaging/solver-packages.txt
fi
if [ -z "${AUTOPAR:-}" ]; then
    say "building autopar"
    cmake --preset release >/dev/null
    cmake --build --preset release --target autopar
fi
exec "$python" -B bench/solver/compare.py "$@"
