#!/usr/bin/env python3
"""autopar shard on the training steps of a 32-layer GPT and of an 8B decoder: 2 s and 1 GiB each at most.

Counts processor time, which other work on the machine does not change; prints the time on the clock, too.
"""
import gzip
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

SECONDS = 2 * float(os.environ.get("TIMEOUT_SCALE", "1"))
KIBIBYTES = 1 << 20
root = pathlib.Path(os.environ["SOURCE_DIR"])
failed = False
for name in ("gpt-32-layers", "decoder-8b"):
    with tempfile.NamedTemporaryFile(suffix=".hlo") as step:
        packed = root / "tests/fixtures/hlo/large" / f"{name}.hlo.gz"
        step.write(gzip.decompress(packed.read_bytes()))
        step.flush()
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        made = subprocess.run([os.environ["AUTOPAR"], "shard", step.name, "--mesh", "2x8", "--threads",
                               "1"], capture_output=True, text=True, check=False)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    print(f"{name}: {used:.2f} s of processor time, {wall:.2f} s in all, {after.ru_maxrss} KiB")
    if made.returncode != 0 or "# collective" not in made.stdout:
        print(f"FAIL: exit status {made.returncode}: {made.stderr}")
        failed = True
    if used > SECONDS or (SECONDS == 2 and after.ru_maxrss > KIBIBYTES):
        print(f"FAIL: more than {SECONDS:g} s or 1 GiB")
        failed = True
sys.exit(1 if failed else 0)
