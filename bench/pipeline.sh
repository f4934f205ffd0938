#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Predicted against measured step times of parallel plans on an emulated cluster: two models, different stages, schedules
# and micro-batches. A table, and a verdict for each demand; ends with 1 where one is missed.
#
# Usage: bench/pipeline.sh BUILD [--quick] [--runs N] [--output DIRECTORY] [--report]
# Needs root or user namespaces, and an otherwise idle machine.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Debian's Python has Debian's packages; another one first in PATH has not.
exec /usr/bin/python3 "$here/evaluation/pipeline.py" "$@"
