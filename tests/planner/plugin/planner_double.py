#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A planner for tests: planner_double.py MODE [PLAN.json] does as MODE says, which is "reply" or a misdeed."""

import json
import os
import signal
import subprocess
import sys
import time


def main(mode, plan=None):
    if mode == "unread":  # the answer of one who does not look at the question
        sys.stdout.write(open(plan).read())
        return 0
    request = sys.stdin.read()
    if mode == "request":
        open(plan, "w").write(request)
        return 2
    assert json.loads(request)["format"] == "autopar-request"
    print("progress 0.5 half\nprogress report", file=sys.stderr, flush=True)
    if mode in ("hang", "hang-with-child"):
        if mode == "hang-with-child":
            child = subprocess.Popen(["sleep", "1000"])
            open(plan, "w").write(f"{os.getpid()} {child.pid}\n")
        time.sleep(1000)
    if mode == "hang-silently":
        for stream in (1, 2):
            os.close(stream)
        time.sleep(1000)
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode in ("fail", "no-solution"):
        print("it rains\x1b[31m", file=sys.stderr)
    if mode == "endless":
        while True:
            sys.stdout.write(" " * 65536)
    if mode == "endless-words":
        while True:
            sys.stderr.write("word" * 10000)
    if mode == "leaves-child":  # which holds the outputs
        subprocess.Popen(["sleep", "1000"])
    if mode in ("reply", "leaves-child"):
        sys.stdout.write(open(plan).read())
    if mode == "garbage":
        sys.stdout.write('{"format": ')
    return {"fail": 1, "fail-silently": 3, "no-solution": 2}.get(mode, 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
