#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a port where nobody listens, for the rank 0 of a test: below the range from which kernels pick ports of their own
accord, and, from the process on, another one for each test that asks at the same time."""
import os
import socket

FIRST, COUNT = 20000, 10000

for number in range(COUNT):
    port = FIRST + (os.getppid() + number) % COUNT
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            continue
    print(port)
    break
