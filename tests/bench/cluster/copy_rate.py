#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""copy_rate.py receive PORT | send ADDRESS PORT BYTES [SOURCE]: how fast one TCP connection is.

The receiver prints "ready", and at the end the bits per second from its first megabyte on: what came before was
the free credit of token buckets."""
import socket
import sys
import time

SKIPPED = 1 << 20

if sys.argv[1] == "receive":
    with socket.socket() as listener:
        listener.bind(("", int(sys.argv[2])))
        listener.listen()
        print("ready", flush=True)
        connection, _ = listener.accept()
    received, started, at_start = 0, 0.0, 0
    while True:
        data = connection.recv(1 << 16)
        if not data:
            break
        received += len(data)
        now = time.monotonic()
        if received < SKIPPED or started == 0.0:
            started, at_start = now, received
    print((received - at_start) * 8 / (now - started) if now > started else 0, flush=True)
else:
    source = (sys.argv[5], 0) if len(sys.argv) > 5 else None
    with socket.create_connection((sys.argv[2], int(sys.argv[3])), timeout=20, source_address=source) as connection:
        connection.sendall(bytes(int(sys.argv[4])))
