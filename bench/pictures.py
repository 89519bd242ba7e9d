"""Draws a result as SVG: a few lines or bars, one colour for each deployment."""

import math
import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from bench.figures import EMBEDDED, MODEL, RELAY, SERVICES, TITLES, Result, shown

COLOURS = {MODEL: "#999999", RELAY: "#777777", EMBEDDED: "#d97706", SERVICES: "#2563eb"}
PARTS = ["#2563eb", "#93c5fd", "#dc2626", "#16a34a"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 70, 170, 40, 40
BAR = 26
DELAY = re.compile(r"token delay, ([\d,]+) runs? x 30/s, (p50|p99)")
READERS = re.compile(r"([\d,]+) idle readers: memory each")


class Picture(NamedTuple):
    """A title, which screen readers read, and the drawing."""

    title: str
    svg: str


class Line(NamedTuple):
    """A named series of points."""

    name: str
    colour: str
    is_dashed: bool
    points: Sequence[tuple[float, float]]


def pictures(result: Result) -> dict[str, Picture]:
    """Returns the pictures for which the result has figures, by the name of their file."""
    title = "Token delay in ms by the number of runs that stream 30 tokens/s: median, and dashed p99"
    drawn = {"delay": Picture(title, _lines(title, _delays(result)))} if _delays(result) else {}
    name = "CPU per token, 10 runs x 30/s"
    title = "Processor time of one token in µs, at 10 runs of 30 tokens/s"
    if bars := _parts(result, name):
        drawn["cpu"] = Picture(title, _bars(title, bars, "us"))
    title = "Memory of the servers in KiB for each idle reader"
    if lines := _memory(result):
        drawn["readers"] = Picture(title, _lines(title, lines))
    return drawn


def _delays(result: Result) -> list[Line]:
    lines: list[Line] = []
    for column in TITLES:
        for share in ("p50", "p99"):
            found = [
                (_number(match[1]), series.median)
                for name, series in result.columns.get(column, {}).items()
                if (match := DELAY.fullmatch(name)) and match[2] == share
            ]
            if found:
                lines.append(Line(f"{_plain(column)}, {share}", COLOURS[column], share == "p99", sorted(found)))
    return lines


def _memory(result: Result) -> list[Line]:
    return [
        Line(_plain(column), COLOURS[column], False, sorted(found))
        for column in TITLES
        if (
            found := [
                (_number(match[1]), series.median)
                for name, series in result.columns.get(column, {}).items()
                if (match := READERS.fullmatch(name))
            ]
        )
    ]


def _parts(result: Result, name: str) -> dict[str, list[tuple[str, float]]]:
    """Returns the parts of a figure for each deployment. Parts are named `<figure>: <part>`."""
    bars: dict[str, list[tuple[str, float]]] = {}
    for column in TITLES:
        of_column = result.columns.get(column, {})
        parts = [(key.partition(": ")[2], one.median) for key, one in of_column.items() if key.startswith(f"{name}: ")]
        if parts:
            bars[_plain(column)] = parts
    return bars


def _lines(title: str, lines: list[Line]) -> str:
    """Draws lines on two logarithmic axes."""
    across = [x for line in lines for x, _ in line.points]
    up = [max(y, 1e-3) for line in lines for _, y in line.points]
    low, high = (
        math.floor(math.log10(min(up))),
        max(math.ceil(math.log10(max(up))), math.floor(math.log10(min(up))) + 1),
    )
    left, right = math.log10(min(across)), max(math.log10(max(across)), math.log10(min(across)) + 0.1)

    def place(x: float, y: float) -> tuple[float, float]:
        share_x = (math.log10(x) - left) / (right - left)
        share_y = (math.log10(max(y, 1e-3)) - low) / (high - low)
        return LEFT + share_x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share_y * (HEIGHT - TOP - BOTTOM)

    parts: list[str] = []
    for power in range(low, high + 1):
        _, y = place(min(across), 10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{10.0**power:,g}", "end"))
    for x_value in sorted(set(across)):
        x, _ = place(x_value, 10.0**low)
        parts.append(_text(x, HEIGHT - BOTTOM + 18, f"{x_value:,.0f}", "middle"))
    for number, line in enumerate(lines):
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in line.points))
        dashes = ' stroke-dasharray="5 4"' if line.is_dashed else ""
        parts.append(f'<path d="M{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dashes}/>')
        y = TOP + 10 + number * 18
        parts.append(
            f'<path d="M{WIDTH - RIGHT + 12} {y}h22" stroke="{line.colour}" stroke-width="2"{dashes}/>'
            + _text(WIDTH - RIGHT + 40, y + 4, line.name)
        )
    return _svg(title, HEIGHT, parts)


def _bars(title: str, bars: dict[str, list[tuple[str, float]]], unit: str) -> str:
    """Draws horizontal bars of stacked parts."""
    names = list(dict.fromkeys(name for parts in bars.values() for name, _ in parts))
    colours = {name: PARTS[number % len(PARTS)] for number, name in enumerate(names)}
    longest = max(sum(value for _, value in parts) for parts in bars.values())
    left, room = 150, WIDTH - 150 - 90
    drawn: list[str] = []
    for row, (name, parts) in enumerate(bars.items()):
        y, x = TOP + row * (BAR + 12), float(left)
        drawn.append(_text(left - 8, y + BAR / 2 + 4, name, "end"))
        for part, value in parts:
            width = value / longest * room
            drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colours[part]}"/>')
            x += width
        drawn.append(_text(x + 6, y + BAR / 2 + 4, shown(sum(value for _, value in parts), unit)))
    y = TOP + len(bars) * (BAR + 12) + 14
    for number, (name, colour) in enumerate(colours.items()):
        x = left + number * 110
        drawn.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>' + _text(x + 18, y, name))
    return _svg(title, y + 20, drawn)


def _svg(title: str, height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
    body = "\n".join([f"<title>{escape(title)}</title>", '<rect width="100%" height="100%" fill="white"/>', *parts])
    return f'{head}font-size="12" role="img">\n{body}\n{_text(12, 20, title)}\n</svg>\n'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _plain(column: str) -> str:
    return TITLES[column].replace("`", "").replace("holdfast ", "")


def _number(text: str) -> float:
    return float(text.replace(",", ""))
