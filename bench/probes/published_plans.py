#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Alpa's published plans with what was measured of them, and with ours under one cost model.

The plans that Alpa's authors published for GPT, MoE and Wide-ResNet (OSDI'22, artifact: 8 hosts of 8 V100, 25 Gb/s), with
the stages and shapes of theirs pinned, as a table in Markdown. Exit status 1: a published plan is faster than ours, or
its price is further than --within from what was measured. CROSSMESH_LIBRARY names the library (default: that of
build/release).
"""
import argparse
import collections
import json
import os

from planner_runs import NO_SOLUTION, RECOMPUTE_ON, CrossmeshError, PlannerPin, plan, positive, run

# Sizes of a model and what a GPU attained, 1e12 FLOP/s. For a Wide-ResNet `hidden` is the channels of the first block, and
# `layers` how much wider its 3x3 convolutions are. A plan has blocks and devices of each stage, and the first number of
# its logical shape (0: not published); the last of each goes for the stages that follow. The embedding or stem goes
# with the first stage, the head with the last.
Row = collections.namedtuple("Row", "family model tera hidden layers experts hosts devices batch micro_batches stages "
                                    "blocks submesh shape")
ROWS = [Row(*row) for row in (
    ("GPT", "gpt-350m", 46.20, 1024, 24, 0, 1, 1, 1024, 64, 1, [24], [1], [1]),
    ("GPT", "gpt-760m", 57.92, 1536, 24, 0, 1, 2, 1024, 128, 2, [12], [1], [1]),
    ("GPT", "gpt-1.3b", 58.21, 2048, 24, 0, 1, 4, 1024, 128, 2, [12], [2], [2]),
    ("GPT", "gpt-2.6b", 61.61, 2560, 32, 0, 1, 8, 1024, 128, 3, [8, 8, 16], [2, 2, 4], [2, 2, 4]),
    ("GPT", "gpt-6.7b", 60.0, 4096, 32, 0, 2, 8, 1024, 64, 2, [16], [8], [2]),
    ("GPT", "gpt-15b", 59.9, 5120, 48, 0, 4, 8, 1024, 128, 4, [12], [8], [2]),
    ("GPT", "gpt-39b", 57, 8192, 48, 0, 8, 8, 1024, 1024, 16, [3], [4], [1]),
    ("MoE", "moe-690m", 43.03, 768, 8, 16, 1, 2, 1024, 32, 1, [8], [2], [2]),
    ("MoE", "moe-1.3b", 39.92, 768, 16, 16, 1, 4, 1024, 32, 2, [8], [2], [2]),
    ("MoE", "moe-2.4b", 45.76, 1024, 16, 16, 1, 8, 1024, 32, 2, [8], [4], [4]),
    ("MoE", "moe-10b", 45.36, 1536, 16, 32, 2, 8, 1024, 16, 2, [8], [8], [8]),
    ("MoE", "moe-27b", 38.84, 2048, 16, 48, 4, 8, 1024, 128, 8, [2], [4], [4]),
    ("Wide-ResNet", "wresnet-250m", 8.37, 160, 2, 0, 1, 1, 1536, 24, 1, [16], [1], [0]),
    ("Wide-ResNet", "wresnet-500m", 8.46, 224, 2, 0, 1, 2, 1536, 24, 1, [16], [2], [0]),
    ("Wide-ResNet", "wresnet-1b", 8.16, 320, 2, 0, 1, 4, 1536, 24, 1, [16], [4], [0]),
    ("Wide-ResNet", "wresnet-2b", 8.04, 448, 2, 0, 1, 8, 1536, 24, 2, [8], [4], [4, 1]),
    ("Wide-ResNet", "wresnet-4b", 6.76, 640, 2, 0, 2, 8, 1536, 32, 3, [5, 4, 7], [4, 4, 8], [4, 4, 8]),
    ("Wide-ResNet", "wresnet-6.8b", 6.60, 320, 16, 0, 4, 8, 1536, 32, 4, [5, 4, 4, 3], [8], [8]))]

SEQUENCE, GPT_WORDS, MOE_WORDS, MOE_GROUP, CLASSES = 1024, 51200, 32000, 2048, 1024
# Forward pass, its second run, and a backward pass of twice as much; the last layer runs once.
PASSES, PASSES_OF_THE_LAST = 4, 3


def language_flops(row):
    """Every second layer of an MoE has experts, of which a token goes to two; it is sent there and back by products with
    one-hot matrices."""
    hidden, words = row.hidden, MOE_WORDS if row.experts else GPT_WORDS
    attention = 8 * hidden ** 2 + 4 * SEQUENCE * hidden
    layer = attention + 16 * hidden ** 2
    if row.experts:
        expert = attention + 64 * hidden ** 2 + 2 * hidden * row.experts + 4 * MOE_GROUP + 8 * hidden * MOE_GROUP
        layer = (attention + 32 * hidden ** 2 + expert) / 2
    return SEQUENCE * (PASSES * row.layers * layer + PASSES_OF_THE_LAST * 2 * hidden * words)


def image_flops(row):
    """ResNet-50 whose 3x3 convolutions have `layers` times the channels, on images of 224 x 224."""
    before, pixels, flops = row.hidden, 56, 2 * 112 * 112 * 7 * 7 * 3 * row.hidden
    for stage, blocks in enumerate((3, 4, 6, 3)):
        channels = row.hidden << stage
        for block in range(blocks):
            after = pixels // 2 if stage > 0 and block == 0 else pixels
            flops += 2 * (pixels ** 2 * before * channels + after ** 2 * 13 * channels * channels * row.layers)
            flops += 2 * after ** 2 * before * 4 * channels if block == 0 else 0
            before, pixels = 4 * channels, after
    return PASSES * (flops + 2 * before * CLASSES)


def measured_seconds(row):
    """What the authors measured, by the FLOPs of the formulas in Alpa's benchmarks and not those of our graphs: a graph
    that has too many must not make its price look right."""
    flops = image_flops(row) if row.family == "Wide-ResNet" else language_flops(row)
    return row.batch * flops / (row.hosts * row.devices * row.tera * 1e12)


def pins(row):
    """Layers are the embedding or stem, the blocks, and the head; the published numbers count blocks only."""
    block, made = 0, []
    for i in range(row.stages):
        blocks, devices, first = (values[min(i, len(values) - 1)] for values in (row.blocks, row.submesh, row.shape))
        made.append(PlannerPin(block + 1 if i else 0, block + blocks + (i + 1 == row.stages), 1, devices,
                                    (first, devices // first if first else 0)))
        block += blocks
    return made


def counts(batch):
    """The powers of two that divide the batch, and three times those: 24 is among the published ones."""
    return [b for b in range(1, min(batch, 1024) + 1)
            if batch % b == 0 and (odd := b // 3 if b % 3 == 0 else b) & (odd - 1) == 0]


class Outcome:
    """A plan in a row of the table; one that does not fit is an outcome and no failure."""

    def __init__(self, options, row, **given):
        self.fits, self.step, self.reason = True, 0.0, ""
        try:
            # No case is left alone for a thousandth.
            self.plan, info = plan(options.cluster, row.hosts, row.devices, model=row.model.encode(),
                                   global_batch=row.batch, margin=1e-9, **given)
            self.step = info.objective
        except CrossmeshError as error:
            if error.status != NO_SOLUTION:
                raise
            self.fits, self.reason = False, str(error)

    def stages(self):
        """What the table shows of each stage."""
        return [(stage["layers"][1], stage["submesh"], stage["mesh"]) for stage in self.plan["stages"]]

    def use(self):
        """The seconds of a step in which a device works, and the part of it in which it waits; on average."""
        count, work, devices = self.plan["schedule"]["micro_batches"], 0.0, 0
        for stage in self.plan["stages"]:
            seconds = stage["seconds"]
            work += len(stage["ranks"]) * (seconds["forward"] + seconds["backward"] +
                                           (seconds["sync"] + seconds["update"]) / count)
            devices += len(stage["ranks"])
        busy = count * work / devices
        return busy, max(0.0, 1 - busy / self.plan["predicted"]["step_s"])

    def text(self):
        """Stages that are alike show their mesh once."""
        schedule, before = self.plan["schedule"], None
        text = f"{schedule['micro_batches']} micro-batches" + recomputation(self.plan) + ", "
        for i, stage in enumerate(self.plan["stages"]):
            mesh = stage["submesh"], stage["mesh"]
            text += f"{'/' if i else ''}{stage['layers'][1] - stage['layers'][0] + 1}"
            text += f"@{mesh[0]}:{mesh[1]}" if mesh != before else ""
            before = mesh
        return text


def recomputation(made):
    """Runs of stages that do, where not all do the same."""
    if made["schedule"]["rematerialize"]:
        return " recomputing"
    which = [i for i, stage in enumerate(made["stages"]) if stage.get("recompute")]
    starts = [i for i in which if i - 1 not in which]
    runs = [(i, next(j for j in range(i, len(made["stages"])) if j + 1 not in which)) for i in starts]
    return (f" recomputing in stage{'s' if len(which) > 1 else ''} " +
            ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)) if which else ""


def difference(theirs, best, ours):
    """The gain that needs no other stages is named by itself."""
    (busy, idle), (our_busy, our_idle) = theirs.use(), ours.use()
    gain = 1 - best.plan["predicted"]["step_s"] / theirs.plan["predicted"]["step_s"]
    return (f"{'same' if theirs.stages() == ours.stages() else 'other'} stages; work {busy:.3f} → {our_busy:.3f} s, "
            f"waiting {100 * idle:.1f} → {100 * our_idle:.1f} %" +
            (f"; {100 * gain:.1f} % of the step by micro-batches and recomputation alone" if gain > 5e-4 else ""))


def compare(row, options):
    """Prints a row: theirs as it ran, theirs with the best micro-batches, and ours. True: something is wrong. Experts are
    not judged: their products are narrow, on which one GPU alone attains a fifth less than on those of a GPT."""
    theirs = Outcome(options, row, pins=pins(row), micro_batches=[row.micro_batches], recompute=RECOMPUTE_ON)
    measured, judged = measured_seconds(row), options.within > 0 and row.family != "MoE"
    wrong = judged and (not theirs.fits or abs(theirs.step / measured - 1) > 0.01 * options.within)
    cells = [f"{row.family} {row.model}", f"{row.hosts} x {row.devices}"]
    cells += ([theirs.text(), f"{theirs.step:.3f}", f"{measured:.2f}", f"{theirs.step / measured:.3f}"] if theirs.fits else
              [f"does not fit: {theirs.reason}", "–", f"{measured:.2f}", "–"])
    if options.write and theirs.fits:
        with open(os.path.join(options.write, f"{row.model}.json"), "w", encoding="utf-8") as file:
            json.dump(theirs.plan, file)
        options.rows.append({"name": row.model, "plan": f"{row.model}.json", "step_s": measured})
    if not options.priced:
        best = Outcome(options, row, pins=pins(row), micro_batches=counts(row.batch))
        ours = Outcome(options, row, micro_batches=counts(row.batch))
        both = theirs.fits and best.fits
        # A hair above counts as equal, as both are sums of doubles.
        wrong = wrong or (theirs.fits and (not ours.fits or (both and ours.step > theirs.step * (1 + 1e-9))))
        cells += ([f"{best.step:.3f}" if best.fits else "–", ours.text(), f"{ours.step:.3f}",
                   *([f"{ours.step / theirs.step:.3f}", difference(theirs, best, ours)] if both else
                     ["–", "theirs does not fit"])] if ours.fits else ["–", ours.reason])
    print("| " + " | ".join(cells) + " |", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", required=True, help="profile of one kind of host; resized for every row")
    parser.add_argument("--devices", type=positive, default=64, help="only rows with at most so many devices (%(default)s)")
    parser.add_argument("--priced", action="store_true",
                        help="only the prices of the published plans and what was measured of them")
    parser.add_argument("--write", metavar="FOLDER",
                        help="write the published plans and what was measured of them for autopar judge")
    parser.add_argument("--within", type=positive, default=0, metavar="PERCENT",
                        help="fail where the price of a GPT or Wide-ResNet is further from what was measured")
    options = parser.parse_args()
    options.rows = []
    titles = ["model", "devices", "published plan", "its price, s", "measured, s", "price / measured"]
    if not options.priced:
        titles += ["its stages at best, s", "our plan", "our step, s", "ours / published", "what differs"]
    print("| " + " | ".join(titles) + " |\n|" + "--|" * len(titles))
    wrong = [compare(row, options) for row in ROWS if row.hosts * row.devices <= options.devices]
    if options.write:
        with open(os.path.join(options.write, "measured.json"), "w", encoding="utf-8") as file:
            json.dump({"format": "crossmesh-measured", "version": 1, "source": "Alpa, OSDI'22, artifact",
                       "rows": options.rows}, file, indent=1)
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    run(main)
