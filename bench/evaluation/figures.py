# SPDX-License-Identifier: Apache-2.0
"""Figures of the evaluation as small SVG files: equal input makes equal bytes."""

import io
import os
import re

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # noqa: E402  (the back end is chosen first)
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

from documents import (OURS, PEERS, SCHEDULERS, STRATEGIES, best_peer, median,  # noqa: E402
                       over_bound)

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = {
    "auto": "#0072b2", "broadcast": "#56b4e9", "allgather": "#009e73", "send_recv": "#999999",
    "openmpi-alltoallw": "#d55e00", "openmpi-isend": "#e69f00", "openmpi-bcast": "#f0e442",
    "torch-gather_broadcast": "#cc79a7", "torch-batch_isend_irecv": "#7b3f61",
    "naive": "#999999", "balance": "#e69f00", "dfs": "#009e73", "greedy": "#56b4e9",
    "openshop": "#0072b2",
}
MARKS = {"systems": ("o", "three systems"), "large": ("s", "four times the size"), "short": (".", "more runs"),
         "published": ("*", "published strategies"), "ablation": ("^", "ablation"), "fanout": ("D", "fan-out"),
         "nics": ("v", "several NICs"), "rails": ("<", "a NIC for each rank"), "cpu": ("P", "processor time"), "model": ("X", "a model")}
MARK_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000", "#7b3f61"]
LEAST = 0.9  # where the logarithmic axis of time over bound begins; bars stand on the bound
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "crossmesh", "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"], "font.size": 10, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "axes.linewidth": 0.8,
    "legend.frameon": False, "path.simplify": True,
}


def save(figure, folder, name):
    """Two decimals of a point are enough, and keep the files small."""
    drawn = io.StringIO()
    figure.savefig(drawn, metadata={"Date": None, "Creator": None}, facecolor="white")
    pyplot.close(figure)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), drawn.getvalue())
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    with open(os.path.join(folder, f"{name}.svg"), "w", encoding="utf-8") as file:
        file.write(text)


def bars(axes, rows, names, value, colours=None, base=0):
    """Groups of bars: for every case one bar for each name that it has. Returns their places."""
    width, places = 0.84 / len(names), {}
    for i, name in enumerate(names):
        x = {case: k - 0.42 + (i + 0.5) * width for k, case in enumerate(rows) if name in rows[case]}
        heights = [value(rows[case][name]) - base for case in x]
        axes.bar(list(x.values()), heights, width * 0.94, bottom=base,
                 color=(colours or COLOURS)[name], label=name, clip_on=False)
        places.update({(case, name): place for case, place in x.items()})
    axes.set_xticks(range(len(rows)), list(rows))
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    return places


def grid(axes, axis="y"):
    axes.grid(axis=axis, color="#dddddd", linewidth=0.6)


def plain_log_axis(axis, lowest, highest):
    """1, 2, 5, 10 … instead of powers, as far as the values go."""
    ticks = [one * ten for ten in (0.001, 0.01, 0.1, 1, 10, 100, 1000) for one in (1, 2, 5)]
    ticks = [tick for tick in ticks if lowest <= tick <= highest]
    axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda tick, _: f"{tick:g}"))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def systems(documents, folder):
    rows = documents.systems()
    if not rows:
        return False
    names = [name for name in [*reversed(STRATEGIES), *PEERS]
             if any(name in row for row in rows.values())]
    bound = {case: row["auto"]["bound_s"] for case, row in rows.items()}
    values = {case: {name: median(row[name]) / bound[case] for name in names if name in row}
              for case, row in rows.items()}
    parts = [{case: row for case, row in values.items() if (case < "nm") == first}
             for first in (True, False)]
    parts = [part for part in parts if part]
    top = max(value for row in values.values() for value in row.values()) * 1.1
    figure, all_axes = pyplot.subplots(len(parts), 1, figsize=(11, 1.4 + 2.7 * len(parts)),
                                       squeeze=False)
    for axes, part in zip(all_axes[:, 0], parts):
        axes.set_yscale("log")
        axes.set_ylim(LEAST, top)
        plain_log_axis(axes.yaxis, LEAST, top)
        bars(axes, part, names, lambda value: value, base=1)
        axes.axhline(1, color="black", linewidth=0.9, linestyle=(0, (4, 2)))
        axes.text(len(part) - 0.4, 1, " bound", va="center", fontsize=9)
        axes.set_ylabel("time / lower bound")
        grid(axes)
    for row, some in enumerate((STRATEGIES[::-1], PEERS)):
        some = [name for name in some if name in names]
        if some:
            figure.legend([Patch(color=COLOURS[name]) for name in some], some, ncol=len(some),
                          loc="upper center", fontsize=9.5, handlelength=1.5, columnspacing=1.5,
                          bbox_to_anchor=(0.5, 1 - 0.25 * row / figure.get_figheight()))
    figure.subplots_adjust(left=0.065, right=0.94, bottom=0.06, hspace=0.18,
                           top=1 - 0.75 / figure.get_figheight())
    save(figure, folder, "paper-systems")
    return True


def ablation(documents, folder):
    rows = documents.by_case(OURS["ablation"], "scheduler")
    if not rows:
        return False
    names = [name for name in SCHEDULERS if any(name in row for row in rows.values())]
    figure, axes = pyplot.subplots(figsize=(10, 3.8))
    places = bars(axes, rows, names, over_bound)
    width = 0.84 / len(names)
    for (case, name), x in places.items():
        model = rows[case][name]["makespan_s"] / rows[case][name]["bound_s"]
        axes.plot([x - width / 2, x + width / 2], [model, model], color="black", linewidth=1.6,
                  solid_capstyle="butt")
    axes.set_ylabel("time / lower bound")
    axes.set_ylim(0)
    grid(axes)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend([*handles, Line2D([], [], color="black", linewidth=1.6)],
                  [*labels, "the model's value"], loc="upper center", ncol=len(labels) + 1)
    figure.subplots_adjust(left=0.065, right=0.985, bottom=0.08, top=0.88)
    save(figure, folder, "paper-ablation")
    return True


def prediction(documents, folder):
    found = {experiment: documents.results(names) for experiment, names in OURS.items()}
    found = {experiment: results for experiment, results in found.items() if results}
    if not found:
        return False
    times = [median(one) for results in found.values() for one in results]
    span = (min(times) / 1.25, max(times) * 1.25)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2),
                                            gridspec_kw={"width_ratios": [1, 1.25]})
    errors = [0]
    for index, (experiment, results) in enumerate(found.items()):
        style = {"marker": MARKS[experiment][0], "color": MARK_COLOURS[index % len(MARK_COLOURS)],
                 "linestyle": "none", "markersize": 4.5, "markeredgewidth": 0, "alpha": 0.75,
                 "label": MARKS[experiment][1]}
        x = [median(one) for one in results]
        error = [100 * (one["makespan_s"] / median(one) - 1) for one in results]
        left.plot(x, [one["makespan_s"] for one in results], **style)
        right.plot(x, error, **style)
        errors += error
    left.plot(span, span, color="black", linewidth=0.8)
    left.set_yscale("log")
    left.set_ylim(span)
    plain_log_axis(left.yaxis, *span)
    left.set_ylabel("simulated (s)")
    left.set_aspect("equal", adjustable="box")
    right.axhspan(-5, 5, color="#0072b2", alpha=0.12, linewidth=0)
    right.axhline(0, color="black", linewidth=0.8)
    right.text(span[1], 5, "+5 % ", ha="right", va="bottom", fontsize=9)
    right.text(span[1], -5, "−5 % ", ha="right", va="top", fontsize=9)
    right.set_ylabel("simulated / measured − 1 (%)")
    reach = max(8, 1.15 * max(map(abs, errors)))
    right.set_ylim(-reach, reach)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlim(span)
        plain_log_axis(axes.xaxis, *span)
        axes.set_xlabel("measured (s)")
        grid(axes, "both")
    figure.legend(*right.get_legend_handles_labels(), loc="upper center", ncol=5,
                  handletextpad=0.2)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.12, top=0.86, wspace=0.2)
    save(figure, folder, "paper-prediction")
    return True


def headline(documents, folder):
    rows = documents.systems()
    if not rows or not any(best_peer(row) for row in rows.values()):
        return False
    shown = {"crossmesh (auto)": "#0072b2", "best of five peers (MPI, PyTorch)": "#e69f00",
             "send/recv of every slice": "#bbbbbb"}
    values = {}
    for case, row in rows.items():
        best = best_peer(row)
        picks = [row["auto"], row[best] if best else None, row.get("send_recv")]
        values[case] = {name: one["bytes"] / median(one) * 1e-6 for name, one in zip(shown, picks)
                        if one is not None}
    figure, axes = pyplot.subplots(figsize=(10, 3.6))
    bars(axes, values, list(shown), lambda value: value, colours=shown)
    for k, row in enumerate(rows.values()):
        limit = row["auto"]["bytes"] / row["auto"]["bound_s"] * 1e-6
        axes.plot([k - 0.46, k + 0.46], [limit, limit], color="black", linewidth=1.2,
                  solid_capstyle="butt")
    axes.set_ylabel("tensor moved (MB/s)")
    for prefix, text in (("1m", "from one device to a mesh"), ("nm", "from mesh to mesh")):
        places = [k for k, case in enumerate(values) if case.startswith(prefix)]
        if places:
            axes.text((places[0] + places[-1]) / 2, -0.11, text, ha="center", va="top", fontsize=9.5,
                      transform=axes.get_xaxis_transform())
    axes.set_ylim(0)
    grid(axes)
    figure.legend([*(Patch(color=colour) for colour in shown.values()),
                   Line2D([], [], color="black", linewidth=1.2)],
                  [*shown, "most the NICs allow"], loc="upper center", ncol=4, fontsize=9.5)
    figure.subplots_adjust(left=0.065, right=0.99, bottom=0.16, top=0.88)
    save(figure, folder, "paper-headline")
    return True


def draw(documents, folder):
    """Draws what the documents allow; returns the names of the files."""
    with matplotlib.rc_context(STYLE):
        return [f"paper-{make.__name__}" for make in (systems, ablation, prediction, headline)
                if make(documents, folder)]
