# SPDX-License-Identifier: Apache-2.0
"""What the evaluation should come to, and whether it does."""

from documents import (CASES, OURS, PEERS, PUBLISHED, SCHEDULERS, fraction, ideal_ratio, median_error, over_bound,
                       ratio)


class Goal:
    """One line of the check list."""

    def __init__(self, text, figure, met):
        self.text, self.figure, self.met = text, figure, bool(met)

    @property
    def verdict(self):
        return "OK" if self.met else "short"


def least(values, unit="", digits=2):
    """The smallest of {what: value} as text."""
    what = min(values, key=values.get)
    return f"least {values[what]:.{digits}f}{unit} ({what})"


def bound_goals(documents):
    for name, wanted in (("large", 95), ("short", 90)):
        table = {one["case"]: one for one in documents.results([f"{name}-a", f"{name}-b"])
                 if one["strategy"] == "auto"}
        if table:
            percent = {case: 100 * fraction(one) for case, one in table.items()}
            missing = len(set(CASES) - set(percent))
            yield Goal(f"{name}: auto ≥ {wanted} % of the bound in all {len(CASES)} cases",
                       least(percent, " %", 1) + (f", {missing} cases missing" if missing else ""),
                       min(percent.values()) >= wanted and not missing)


def send_recv_goals(documents):
    """As many times faster than send_recv as the network allows."""
    name = "short" if documents.first(OURS["short"]) else "systems"
    rows = documents.by_case(OURS[name], "strategy")
    rows = {case: row for case, row in rows.items() if "send_recv" in row and "auto" in row}
    ideal = {case: ideal_ratio(row["send_recv"], row["auto"]) for case, row in rows.items()}
    measured = {case: ratio(row["send_recv"], row["auto"]) for case, row in rows.items()}
    for whole, wanted in ((4, 3.8), (8, 7.5)):
        some = {case: measured[case] for case in rows if abs(ideal[case] / whole - 1) <= 0.03}
        if some:
            yield Goal(f"{name}: send_recv / auto ≥ {wanted} where the model says {whole}",
                       least(some) + f", {len(some)} cases", min(some.values()) >= wanted)
    if rows:
        share = {case: measured[case] / ideal[case] for case in rows}
        yield Goal(f"{name}: send_recv / auto ≥ 0.95 of the model's ratio", least(share),
                   min(share.values()) >= 0.95)


def peer_goals(documents):
    for peer in PEERS:
        some = {case: ratio(row[peer], row["auto"])
                for case, row in documents.systems().items() if peer in row}
        if some:
            yield Goal(f"systems: {peer} / auto ≥ 1", least(some), min(some.values()) >= 1)


def ratio_goals(documents):
    """Ratios to the last of several schedulers or strategies are those of the model."""
    for experiment, key, (*others, reference) in (("published", "strategy", PUBLISHED),
                                                  ("ablation", "scheduler", SCHEDULERS)):
        deviation = {}
        for case, row in documents.by_case(OURS[experiment], key).items():
            for name in others:
                if name in row and reference in row:
                    deviation[f"{case}, {name}"] = (ratio(row[name], row[reference])
                                                    / ideal_ratio(row[name], row[reference]) - 1)
        if deviation:
            worst = max(deviation, key=lambda what: abs(deviation[what]))
            yield Goal(f"{experiment}: ratios to {reference} within 10 % of the model",
                       f"worst {100 * deviation[worst]:+.1f} % ({worst})", abs(deviation[worst]) <= 0.1)


def other_goals(documents):
    fanout = [one for one in documents.results(["fanout"]) if one["strategy"] == "broadcast"]
    if fanout:
        yield Goal("fan-out: broadcast ≤ 1.03 × the bound", f"{over_bound(fanout[0]):.3f}",
                   over_bound(fanout[0]) <= 1.03)
    for kind, text, wanted in (("two", "two equal NICs", 1.9),
                               ("unequal", "a second NIC of half the rate", 1.4)):
        speedup = {case: ratio(row["one"], row[kind]) for case, row in documents.nics().items()
                   if kind in row}
        if speedup:
            yield Goal(f"NICs: {text} ≥ {wanted} × as fast as one", least(speedup),
                       min(speedup.values()) >= wanted)
    over = [over_bound(row["each"]) for row in documents.rails().values()]
    if over:
        yield Goal("a NIC for each rank: ≤ 1.05 × the bound", f"{max(over):.3f}", max(over) <= 1.05)
    cpu = documents.cpu()
    if cpu is not None:
        yield Goal("processor time ≤ 2 × that of plain sockets", f"{cpu[0]['cpu_s'] / cpu[2]:.2f}",
                   cpu[0]["cpu_s"] <= 2 * cpu[2])
    for what, _, against, _, percent, wanted in documents.intra_host():
        yield Goal(f"inside a host: {what} ≥ {wanted:.0f} % of {against}", f"{percent:.1f} %",
                   percent >= wanted)
    errors = documents.errors()
    if errors:
        yield Goal("prediction: median error ≤ 5 %", f"{100 * median_error(errors):.1f} %",
                   median_error(errors) <= 0.05)
        yield Goal("prediction: worst error ≤ 10 %",
                   f"{100 * errors[0][0]:+.1f} % ({errors[0][1]})", abs(errors[0][0]) <= 0.1)
    wrong, checked = documents.wrong()
    if checked:
        yield Goal("no wrong byte", f"{wrong} in {checked} results", wrong == 0)


def goals(documents):
    """The check list, as far as there are documents."""
    return [goal for group in (bound_goals, send_recv_goals, peer_goals, ratio_goals, other_goals)
            for goal in group(documents)]
