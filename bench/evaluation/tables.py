# SPDX-License-Identifier: Apache-2.0
"""Tables of the evaluation: a section for every experiment that was measured."""

import math

from documents import (OURS, PEERS, PUBLISHED, SCHEDULERS, STRATEGIES, best_peer, fraction, ideal_ratio,
                       median, median_error, over_bound, ratio)
from goals import goals


class Table:
    """Rows of text under titles; a title that begins with < is of a column of words."""

    def __init__(self, *titles):
        self.titles = [title.lstrip("<") for title in titles]
        self.words = [title.startswith("<") for title in titles]
        self.rows = []

    def add(self, *cells):
        self.rows.append([str(cell) for cell in cells])

    def terminal(self):
        widths = [max(map(len, column)) for column in zip(self.titles, *self.rows)]

        def line(cells):
            return "  ".join(cell.ljust(width) if words else cell.rjust(width)
                             for cell, width, words in zip(cells, widths, self.words)).rstrip()
        return "\n".join(map(line, [self.titles, ["-" * width for width in widths], *self.rows]))

    def markdown(self):
        rule = ["---" if words else "--:" for words in self.words]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
                         for cells in [self.titles, rule, *self.rows])


class Section:
    """A heading, what was done, tables and the figures that belong to them (name: caption)."""

    def __init__(self, title, text, tables, figures=None):
        self.title, self.text, self.tables, self.figures = title, text, tables, figures or {}


def seconds(value):
    return f"{value:.3f}"


def percent(value, digits=1):
    return f"{100 * value:.{digits}f}"


def join(words):
    """Several words as part of a sentence."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def plural(number, word):
    return f"{number} {word}" + ("" if number == 1 else "s")


# What stands below a heading ------------------------------------------------------------------------


def cluster(config):
    rates = config["network"]["nic_bandwidth_Bps"]
    rates = sorted(set(round(rate * 1e-6, 1) for rate in (rates if isinstance(rates, list)
                                                         else [rates])))
    rate = f"{rates[0]:.1f}" + (f" to {rates[-1]:.1f}" if len(rates) > 1 else "")
    virtual = ", simulated: no time below was measured" if config.get("virtual_time") else ""
    return (f"{plural(config['hosts'], 'host')} of {config['ranks'] // config['hosts']} ranks, "
            f"{rate} MB/s a host{virtual}")


def runs(config):
    if config.get("protocol") == "paper":
        return "13 runs, the first 3 dropped"
    return (f"{plural(config['warmup'], 'warm-up')}, median of "
            + plural(config["iterations"], "timed run"))


def scales(documents, names):
    """The scale of the tensors, and that of the cases which differ."""
    parts = []
    for name in names:
        document = documents.document(name)
        if document is not None:
            divisor = document["config"]["scale_divisor"]
            cases = list(dict.fromkeys(one["case"] for one in document["results"]))
            parts.append((divisor, cases))
    text = f"tensors of 1/{parts[0][0]} of the paper's size" if parts else ""
    for divisor, cases in parts[1:]:
        if divisor != parts[0][0]:
            text += f" ({join(cases)}: 1/{divisor})"
    return text


def repeat(documents, experiment):
    """When it was measured, and the command that measures it again."""
    entry = (documents.document("machine") or {}).get(experiment)
    when = ""
    if entry:
        when = entry["date"] + (f", commit {entry['commit']}" if entry["commit"] else "") + ": "
    return f"{when}`bench/paper.sh --only {experiment}`"


def protocol(documents, experiment, names, scaled=True):
    """One line: cluster, runs, day and command."""
    config = documents.first(names)["config"]
    parts = [cluster(config), runs(config)]
    if scaled:
        parts.append(scales(documents, names))
    parts.append("every byte checked" if config.get("validate") else "bytes not checked")
    return "; ".join(parts) + f". {repeat(documents, experiment)}"


def layout(result, side):
    return f"{result[side]['mesh']} {result[side]['spec']}"


# Sections -------------------------------------------------------------------------------------------


def systems(documents):
    rows = documents.systems()
    if not rows:
        return None
    ours = Table("<case", "<from", "<to", "bound (s)", *(f"{name} (s)" for name in STRATEGIES),
                 "auto, % of bound", "send_recv / auto")
    for case, row in rows.items():
        auto = row["auto"]
        ours.add(case, layout(auto, "src"), layout(auto, "dst"), seconds(auto["bound_s"]),
                 *(seconds(median(row[name])) if name in row else "" for name in STRATEGIES),
                 percent(fraction(auto)),
                 f"{ratio(row['send_recv'], auto):.2f}" if "send_recv" in row else "")
    tables = [ours]
    present = [peer for peer in PEERS if any(peer in row for row in rows.values())]
    text = ("Strategies of the paper and `auto`, all with scheduler `auto`. They take turns, run by run. "
            + protocol(documents, "systems", OURS["systems"]) + ".")
    if present:
        peers = Table("<case", "auto (s)", *present, "best / auto")
        for case, row in rows.items():
            best = best_peer(row)
            peers.add(case, seconds(median(row["auto"])),
                      *(f"{seconds(median(row[peer]))} ({ratio(row[peer], row['auto']):.2f})"
                        if peer in row else "" for peer in present),
                      f"{ratio(row[best], row['auto']):.2f}" if best else "")
        tables.append(peers)
        libraries = [documents.document(f"systems-{group}-{name}") for name in ("mpi", "torch")
                     for group in "ab"]
        libraries = list(dict.fromkeys(one["config"]["library"] for one in libraries if one))
        text += (" Second table: the [peers](peers.md) on the same ranks, in seconds and, in "
                 f"brackets, times of `auto` ({join(libraries)}).")
    return Section("The paper's systems, auto, and peers", text, tables,
                   {"paper-systems": "time of every system over the lower bound, case by case",
                    "paper-headline": "effective bandwidth of auto, the fastest peer and send_recv"})


def auto_and_send_recv(documents, name, title):
    rows = {case: row for case, row in documents.by_case(OURS[name], "strategy").items()
            if "auto" in row}
    if not rows:
        return None
    both = any("send_recv" in row for row in rows.values())
    table = Table("<case", "bound (s)", "mean ± std. dev. (s)", "median (s)", "% of bound",
                  *(["send_recv (s)", "send_recv / auto"] if both else []))
    for case, row in rows.items():
        one, times = row["auto"], row["auto"]["time_s"]
        plain = row.get("send_recv")
        table.add(case, seconds(one["bound_s"]),
                  f"{seconds(times['mean'])} ± {seconds(math.sqrt(times['variance']))}",
                  seconds(times["median"]), percent(fraction(one)),
                  *([seconds(plain["time_s"]["median"]), f"{ratio(plain, one):.2f}"] if plain else
                    ["", ""] if both else []))
    what = "`auto` and `send_recv`. " if both else "`auto`. "
    return Section(title, what + protocol(documents, name, OURS[name]) + ".", [table])


def large(documents):
    return auto_and_send_recv(documents, "large", "Larger tensors")


def short(documents):
    return auto_and_send_recv(documents, "short", "The paper's cases again, in more runs")


def ratios(documents, experiment, key, names):
    """A table of times over that of the last name, measured and by the model; None without any."""
    *others, reference = names
    table = Table("<case", f"{reference} (s)", "% of bound",
                  *(title for name in others for title in (name, "model", "dev. (%)")))
    for case, row in documents.by_case(OURS[experiment], key).items():
        if reference not in row:
            continue
        cells = []
        for name in others:
            if name in row:
                measured, model = ratio(row[name], row[reference]), ideal_ratio(row[name], row[reference])
                cells += [f"{measured:.3f}", f"{model:.3f}", f"{100 * (measured / model - 1):+.1f}"]
            else:
                cells += ["", "", ""]
        table.add(case, seconds(median(row[reference])), percent(fraction(row[reference])), *cells)
    return table if table.rows else None


def published(documents):
    table = ratios(documents, "published", "strategy", PUBLISHED)
    return table and Section(
        "The paper's baselines",
        "Strategies as MLSys'23 and Alpa have them ([resharding.md](resharding.md#published-baselines)); times "
        "over that of `broadcast`, measured and by the model (simulated, as the paper's formulas have it), and "
        "how far the first is from the second. "
        + protocol(documents, "published", OURS["published"]) + ".", [table])


def ablation(documents):
    table = ratios(documents, "ablation", "scheduler", SCHEDULERS)
    return table and Section(
        "What load balance and order are worth",
        "Strategy `broadcast`; times over that of `openshop`, measured and by the model "
        "(simulated), and how far the first is from the second. "
        + protocol(documents, "ablation", OURS["ablation"]) + ".", [table],
        {"paper-ablation": "time of each scheduler over the lower bound; the model's value as a marker"})


def fanout(documents):
    results = documents.results(OURS["fanout"])
    if not results:
        return None
    table = Table("<strategy", "bound (s)", "time (s)", "time / bound", "model / bound")
    for one in results:
        table.add(one["strategy"], seconds(one["bound_s"]), seconds(median(one)),
                  f"{over_bound(one):.3f}", f"{one['makespan_s'] / one['bound_s']:.3f}")
    size = results[0]["bytes"] / 2 ** 20
    return Section("From one rank to two of each of three hosts",
                   f"{size:.0f} MiB. "
                   + protocol(documents, "fanout", OURS["fanout"], scaled=False) + ".", [table])


def nics(documents):
    rows = documents.nics()
    if not rows:
        return None
    table = Table("<case", "one (s)", "two (s)", "unequal (s)", "one / two", "one / unequal")
    for case, row in rows.items():
        table.add(case, *(seconds(median(row[kind])) if kind in row else ""
                          for kind in ("one", "two", "unequal")),
                  *(f"{ratio(row['one'], row[kind]):.2f}" if kind in row else ""
                    for kind in ("two", "unequal")))
    return Section("More than one NIC a host",
                   "`auto` over one NIC of 1 Gbit/s, over two of them, and over one of 1 Gbit/s next "
                   "to one of 0.5. One: " + protocol(documents, "nics", OURS["nics"]) + ".", [table])


def rails(documents):
    rows = documents.rails()
    if not rows:
        return None
    table = Table("<case", "bound (s)", "one each (s)", "/ bound", "all (s)", "/ bound")
    for case, row in rows.items():
        table.add(case, seconds(row["each"]["bound_s"]),
                  *(text(row[kind]) if kind in row else "" for kind in ("each", "all")
                    for text in (lambda one: seconds(median(one)),
                                 lambda one: f"{over_bound(one):.3f}")))
    return Section("A NIC for each rank",
                   "`auto` where each of a host's four ranks has a NIC of 50 Mbit/s of its own, as the "
                   "choice of NICs has it, and where every rank uses all four. 16 MiB from one host to "
                   "another, then the paper's cases at 1/64. Median of 5 timed runs after a warm-up; "
                   "every byte checked. " + repeat(documents, "rails") + ".", [table])


def cpu(documents):
    measured = documents.cpu()
    if measured is None:
        return None
    ours, time, sockets = measured
    table = Table("<what", "time (s)", "processor time of all ranks (s)", "ratio")
    table.add(f"reshard-bench, {ours['case']}", seconds(median(ours)), seconds(ours["cpu_s"]),
              f"{ours['cpu_s'] / sockets:.2f}")
    table.add("socket_copy", seconds(time), seconds(sockets), "1.00")
    return Section("Processor time",
                   "Next to plain sockets that move the same bytes between the same hosts, user and "
                   "system time of all ranks in a run. "
                   + protocol(documents, "cpu", OURS["cpu"]) + ".", [table])


def intra_host(documents):
    rows = documents.intra_host()
    if not rows:
        return None
    table = Table("<reshard-bench", "GB/s", "<against", "GB/s", "%")
    for what, ours, against, theirs, share, _ in rows:
        table.add(what, f"{ours:.3f}", against, f"{theirs:.3f}", f"{share:.1f}")
    settings = next((line.strip("# ") for line in documents.text("intra_host.txt").splitlines()
                     if " rounds of " in line), "")
    return Section("Inside a host",
                   f"No network: `bench/intra_host.sh`, in turns, medians; {settings}. "
                   f"{repeat(documents, 'intra_host')}.", [table])


def model(documents):
    results = documents.results(OURS["model"])
    if not results:
        return None
    auto = next((one for one in results if one["strategy"] == "auto"), None)
    table = Table("<case", "<strategy", "tensors", "GB", "bound (s)", "time (s)", "% of bound",
                  "/ auto")
    for one in results:
        table.add(one["case"], one["strategy"], one["tensors"], f"{one['bytes'] * 1e-9:.3f}",
                  seconds(one["bound_s"]), seconds(median(one)), percent(fraction(one)),
                  f"{ratio(one, auto):.2f}" if auto else "")
    divisor = documents.document("model")["config"]["scale_divisor"]
    return Section("A model from training to serving",
                   f"All weights in one plan; extents and layers divided by {divisor} "
                   "([model-suite.md](model-suite.md)). "
                   + protocol(documents, "model", OURS["model"], scaled=False) + ".", [table])


def prediction(documents):
    errors = documents.errors()
    if not errors:
        return None
    table = Table("<experiment", "results", "median error (%)", "worst (%)", "<which")
    for experiment in OURS:
        some = documents.errors([experiment])
        if some:
            table.add(experiment, len(some), percent(median_error(some)),
                      f"{100 * some[0][0]:+.1f}", some[0][1])
    table.add("all", len(errors), percent(median_error(errors)), f"{100 * errors[0][0]:+.1f}",
              errors[0][1])
    return Section("Prediction",
                   "Simulated time over the measured median, less one, of every result of "
                   "`reshard-bench` above. The simulation knows the rates that `autopar probe` "
                   "measured, and nothing of the runs. Nearly all errors are below zero: what a run has beside the model "
                   "(interrupts, ranks that wait for a processor, TCP that slows down) only ever adds time.", [table],
                   {"paper-prediction": "simulated against measured time, with the band of ±5 %"})


def check_list(documents):
    found = goals(documents)
    if not found:
        return None
    table = Table("<goal", "<measured", "<")
    for goal in found:
        table.add(goal.text, goal.figure, goal.verdict)
    return Section("Goals", "What the evaluation should come to.", [table])


SECTIONS = [systems, large, short, published, ablation, fanout, nics, rails, cpu, intra_host, model,
            prediction, check_list]


def introduction(documents):
    """What all sections have in common, and the machine."""
    lines = ["Hosts are network namespaces of one machine, joined by a bridge; each host's NIC is shaped to "
             "1 Gbit/s in both directions ([emulated-cluster.md](emulated-cluster.md)). Ranks are "
             "processes, bytes go through the kernel's TCP, and every rank shares the machine's cores "
             "with all others. The bound is that of any schedule on the rates that `autopar probe` "
             "measured. `bench/paper.sh` repeats everything, `--only NAME` one experiment with the "
             "last profile (`--only probe` measures a new one)."]
    machines = {}
    for experiment, entry in (documents.document("machine") or {}).items():
        versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
        text = (f"{entry['cpus']} × {entry['cpu']}, {entry['kernel']}, {entry['system']}"
                + (f"; {versions}" if versions else ""))
        machines.setdefault(text, []).append(experiment)
    for text, experiments in machines.items():
        which = f" ({join(experiments)})" if len(machines) > 1 else ""
        lines.append(f"Machine{which}: {text}.")
    return lines


def sections(documents):
    return [section for section in (make(documents) for make in SECTIONS) if section is not None]
