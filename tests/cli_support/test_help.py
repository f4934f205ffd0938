#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Help texts are 80 columns wide and well wrapped, their examples work, completion offers what they say, and -J means a file."""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

SOURCE = os.environ["SOURCE_DIR"]
COMMANDS = [os.environ[name] for name in ("RESHARD_BENCH", "TRANSPORT_BENCH", "PIPELINE_BENCH")] + [
    f"{os.environ['AUTOPAR']} {name}"
    for name in ("plan", "shard", "solve", "simulate", "import", "compare", "explain", "export", "probe")]
NOT_RUN = ("autopar probe", "autopar compare", "autopar solve")  # they measure or search for long; other tests run them
failures = []


def expect(good, *what):
    if not good:
        failures.append(what)
        print("FAILED:", *what)


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **more)


def complete(*words):
    """What bash offers for the last of the words."""
    script = '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _crossmesh; printf "%s\\n" "${COMPREPLY[@]}"'
    return run(["bash", "-c", script, f"{SOURCE}/packaging/completion.bash", *words]).stdout.split()


paths = os.pathsep.join(sorted({os.path.dirname(command.split()[0]) for command in COMMANDS}))
environment = dict(os.environ, PATH=paths + os.pathsep + os.environ["PATH"])
with tempfile.TemporaryDirectory() as work:
    with open(f"{SOURCE}/tests/fixtures/profiles/lab-2x4.json", encoding="utf-8") as source, \
            open(f"{work}/cluster.json", "w", encoding="utf-8") as copy:
        copy.write(source.read())
    run(shlex.split(COMMANDS[3]) + ["--model", "mlp4", "--cluster", "cluster.json", "--stages", "2", "-o", "plan.json"], cwd=work)
    for command in COMMANDS:
        name = " ".join([os.path.basename(command.split()[0])] + command.split()[1:])
        text = run(command.split() + ["--help"]).stdout
        for line in text.split("\n"):
            # popt's own lines are two spaces in; only the usage and the summary begin at the left.
            expect(len(line) <= 80, name, "--help is too wide:", line)
        options = text.split("\n\n")[0].split("\n")[1:]
        expect(all(line.startswith(" ") for line in options), name, "--help has text at the left:", options)
        letters = dict(re.findall(r"^ +-([a-zA-Z]), --([a-z-]+)", text, re.M))
        expect(letters.get("J", "json-file") == "json-file", name, "has another -J", letters)
        example = re.search(r"^Example:\n  (.+)$", text, re.M)
        expect(example is not None and example.group(1).startswith(name), name, "has no example of its own")
        if example is not None and name not in NOT_RUN:
            result = run(shlex.split(example.group(1)), cwd=work, env=environment)
            expect(result.returncode == 0, example.group(1), result.stderr)
        offered = complete(*command.split(), "--")
        expect(set(offered) == set(re.findall(r"^ +(?:-[a-zA-Z], )?(--[a-z-]+)", text, re.M)), name, "completes", offered)
    expect(complete(COMMANDS[0], "--strategy", "al") == ["allgather", "alpa"], "values of --strategy")
    expect(complete(os.environ["AUTOPAR"], "sim") == ["simulate"], "commands")
    # The same document by --json and by -J, beside a table.
    command = shlex.split(COMMANDS[6]) + ["plan.json"]
    printed, written = run(command + ["--json"], cwd=work), run(command + ["-J", "run.json"], cwd=work)
    with open(f"{work}/run.json", encoding="utf-8") as file:
        expect(file.read() == printed.stdout and written.stdout.startswith("# "), "simulate -J")

# A sweep of tensors: sizes in order, algbw times median is the size, 8-bit floats, 132 columns.
SWEEP = [COMMANDS[0], "-n", "4", "--src-mesh", "1x2", "--dst-mesh", "1x2", "--src-spec", "S1", "--dst-spec", "R",
         "--dtype", "fp8_e4m3", "-b", "8", "-e", "128K", "-f", "8", "-i", "1", "-w", "0"]
csv = [line.split(",") for line in run(SWEEP + ["--csv"]).stdout.splitlines()]
rows = [dict(zip(csv[0], row)) for row in csv[1:]]
expect([row["case"] for row in rows] == ["8", "64", "512", "4K", "32K"], rows)
expect([int(row["size (B)"]) for row in rows] == [8, 64, 512, 4096, 32768], rows)
expect(all(row["#wrong (B)"] == "0" and row["type"] == "fp8_e4m3" for row in rows), rows)
last = rows[-1]
expect(abs(float(last["algbw (GB/s)"]) * float(last["median (us)"]) * 1e3 / 32768 - 1) < 0.3 or
       float(last["algbw (GB/s)"]) < 0.01, last)
table = run(SWEEP).stdout
expect(all(len(line) <= 132 for line in table.splitlines() if not re.match(r"# [a-z0-9A-Z]+\b.*:|# ranks", line)), table)
suite = run([COMMANDS[0], "--suite", "model", "--dry-run", "--nic-gbps", "100"]).stdout
expect(all(len(line) <= 132 for line in suite.splitlines() if not line.startswith("# ")), suite)
# Columns that are not equal to the parts of the mesh are rounded down as nccl-tests rounds: 100 B of 24 B in rows of 3.
odd = run([COMMANDS[0], "--dry-run", "--src-mesh", "3", "--dst-mesh", "2", "--src-spec", "S0R", "--dst-spec", "S0R",
           "--shape", "1x4", "--dtype", "f16", "-b", "100", "-e", "100", "--csv"]).stdout.splitlines()
expect(odd[1].split(",")[1] == "96" and odd[1].split(",")[4] == "12x4", odd)

# Pictures: two tensors' halves from one host, where colours are the ranks; the planned hops have rows beside the measured.
with tempfile.TemporaryDirectory() as work:
    run([COMMANDS[0], "--transport", "sim", "--hosts", "2", "-n", "4", "--src-mesh", "1x2", "--dst-mesh", "1x2", "--src-spec",
         "S1R", "--dst-spec", "RS1", "--shape", "1024x4096", "--nic-gbps", "10", "--plot", f"{work}/plot.svg",
         "--trace", f"{work}/trace.json", "-J", f"{work}/run.json"])
    with open(f"{work}/plot.svg", encoding="utf-8") as file:
        plot = file.read()
    expect(all(text in plot for text in (">0 → 2<", ">1 → 3<", ">rank 0<", ">rank 1<", ">planned<", ">measured, last run<",
                                         ">host 0 sends<", ">host 1 receives<", "(ms)")), plot)
    with open(f"{work}/trace.json", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    with open(f"{work}/run.json", encoding="utf-8") as file:
        made = json.load(file)["results"][0]
    measured, planned = ([event for event in events if event["tid"] in tids] for tids in ((0, 1), (3, 4)))
    expect(len(measured) == len(planned) == 8, events)  # four hops between the hosts, each at both of its ends
    expect(sum(event["args"]["bytes"] for event in planned) == 2 * made["net_bytes"], planned)
    # 16 MiB through one NIC at 10 Gbit/s: a little more than 13.4 ms; a hop of 4 MiB is eight chunks of 512 KiB.
    expect(0 <= max(event["ts"] + event["dur"] for event in planned) - 16 * 1024 ** 2 / 1.25e3 < 500, planned)
    expect(all(event["args"]["chunks"] == 8 for event in (*measured, *planned)), events)
    expect(sum(event["args"]["chunks"] for event in events) == 8 * 16 + 8 * 8, events)  # and a bar for each measured chunk

messages = [line.split(",") for line in run([COMMANDS[1], "-b", "8", "-e", "1M", "-f", "16", "-i", "20", "--csv"]).stdout.splitlines()]
expect([row[0] for row in messages] == ["size (B)", "8", "128", "2048", "32768", "524288"], messages)
sys.exit(1 if failures else 0)
