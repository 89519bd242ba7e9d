"""Measures Holdfast and prints a table: `python -m bench.run --help`. Exit status 1: a token was lost or out of order,
or, with --fail-on-regression, a figure became worse by more than the noise."""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from bench.client import Refused
from bench.compare import comparison, regressions
from bench.deployments import (
    Deployment,
    at_rest,
    embedded,
    hardware,
    machine,
    model,
    model_alone,
    relay,
    revision,
    services,
)
from bench.figures import EMBEDDED, MODEL, RELAY, SERVICES, Result, read_result, write_result
from bench.idle_readers import raise_open_files
from bench.profiling import Profiler, profiler
from bench.progress import progress_bar
from bench.report import result_path, table
from bench.sections.listed import SECTIONS

FLOORS = [MODEL, RELAY]
SECTION_S = 600.0
"""Seconds after which a round of a section has failed."""


def main() -> None:
    options = _parser().parse_args()
    if len(options.compare) > 2:
        sys.exit("--compare takes one result, to compare with this run, or two")
    try:
        olds = [read_result(path) for path in options.compare]
        taking = profiler(options.profile) if options.profile else None
    except (OSError, ValueError) as error:
        sys.exit(f"cannot begin: {error}")
    if len(olds) == 2:
        result = olds.pop()
    else:
        raise_open_files()
        try:
            result = uvloop.run(measure(options, taking))
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.exit("interrupted")
        print(f"{result.machine}\n\n{table(result)}")
        _save(result, options)
    if olds:
        print(f"\n{comparison(olds[0], result)}")
    for fault in result.faults:
        say(f"FAULT: {fault}")
    worse = regressions(olds[0], result) if olds and options.fail_on_regression else []
    for name in worse:
        say(f"WORSE: {name}")
    sys.exit(1 if result.faults or worse else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--only", choices=[EMBEDDED, SERVICES], help="measure one set-up instead of both")
    parser.add_argument(
        "--section",
        action="append",
        default=[],
        choices=list(SECTIONS),
        help="measure only these; may be repeated",
    )
    parser.add_argument(
        "--skip", action="append", default=[], choices=list(SECTIONS), help="leave this section out; may be repeated"
    )
    parser.add_argument("--no-floors", action="store_true", help="measure the product alone, without ratios")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each repeated section (default: 3)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--save", action="store_true", help="write the result to bench/results, by date and machine")
    parser.add_argument(
        "--compare",
        nargs="+",
        type=Path,
        default=list[Path](),
        metavar="RESULT",
        help="OLD: compare it with this run; OLD NEW: compare two results",
    )
    parser.add_argument("--fail-on-regression", action="store_true", help="with --compare: exit 1 if a figure is worse")
    parser.add_argument(
        "--profile", type=Path, nargs="?", const=Path("build/profile"), metavar="DIRECTORY",
        help="sample every server with py-spy into this directory (default: build/profile); the figures get worse",
    )  # fmt: skip
    parser.add_argument("--postgres", default="postgresql://127.0.0.1/test", help="a server to make a database on")
    return parser


async def measure(options: argparse.Namespace, taking: Profiler | None) -> Result:
    """Measures one deployment after the other. Progress goes to standard error."""
    task = asyncio.current_task()
    assert task is not None
    # SIGTERM acts as Ctrl-C, which also ends all started processes.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    chosen = [options.only] if options.only else [EMBEDDED, SERVICES]
    columns = chosen if options.no_floors or taking else [*FLOORS, *chosen]
    plan = {column: [name for name in _wanted(options) if column in SECTIONS[name].on] for column in columns}
    result = Result(machine(), datetime.now(UTC).isoformat(timespec="seconds"), revision(), {}, [])
    done, steps = 0, sum(map(len, plan.values()))
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory, progress_bar("bench", steps) as progress:
        async with model() as environment:
            for column in filter(plan.get, columns):
                place = Path(directory) / column
                place.mkdir()
                try:
                    async with _start(column, place, environment, options.postgres) as deployment:
                        await at_rest(deployment)
                        for name in plan[column]:
                            await _section(column, name, deployment, result, options.rounds, taking)
                            progress(done := done + 1)
                            if options.json:  # keeps the measured figures if a later section fails
                                write_result(result, options.json)
                except OSError as error:
                    say(f"{column}: left out, because a service is not there: {error}")
                except AssertionError as error:
                    result.faults.append(f"{column}: it did not start: {error}")
    return result


async def _section(
    column: str, name: str, deployment: Deployment, result: Result, rounds: int, taking: Profiler | None
) -> None:
    """Measures every round of one section. A failed round is a fault, and the others go on."""
    section, began = SECTIONS[name], time.monotonic()
    say(f"{column}: {name} …")
    try:
        for _ in range(rounds if section.is_repeated and not taking else 1):
            async with asyncio.timeout(SECTION_S):
                if taking:
                    await section.measure(deployment)  # a warm-up, so that one-time work of a process is not measured
                    async with taking.sampling(f"{column}-{name}", deployment):
                        result.add(column, await section.measure(deployment))
                else:
                    result.add(column, await section.measure(deployment))
    except (Refused, AssertionError, EOFError, OSError, TimeoutError, ValueError) as error:
        result.faults.append(f"{column}: {name} failed: {type(error).__name__}: {error}")
        say(result.faults[-1])
    result.faults += [f"{column}: {name}: {fault}" for fault in deployment.client.faults]
    deployment.client.faults.clear()
    say(f"{column}: {name} took {time.monotonic() - began:.0f} s")


def _start(
    column: str, directory: Path, environment: dict[str, str], postgres_url: str
) -> AbstractAsyncContextManager[Deployment]:
    if column == MODEL:
        return model_alone(environment)
    if column == RELAY:
        return relay(directory, environment)
    if column == EMBEDDED:
        return embedded(directory, environment)
    return services(directory, environment, postgres_url)


def _wanted(options: argparse.Namespace) -> list[str]:
    """Returns the sections to measure, in order."""
    asked = set(options.section) or {
        name for name, section in SECTIONS.items() if (section.profiles if options.profile else section.is_default)
    }
    return [name for name in SECTIONS if name in asked and name not in options.skip]


def _save(result: Result, options: argparse.Namespace) -> None:
    if options.json:
        say(f"written: {options.json}")
    if options.save:
        path = result_path(result, hardware())
        write_result(result, path)
        say(f"written: {path}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
