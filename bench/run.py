"""Measures Holdfast and prints a table: `python -m bench.run --help`."""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from bench.deployments import Deployment, embedded, machine, model, services
from bench.measurements import SECTIONS, Row
from bench.progress import progress_bar

EMBEDDED, SERVICES = "embedded", "services"
TITLES = {EMBEDDED: "`holdfast dev` (embedded)", SERVICES: "`holdfast api` + `worker` (Redis, Postgres)"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--only", choices=[EMBEDDED, SERVICES], help="measure one deployment instead of both")
    parser.add_argument(
        "--skip", action="append", default=[], choices=list(SECTIONS), help="leave a section out; may be repeated"
    )
    parser.add_argument(
        "--postgres", default="postgresql://127.0.0.1/test", help="a server on which a database may be made"
    )
    asyncio.run(measure(parser.parse_args()))


async def measure(options: argparse.Namespace) -> None:
    """Measures the deployments one after the other; the table goes to standard output, all else to standard error."""
    chosen = [options.only] if options.only else [EMBEDDED, SERVICES]
    sections = [name for name in SECTIONS if name not in options.skip]
    columns: dict[str, list[Row]] = {}
    measured_on = machine()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        async with model() as environment:
            for name in chosen:
                place = Path(directory) / name
                place.mkdir()
                try:
                    columns[name] = await measure_one(name, start(name, place, environment, options.postgres), sections)
                except OSError as error:
                    say(f"{name}: left out, because a service is not there: {error}")
    print(f"{measured_on}\n\n{table(columns)}")


def start(
    name: str, directory: Path, environment: dict[str, str], postgres_url: str
) -> AbstractAsyncContextManager[Deployment]:
    if name == EMBEDDED:
        return embedded(directory, environment)
    return services(directory, environment, postgres_url)


async def measure_one(name: str, starting: AbstractAsyncContextManager[Deployment], sections: list[str]) -> list[Row]:
    """Every section on one deployment."""
    rows: list[Row] = []
    with progress_bar(name, len(sections)) as progress:
        async with starting as deployment:
            for done, section in enumerate(sections, 1):
                began = time.monotonic()
                say(f"{name}: {section} …")
                rows += await SECTIONS[section](deployment)
                say(f"{name}: {section} took {time.monotonic() - began:.0f} s")
                progress(done)
    return rows


def table(columns: dict[str, list[Row]]) -> str:
    """The rows side by side, in Markdown. A row that only one deployment has leaves the other's cell empty."""
    figures = {name: {row.name: row.figure for row in rows} for name, rows in columns.items()}
    names = list(dict.fromkeys(row.name for rows in columns.values() for row in rows))
    head = ["", *(TITLES[name] for name in columns)]
    lines = [head, ["---"] * len(head), *([name, *(figures[one].get(name, "") for one in columns)] for name in names)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
