"""Measures costs that must not grow with history: `python -m bench.cost`.

It measures submit, claim, settle, the lists of runs and retention, first with ten earlier runs in the thread, then with
100,000 in it and a million in the project; and the transactions of ten idle API processes and ten idle workers. It
inserts the earlier runs by SQL, and calls the stores' own methods without HTTP.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from bench.deployments import SETTINGS, machine
from bench.earlier_runs import EarlierRuns
from bench.figures import quantile
from shared.domain.runs import SubmissionKeys
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.engine import Database
from shared.sql.migrate import migrate
from shared.sql.paging import Page
from shared.sql.runs.listing import RunFilter
from tests.kit.commands import fork
from tests.kit.free_ports import free_port
from tests.kit.product.processes import processes_in
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import AGENT, IDS, THREAD, Stores, said, some_run
from tests.kit.services.databases import new_database, open_database
from tests.kit.services.redis_servers import PrivateRedis

TIMES, WARM_UP, PRUNINGS = 200, 20, 20
FEW = 10
PROCESSES = 10
SETTLED_S, WATCHED_S = 20, 60
EARLIER = EarlierRuns(PROJECT, AGENT.id, THREAD)

Result = TypeVar("Result")


class Row(NamedTuple):
    """A measured quantity and its value."""

    name: str
    figure: str


class Times:
    """The seconds of each operation."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}

    async def take(self, name: str, work: Awaitable[Result]) -> Result:
        began = time.perf_counter()
        result = await work
        self.of.setdefault(name, []).append(time.perf_counter() - began)
        return result


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    parser.add_argument("--postgres", default="postgresql://127.0.0.1/test", help="a server to make databases on")
    parser.add_argument("--runs", type=int, default=1_000_000, help="earlier runs in the project")
    parser.add_argument("--of-thread", type=int, default=100_000, help="earlier runs in the thread")
    parser.add_argument("--only", choices=["sqlite", "postgres", "idle"], help="measure only this")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="holdfast-cost-") as directory:
        if options.only in (None, "sqlite"):
            await _grow("SQLite", f"sqlite:///{directory}/cost.db", options)
        if options.only in (None, "postgres"):
            async with new_database(options.postgres) as url:
                await _grow("Postgres", url, options)
        if options.only in (None, "idle"):
            async with new_database(options.postgres) as url:
                _show([await _idle(url, options.postgres, Path(directory))])


async def _grow(name: str, url: str, options: argparse.Namespace) -> None:
    """Measures with few earlier runs and with many."""
    database = Database(url, answer_s=None)
    try:
        await migrate(database)
        await AgentEditor(database).create(AGENT, system_message_id=IDS.message())
        await EARLIER.insert(database, 1, FEW, of_thread=FEW)
        few = await _cycles(Stores(database))
        began = time.monotonic()
        # The measured runs have the numbers in between.
        await EARLIER.insert(database, FEW + WARM_UP + TIMES + 1, options.runs, of_thread=options.of_thread)
        _say(f"{name}: inserted {options.runs:,} runs in {time.monotonic() - began:.0f} s")
        many = await _cycles(Stores(database))
    finally:
        await database.aclose()
    _show(
        Row(f"{name}: {what}, {runs} earlier runs", _milliseconds(times.of[what]))
        for what in few.of
        for runs, times in ((f"{FEW:,}", few), (f"{options.of_thread:,} of {options.runs:,}", many))
    )


async def _cycles(stores: Stores) -> Times:
    """Executes one run of the thread after the other."""
    for _ in range(WARM_UP):
        await _cycle(stores, Times())
    times = Times()
    for _ in range(TIMES):
        await _cycle(stores, times)
    later = NOW + timedelta(days=1)
    for _ in range(PRUNINGS):
        pruned = await times.take(f"pruning of {FEW} runs", stores.retention.prune(later, later, limit=FEW))
        assert pruned["runs"] == FEW
    return times


async def _cycle(stores: Stores, times: Times) -> None:
    run, newest = some_run(), Page(limit=50)
    await times.take(
        "submit", stores.runs.submit(run, [said("hi")], keys=SubmissionKeys([f"otids:{run.id}"]), refuse_if_busy=True)
    )
    claimed = await times.take("claim", stores.runs.claim(run.id, run.dispatch, IDS.claim(), NOW))
    assert claimed is not None
    await times.take("settle", stores.settle(claimed))
    thread = RunFilter(thread_id=THREAD)
    await times.take("list of the thread", stores.listing.page(PROJECT, thread, newest))
    await times.take("list of the project", stores.listing.page(PROJECT, RunFilter(), newest))


async def _idle(url: str, admin_url: str, directory: Path) -> Row:
    """Measures the transactions per second of an idle deployment."""
    async with AsyncExitStack() as stack:
        async with open_database(url) as database:
            await migrate(database)
        redis = PrivateRedis(directory)
        await redis.start()
        stack.push_async_callback(redis.kill)
        stack.push_async_callback(redis.close)
        connections = {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_REDIS_URL": redis.url, "HOLDFAST_RETAIN_DAYS": "30"}
        processes = await stack.enter_async_context(processes_in(directory, {**SETTINGS, **connections}, fork))
        for _ in range(PROCESSES):
            await asyncio.gather(processes.api(free_port()), processes.worker())
        await asyncio.sleep(SETTLED_S)
        # It asks from another database, so that the query is not counted.
        asking = await stack.enter_async_context(open_database(admin_url))
        before, began = await _transactions(asking, url), time.monotonic()
        await asyncio.sleep(WATCHED_S)
        per_s = (await _transactions(asking, url) - before) / (time.monotonic() - began)
    return Row(f"idle: {PROCESSES} API processes and {PROCESSES} workers", f"{per_s:.2f} transactions/s")


async def _transactions(asking: Database, url: str) -> int:
    counted = sa.text("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = :name")
    async with asking.read() as connection:
        return (await connection.execute(counted, {"name": sa.make_url(url).database})).scalar_one()


def _milliseconds(times: list[float]) -> str:
    return ", ".join(f"p{percent} {quantile(times, percent / 100) * 1000:.1f} ms" for percent in (50, 99))


def _show(rows: Iterable[Row]) -> None:
    for row in rows:
        print(f"| {row.name} | {row.figure} |", flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
