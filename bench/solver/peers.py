#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py SOLVER PROBLEM SECONDS THREADS: one solver on one problem; prints what it claims as JSON.

Making the model does not count as the peer's time; reading it from a file does, for those that do. All get the
problem as it is, nothing of our presolve. Nobody is told anything of another's solutions.
"""
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from problem import INFINITE, Problem, autopar

# Rows of the limit are written out up to so many terms; above that they are sums that run along the moments.
MOST_TERMS = 4_000_000


def ours(_, path, seconds, threads, scratch):
    yield
    said = subprocess.run([autopar(), "solve", path, str(seconds), "--threads", str(threads), "--quiet", "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if said.returncode != 0:
        yield None, None, said.stderr.strip().split("\n")[-1][-100:]
    found = json.loads(said.stdout)
    yield found["choice"], found["bound"], "optimal" if found["optimal"] else ""


def chosen(problem, values):
    """The strategy of every node whose 0-1 variable is the largest."""
    return [int(np.argmax(values[at:to])) for at, to in zip(problem.at[:-1], problem.at[1:])]


def moved(problem):
    """Per moment, the nodes that begin to count and those that ended, since the moment before."""
    come, gone = ([[] for _ in problem.room] for _ in range(2))
    for n, (at, to) in enumerate(zip(problem.first, problem.last)):
        if at < to:
            come[at].append((n, 1))
            if to < len(gone):
                gone[to].append((n, -1))
    return [c + g for c, g in zip(come, gone)]


def memory_rows(problem, most=MOST_TERMS):
    """Whether the sums run along, and the rows of the limit, each a list of (node, sign)."""
    if problem.terms > most:
        return True, moved(problem)
    rows = [[] for _ in problem.room]
    for n, (at, to) in enumerate(zip(problem.first, problem.last)):
        for row in rows[at:to]:
            row.append((n, 1))
    return False, rows


def integer_program(problem):
    """The whole model for HiGHS and CBC: a 0-1 variable per strategy, a continuous one per possible cell, whose
    sums over a row or column are the strategy's (the tight form); costs and bytes scaled to what doubles like."""
    import highspy
    x_count = int(problem.at[-1])
    typical = sum(float(np.median(c)) for c in problem.costs) + sum(
        float(np.median(t[t < INFINITE])) for t in problem.tables.values() if (t < INFINITE).any())
    unit = max(typical, 1.0) / 1e6
    node_cost = np.concatenate(problem.costs)
    cost, upper = [np.where(node_cost < INFINITE, node_cost / unit, 0.0)], [(node_cost < INFINITE).astype(float)]
    rows, columns, values, low, high = [], [], [], [], []
    row_count = column_count = 0

    def add(row, column, value):
        rows.append(np.asarray(row) + row_count)
        columns.append(np.asarray(column))
        values.append(np.broadcast_to(np.asarray(value, float), rows[-1].shape))

    node_of = np.repeat(np.arange(len(problem.costs)), np.diff(problem.at))
    add(node_of, np.arange(x_count), 1.0)
    low.append(np.ones(len(problem.costs)))
    high.append(low[0])
    row_count, column_count = len(problem.costs), x_count
    for (a, b), table in problem.tables.items():
        s, t = np.nonzero(table < INFINITE)
        cells = column_count + np.arange(len(s))
        add(np.r_[s, len(table) + t, np.arange(sum(table.shape))],
            np.r_[cells, cells, problem.at[a] + np.arange(len(table)), problem.at[b] + np.arange(table.shape[1])],
            np.r_[np.ones(2 * len(s)), -np.ones(sum(table.shape))])
        cost.append(table[s, t] / unit)
        upper.append(np.ones(len(s)))
        low.append(np.zeros(sum(table.shape)))
        high.append(low[-1])
        row_count, column_count = row_count + sum(table.shape), column_count + len(s)
    running, limits = memory_rows(problem)
    byte = max((int(above.max()) for above in problem.above), default=1) / 1e3 or 1.0
    for k, row in enumerate(limits):
        for n, sign in row:
            used = np.flatnonzero(problem.above[n])
            add(np.full(len(used), k), problem.at[n] + used, sign * problem.above[n][used] / byte)
        if running:  # load before + what came - what went = load now
            add([k] if k == 0 else [k, k], [column_count + k] if k == 0 else [column_count + k - 1, column_count + k],
                [-1.0] if k == 0 else [1.0, -1.0])
    low.append(np.full(len(limits), 0.0 if running else -np.inf))
    high.append(np.zeros(len(limits)) if running else problem.room / byte)
    if running:
        cost.append(np.zeros(len(limits)))
        upper.append(problem.room / byte)
    matrix_rows, matrix_columns, matrix_values = map(np.concatenate, (rows, columns, values))
    order = np.argsort(matrix_columns, kind="stable")
    lp = highspy.HighsLp()
    lp.col_cost_, lp.col_upper_ = np.concatenate(cost), np.concatenate(upper)
    lp.num_col_, lp.num_row_ = len(lp.col_cost_), row_count + len(limits)
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.row_lower_, lp.row_upper_ = np.concatenate(low), np.concatenate(high)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(matrix_columns[order], np.arange(lp.num_col_ + 1)).astype(np.int32)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix_rows[order].astype(np.int32), matrix_values[order]
    lp.integrality_ = ([highspy.HighsVarType.kInteger] * x_count
                       + [highspy.HighsVarType.kContinuous] * (lp.num_col_ - x_count))
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(lp)
    return solver, unit


def highs(problem, _, seconds, threads, scratch):
    solver, unit = integer_program(problem)
    for name, value in {"time_limit": float(seconds), "threads": threads, "mip_rel_gap": 0.0, "mip_abs_gap": 1e-6}.items():
        solver.setOptionValue(name, value)
    yield
    solver.run()
    info = solver.getInfo()
    values = solver.getSolution().col_value if info.primal_solution_status == 2 else None
    yield (chosen(problem, np.array(values)) if values is not None and len(values) else None,
           info.mip_dual_bound * unit, solver.modelStatusToString(solver.getModelStatus()).lower())


def cbc(problem, _, seconds, threads, scratch):
    solver, unit = integer_program(problem)
    model, answer = scratch / "model.mps", scratch / "answer.txt"
    solver.writeModel(str(model))
    count = int(problem.at[-1])
    del solver
    yield
    said = subprocess.run(["timeout", "-s", "INT", "-k", "2", str(seconds + 0.5), "cbc", model, "timeMode", "elapsed", "sec", str(seconds), "threads", str(threads if threads > 1 else 0),
                           "ratio", "0", "allow", "0", "solve", "solution", answer], stdout=subprocess.PIPE, text=True).stdout
    lines = answer.read_text().splitlines() if answer.exists() else [""]
    values = np.zeros(count)
    for line in lines[1:]:
        column, value = line.replace("**", "").split()[1:3]
        if int(column[1:]) < count:
            values[int(column[1:])] = float(value)
    optimal = lines[0].startswith("Optimal")
    bounds = re.findall(r"objective value (\S+)" if optimal else r"Lower bound:\s+(\S+)", lines[0] if optimal else said)
    found = optimal or (lines[0].startswith("Stopped") and "no integer solution" not in lines[0]
                        and float(lines[0].split()[-1]) < 1e49)
    yield chosen(problem, values) if found else None, float(bounds[-1]) * unit if bounds else None, lines[0].split(" - ")[0].lower()


def cp_sat(problem, _, seconds, threads, scratch, start=None):
    """Booleans per strategy and per cell that costs something; what only forbids is implied. With a
    choice to start from, the largest load is minimised instead of the costs."""
    from ortools.sat.python import cp_model
    model = cp_model.CpModel()
    x = [[model.new_bool_var("") for _ in costs] for costs in problem.costs]
    terms, weights = [], []
    for choice, costs in zip(x, problem.costs):
        model.add_exactly_one(choice)
        for literal, cost in zip(choice, costs.tolist()):
            if cost >= INFINITE:
                model.add(literal == 0)
            elif cost:
                terms.append(literal)
                weights.append(cost)
    for (a, b), table in problem.tables.items():
        possible = table < INFINITE
        if start or not table[possible].any():
            for s, t, there in ((a, b, possible), (b, a, possible.T)):
                for value, row in enumerate(there):
                    if not row.all():
                        model.add_bool_or([x[t][k] for k in np.flatnonzero(row)] + [~x[s][value]])
            continue
        cell = {(s, t): model.new_bool_var("") for s, t in np.argwhere(possible).tolist()}
        for s in range(len(table)):
            model.add(cp_model.LinearExpr.sum([cell[s, t] for t in np.flatnonzero(possible[s]).tolist()]) == x[a][s])
        for t in range(table.shape[1]):
            model.add(cp_model.LinearExpr.sum([cell[s, t] for s in np.flatnonzero(possible[:, t]).tolist()]) == x[b][t])
        terms += cell.values()
        weights += [int(table[at]) for at in cell]
    running, limits = memory_rows(problem, np.inf if start else MOST_TERMS)
    peak = model.new_int_var(problem.least_bytes, problem.most_bytes, "peak") if start else None
    load = None
    for row, room, base in zip(limits, problem.room.tolist(), problem.base.tolist()):
        literals = [x[n][k] for n, _ in row for k in np.flatnonzero(problem.above[n])]
        used = cp_model.LinearExpr.weighted_sum(literals, [sign * int(problem.above[n][k]) for n, sign in row
                                                           for k in np.flatnonzero(problem.above[n])])
        if running:
            now = model.new_int_var(0, room, "")
            model.add(now == (used if load is None else load + used))
            used = load = now
        model.add(used + base <= peak if start else used <= room)
    for choice, literals in zip(start or [], x):
        for value, literal in enumerate(literals):
            model.add_hint(literal, value == choice)
    model.minimize(peak if start else cp_model.LinearExpr.weighted_sum(terms, weights))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, threads
    yield
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    yield ([next(k for k, literal in enumerate(choice) if solver.boolean_value(literal)) for choice in x] if found else None,
           solver.best_objective_bound, solver.status_name(status).lower())


def toulbar2(problem, _, seconds, threads, scratch):
    """A weighted CSP; a linear constraint of this version takes 0-1 variables, so every value that uses more than
    its node's least has one of its own, which follows from it."""
    if problem.terms > MOST_TERMS:
        raise MemoryError(f"the limit has {problem.terms:.0e} terms")
    sizes, lines, count = [len(c) for c in problem.costs], [], 0
    top = 1 + sum(int(costs[costs < INFINITE].max(initial=0)) for costs in [*problem.costs, *problem.tables.values()])

    def function(scope, table):
        nonlocal count
        cells = np.argwhere(table != 0)
        lines.append(f"{len(scope)} {' '.join(map(str, scope))} 0 {len(cells)}")
        lines.extend(f"{' '.join(map(str, at))} {min(int(table[tuple(at)]), top)}" for at in cells.tolist())
        count += 1

    for n, costs in enumerate(problem.costs):
        function([n], costs)
    for scope, table in problem.tables.items():
        function(scope, table)
    levels = {}
    for n in np.flatnonzero(problem.first < problem.last).tolist():
        levels[n] = []
        for used in np.unique(problem.above[n][problem.above[n] > 0]).tolist():
            levels[n].append((len(sizes), used))
            function([n, len(sizes)], np.where((problem.above[n] == used)[:, None] == [False, True], 0, top))
            sizes.append(2)
    for row, room in zip(memory_rows(problem)[1], problem.room.tolist()):
        scope = [level for n, _ in row for level in levels[n]]
        lines.append(f"{len(scope)} {' '.join(str(v) for v, _ in scope)} -1 knapsack {-room} {' '.join(str(-u) for _, u in scope)}")
        count += 1
    model = scratch / "model.wcsp"
    model.write_text(f"problem {len(sizes)} {max(sizes)} {count} {top}\n{' '.join(map(str, sizes))}\n" + "\n".join(lines) + "\n")
    yield
    said = subprocess.run(["timeout", "-s", "INT", "-k", "2", str(seconds), "toulbar2", model, "-s=1"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace").stdout
    solutions = re.findall(r"New solution: \d+.*\n\s*([\d ]+)\n", said)
    bounds = re.findall(r"(?:bounds|gap): \[\s*(\d+)", said) + re.findall(r"Optimum: (\d+)", said)
    yield ([int(v) for v in solutions[-1].split()][:len(problem.costs)] if solutions else None,
           float(bounds[-1]) if bounds else None,
           "optimal" if "Optimum:" in said else "infeasible" if "No solution" in said else "" if "ound" in said else said.strip().split("\n")[-1][-80:])


SOLVERS = {"autopar": ours, "toulbar2": toulbar2, "cbc": cbc, "highs": highs, "cp-sat": cp_sat}


def run(name, path, seconds, threads):
    with tempfile.TemporaryDirectory() as scratch:
        work = SOLVERS[name](Problem(path) if name != "autopar" else None, path, seconds, threads, Path(scratch))
        next(work)
        begin = time.monotonic()
        choice, bound, status = next(work)
        return {"choice": choice, "bound": bound, "status": status, "seconds": time.monotonic() - begin}


if __name__ == "__main__":
    try:
        print(json.dumps(run(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))))
    except MemoryError as error:
        print(json.dumps({"choice": None, "bound": None, "status": f"too large: {error}", "seconds": 0}))
