#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Another UCX than Debian's: PyPI's wheel of a later version, built as UCX's own script for releases does, without
assertions. Ranks start and move the right bytes over TCP, and connections that are reset end none of them."""
import glob
import os
import subprocess
import sys

FOUND = glob.glob(os.path.join(os.environ["SOURCE_DIR"], "build/python/lib/python3*/site-packages/libucx/lib/libucp.so.0"))


def run(*command, **more):
    found = subprocess.run(command, env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(FOUND[0]), **more}, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
    assert found.returncode == 0, found.stdout
    return found.stdout


def main():
    if not FOUND:
        print("skipped: libucx of packaging/python-packages.txt is not installed in build/python")
        return 77
    bench, campaign = os.environ["RESHARD_BENCH"], os.environ["CAMPAIGN"]
    assert os.path.dirname(FOUND[0]) in run("ldd", campaign), "another UCX is loaded"
    meshes = ["--src-mesh", "1x2", "--dst-mesh", "1x2", "--src-spec", "S0R", "--dst-spec", "RS1", "--shape", "512x512"]
    moved = run(bench, "-n", "4", "--hosts", "4", *meshes)
    assert "Out of bounds values : 0 OK" in moved, moved
    jobs = int(os.environ.get("CAMPAIGN_JOBS", "30"))
    ended = run(campaign, CAMPAIGN_KIND="reset", CAMPAIGN_JOBS=str(jobs), UCX_LOG_LEVEL="fatal")
    assert f"reset {jobs:3d} jobs" in ended and "UCX aborted" not in ended, ended
    print(next(line for line in ended.splitlines() if line.startswith("reset ")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
