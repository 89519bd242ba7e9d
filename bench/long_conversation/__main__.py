"""Talks to an agent for thousands of turns in a small window, kills its workers meanwhile, and checks its memory.

It starts a Redis, an API, workers and a model, on SQLite or on a new database of a Postgres server. One agent talks for
all turns; a second one, which shares a memory block with it, talks concurrently for a quarter of them, in a
conversation. The model derives its memory tool calls from each request alone. The seed determines all messages, calls
and faults. At the end, the memory must match the calls, and the history the messages. Exit status 1: one does not.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from pathlib import Path

import uvloop

from bench.long_conversation.performance import Performance, Refused


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long_conversation", description=__doc__)
    parser.add_argument("--turns", type=_count, default=2000, help="questions to the first agent (default: 2000)")
    parser.add_argument("--window", type=_window, default=8000, help="tokens of the model's window (default: 8000)")
    parser.add_argument("--seed", type=int, default=None, help="seed of conversations and faults (default: random)")
    parser.add_argument("--workers", type=_count, default=2, help="worker processes (default: 2)")
    parser.add_argument(
        "--kill-every",
        type=_seconds,
        default=10.0,
        help="mean seconds between two faults; 0: no faults (default: 10)",
    )
    parser.add_argument("--postgres", default=None, help="a server to make a database on (default: SQLite)")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    try:
        is_clean = uvloop.run(perform(options))
    except Refused as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except (asyncio.CancelledError, KeyboardInterrupt):
        parser.exit(130, f"{parser.prog}: interrupted; nothing was checked\n")
    sys.exit(0 if is_clean else 1)


async def perform(options: argparse.Namespace) -> bool:
    """Talks, checks and prints. Returns whether nothing was wrong. SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    performance = Performance(
        directory=Path(tempfile.mkdtemp(prefix="holdfast-long-")),
        seed=options.seed,
        turns=options.turns,
        window=options.window,
        workers=options.workers,
        kill_every_s=options.kill_every,
        postgres_url=options.postgres,
    )
    report = await performance.play()
    print("\n".join(report.lines()))
    print(f"\nlogs: {performance.directory}")
    return report.is_clean


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if number < 0:
        raise argparse.ArgumentTypeError("at least 0")
    return number


def _window(text: str) -> int:
    number = int(text)
    if number < 4000:
        raise argparse.ArgumentTypeError("at least 4000: instructions, tools and memory alone are about 2000 tokens")
    return number


if __name__ == "__main__":
    main()
