"""A plan as a picture: when each sender is busy, on the simulation's time axis, with the lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from .plan import Hop, Plan

WIDTH, LANE, LEFT, TOP, BOTTOM = 760.0, 18.0, 110.0, 34.0, 40.0
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")
MOST_LANES = 64


def _lanes(plan: Plan, hops: Sequence[Hop]) -> tuple[str, dict[int, list[Hop]]]:
    """Hops between hosts by sending host; in a plan of one host, by sending rank."""
    lanes: dict[int, list[Hop]] = {}
    crossing = [h for h in hops if plan.host_of(h.sender) != plan.host_of(h.receiver)]
    for hop in crossing or hops:
        lanes.setdefault(plan.host_of(hop.sender) if crossing else hop.sender, []).append(hop)
    return "host" if crossing else "rank", dict(sorted(lanes.items())[:MOST_LANES])


def _bars(lane: Sequence[Hop], scale: float) -> list[tuple[float, float, int, str]]:
    """x, width, colour and text of a lane's bars; neighbours of a transfer that touch are one."""
    bars: list[tuple[float, float, int, str]] = []
    for hop in sorted(lane, key=lambda h: (h.start, h.end)):
        x, width = hop.start * scale, max((hop.end - hop.start) * scale, 0.3)
        text = f"rank {hop.sender} → {hop.receiver}, {hop.bytes} bytes"
        if bars and bars[-1][2] == hop.transfer and x - bars[-1][0] - bars[-1][1] < 0.5:
            first = bars.pop()
            end = max(first[0] + first[1], x + width)
            bars.append((first[0], end - first[0], hop.transfer, first[3] + "; " + text))
        else:
            bars.append((x, width, hop.transfer, text))
    return bars


def draw(plan: Plan) -> str:
    hops = plan.hops()
    kind, lanes = _lanes(plan, hops)
    longest = max(plan.makespan, plan.bound, 1e-9)
    scale = (WIDTH - LEFT - 20) / longest
    height = TOP + BOTTOM + LANE * max(1, len(lanes))
    title = (
        f"{plan.bytes} bytes, {plan.strategy}, {plan.scheduler}: "
        f"{plan.makespan * 1e3:.3f} ms simulated, bound {plan.bound * 1e3:.3f} ms"
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH:.0f} {height:.0f}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="8" y="18">{escape(title)}</text>',
    ]
    for row, (number, lane) in enumerate(lanes.items()):
        y = TOP + LANE * row
        out.append(f'<text x="8" y="{y + 12:.1f}">{kind} {number} sends</text>')
        for x, width, colour, text in _bars(lane, scale):
            out.append(
                f'<rect x="{LEFT + x:.2f}" y="{y + 1:.1f}" width="{width:.2f}" '
                f'height="{LANE - 4:.1f}" fill="{COLOURS[colour % len(COLOURS)]}">'
                f"<title>{escape(text)}</title></rect>"
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
