#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every solver on every problem in the same time, each answer judged anew; bench/solver.sh runs it."""
import argparse
import csv
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import graphs
from peers import SOLVERS
from problem import ROOT, Problem, Refused, autopar, load

from check_certificate import check

PUBLIC = "ABCDEFGHIJKLMNOPQRSTUVWXY"
QUICK = ["hlo-mlp2-b1024-h128-lab-2x4", "hlo-scan12-b1024-h128-lab-2x4", "onnx-mlp2-b1024-h128-lab-2x4"]
COLUMNS = ["set", "instance", "solver", "threads", "given", "nodes", "edges", "cost", "bound", "gap", "proved", "seconds", "note"]
CERTIFICATES = ["instance", "given", "cost", "bound", "gap", "megabytes", "check_seconds", "note"]
# A peer may take this long to make its model, besides twice the given time; and this much memory.
MODEL_SECONDS, MEMORY = 200, 9 << 30
MARKS = ("<!-- bench/solver.sh: summary -->", "<!-- end -->")
NEAR, CLOSE, PROVED = 1.001, 0.01, 1e-9


class Table:
    """A CSV that grows by rows, and knows which it has."""

    def __init__(self, path, columns, key):
        self.path, self.columns, self.key, self.lock = path, columns, key, threading.Lock()
        self.rows = list(csv.DictReader(path.open())) if path.exists() else []
        self.have = {tuple(row[k] for k in key) for row in self.rows}

    def add(self, row):
        row = {column: str(row[column]) for column in self.columns}
        with self.lock, self.path.open("a") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            self.rows.append(row)


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def answer_of(solver, path, seconds, threads):
    command = [sys.executable, "-B", str(Path(__file__).with_name("peers.py")), solver, str(path), str(seconds), str(threads)]
    # A group of its own, so that what a peer started ends with it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                          preexec_fn=limit_memory) as process:
        try:
            out, err = process.communicate(timeout=MODEL_SECONDS + 2 * seconds)
            return json.loads(out.splitlines()[-1])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return {"choice": None, "bound": None, "status": "did not end", "seconds": seconds}
        except (IndexError, ValueError):
            return {"choice": None, "bound": None, "status": f"failed: {err.strip()[-80:]}", "seconds": seconds}


def compare(kind, name, path, solver, options, seconds):
    """A row: what the solver found, by our own reckoning; a proof counts where its bound says so too."""
    answer = answer_of(solver, path, seconds, options.threads)
    problem = load(path)["problem"]
    cost, why = Problem(path).worth(answer["choice"]) if answer["choice"] is not None else (None, "")
    bound = answer["bound"] if answer["bound"] is not None and abs(answer["bound"]) < 1e30 else None
    gap = max(0.0, (cost - bound) / max(cost, 1)) if cost is not None and bound is not None else None
    proved = gap is not None and answer["status"].startswith("optimal") and gap < 1e-6
    return {"set": kind, "instance": name, "solver": solver, "threads": options.threads, "given": seconds,
            "nodes": len(problem["nodes"]["costs"]), "edges": len(problem["edges"]["costs"]),
            "cost": "" if cost is None else cost, "bound": "" if bound is None else f"{bound:.0f}",
            "gap": "" if gap is None else f"{gap:.6f}", "proved": int(proved), "seconds": f"{answer['seconds']:.2f}",
            "note": f"refused: {why}" if why else answer["status"] if cost is not None else f"nothing found; {answer['status']}"}


def certify(name, path, seconds):
    """Our own certificate, verified by the program that trusts nobody."""
    row = dict.fromkeys(CERTIFICATES, "") | {"instance": name, "given": seconds}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "certificate.json"
        said = subprocess.run([autopar(), "solve", path, str(seconds), "--threads", "1", "--quiet", "--certificate", file],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False).stderr
        if not file.exists():
            return row | {"note": f"none: {said.strip()[-100:]}"}
        begin = time.monotonic()
        try:
            cost, bound = check(load(path), load(file))
        except Refused as refused:
            return row | {"note": f"refused: {refused}"}
        return row | {"cost": cost, "bound": bound, "gap": f"{(cost - bound) / max(cost, 1):.6f}", "note": "verified",
                      "megabytes": f"{file.stat().st_size / 1e6:.2f}", "check_seconds": f"{time.monotonic() - begin:.1f}"}


def fits(other, name):
    """Whether a solution of one problem is one of the other as well."""
    (graph, _, limit), (graph_too, _, limit_too) = other.partition("@"), name.partition("@")
    return other == name or (graph == graph_too and float(limit or 0) <= float(limit_too or 0))


def summary(rows, kind):
    """The table of one set, and what ours has to show."""
    instances = {}
    for row in rows:
        if row["set"] == kind:
            instances.setdefault(row["instance"], {})[row["solver"]] = row
    instances = {name: by for name, by in instances.items() if "autopar" in by and len(by) > 1}
    if not instances:
        return []
    found = {name: min((int(row["cost"]) for row in by.values() if row["cost"]), default=None) for name, by in instances.items()}
    # What fits a graph's smaller limit fits the larger one as well.
    best = {name: min((found[other] for other in found if found[other] is not None and fits(other, name)), default=None)
            for name in instances}
    given = sorted({float(row["given"]) for by in instances.values() for row in by.values()})
    threads = sorted({row["threads"] for by in instances.values() for row in by.values()})
    what = {"public": "instances of the contest", "graphs": "problems of graphs"}[kind]
    lines = [f"{len(instances)} {what}, {'/'.join(f'{g:g}' for g in given)} s, {'/'.join(threads)} thread(s) each:", "",
             "| solver | a solution | the best one | proved | mean factor | largest factor | gap ≤ 1 % | median s |",
             "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for solver in SOLVERS:
        of = {name: by[solver] for name, by in instances.items() if solver in by}
        factors = sorted(int(row["cost"]) / max(best[name], 1) for name, row in of.items() if row["cost"])
        if not of:
            continue
        seconds = sorted(float(row["seconds"]) for row in of.values())
        lines.append(f"| {solver} | {len(factors)} of {len(of)} | {sum(f <= 1 + PROVED for f in factors)} "
                     f"| {sum(int(row['proved']) for row in of.values())} "
                     + (f"| {sum(factors) / len(factors):.4f} | {factors[-1]:.4f} " if factors else "| – | – ")
                     + f"| {sum(row['gap'] != '' and float(row['gap']) <= CLOSE for row in of.values())} | {seconds[len(seconds) // 2]:.2f} |")
    lines += ["", *shown(instances, best)]
    for name, by in instances.items():
        for row in by.values():
            if row["bound"] and best[name] is not None and float(row["bound"]) > best[name] * (1 + 1e-6) + 1:
                lines.append(f"- {name}: {row['solver']} claims a bound of {row['bound']}, above a solution of {best[name]}")
            if row["note"].startswith("refused"):
                lines.append(f"- {name}: the answer of {row['solver']} was {row['note']}")
    return [*lines, ""]


def shown(instances, best):
    """The two lines of what must be shown, and every problem that misses one of them."""
    ours = {name: by["autopar"] for name, by in instances.items()}
    worse = {name: int(row["cost"]) / max(best[name], 1) if row["cost"] else float("inf")
             for name, row in ours.items() if best[name] is not None}
    worse = {name: factor for name, factor in worse.items() if factor > NEAR}
    wide = {name: row["gap"] for name, row in ours.items() if row["gap"] == "" or float(row["gap"]) > CLOSE}
    proved = sum(int(row["proved"]) for row in ours.values())
    lines = [f"- Worse than the best by more than 0.1 %: {len(worse)} of {len(ours)} (goal: none).",
             f"- Proved: {100 * proved / len(ours):.1f} % (goal: 80 %); a gap above 1 %: {len(wide)} (goal: none)."]
    for name in sorted(worse.keys() | wide.keys()):
        who = ", ".join(f"{solver} {row['cost'] or '-'}" for solver, row in instances[name].items())
        lines.append(f"  - {name}: gap {wide.get(name) or ours[name]['gap'] or '-'}, factor {worse.get(name, 1):.4f} ({who})")
    return lines


def problems(options, directory):
    """(set, name, path) of every problem that is wanted, made where it is missing."""
    wanted = re.compile(options.only)
    missing = []
    for letter in "" if options.quick or options.set == "graphs" else PUBLIC:
        path = next((p for at in (options.data, ROOT / "tests/fixtures/iopddl") if (p := at / f"{letter}.json.gz").exists()), None)
        if path is None:
            missing.append(letter)
        elif wanted.search(letter):
            yield "public", letter, path
    if missing:
        print(f"public instances that are not here: {' '.join(missing)}", flush=True)
    for graph in graphs.GRAPHS if options.set != "public" else []:
        name = graphs.name_of(graph)
        names = [f"{name}@{factor}" for factor in graphs.FACTORS]
        if (options.quick and name not in QUICK) or not any(map(wanted.search, names)):
            continue
        if not all((directory / f"{n}.json.gz").exists() for n in names):
            try:
                graphs.make(directory, graph)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                print(f"{name} is left out: {error}", flush=True)
                continue
        yield from (("graphs", n, directory / f"{n}.json.gz") for n in names if wanted.search(n))


def arguments():
    parser = argparse.ArgumentParser(prog="bench/solver.sh", description=__doc__)
    parser.add_argument("--seconds", type=float, help="for each graph (default 4, quick 2)")
    parser.add_argument("--public-seconds", type=float, default=60.0, help="for each public instance (default 60)")
    parser.add_argument("--threads", type=int, default=1, help="of each solver (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (default 1)")
    parser.add_argument("--only", default="", help="a regular expression that the problem's name matches")
    parser.add_argument("--set", choices=["public", "graphs"], help="one set only")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="with commas between them")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/iopddl", help="the contest's instances")
    parser.add_argument("--out", type=Path, help="default out/solver, quick out/solver-quick")
    parser.add_argument("--certificates", action="store_true", help="verify certificates instead: public, and a limit of 1.1 of each graph")
    parser.add_argument("--docs", action="store_true", help="put the summary into docs/solver.md")
    parser.add_argument("--quick", action="store_true", help="12 small problems, 2 s")
    options = parser.parse_args()
    unknown = set(options.solvers.split(",")) - set(SOLVERS)
    if unknown:
        parser.error(f"--solvers: {', '.join(sorted(unknown))}: there are {', '.join(SOLVERS)}")
    options.seconds = options.seconds or (2.0 if options.quick else 4.0)
    options.out = options.out or ROOT / ("out/solver-quick" if options.quick else "out/solver")
    return options


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    results = Table(options.out / "results.csv", COLUMNS, ("instance", "solver", "threads", "given"))
    proofs = Table(options.out / "certificates.csv", CERTIFICATES, ("instance", "given"))

    def one(kind, name, path, solver):
        seconds = options.public_seconds if kind == "public" else options.seconds
        if solver is None:
            proofs.add(row := certify(name, path, seconds))
        else:
            results.add(row := compare(kind, name, path, solver, options, seconds))
        print(" ".join(f"{row[c]}" for c in ("instance", "solver", "cost", "gap", "seconds", "note") if c in row), flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        runs = []
        for kind, name, path in problems(options, ROOT / "build/solver/graphs"):
            seconds = options.public_seconds if kind == "public" else options.seconds
            for solver in options.solvers.split(",") if not options.certificates else []:
                if (name, solver, str(options.threads), str(seconds)) not in results.have:
                    runs.append(pool.submit(one, kind, name, path, solver))
            if options.certificates and (kind == "public" or name.endswith("@1.1")) and (name, str(seconds)) not in proofs.have:
                runs.append(pool.submit(one, kind, name, path, None))
        for run in runs:
            run.result()
    given = {"public": str(options.public_seconds), "graphs": str(options.seconds)}
    rows = [row for row in results.rows if row["threads"] == str(options.threads) and row["given"] == given[row["set"]]]
    lines = summary(rows, "public") + summary(rows, "graphs")
    if proofs.rows:
        good = [float(row["gap"]) for row in proofs.rows if row["note"] == "verified"]
        lines.append(f"Certificates: {len(good)} of {len(proofs.rows)} verified, {sum(g <= 1e-9 for g in good)} of optima, "
                     f"largest gap {100 * max(good, default=0):.2f} %.")
    (options.out / ("summary.md" if options.threads == 1 else f"summary-{options.threads}-threads.md")).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if options.docs:
        page = ROOT / "docs/solver.md"
        head, rest = page.read_text().split(MARKS[0])
        page.write_text(f"{head}{MARKS[0]}\n" + "\n".join(lines) + f"\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


if __name__ == "__main__":
    main()
