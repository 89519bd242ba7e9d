"""What a program sees that reads a stream with the public SDK: frames, pauses, notes, and what comes too late."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from arq.connections import ArqRedis
from letta_client import ConflictError

from shared.sql.engine import Database
from tests.kit.clocks import SettableClock
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product


@pytest.fixture
async def impatient(database: Database, redis: ArqRedis, models: ModelServer) -> AsyncIterator[Product]:
    """The product, which says after a tenth of a second of silence that it is still there."""
    async with running_product(database, redis, models, settings={"keepalive_s": 0.1}) as running:
        yield running


@pytest.mark.parametrize("pings", [True, False])
async def test_a_silent_stream_is_kept_open_without_confusing_the_sdk(impatient: Product, pings: bool) -> None:
    """Without pings the sign of life was a comment that `letta-client` took for an event without data."""
    agent = await impatient.agent(model="builtin/scripted")
    script = '{"turns": [{"text": "At last.", "first_delay_ms": 500}]}'

    stream: Any = await impatient.client.agents.messages.create(
        agent.id, input=script, streaming=True, stream_tokens=True, include_pings=pings
    )
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.content for chunk in chunks if chunk.message_type == "assistant_message") == "At last."
    assert (sum(chunk.message_type == "ping" for chunk in chunks) > 2) is pings


async def test_a_cancel_that_the_streams_end_overtook_says_how_the_run_ended(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    clock = SettableClock()
    async with running_product(database, redis, models, clock=clock) as product:
        models.say("Done.")
        agent = await product.agent()
        stream: Any = await product.client.agents.messages.create(agent.id, input="Hello", streaming=True)
        [run_id] = {chunk.run_id async for chunk in stream}

        clock.advance(seconds=-4)  # what a busy machine may take over the request does not count
        assert await product.client.agents.messages.cancel(agent.id) == {run_id: "completed"}

        clock.advance(seconds=10)
        with pytest.raises(ConflictError, match="No active runs"):
            await product.client.agents.messages.cancel(agent.id)


async def test_a_cancel_with_nothing_to_cancel_is_refused(product: Product) -> None:
    product.models.say("Done.")
    agent = await product.agent()
    with pytest.raises(ConflictError, match="No active runs"):
        await product.client.agents.messages.cancel(agent.id)

    await product.client.agents.messages.create(agent.id, input="Hello")

    with pytest.raises(ConflictError, match="No active runs"):
        await product.client.agents.messages.cancel(agent.id)


async def test_a_resumed_stream_refused_the_nulls_that_the_sdk_allows(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    talk = await product.client.conversations.create(agent_id=agent.id)
    nulls: Any = dict.fromkeys(("agent_id", "batch_size", "include_pings", "otid", "poll_interval", "starting_after"))
    stream: Any = await product.client.conversations.messages.create(talk.id, input="Hello")
    shown = [chunk async for chunk in stream]

    again: Any = await product.client.runs.messages.stream(shown[0].run_id, **nulls)
    newest: Any = await product.client.conversations.messages.stream(talk.id, **nulls, run_id=None)

    assert shown[0].message_type == "ping"
    assert [chunk async for chunk in again] == [chunk async for chunk in newest] == shown
