"""Injects faults into its own deployment for some minutes and reports broken promises. Exit status 1: there are some.

It starts a Redis, a database on the given Postgres server, workers and APIs, and keeps runs of every kind going, in two
projects that sometimes reach their limits. Tools run in the machine's best isolation. It upgrades the deployment to a
made-up newer release, which writes fields and events that this one does not know, and back; one worker stays on that
release. Then it kills, freezes, disconnects, empties and fails over processes and services, by a schedule from the
seed. Everything listens on loopback, and it ends all processes that it started.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from pathlib import Path

import uvloop

from bench.chaos.deployment import LEASE_S
from bench.chaos.orphans import adopt_orphans
from bench.chaos.performance import Performance
from bench.chaos.schedule import FaultKind, draw_schedule
from shared.domain.errors import InvalidRequest

KINDS = ", ".join(kind.name for kind in FaultKind)


def _kinds_of(names: str) -> list[FaultKind]:
    try:
        return [FaultKind[name.strip()] for name in names.split(",")]
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"there is no fault {error}, but {KINDS}") from error


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes of faults (default: 2)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the faults (default: random)")
    parser.add_argument("--workers", type=int, default=3, help="worker processes (default: 3)")
    parser.add_argument("--apis", type=int, default=2, help="API processes (default: 2)")
    parser.add_argument("--runs-at-once", type=int, default=100, help="concurrent stories (default: 100)")
    parser.add_argument("--postgres", default="postgresql://127.0.0.1/test", help="a server to make a database on")
    parser.add_argument(
        "--sandbox", choices=["auto", "process"], default="auto", help="the isolation of tools (default: the best)"
    )
    parser.add_argument(
        "--untimed", action="store_true", help="print late recoveries, but do not fail for them: for a shared machine"
    )
    parser.add_argument(
        "--faults",
        type=_kinds_of,
        default=[],
        help=f"the only kinds of faults, with commas between them, of: {KINDS} (default: all)",
    )
    parser.add_argument("--only-schedule", action="store_true", help="only print the faults of the seed")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    if options.only_schedule:
        print("\n".join(map(str, draw_schedule(options.seed, options.minutes * 60, LEASE_S, options.faults))))
        return
    adopt_orphans()
    try:
        is_clean = uvloop.run(perform(options))
    except InvalidRequest as error:
        print(error.message, file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if is_clean else 1)


async def perform(options: argparse.Namespace) -> bool:
    """Injects faults, checks and prints. Returns whether all promises held. SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    directory = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    performance = Performance(
        directory=directory,
        seed=options.seed,
        minutes=options.minutes,
        workers=options.workers,
        apis=options.apis,
        at_once=options.runs_at_once,
        postgres_url=options.postgres,
        sandbox=options.sandbox,
        faults=options.faults,
    )
    scoreboard = await performance.play()
    print("\n".join(scoreboard.lines()))
    print(f"\nlogs: {directory}")
    return scoreboard.is_clean(timed=not options.untimed)


if __name__ == "__main__":
    main()
