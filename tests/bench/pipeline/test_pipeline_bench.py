#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipeline-bench on real processes: every schedule a plan can have, right bytes, times that passes allow, one sentence
on bad input, and pages that know its options."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

AUTOPAR = os.environ["AUTOPAR"]
PIPELINE_BENCH = os.environ["PIPELINE_BENCH"]
SOURCE = os.environ["SOURCE_DIR"]
SCHEDULES = ["1f1b", "gpipe", "eager-1f1b", "eager-1f1b-w", "zb-h1", "zb-h2", "pipedream-2bw"]
MICRO_BATCHES = 4

failures = []
scratch = tempfile.TemporaryDirectory()


def expect(condition, *what):
    if not condition:
        failures.append(" ".join(str(word) for word in what))
        print("FAILED:", failures[-1], flush=True)


def path(name):
    return os.path.join(scratch.name, name)


def command(*arguments, **environment):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=120, check=False,
                          env=dict(os.environ, **environment))


def bench(*arguments, **environment):
    return command(PIPELINE_BENCH, *arguments, **environment)


def write_profile(name, hosts, devices, flop_per_s, shares=None):
    """With shares, those of each host's devices."""
    profile = {
        "version": 1, "name": name, "provenance": "assumed, for tests", "hosts": hosts, "devices_per_host": devices,
        "device": {"flop_per_s": flop_per_s, "memory_bytes": 1e10, "memory_bytes_per_s": 1e10},
        "nic": {"bytes_per_s": 1e8},
        "curves": {"self": [[8, 1e-6], [1048576, 1e-4]], "intra_host": [[8, 1e-5], [1048576, 1e-3]],
                   "inter_host": [[8, 1e-4], [1048576, 1.1e-2]]},
    }
    if shares:
        profile["version"] = 2
        profile["device"]["hosts"] = [{"flop_per_s": share * flop_per_s, "memory_bytes": 1e10,
                                       "memory_bytes_per_s": 1e10} for share in shares]
    with open(path(name + ".json"), "w", encoding="utf-8") as file:
        json.dump(profile, file)
    return path(name + ".json")


def plan(name, cluster, *options):
    result = command(AUTOPAR, "plan", "--model", "mlp4", "--cluster", cluster, "--global-batch", 64 * MICRO_BATCHES,
                     "--micro-batches", MICRO_BATCHES, "-o", path(name), *options)
    expect(result.returncode == 0, "plan", name, result.stderr)
    return path(name)


def simulated_step(file, *options):
    return json.loads(command(AUTOPAR, "simulate", file, "--json", *options).stdout)["step_ns"] * 1e-9


def children(parent):
    """Processes whose parent this is."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="latin1") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(pid))
        except OSError:
            pass  # ended meanwhile
    return found


def refuse(text, *arguments, **environment):
    result = bench(*arguments, **environment)
    expect(result.returncode == 2 and text in result.stderr and result.stderr.count("\n") == 1, "refused:", arguments,
           result)


def every_schedule():
    """Two stages of two ranks each, a stage to a host."""
    cluster = write_profile("two", 2, 2, 1e9)
    files = [plan(f"{schedule}.json", cluster, "--stages", 2, "--schedule", schedule) for schedule in SCHEDULES]
    result = bench(*files, "--checked", 2, "-w", 1, "-i", 3, "-J", path("out.json"))
    expect(result.returncode == 0 and result.stderr == "", result)
    rows = [line.split() for line in result.stdout.split("\n") if line and line[0] != "#"]
    expect([row[2] for row in rows] == SCHEDULES, rows)
    expect(all(row[-1] == "0" for row in rows), rows)
    expect("# Out of bounds values : 0 OK" in result.stdout, result.stdout)
    with open(path("out.json"), encoding="utf-8") as file:
        results = json.load(file)["results"]
    for one, file in zip(results, files):
        expect(one["wrong"] == 0 and len(one["step_s"]["all"]) == 3, one)
        expect(one["submeshes"] == ["1x2", "1x2"] and one["net_bytes"] == 2 * MICRO_BATCHES * 64 * 128 * 4, one)
        expect(abs(one["predicted_s"] / simulated_step(file) - 1) < 1e-6, one, "autopar simulate says otherwise")
        # No rank may be faster than its passes; those of 2BW's steps overlap.
        if one["schedule"] != "pipedream-2bw":
            expect(one["step_s"]["min"] >= 0.999 * one["predicted_free_s"], one)
            expect(one["predicted_free_s"] < one["predicted_s"], one)


def hosts_in_an_order_of_their_own():
    """Two kinds in turn: like hosts share a stage, ranks are the cluster's, and the bytes are right."""
    cluster = write_profile("turns", 4, 1, 1e9, [1, 0.25, 1, 0.25])
    file = plan("turned.json", cluster, "--stages", 2)
    with open(file, encoding="utf-8") as stream:
        planned = json.load(stream)
    order = planned["cluster"].get("host_order")
    expect(order is not None and order[0] % 2 == order[1] % 2, planned["cluster"])
    expect(sum((stage["ranks"] for stage in planned["stages"]), []) == order, planned["stages"])
    for options in ([], ["--profile", cluster]):
        result = bench(file, "--checked", 2, "-w", 0, "-i", 1, "--json", *options)
        expect(result.returncode == 0 and result.stderr == "", result)
        one = json.loads(result.stdout)["results"][0]
        expect(one["wrong"] == 0 and one["net_bytes"] > 0, one)
        expect(abs(one["predicted_s"] / simulated_step(file, "--cluster", cluster) - 1) < 1e-6, one)
    planned["cluster"]["host_order"] = [0, 1, 2, 2]
    del planned["digest"]
    with open(path("wrong.json"), "w", encoding="utf-8") as stream:
        json.dump(planned, stream)
    refuse("host_order has host 2 as its entries 2 and 3", path("wrong.json"))


def three_stages_within_a_host():
    """Neighbours on both sides, stages of unequal meshes, prices from a profile, another schedule, more micro-batches."""
    cluster = write_profile("one", 1, 4, 1e9)
    file = plan("three.json", cluster, "--stages", 3)
    result = bench(file, "--profile", cluster, "--schedule", "eager-1f1b", "--micro-batches", 9, "-w", 0, "-i", 1,
                   "--json", "--trace", path("trace.json"), "--plot", path("plot.svg"))
    expect(result.returncode == 0 and result.stderr == "", result)
    one = json.loads(result.stdout)["results"][0]
    expect(one["wrong"] == 0 and one["stages"] == 3 and one["micro_batches"] == 9, one)
    step = simulated_step(file, "--schedule", "eager-1f1b", "--micro-batches", 9, "--cluster", cluster)
    expect(abs(one["predicted_s"] / step - 1) < 1e-6, one, step)
    with open(path("trace.json"), encoding="utf-8") as trace:
        expect(len(json.load(trace)["traceEvents"]) >= 3 * 9 * 2, "trace")
    with open(path("plot.svg"), encoding="utf-8") as plot:
        expect("measured" in plot.read(), "plot")


def real_work():
    """Ranks that compute, where they have a core each."""
    cores = len(os.sched_getaffinity(0))
    cluster = write_profile("small", 1, 2, 1e9)
    file = plan("small.json", cluster, "--stages", 2)
    for kind in ("spin", "gemm"):
        if cores >= 2:
            result = bench(file, "--compute", kind, "-i", 1)
            expect(result.returncode == 0 and f"# compute {kind}" in result.stdout, result)
        with_one = command("taskset", "-c", min(os.sched_getaffinity(0)), PIPELINE_BENCH, file, "--compute", kind)
        expect(with_one.returncode == 2 and "needs a core for each rank" in with_one.stderr, with_one)


def a_killed_rank_ends_the_job():
    cluster = write_profile("slow", 1, 2, 1e7)
    file = plan("slow.json", cluster, "--stages", 2)
    process = subprocess.Popen([PIPELINE_BENCH, file, "-i", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    deadline = time.monotonic() + 90
    ranks = []
    while len(ranks) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        ranks = children(process.pid)
    expect(len(ranks) == 2, "ranks", ranks)
    time.sleep(0.5)
    os.kill(ranks[-1], 9)
    output, errors = process.communicate(timeout=60)
    expect(process.returncode not in (0, None) and "signal 9" in errors, process.returncode, output, errors)


def bad_input_is_refused():
    two, one = path("1f1b.json"), path("small.json")
    refuse("PLAN.json")
    refuse("nowhere.json", path("nowhere.json"))
    refuse("plans of one job are for one cluster", two, one)
    refuse("--trace and --plot show one plan", two, path("gpipe.json"), "--trace", path("x"))
    refuse("does not keep one stage to a device", two, "--schedule", "interleaved")
    refuse("--compute", two, "--compute", "gpu")
    refuse("nowhere.json", two, "--profile", path("nowhere.json"))
    refuse("the job has 1 ranks", two, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29711")


def tensors_that_skip_stages():
    """A U-Net and an encoder with a decoder: several tensors between stages, and some over stages."""
    cluster = write_profile("skips", 2, 4, 1e13)
    cases = (("unet-470m", 2, False), ("unet-470m", 4, True), ("unet-470m", 8, True), ("t5-60m", 4, False), ("t5-60m", 8, True))
    for name, stages, skips in cases:
        file = path(f"{name}-{stages}.json")
        made = command(AUTOPAR, "plan", "--model", name, "--cluster", cluster, "--global-batch", 4, "--micro-batches", 2,
                       "--stages", stages, "-o", file)
        expect(made.returncode == 0, "plan", name, stages, made.stderr)
        with open(file, encoding="utf-8") as text:
            entries = json.load(text)["reshardings"]
        several = [entry for entry in entries if "more" in entry]
        over = [entry["stages"] for entry in entries if "stages" in entry]
        expect(several or over or name == "t5-60m", name, stages, "passes one tensor at a time")
        expect(over or not skips, name, stages, "passes nothing over stages")
        result = bench(file, "--checked", 1, "--warmup", 0, "--iterations", 1, "--profile", cluster, "--json")
        expect(result.returncode == 0, name, stages, result.stderr)
        if result.returncode == 0:
            expect(json.loads(result.stdout)["results"][0]["wrong"] == 0, name, stages, "moves wrong bytes")


def pages_know_the_options():
    listed = set(re.findall(r"^ +(?:-[a-zA-Z], |    )(--[a-z-]+)", bench("--help").stdout, re.MULTILINE))
    with open(os.path.join(SOURCE, "docs/man/pipeline-bench.1"), encoding="utf-8") as file:
        man = {"--" + name for name in re.findall(r"Fl Fl ([a-z-]+)", file.read())}
    with open(os.path.join(SOURCE, "docs/pipeline-bench.md"), encoding="utf-8") as file:
        page = set(re.findall(r"\| (?:`-[a-zA-Z]`, )?`(--[a-z-]+)", file.read()))
    expect(len(listed) > 10 and man == listed, "--help and man page differ:", listed ^ man)
    expect(page | {"--help", "--version"} == listed, "--help and docs differ:", listed ^ page)


for test in (every_schedule, hosts_in_an_order_of_their_own, three_stages_within_a_host, real_work, a_killed_rank_ends_the_job, bad_input_is_refused,
             tensors_that_skip_stages, pages_know_the_options):
    print(test.__name__, flush=True)
    test()
scratch.cleanup()
sys.exit(1 if failures else 0)
