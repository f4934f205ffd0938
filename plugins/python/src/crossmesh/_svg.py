"""A plan as a picture: when each sender is busy, on the simulation's time axis, with the lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
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
