"""Sends a made-up newer release's words: on every channel, in the queue, and as a mode of cancels.

`newer_process.py` writes its logs and rows.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import sqlalchemy as sa
from redis.exceptions import RedisError

from bench.chaos.deployment import Deployment
from bench.chaos.ledger import Ledger
from shared.domain.errors import CancelMode, LifecycleError
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import CancelRequest
from shared.redis import keys
from shared.sql.run_tables import runs
from shared.sql.runs.run_store import RunStore
from tests.kit.commands import execute

launch_newer = partial(execute, program="from bench.chaos.newer_process import work; work()")

SPEAKS_EVERY_S = 0.5
UNKNOWN_MODE = "gracefully"
WORDS = (b"", b"pause", b"run-x pause 30", b'{"run":"run-x","mode":"pause"}', b"\xff\xfe run-x", b"v2:17 {}", b"-1 {}")
JOBS = {"job-without-a-number": 1, "compact:thread-1:x": 2}


@dataclass
class NewerRelease:
    """Sends unknown words to a deployment."""

    deployment: Deployment
    ledger: Ledger
    dice: random.Random

    async def speak(self) -> None:
        """Publishes unknown words on every channel, again and again."""
        while True:
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(5):
                    await self._say_something()
            await asyncio.sleep(SPEAKS_EVERY_S)

    async def cancel(self, run_id: str) -> bool:
        """Cancels a run with an unknown mode. Returns False if the run had ended."""
        database = self.deployment.database
        request = CancelRequest(datetime.now(UTC), actor="newer release", mode=CancelMode.INTERRUPT)
        try:
            store = RunStore(database)
            await store.request_cancel(await store.look_up(RunId(run_id)), request)
        except LifecycleError:
            return False
        async with database.write() as connection:
            await connection.execute(sa.update(runs).where(runs.c.id == run_id).values(cancel_mode=UNKNOWN_MODE))
        with suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(5):
                redis = self.deployment.redis_client()
                await redis.set(keys.cancel_flag(RunId(run_id)), UNKNOWN_MODE, ex=60)
                await redis.publish(keys.CANCELS_CHANNEL, f"{run_id} {UNKNOWN_MODE}")
        return True

    async def _say_something(self) -> None:
        redis = self.deployment.redis_client()
        feeds = [keys.feed(RunId(run_id)) for run_id in await self._running()]
        for channel in (keys.CANCELS_CHANNEL, keys.WAKE_CHANNEL, *feeds):
            await redis.publish(channel, self.dice.choice(WORDS))
        if self.dice.random() < 0.1:
            await redis.zadd(keys.QUEUE, JOBS)
        self.ledger.notes["times the newer release spoke"] += 1
        await redis.aclose(close_connection_pool=True)

    async def _running(self) -> list[str]:
        query = sa.select(runs.c.id).where(runs.c.status == RunStatus.RUNNING).limit(5)
        async with self.deployment.database.read() as connection:
            return list((await connection.execute(query)).scalars())
