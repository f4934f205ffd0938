# SPDX-License-Identifier: Apache-2.0
"""The commands that pip installs: each starts the compiled one of its name, which lies in the package."""

import os
import sys


def run() -> None:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", os.path.basename(sys.argv[0]))
    os.execv(path, sys.argv)
