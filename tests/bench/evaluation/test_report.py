#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py on small documents written by hand: figures in the tables, what is missing, verdicts, figures as files."""
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

root = os.environ["SOURCE_DIR"]
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(root, "bench/evaluation"))

import documents  # noqa: E402
import goals  # noqa: E402
import report  # noqa: E402
import tables  # noqa: E402

failures = []


def check(condition, text):
    if not condition:
        failures.append(text)


def times(*runs):
    runs = sorted(runs)
    mean = sum(runs) / len(runs)
    return {"min": runs[0], "median": runs[len(runs) // 2], "max": runs[-1], "mean": mean,
            "variance": sum((run - mean) ** 2 for run in runs) / len(runs), "all": runs}


def ours(case, strategy, measured, model, scheduler="auto", bound=1.0):
    layout = {"mesh": "2x4", "spec": "S0RR"}
    return {"case": case, "strategy": strategy, "scheduler": scheduler, "src": layout, "dst": layout,
            "bytes": 200, "tensors": 1, "bound_s": bound, "makespan_s": model, "wrong": 0,
            "cpu_s": 0.3, "time_s": times(*measured) if isinstance(measured, tuple) else times(measured)}


def theirs(case, peer, measured, size=200):
    return {"case": case, "peer": peer, "bytes": size, "wrong": 0, "time_s": times(measured)}


CONFIG = {"ranks": 20, "hosts": 5, "scale_divisor": 16, "warmup": 1, "iterations": 3,
          "validate": True, "network": {"nic_bandwidth_Bps": 119.5e6}}


class Lab:
    """An output directory."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def document(self, name, results, **config):
        self.write(f"{name}.json", json.dumps({"config": {**CONFIG, **config}, "results": results}))

    def documents(self):
        return documents.Documents(self.folder)

    def verdicts(self, word):
        """{goal: verdict} of the goals with a word in them."""
        return {goal.text: (goal.verdict, goal.figure) for goal in goals.goals(self.documents())
                if word in goal.text}

    def verdict(self, word):
        found = self.verdicts(word)
        check(len(found) == 1, f"'{word}' is in {len(found)} goals: {list(found)}")
        return next(iter(found.values()), ("none", ""))


def titles(lab):
    return [section.title for section in tables.sections(lab.documents())]


def table(lab, title, which=0):
    """The rows of a section's table, by their first cells."""
    section = next(one for one in tables.sections(lab.documents()) if one.title == title)
    return {row[0]: row for row in section.tables[which].rows}


def test_systems(lab):
    """Ratios use medians; a peer that is faster than auto, and one that moved something else, show."""
    systems = "The paper's systems, auto, and peers"
    lab.document("systems-a-crossmesh",
                 [ours("nm1", "send_recv", (3.9, 4.0, 9.0), 4.0), ours("nm1", "auto", (1.0, 1.25, 7.0), 1.0),
                  ours("1m7", "send_recv", 7.6, 8.0), ours("1m7", "auto", 1.0, 1.0)])
    check(titles(lab) == [systems, "Prediction", "Goals"], f"sections of systems alone: {titles(lab)}")
    row = table(lab, systems).get("nm1")
    check(row == ["nm1", "2x4 S0RR", "2x4 S0RR", "1.000", "4.000", "", "", "1.250", "80.0", "3.20"],
          f"nm1's row is {row}")
    check(list(table(lab, systems)) == ["1m7", "nm1"], "cases are not in the paper's order")
    check(lab.verdict("model says 4")[0] == "short", "3.2 passes for 3.8")
    check(lab.verdict("model says 8")[0] == "OK", "7.6 does not pass for 7.5")
    check(lab.verdict("0.95 of the model")[0] == "short", "3.2 of 4 passes for 0.95")
    lab.document("systems-a-mpi", [theirs("nm1", "openmpi-bcast", 2.0), theirs("nm1", "openmpi-isend", 1.0),
                                   theirs("1m7", "openmpi-bcast", 1.0)], library="Open MPI")
    row = table(lab, systems, 1)["nm1"]
    check(row == ["nm1", "1.250", "1.000 (0.80)", "2.000 (1.60)", "0.80"], f"nm1's peers are {row}")
    check(lab.verdict("openmpi-isend")[0] == "short", "a peer that is faster passes")
    check(lab.verdict("openmpi-bcast") == ("OK", "least 1.00 (1m7)"), "a peer that is as fast fails")
    check(lab.verdicts("torch") == {}, "a peer without results has a goal")

    lab.document("systems-a-torch", [theirs("nm1", "torch-gather_broadcast", 2.0, size=100)], library="PyTorch")
    try:
        lab.documents().systems()
        check(False, "a peer that moved half as much is compared")
    except documents.BadDocument as error:
        check("torch-gather_broadcast moved 100 B, crossmesh 200 B" in str(error), str(error))


def test_large(lab):
    lab.document("large-a", [ours(case, "auto", (1.0, 1.02, 1.06), 1.0) for case in documents.CASES[:14]],
                 protocol="paper")
    check(lab.verdict("large: auto ≥ 95 %")[0] == "short", "14 of 16 cases pass")
    lab.document("large-b", [ours(case, "auto", 1.05, 1.0) for case in documents.CASES[14:]], scale_divisor=32)
    check(lab.verdict("large: auto ≥ 95 %") == ("OK", "least 95.2 % (nm8)"), "16 cases do not pass")
    lab.document("short-a", [ours("nm1", "auto", 1.25, 1.0), ours("1m1", "auto", 1.0, 1.0)])
    verdict, figure = lab.verdict("short: auto ≥ 90 %")
    check(verdict == "short" and "80.0 % (nm1), 14 cases missing" in figure, f"{verdict}, {figure}")
    row = table(lab, "Larger tensors")["1m1"]
    check(row == ["1m1", "1.000", "1.027 ± 0.025", "1.020", "98.0"], f"1m1's row is {row}")
    text = tables.sections(lab.documents())[0].text
    check("13 runs, the first 3 dropped" in text and "1/16 of the paper's size (nm8 and nm9: 1/32)" in text, text)


def test_ablation(lab):
    def write(naive):
        lab.document("ablation-a", [ours("nm2", "broadcast", naive, 2.0, "naive"),
                                    ours("nm2", "broadcast", 1.1, 1.0, "openshop")])
        row = table(lab, "What load balance and order are worth")["nm2"]
        return row[3:6], lab.verdict("ablation")[0]
    check(write(2.31) == (["2.100", "2.000", "+5.0"], "OK"), "5 % above the model")
    check(write(1.87) == (["1.700", "2.000", "-15.0"], "short"), "15 % below the model")


def test_published(lab):
    lab.document("published-a", [ours("1m5", "alpa", 4.2, 4.0), ours("1m5", "global_allgather", 1.5, 1.75),
                                 ours("1m5", "broadcast", 1.0, 1.0), ours("1m6", "alpa", 6.0, 6.0)])
    rows = table(lab, "The paper's baselines")
    check(list(rows) == ["1m5"], f"rows of {list(rows)}: 1m6 has nothing to compare with")
    check(rows["1m5"] == ["1m5", "1.000", "100.0", "", "", "", "", "", "", "1.500", "1.750", "-14.3", "4.200", "4.000",
                          "+5.0"], f"1m5's row is {rows['1m5']}")
    check(lab.verdict("published") == ("short", "worst -14.3 % (1m5, global_allgather)"), "14.3 % pass for 10")


def test_fanout(lab):
    for measured, wanted in ((1.03, "OK"), (1.04, "short")):
        lab.document("fanout", [ours("own", "send_recv", 6.1, 6.0), ours("own", "broadcast", measured, 1.0)])
        check(lab.verdict("fan-out")[0] == wanted, f"fan-out of {measured} is not {wanted}")
    row = table(lab, "From one rank to two of each of three hosts")["send_recv"]
    check(row == ["send_recv", "1.000", "6.100", "6.100", "6.000"], f"send_recv's row is {row}")


def test_rails(lab):
    """Cases of one's own are named by their specs; the worst of the runs with a NIC a rank is the goal's figure."""
    lab.document("rails-each-s1", [ours("own", "auto", 1.02, 1.0)])
    lab.document("rails-each-nm", [ours("nm1", "auto", 1.07, 1.0)])
    lab.document("rails-all-nm", [ours("nm1", "auto", 1.01, 1.0)])
    rows = table(lab, "A NIC for each rank")
    check(rows["S0RR → S0RR"] == ["S0RR → S0RR", "1.000", "1.020", "1.020", "", ""], f"rows are {rows}")
    check(rows["nm1"] == ["nm1", "1.000", "1.070", "1.070", "1.010", "1.010"], f"rows are {rows}")
    check(lab.verdict("a NIC for each rank") == ("short", "1.070"), "1.07 passes for 1.05")


def test_nics(lab):
    lab.document("nics-one", [ours("nm1", "auto", 2.0, 2.0)])
    lab.document("nics-unequal", [ours("nm1", "auto", 1.5, 1.4)])
    check(table(lab, "More than one NIC a host")["nm1"] == ["nm1", "2.000", "", "1.500", "", "1.33"],
          "NICs without the document of two")
    check(lab.verdict("half the rate")[0] == "short", "1.33 passes for 1.4")
    lab.document("nics-two", [ours("nm1", "auto", 1.0, 1.0)], network={"nic_bandwidth_Bps": [1e8, 2e8]})
    check(lab.verdict("two equal")[0] == "OK", "2.0 does not pass for 1.9")


def test_cpu(lab):
    lab.document("cpu-crossmesh", [ours("nm4", "auto", 1.0, 1.0)])
    check("Processor time" not in titles(lab), "processor time without sockets")
    head = "# socket_copy: 16 ranks, 64 pairs\n#       bytes    min (us) median (us)\n"
    for cpu, wanted in (("150000.0", "OK"), ("149000.0", "short")):
        lab.write("cpu-sockets.txt", f"{head}    268435456   1.0   1100000.0   9.0   0.236   {cpu}   1.155   0\n")
        check(lab.verdict("plain sockets")[0] == wanted, f"0.3 s over {cpu} us is not {wanted}")
    check(table(lab, "Processor time")["socket_copy"] == ["socket_copy", "1.100", "0.149", "1.00"],
          "the sockets' row")


def test_intra_host(lab):
    lab.write("intra_host.txt",
              "# 5 rounds of 1073741824 B, cores 0 1 \n"
              "# reshard-bench                GB/s against                          GB/s       % goal (%)\n"
              "1 rank to 1                     5.123 ucx_perftest tag_bw             5.300    96.7       90\n"
              "1 rank to 4, copies in all      7.111 memory_copy, 4 copies          10.900    65.2       70\n")
    check(titles(lab) == ["Inside a host", "Goals"], f"sections inside a host: {titles(lab)}")
    check(table(lab, "Inside a host")["1 rank to 1"] == ["1 rank to 1", "5.123", "ucx_perftest tag_bw", "5.300",
                                                        "96.7"], "the row of one rank to one")
    check(lab.verdict("rank to 1 ≥ 90 %")[0] == "OK", "96.7 does not pass for 90")
    check(lab.verdict("rank to 4")[0] == "short", "65.2 passes for 70")


def test_prediction(lab):
    lab.document("model", [ours("dense-7b", "auto", 1.0, 0.98), ours("dense-7b", "send_recv", 2.0, 1.92),
                           ours("dense-7b", "broadcast", 1.0, 1.2)])
    row = table(lab, "Prediction")["all"]
    check(row == ["all", "3", "4.0", "+20.0", "model: dense-7b, broadcast, auto"], f"the row of all is {row}")
    check(lab.verdict("median error")[0] == "OK" and lab.verdict("worst error")[0] == "short", "errors of 2, 4 and 20 %")
    check(lab.verdict("wrong byte") == ("OK", "0 in 3 results"), "no wrong byte")
    lab.document("model", [{**ours("dense-7b", "auto", 1.0, 0.98), "wrong": 7}])
    check(lab.verdict("wrong byte")[0] == "short", "7 wrong bytes pass")


def run(python, *arguments):
    return subprocess.run([python, os.path.join(root, "bench/evaluation/report.py"), *arguments],
                          capture_output=True, text=True, check=False)


def with_matplotlib():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import matplotlib"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def test_files(lab):
    """report.md, the part of results.md, and figures that are the same twice."""
    result = run(sys.executable, lab.folder)
    check(result.returncode == 1 and "has no documents" in result.stderr, f"empty: {result}")
    lab.document("systems-a-crossmesh", [ours("nm1", "send_recv", 4.0, 4.0), ours("nm1", "auto", 1.0, 1.0)])
    lab.document("systems-a-mpi", [theirs("nm1", "openmpi-bcast", 2.0)], library="Open MPI v4")
    lab.document("ablation-a", [ours("nm2", "broadcast", 2.0, 2.0, "naive"),
                                ours("nm2", "broadcast", 1.1, 1.0, "openshop")])
    lab.write("machine.json", json.dumps({"systems": {
        "date": "2026-01-02", "cpus": 2, "cpu": "A processor", "kernel": "Linux 6", "system": "Debian 12",
        "commit": "abc", "versions": {"libucx0": "1.13"}}}))
    docs = os.path.join(lab.folder, "docs")
    os.mkdir(docs)
    page = os.path.join(docs, "results.md")
    lab.write("docs/results.md", "before\n")
    result = run(sys.executable, lab.folder, docs)
    check(result.returncode == 1 and "has no part between" in result.stderr, f"no marks: {result}")

    python = with_matplotlib()
    lab.write("docs/results.md", f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    result = run(python or sys.executable, lab.folder, docs)
    check(result.returncode == 0, f"report.py failed: {result.stderr}")
    with open(page, encoding="utf-8") as file:
        text = file.read()
    check(re.match(r"before\n.*begin -->\n\n.*\n\n<!-- paper: end -->\nafter\n$", text, re.S)
          and "\nold\n" not in text, f"the page is {text}")
    check("| nm1 | 2x4 S0RR | 2x4 S0RR | 1.000 | 4.000 |  |  | 1.000 | 100.0 | 4.00 |" in text, text)
    check("Machine: 2 × A processor" in text and "2026-01-02, commit abc: `bench/paper.sh" in " ".join(text.split()),
          text)
    with open(os.path.join(lab.folder, "report.md"), encoding="utf-8") as file:
        check(text.split(report.BEGIN)[1].split(report.END)[0].strip() in file.read(), "report.md differs")
    check(re.search(r"^systems: openmpi-bcast / auto ≥ 1 +least 2\.00 \(nm1\) +OK$", result.stdout, re.M),
          f"no verdict in:\n{result.stdout}")

    figures = ["paper-systems", "paper-ablation", "paper-prediction", "paper-headline"]
    if python is None:
        print("python3-matplotlib is not installed: figures were not checked")
        check("img/" not in text and "no figures" in result.stderr, "figures without matplotlib")
        return
    images = {}
    for name in figures:
        check(f"](img/{name}.svg)" in text, f"the page does not show {name}")
        with open(os.path.join(docs, "img", f"{name}.svg"), encoding="utf-8") as file:
            images[name] = file.read()
        xml.etree.ElementTree.fromstring(images[name].encode())
        check(len(images[name]) < 60000 and "<text" in images[name], f"{name} is large or has no text")
    run(python, lab.folder, docs)
    for name in figures:
        with open(os.path.join(docs, "img", f"{name}.svg"), encoding="utf-8") as file:
            check(file.read() == images[name], f"{name} is another one when it is drawn again")


for test in (test_systems, test_large, test_ablation, test_published, test_fanout, test_nics, test_rails, test_cpu,
             test_intra_host,
             test_prediction, test_files):
    with tempfile.TemporaryDirectory() as place:
        try:
            test(Lab(place))
        except (KeyError, StopIteration) as error:
            failures.append(f"{test.__name__}: {error!r} is missing")

for failure in failures:
    print("FAILED:", failure)
sys.exit(1 if failures else 0)
