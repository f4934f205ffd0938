# SPDX-License-Identifier: Apache-2.0
"""Pictures: of a plan, when each sender is busy, on the simulation's time axis, with the lower bound; of a layout, which
ranks hold which part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from .layouts import Layout
    from .plan import Hop, Plan

WIDTH, LANE, LEFT, TOP, BOTTOM = 760.0, 18.0, 110.0, 34.0, 40.0
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")
SEVERAL = "#777777"  # transfers in one bar
MOST_LANES, MOST_TEXTS = 64, 4
# Bars nearer than this are drawn as one, so that a plan of a thousand ranks is no picture of many megabytes.
FINE, COARSE, CROWD = 0.5, 4.0, 4000


def _lanes(plan: Plan, hops: Sequence[Hop]) -> tuple[str, dict[int, list[Hop]]]:
    """Hops between hosts by sending host; in a plan of one host, by sending rank."""
    lanes: dict[int, list[Hop]] = {}
    crossing = [h for h in hops if plan.host_of(h.sender) != plan.host_of(h.receiver)]
    for hop in crossing or hops:
        lanes.setdefault(plan.host_of(hop.sender) if crossing else hop.sender, []).append(hop)
    return "host" if crossing else "rank", dict(sorted(lanes.items()))


@dataclass
class _Bar:
    x: float
    end: float
    transfer: int | None  # None: several
    texts: list[str]

    def text(self) -> str:
        more = len(self.texts) - MOST_TEXTS
        return "; ".join(self.texts[:MOST_TEXTS]) + (f"; and {more} more" if more > 0 else "")


def _bars(lane: Sequence[Hop], scale: float, grain: float) -> list[_Bar]:
    """A lane's bars: neighbours of a transfer that touch are one, and whatever lies within a grain."""
    bars: list[_Bar] = []
    for hop in sorted(lane, key=lambda h: (h.start, h.end)):
        x, end = hop.start * scale, max(hop.end * scale, hop.start * scale + 0.3)
        text = f"rank {hop.sender} → {hop.receiver}, {hop.bytes} bytes"
        last = bars[-1] if bars else None
        same = last is not None and last.transfer == hop.transfer
        if last is not None and (x - last.end < FINE and same or grain > FINE and end - last.x < grain):
            last.end, last.transfer = max(last.end, end), hop.transfer if same else None
            last.texts.append(text)
        else:
            bars.append(_Bar(x, end, hop.transfer, [text]))
    return bars


def draw(plan: Plan) -> str:
    hops = plan.hops()
    kind, lanes = _lanes(plan, hops)
    left_out = len(lanes) - MOST_LANES
    grain = COARSE if len(hops) > CROWD else FINE
    longest = max(plan.makespan, plan.bound, 1e-9)
    scale = (WIDTH - LEFT - 20) / longest
    height = TOP + BOTTOM + LANE * max(1, min(len(lanes), MOST_LANES))
    title = (
        f"{plan.bytes} bytes, {plan.strategy}, {plan.scheduler}: "
        f"{plan.makespan * 1e3:.3f} ms simulated, bound {plan.bound * 1e3:.3f} ms"
        + (f"; {left_out} more {kind}s send, too" if left_out > 0 else "")
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH:.0f} {height:.0f}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="8" y="18">{escape(title)}</text>',
    ]
    for row, (number, lane) in enumerate(list(lanes.items())[:MOST_LANES]):
        y = TOP + LANE * row
        out.append(f'<text x="8" y="{y + 12:.1f}">{kind} {number} sends</text>')
        for bar in _bars(lane, scale, grain):
            colour = SEVERAL if bar.transfer is None else COLOURS[bar.transfer % len(COLOURS)]
            out.append(
                f'<rect x="{LEFT + bar.x:.2f}" y="{y + 1:.1f}" width="{bar.end - bar.x:.2f}" '
                f'height="{LANE - 4:.1f}" fill="{colour}">'
                f"<title>{escape(bar.text())}</title></rect>"
            )
    end = height - BOTTOM
    for name, seconds, stroke, y in (
        ("bound", plan.bound, "#cc3311", end + 14),
        ("end", plan.makespan, "#000000", end + 28),
    ):
        x = LEFT + seconds * scale
        out.append(f'<line x1="{x:.2f}" y1="{TOP - 4:.1f}" x2="{x:.2f}" y2="{end:.1f}" stroke="{stroke}"/>')
        out.append(
            f'<text x="{x:.2f}" y="{y:.1f}" text-anchor="end" fill="{stroke}">{name} {seconds * 1e3:.3f} ms</text>'
        )
    out.append("</svg>")
    return "\n".join(out)


GRID, CELL_WIDTH, CELL_HEIGHT = 16, 92.0, 34.0  # cells of a layout's picture are as many at most, each way


def _few(ranks: Sequence[int], most: int = 4) -> str:
    return ", ".join(map(str, ranks[:most])) + (" …" if len(ranks) > most else "")


def _part(cuts: Sequence[int], extent: slice) -> int:
    """Which part this is; of several empty ones at one place the first."""
    return list(zip(cuts, cuts[1:])).index((extent.start, extent.stop))


def draw_layout(layout: Layout) -> str:
    """The parts of the first two dimensions that are cut, each with the ranks that hold some of it."""
    dims = len(layout.shape)
    cut = [d for d in range(dims) if len(layout.cuts(d)) > 2]
    shown = sorted([*cut, *(d for d in range(dims) if d not in cut)][:2])
    rows, columns = [layout.cuts(d) for d in shown] + [(0, 1)] * (2 - len(shown))
    held: dict[tuple[int, int], list[int]] = {}
    for rank in layout.mesh.ranks:
        tile = layout.tile(rank) or ()
        at = [_part(layout.cuts(d), tile[d]) for d in shown] + [0] * (2 - len(shown))
        held.setdefault((at[0], at[1]), []).append(rank)
    down, across = min(len(rows) - 1, GRID), min(len(columns) - 1, GRID)
    width, height = LEFT + CELL_WIDTH * across + 8, TOP + 18 + CELL_HEIGHT * down + 8
    names = " × ".join(f"dimension {d}" for d in shown) or "a scalar"
    title = f"{layout.spec or 'scalar'} {layout.shape} on a mesh {layout.mesh.shape}: {names}"
    more = [d for d in cut if d not in shown]
    title += f"; cut in dimension {', '.join(map(str, more))} as well" if more else ""
    title += "; not all parts are shown" if down < len(rows) - 1 or across < len(columns) - 1 else ""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, WIDTH):.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {max(width, WIDTH):.0f} {height:.0f}" font-family="sans-serif" font-size="11">',
        f'<rect width="{max(width, WIDTH):.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="8" y="18">{escape(title)}</text>',
    ]
    for column in range(across):
        x = LEFT + CELL_WIDTH * column
        out.append(f'<text x="{x:.0f}" y="{TOP + 10:.0f}">{columns[column]}:{columns[column + 1]}</text>')
    for row in range(down):
        y = TOP + 18 + CELL_HEIGHT * row
        out.append(f'<text x="8" y="{y + 20:.0f}">{rows[row]}:{rows[row + 1]}</text>')
        for column in range(across):
            ranks = held.get((row, column), [])
            empty = rows[row] == rows[row + 1] or columns[column] == columns[column + 1]
            colour = "#ffffff" if empty or not ranks else COLOURS[ranks[0] % len(COLOURS)]
            x = LEFT + CELL_WIDTH * column
            out.append(
                f'<rect x="{x:.0f}" y="{y:.0f}" width="{CELL_WIDTH - 2:.0f}" height="{CELL_HEIGHT - 2:.0f}" '
                f'fill="{colour}" fill-opacity="0.35" stroke="#555555">'
                f"<title>{escape('ranks ' + ', '.join(map(str, ranks)))}</title></rect>"
            )
            out.append(f'<text x="{x + 6:.0f}" y="{y + 20:.0f}">{escape(_few(ranks))}</text>')
    out.append("</svg>")
    return "\n".join(out)
