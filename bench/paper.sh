#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Repeats the evaluation of MLSys'23 "On Optimizing the Communication of Model Parallelism" on an
# emulated cluster, next to what users of MPI and PyTorch would do, and writes tables and figures.
#
# Usage: bench/paper.sh                 everything, about 45 minutes -> out/paper, docs/results.md
#        bench/paper.sh --quick         fewer runs of smaller tensors -> out/paper-quick
#        bench/paper.sh --only NAME     one experiment again, e.g. ablation (see --help)
# Needs root (network namespaces) and an otherwise idle machine.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

install_packages build peers bench || exit 1
build release
say "measuring"
# Debian's Python has Debian's packages; another one first in PATH has not.
exec /usr/bin/python3 bench/evaluation/evaluate.py build/release "$@"
