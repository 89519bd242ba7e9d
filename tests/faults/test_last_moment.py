"""What comes while a run is ending is answered or refused, and never taken in and dropped."""

import asyncio

from shared.domain.ids import ThreadId
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.services.databases import thread_locked
from tests.kit.wait_until import wait_until


async def test_a_message_that_is_taken_in_while_its_run_ends_is_answered(
    working_product: Product, models: ModelServer
) -> None:
    """The worker had looked for messages and waited for the database to end the run; the message was dropped."""
    product = working_product
    is_locked = asyncio.Event()
    models.play(Turn(text="Nearly done.", silent_before_headers=60, resume=is_locked), Turn(text="Now done."))
    agent = await product.agent()
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="First")
    await wait_until(lambda: models.requests, description="the model to be asked")
    url = product.context.database.url.render_as_string(hide_password=False)

    async with thread_locked(url, ThreadId(agent.id)) as somebody_waits:
        is_locked.set()
        await wait_until(somebody_waits, description="the worker to end the run")
        injected = await product.http.post(f"/v1/runs/{run.id}/inject", json={"input": "One more thing"})
        assert injected.status_code == 200

    assert (await product.ended(run.id))["stop_reason"] == "end_turn"
    said = [message["content"] for message in (await product.history(agent.id))[1:]]
    assert said == ["First", "Nearly done.", "One more thing", "Now done."]
    (await read_whole(product.http, run.id)).assert_complete()
