"""Renders a result as a table, or as the generated part of a document: `python -m bench.report RESULT.json`.

With `--document docs/performance.md`, it rewrites the text between the document's two marks, and the pictures in
`images/performance-*.svg` beside it. Otherwise it prints the table.
"""

import argparse
import re
import sys
from pathlib import Path

from bench.figures import EMBEDDED, MODEL, RELAY, SERVICES, TITLES, Result, read_result, shown
from bench.pictures import pictures

RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- figures: written by `python -m bench.report` -->", "<!-- end of the figures -->"

TARGETS: dict[str, dict[str, float]] = {
    "start of holdfast --help: CPU": {EMBEDDED: 0.3},
    "a wrong setting: CPU": {EMBEDDED: 0.3},
    "start of holdfast dev: CPU": {EMBEDDED: 1.2},
    "start of holdfast api: CPU": {SERVICES: 1.0},
    "start of holdfast worker: CPU": {SERVICES: 1.0},
    "submit → first token, p50": {SERVICES: 10, EMBEDDED: 10},
    "token delay, 100 runs x 30/s, p50": {SERVICES: 2, EMBEDDED: 5},
    "token delay, 100 runs x 30/s, p99": {SERVICES: 15, EMBEDDED: 30},
    "CPU per token, 10 runs x 30/s": {SERVICES: 250, EMBEDDED: 500},
    "greatest tokens/s": {SERVICES: 10_000, EMBEDDED: 10_000},
    "greatest tokens/s: CPU per token": {SERVICES: 90, EMBEDDED: 90},
    "short runs/s": {SERVICES: 100, EMBEDDED: 100},
    "short runs: CPU per run": {SERVICES: 8, EMBEDDED: 8},
    "half of 8,000 events replayed: first": {SERVICES: 5, EMBEDDED: 5},
    "half of 8,000 events replayed: all": {SERVICES: 40, EMBEDDED: 40},
    "100 idle readers: CPU": {SERVICES: 0.01, EMBEDDED: 0.01},
    "100 idle readers: memory each": {SERVICES: 30, EMBEDDED: 30},
    "1,000 submissions at once: refused": {SERVICES: 0, EMBEDDED: 0},
    "1,000 submissions at once: all first tokens": {SERVICES: 3, EMBEDDED: 3},
}
"""The target of a figure in its own unit: a maximum, or a minimum if higher is better."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--document", type=Path)
    options = parser.parse_args()
    try:
        result = read_result(options.result)
        if options.document:
            write_document(result, options.document, options.result)
        else:
            print(table(result))
    except (OSError, ValueError) as error:
        sys.exit(f"cannot report: {error}")


def table(result: Result) -> str:
    """Renders every figure in Markdown, with a column per deployment. In brackets: the multiple of the floor."""
    columns = [column for column in TITLES if column in result.columns]
    lines = [["", *(TITLES[column] for column in columns), "target"]]
    lines.append(["---"] * len(lines[0]))
    for name in result.names():
        lines.append([name, *(_cell(result, column, name) for column in columns), _target(name)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def result_path(result: Result, hardware: str) -> Path:
    """Returns a result's file, named by its date and the machine's processor."""
    return RESULTS / f"{result.date[:10]}-{re.sub(r'[^a-z0-9]+', '-', hardware.lower()).strip('-')}.json"


def write_document(result: Result, document: Path, source: Path) -> None:
    """Replaces the generated part of a document, and its pictures. Raises `ValueError` if it has no such part."""
    before, begin, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} does not have the lines {BEGIN} and {END}")
    drawn = pictures(result)
    images = document.parent / "images"
    images.mkdir(exist_ok=True)
    for name, picture in drawn.items():
        (images / f"performance-{name}.svg").write_text(picture.svg)
    links = "\n\n".join(f"![{picture.title}](images/performance-{name}.svg)" for name, picture in drawn.items())
    measured = f"Measured on {result.date[:10]}: {result.machine}. Revision {result.revision}, stored as `{source}`."
    document.write_text(f"{before}{BEGIN}\n\n{measured}\n\n{links}\n\n{table(result)}\n\n{END}{after}")


def _cell(result: Result, column: str, name: str) -> str:
    series = result.columns[column].get(name)
    if series is None:
        return ""
    text = shown(series.median, series.unit)
    target = TARGETS.get(name, {}).get(column)
    if target is not None:
        met = series.median >= target if series.is_higher_better else series.median <= target
        text = f"**{text}**" if met else text
    floor = result.floor(name)
    if column in (MODEL, RELAY) or not floor:
        return text
    times = floor / series.median if series.is_higher_better else series.median / floor
    return f"{text} ({times:.1f}x)"


def _target(name: str) -> str:
    targets = TARGETS.get(name, {})
    return " / ".join(dict.fromkeys(f"{targets[column]:,g}" for column in (EMBEDDED, SERVICES) if column in targets))


if __name__ == "__main__":
    main()
