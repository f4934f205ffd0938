#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard-bench --check: the table and the document of this machine, of local ranks, of ranks that differ."""
import json
import os
import re
import subprocess
import sys

command = os.environ["RESHARD_BENCH"]
failures = []
plain = {name: value for name, value in os.environ.items() if not name.startswith(("XM_", "RANK", "WORLD_SIZE"))}


def check(condition, text):
    if not condition:
        failures.append(text)


def run(*arguments, **settings):
    return subprocess.run([command, "--check", *arguments], env={**plain, **settings}, capture_output=True, text=True,
                          timeout=120, check=False)


def document(result):
    check(result.stderr == "", result.stderr)
    return json.loads(result.stdout)


def finding(doc, subject):
    found = [f for f in doc["findings"] if f["subject"] == subject]
    check(len(found) == 1, f"{len(found)} findings of '{subject}' in {doc['findings']}")
    return found[0] if found else {"verdict": "", "finding": "", "ranks": []}


def is_consistent(doc, ranks):
    subjects = {}
    for f in doc["findings"]:
        check(f["verdict"] in ("ok", "not here", "warn", "fail"), f"verdict {f}")
        check(("advice" in f) == (f["verdict"] in ("warn", "fail")), f"advice of {f}")
        subjects.setdefault(f["subject"], []).extend(f["ranks"])
    for subject, of in subjects.items():
        check(sorted(of) == list(range(ranks)), f"{subject} is of the ranks {of}")
    for verdict, count in doc["counts"].items():
        check(count == sum(f["verdict"] == verdict for f in doc["findings"]), f"count of {verdict}")
    check(len(doc["hosts"]) == ranks, f"hosts {doc['hosts']}")


# This machine alone: the table and the document say the same.
result = run("--json")
alone = document(result)
is_consistent(alone, 1)
check(result.returncode == (1 if alone["counts"]["fail"] else 0), f"status {result.returncode}: {alone['counts']}")
for subject in ("settings", "locked memory", "open files", "shared memory", "UCX", "cores", "clock source", "interface MTUs",
                "TCP buffers", "GPU peer memory", "NIC distance"):
    finding(alone, subject)
check("UCX " in alone["software"] and "hwloc " in alone["software"], alone["software"])
table = run()
check(table.returncode == result.returncode, f"status {table.returncode} of the table")
lines = table.stdout.splitlines()
rows = [line for line in lines if re.match(r"(ok|not here|warn|fail) ", line)]
check(len(rows) == len(alone["findings"]), f"{len(rows)} rows: {table.stdout}")
check(sum(re.match(r" +-> .+\.$", line) is not None for line in lines) == alone["counts"]["warn"] + alone["counts"]["fail"],
      table.stdout)
check(lines[0].startswith("# reshard-bench ") and lines[-1].startswith("# ok "), table.stdout)

# The page of the doctor has all subjects.
with open(os.path.join(os.environ["SOURCE_DIR"], "docs/observability.md"), encoding="utf-8") as file:
    page = file.read()
for f in alone["findings"]:
    if not re.search(r" [^ ]+:[0-9]+$", f["subject"]):  # but for those of single ports
        check(f"| {f['subject']} |" in page, f"docs/observability.md lacks {f['subject']}")

# A malformed or unknown setting is a finding here, and refused elsewhere.
result = run("--json", XM_TIMEOTU="3")
doc = document(result)
check(result.returncode == 1, f"status {result.returncode} with an unknown setting")
check(finding(doc, "settings")["verdict"] == "fail" and "did you mean XM_TIMEOUT?" in finding(doc, "settings")["finding"],
      f"{finding(doc, 'settings')}")

# Polling ranks without cores enough.
result = run("-n", str(len(os.sched_getaffinity(0)) + 1), "--json", XM_PROGRESS="spin")
check(result.returncode == 1 and finding(document(result), "cores")["verdict"] == "fail", "polling ranks")

# Local ranks, on two hosts in name: findings of all are one row.
result = run("-n", "4", "--hosts", "2", "--json")
doc = document(result)
is_consistent(doc, 4)
check(doc["hosts"] == ["host0", "host0", "host1", "host1"], f"{doc['hosts']}")
check(finding(doc, "UCX on all ranks")["verdict"] == "ok", f"{finding(doc, 'UCX on all ranks')}")
clocks = finding(doc, "clocks of the hosts")
check(clocks["verdict"] == "ok", f"one clock: {clocks}")
within = re.search(r"is ([0-9.]+) (s|ms|us) (?:behind|ahead of) rank 0 \(host0\), to within ([0-9.]+) (s|ms|us)", clocks["finding"])
unit = {"s": 1, "ms": 1e-3, "us": 1e-6}
check(within is not None and float(within[1]) * unit[within[2]] <= float(within[3]) * unit[within[4]] + 1e-6,
      f"one clock: {clocks}")


# Ranks of a launcher, one of which is unlike the others.
def job(size, odd, **settings):
    port = subprocess.run([os.path.join(os.path.dirname(os.path.abspath(__file__)), "free_port.py")], capture_output=True,
                          text=True, check=True).stdout.strip()
    ranks = []
    for rank in range(size):
        of_rank = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(subprocess.Popen([command, "--check", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env={**plain, **of_rank, **(settings if rank == odd else {})}))
    return [(*rank.communicate(timeout=120), rank.returncode) for rank in ranks]


ends = job(3, 2, XM_WINDOW="4", XM_HOST="elsewhere")
doc = json.loads(ends[0][0])
is_consistent(doc, 3)
check([end[2] for end in ends] == [1, 0, 0], f"{ends}")
check(all(end[0] == "" for end in ends[1:]), "only rank 0 speaks")
check(finding(doc, "settings on all ranks") == {
    "subject": "settings on all ranks", "verdict": "fail", "ranks": [0, 1, 2],
    "finding": "rank 2 (elsewhere) has XM_WINDOW=4",
    "advice": "Set them alike for all ranks; docs/configuration.md marks them as uniform."},
    f"{finding(doc, 'settings on all ranks')}")

# What does not go together.
for arguments, text in ((["--suite", "alpa"], "--check moves nothing; leave --suite out"),
                        (["--transport", "sim"], "--check looks at real machines"),
                        (["--dry-run"], "--check and --dry-run do different things")):
    result = run(*arguments)
    check(result.returncode == 2 and text in result.stderr, f"{arguments}: {result.returncode} {result.stderr}")

for failure in failures:
    print("FAILED:", failure)
sys.exit(1 if failures else 0)
