"""The time to the first token is that of the first one that anybody was shown, whoever ends the run.

A run that changed its worker had the time of its last worker: a deploy looked as if the provider had become slow.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.behind_proxies import behind_proxies, unavailable
from tests.kit.product.frame_reader import FrameReader, reading
from tests.kit.product.processes import HoldfastProcess, Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import wait_until


async def kill(worker: HoldfastProcess) -> None:
    await worker.kill()


async def ask_to_end(worker: HoldfastProcess) -> None:
    assert await worker.terminate() == 0


async def submit(product: Product) -> str:
    """A run in token mode; its id."""
    agent = await product.agent()
    sent = {"input": "Hello", "stream_tokens": True}
    return (await product.http.post(f"/v1/agents/{agent.id}/messages/async", json=sent)).json()["id"]


async def words_shown(reader: FrameReader, count: int) -> None:
    await wait_until(lambda: len(reader.of_type("assistant_message")) >= count, description=f"{count} words")


async def assert_first_token_is_the_first_shown(product: Product, run_id: str, *, workers: int) -> None:
    """By the times of the log's events, as readers are shown them."""
    asked = {"starting_after": 0, "include_event_times": True}
    text = (await product.http.post(f"/v1/runs/{run_id}/stream", json=asked)).text
    frames: list[dict[str, Any]] = [
        json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")
    ]
    shown = [frame["at_ms"] for frame in frames if frame["message_type"] == "assistant_message"]
    taken = [one["at_ms"] for one in frames if one.get("event_type") in ("step_restarted", "log_continued")]
    assert len(taken) == workers - 1
    assert shown[0] < taken[0] <= taken[-1] < shown[-1], "each worker has shown a part"

    run = (await product.http.get(f"/v1/runs/{run_id}")).json()
    submitted_ms = datetime.fromisoformat(run["created_at"]).timestamp() * 1000
    expected = pytest.approx(shown[0] - submitted_ms, abs=1)
    assert run["ttft_ns"] / 1e6 == expected
    assert run["metadata"]["first_token_ms"] == expected


@pytest.mark.parametrize("leave", [kill, ask_to_end])
async def test_the_first_token_stays_when_the_worker_changes(
    product: Product,
    processes: Processes,
    models: ModelServer,
    leave: Callable[[HoldfastProcess], Awaitable[None]],
) -> None:
    models.say("one two three four", silent_after=3)
    models.say("All of it.")
    first = await processes.worker()
    run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await leave(first)
        await end_leases(product.context.redis)
        await processes.worker()
        await reader.end()
    await assert_first_token_is_the_first_shown(product, run_id, workers=2)


async def test_the_first_token_stays_when_two_workers_in_a_row_are_lost(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """The second one had stored nothing of the step when it died."""
    models.say("one two three four", silent_after=3)
    models.say("five six seven eight", silent_after=3)
    models.say("All of it.")
    first = await processes.worker()
    run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await first.kill()
        await end_leases(product.context.redis)
        second = await processes.worker()
        await words_shown(reader, 6)
        await second.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        await reader.end()
    await assert_first_token_is_the_first_shown(product, run_id, workers=3)


async def test_the_first_token_stays_when_redis_was_away_for_longer_than_a_lease(
    product: Product, private_redis: PrivateRedis, postgres_url: str, models: ModelServer, tmp_path: Path
) -> None:
    may_end = asyncio.Event()
    models.answer_with(
        lambda _: Turn(text="At last, all of it.") if may_end.is_set() else Turn(text="word " * 20_000, pace=0.01)
    )
    start = behind_proxies(product, tmp_path, redis_url=private_redis.url, database_url=postgres_url, lease_s=4.0)
    async with start as running:
        run_id = await running.submit()
        async with reading(running.http, run_id) as reader:
            await reader.reach(20)
            async with unavailable(running.redis_proxy, "refused"):
                await wait_until(
                    lambda: all(one.client_left for one in models.requests), description="the worker to stop in time"
                )
                may_end.set()
            await reader.end()
        # One of the lease that was over, and one more for each time that it was over in a standstill of the machine.
        await assert_first_token_is_the_first_shown(running.product, run_id, workers=len(models.requests))
        assert len(models.requests) > 1
        await running.end_worker()
