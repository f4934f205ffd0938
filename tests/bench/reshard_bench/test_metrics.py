#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""XM_METRICS_FILE: what the ranks of reshard-bench write is well-formed, and has the bytes that their plan says."""
import json
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import prometheus_text  # noqa: E402

command, source = os.environ["RESHARD_BENCH"], os.environ["SOURCE_DIR"]
plain = {name: value for name, value in os.environ.items() if not name.startswith("XM_")}
failures = []
WARMUP, TIMED, RANKS = 1, 3, 4
RUNS = WARMUP + TIMED


def check(condition, text):
    if not condition:
        failures.append(text)


def bench(directory, *arguments, **settings):
    """A reshard between ranks 0, 1 and 2, 3 whose rates come from a file, and whose ranks do not ask for each other over the
    transport when one of them is held up, so that nothing but the reshard moves."""
    profile = os.path.join(source, "tests/fixtures/profiles/lab-2x4.json")
    return subprocess.run(
        [command, "-n", str(RANKS), "--src-mesh", "2", "--dst-mesh", "2", "--src-spec", "S0R", "--dst-spec", "RS0",
         "--shape", "512x1024", "--dtype", "int32", "-w", str(WARMUP), "-i", str(TIMED), "--profile", profile,
         "--dump-plan", os.path.join(directory, "plan.json"), *arguments],
        env={**plain, "XM_HEARTBEAT": "0", "XM_METRICS_FILE": os.path.join(directory, "%r.prom"), **settings}, capture_output=True, text=True,
        timeout=120, check=False)


def planned(directory):
    """Bytes from rank to rank in one run."""
    with open(os.path.join(directory, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    between = {}
    for transfer in plan["transfers"]:
        route = plan["routes"][transfer["route"]]
        size = plan["tensors"][plan["tasks"][transfer["task"]]["tensor"]]["element_size"]
        for rank, parent in zip(route["ranks"], route["parents"]):
            sender = transfer["sender"] if parent < 0 else route["ranks"][parent]
            if sender != rank:
                between[sender, rank] = between.get((sender, rank), 0) + (transfer["end"] - transfer["first"]) * size
    return between


def read(directory):
    ranks = []
    for rank in range(RANKS):
        with open(os.path.join(directory, f"{rank}.prom"), encoding="utf-8", newline="") as file:
            families = prometheus_text.parse(file.read())
        ranks.append(families)
        for name, family in families.items():
            check(name.startswith("crossmesh_"), f"a metric called {name}")
            check(all(("rank", str(rank)) in of for of in family["samples"]), f"{name} of another rank than {rank}")
        info = [dict(of) for of in families["crossmesh_build_info"]["samples"]]
        check(len(info) == 1 and info[0]["transport"] == "ucx", f"build_info {info}")
    names = set(os.listdir(directory))
    check(len(names) == RANKS + 1, f"files {names}")
    return ranks


def count(families, name, **labels):
    return prometheus_text.total(families, "crossmesh_" + name, **labels)


def balanced(ranks):
    """Each end of each message is counted once, and everything has ended."""
    for rank, families in enumerate(ranks):
        for peer in range(RANKS):
            for direction in ("send", "receive"):
                here = {"peer": str(peer), "direction": direction}
                check(count(families, "operations_posted_total", **here) == count(families, "operations_total", **here),
                      f"rank {rank}, {here}: not all that was posted has ended")
                check(count(families, "operations_in_flight", **here) == 0, f"rank {rank}, {here}: in flight")
            check(count(families, "message_bytes_total", peer=str(peer), direction="send") ==
                  count(ranks[peer], "message_bytes_total", peer=str(rank), direction="receive"),
                  f"rank {rank} to {peer}: what was sent was not received")
        check(count(families, "operations_total") == count(families, "operations_total", status="ok"), f"rank {rank}: failures")
        check(count(families, "operations_refused_total") == 0, f"rank {rank}: refusals")
        check(count(families, "nic_errors_total") == 0, f"rank {rank}: errors of NICs")
        check(count(families, "sleeps_total") > 0 and 0 < count(families, "sleep_seconds_total") < 120, f"rank {rank}: sleeps")


def case(nic, *arguments, **settings):
    with tempfile.TemporaryDirectory() as directory:
        result = bench(directory, *arguments, **settings)
        check(result.returncode == 0 and result.stderr == "", f"{arguments}: {result.stderr}")
        check(f"NICs {nic}" in result.stdout, f"{arguments}: {result.stdout}")
        ranks, between = read(directory), planned(directory)
        check(sum(between.values()) >= 512 * 1024 * 4, f"plan {between}")
        balanced(ranks)
        return ranks, between


# Between two hosts, over TCP: messages have the plan's bytes, all over one NIC.
ranks, between = case("tcp", "--hosts", "2", XM_DIRECT_COPY="off")
for rank, families in enumerate(ranks):
    for peer in range(RANKS):
        sent = count(families, "message_bytes_total", peer=str(peer), direction="send")
        # Ranks that share a NIC tell each other whose turn it is, a byte each time.
        turns = RUNS if rank // 2 == peer // 2 else 0
        check(0 <= sent - RUNS * between.get((rank, peer), 0) <= turns, f"rank {rank} to {peer}: {sent}, {RUNS} times {between}")
    check(count(families, "nic_bytes_total", nic="tcp", direction="send") ==
          RUNS * sum(size for (sender, _), size in between.items() if sender == rank), f"rank {rank}: bytes of NICs")
    check(count(families, "direct_copy_bytes_total") == 0, f"rank {rank}: direct copies between hosts")
    check(count(families, "build_info", host=f"host{rank // 2}") == 1, f"rank {rank}: host")
    check(count(families, "peer_info", peer=str(3 - rank), host=f"host{(3 - rank) // 2}") == 1, f"rank {rank}: peers")

# Inside a host, by messages of UCX.
ranks, between = case("shm", XM_DIRECT_COPY="off")
for rank, families in enumerate(ranks):
    check(count(families, "nic_bytes_total", nic="shm", direction="receive") ==
          RUNS * sum(size for (_, receiver), size in between.items() if receiver == rank), f"rank {rank}: bytes of shm")

# Inside a host, copied by the receivers straight out of the senders' memory: messages only announce that.
ranks, between = case("shm", "--shape", "4096x1024")
for rank, families in enumerate(ranks):
    for peer in range(RANKS):
        copied = count(families, "direct_copy_bytes_total", peer=str(peer))
        check(copied == RUNS * between.get((peer, rank), 0), f"rank {rank} from {peer}: copied {copied}")
        check(count(families, "message_bytes_total", peer=str(peer)) <= 10000, f"rank {rank} with {peer}: long messages")

# The page of the metrics has all of them, with their labels.
with open(os.path.join(source, "docs/observability.md"), encoding="utf-8") as file:
    page = file.read().splitlines()
for name, family in ranks[0].items():
    rows = [line for line in page if line.startswith("| ") and f"`{name}`" in line]
    check(len(rows) == 1, f"docs/observability.md has {len(rows)} rows of {name}")
    labels = {label for of in family["samples"] for label, _ in of} - {"rank"}
    check(len(rows) == 1 and all(f"`{label}`" in rows[0] for label in labels), f"docs/observability.md: labels of {name}: {labels}")

# At level info each rank begins its log with what it is, in a file of its own.
with tempfile.TemporaryDirectory() as directory:
    result = bench(directory, XM_LOG="error,worker=info", XM_METRICS_FILE="", XM_LOG_FILE=os.path.join(directory, "log-%r"))
    check(result.returncode == 0, f"XM_LOG_FILE: {result.stderr}")
    for rank in range(RANKS):
        with open(os.path.join(directory, f"log-{rank}"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        start = rf"\[[0-9.]+\] \S+:[0-9]+ rank {rank} INFO worker/create\.c:[0-9]+ rank {rank} of {RANKS} on \S+, " \
                r"crossmesh [0-9.]+, transport ucx, NICs shm; UCX [0-9.]+, libibverbs [0-9.]+, hwloc API [0-9.]+, .*"
        check(len(lines) == 1 and re.fullmatch(start, lines[0]), f"log of rank {rank}: {lines}")

# Files are written while the job runs; one that cannot be written is said once.
with tempfile.TemporaryDirectory() as directory:
    result = bench(directory, XM_METRICS_FILE=os.path.join(directory, "missing", "%r.prom"), XM_METRICS_INTERVAL="0.01")
    check(result.returncode == 0 and result.stderr.count("no metrics: ") == RANKS, f"a missing folder: {result.stderr}")
    result = bench(directory, XM_METRICS_FILE=os.path.join(directory, "all.prom"))
    # A rank that hears it from another one before it has looked itself says that one's sentence and ends with 1.
    check(result.returncode in (1, 2) and re.search(r"is rank [0-9]'s file as well; %r in it makes one for each rank", result.stderr),
          f"one file for all: {result.returncode} {result.stderr}")

# The parser itself refuses what is wrong.
GOOD = '# HELP a_total x\n# TYPE a_total counter\na_total{l="v\\"\\\\\\n"} 1\n'
check(prometheus_text.parse(GOOD)["a_total"]["samples"] == {frozenset({("l", 'v"\\\n')}): 1.0}, "a sample")
for bad in (GOOD[:-1], GOOD.replace("counter", "count"), GOOD.replace("} 1", "}  1"), GOOD + GOOD, GOOD + 'a_total{l="\n"} 1\n',
            GOOD.replace("# TYPE a_total counter\n", ""), GOOD.replace("a_total", "a"), GOOD.replace("} 1", "} -1"),
            GOOD + 'b_total 1\n', GOOD.replace('{l="', '{l="x",l="'), GOOD.replace("} 1", "} one")):
    try:
        prometheus_text.parse(bad)
        check(False, f"accepted: {bad!r}")
    except prometheus_text.Malformed:
        pass

for failure in failures:
    print("FAILED:", failure)
sys.exit(1 if failures else 0)
