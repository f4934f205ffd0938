#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page that ./run prints of its results: what it says against numbers that are given, its length, README.md's part, and the
table of shipped clusters against the usual count of FLOPs."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

root = os.environ["SOURCE_DIR"]
autopar = os.environ["AUTOPAR"]
page = os.path.join(root, "scripts/first-page")
failures = []


def expect(good, what):
    if not good:
        failures.append(what)


def call(*command, code=0, cwd=None):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    expect(done.returncode == code, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def write(path, content):
    with open(path, "w", encoding="utf-8") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))


# README.md has the shape of what ./run --readme writes; one that has lost a row, or bytes, has not.
call(page, "check", os.path.join(root, "README.md"))
with tempfile.TemporaryDirectory() as work:
    shutil.copytree(os.path.join(root, "docs/img"), f"{work}/docs/img")
    with open(os.path.join(root, "README.md"), encoding="utf-8") as file:
        text = file.read()
    for wrong, said in ((re.sub(r"\n\| gb200-nvl72.*", "", text), "no table of 'cluster"),
                        (re.sub(r"\| 0 +\|\n", "| 4096 |\n", text), "no resharding without wrong bytes"),
                        (text.replace("<!-- to here -->", ""), "lacks the marks")):
        write(f"{work}/README.md", wrong)
        expect(said in call(page, "check", f"{work}/README.md", code=1), f"not said of README.md: {said}")

# 3 x 6 N FLOPs a token, and attention's, over what the devices could do.
flops = 1024 * 4096 * (6 * 8.03e9 - 6 * 128256 * 4096 + 12 * 32 * 4096 * 4096)
table = call(os.path.join(root, "bench/hardware.py"), "--autopar", autopar, "--models", "llama3-8b")
row = [cell.strip() for cell in table.splitlines()[2].strip("|").split("|")]
expect(row[:3] == ["h100-8x8", "64", "llama3-8b"] and row[7] == "35", f"the row {row}")
expect(abs(100 * flops / (64 * 989.4e12 * float(row[4].split()[0])) - float(row[5])) < 1.5, f"the utilisation of {row}")
with tempfile.TemporaryDirectory() as work:
    os.mkdir(f"{work}/out")
    with open(os.path.join(root, "tests/fixtures/profiles/lab-2x4.json"), encoding="utf-8") as file:
        profile = json.load(file)
    profile["device"] |= {"flop_per_s_of": {"float32": 21.23e9, "int8": 107.9e9}, "memory_bytes_per_s": 2.543e9,
                          "spread": {"float32": 0.012, "int8": 0.37, "memory_bytes_per_s": 0.021}}
    profile["fabric"] = {"bytes_per_s": 4.9074e9, "spread": 0.39}
    write(f"{work}/out/cluster.json", profile)
    told = call(page, "probe", cwd=work)
    expect("float32 21.2, int8 110 (±37 %) GFLOP/s;" in told and " memory 2.54 GB/s" in told and "fabric 4.9 (±39 %)" in told, told)
    call(autopar, "plan", "--model", "gpt-2.6b", "--cluster", "p3-8x8", "--hosts", "2", "--devices-per-host", "4",
         "-o", "out/plan.json", cwd=work)
    shutil.copy(f"{work}/out/plan.json", f"{work}/out/machine.json")
    for name in ("machine", "plan"):
        write(f"{work}/out/{name}-explained.txt", "  runner-up   2 203615.520 s (+14.83 %)\n  runner-up 1 (-0.00 %)\n")
    write(f"{work}/out/hardware.txt", table)
    told = call(page, "plans", cwd=work)
    expect("no plan faster" in told and "run before" not in told, told)
    expect("those of the run before" in call(page, "plans", cwd=work), "the plans of the run before")
    write(f"{work}/out/plan-explained.txt", "  runner-up   1 stage 41105 s (-3.53 %; an option of the plan excluded it)\n")
    told = call(page, "plans", cwd=work)
    expect("plans faster than the first two, by 3.53 %" in told, told)
    expect(call(page, "boundary", cwd=work) == "0-1\n", "the boundary")
    result = {"case": "gpt-2.6b:0", "bytes": 20971520, "bound_s": 0.175, "makespan_s": 0.176, "bound_fraction": 0.9722,
              "wrong": 0, "time_s": {"median": 0.18}, "src": {"mesh": "2x2", "spec": "S01RR"}, "dst": {"mesh": "2x2", "spec": "S01RR"}}
    write(f"{work}/out/reshard.json", {"results": [result]})
    moved = call(page, "reshard", cwd=work)
    cells = [cell.strip() for cell in moved.splitlines()[2].strip(" |").split("|")]
    expect(cells == ["4×1024×2560 float16, 20 MiB", "`S01RR` on 2×2", "`S01RR` on 2×2", "175 ms", "176 ms", "180 ms", "97",
                     "-2.2 %", "0"], f"{cells}")
    expect(len((told + moved).splitlines()) + 20 < 60, "a page of more than 60 lines")

# Times as a person reads them.
sys.path.insert(0, os.path.join(root, "bench"))
sys.dont_write_bytecode = True
from hardware import person  # noqa: E402 pylint: disable=import-error,wrong-import-position

for seconds, said in ((523320, "6.1 days"), (42610.147, "11 h 50 min"), (5461, "1 h 31 min"), (132.4, "2 min 12 s"), (46.564, "46.6 s"), (5.078, "5.08 s"),
                      (0.2814811, "281 ms"), (12.69e-6, "12.7 us"), (2.6e-8, "0.03 us")):
    expect(person(seconds) == said, f"{seconds} s is told as {person(seconds)}")

print("\n".join(failures))
sys.exit(1 if failures else 0)
