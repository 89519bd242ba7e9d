"""The stream of a conversation while the processes and services under it come and go."""

import asyncio

import httpx

from tests.kit.free_ports import free_port
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.conversation_reader import ConversationReader, read_conversation, reading_conversation
from tests.kit.product.processes import Processes, api_at
from tests.kit.services.redis_losses import end_leases
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import wait_until


async def say(product: Product, agent_id: str, text: str) -> str:
    body = {"messages": [{"role": "user", "content": text}], "stream_tokens": True}
    return (await product.http.post(f"/v1/agents/{agent_id}/messages/async", json=body)).json()["id"]


async def test_a_run_that_another_worker_takes_over_is_the_same_for_live_and_later_readers(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """And when Redis was emptied and every process was started again."""
    models.play(Turn(text="word " * 100, silent_after=20))
    agent = await product.agent()
    worker, port = await processes.worker(), free_port()
    async with reading_conversation(product.http, agent.id) as live:
        run_id = await say(product, agent.id, "Hello")
        await wait_until(lambda: live.text.count("word") == 20, description="the first words")
        models.say("The rest.")
        await worker.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        await live.until("run_ended")
        models.say("Again.")
        await say(product, agent.id, "And now?")
        await live.until("run_ended", 2)
    assert (await product.run(run_id))["status"] == "completed"
    assert {"step_restarted", "log_continued"} & set(live.kinds)

    await processes.api(port)
    async with api_at(port) as elsewhere:
        later = await read_conversation(elsewhere, agent.id)
        middle = await read_conversation(elsewhere, agent.id, after=live.cursors[10])

    assert later.placed == live.placed
    assert middle.placed == live.placed[11:]


async def test_readers_go_on_when_redis_is_emptied_under_them(
    patient_product: Product, private_redis: PrivateRedis, models: ModelServer
) -> None:
    agent = await patient_product.agent()
    resume = asyncio.Event()
    models.play(Turn(text="one two three", silent_after=2, resume=resume))
    async with reading_conversation(patient_product.http, agent.id) as live:
        await say(patient_product, agent.id, "first")
        await wait_until(lambda: live.text.startswith("one two"), description="the first words")
        await private_redis.empty()
        resume.set()
        await live.until("run_ended")
        await private_redis.empty()
        models.say("Second.")
        await say(patient_product, agent.id, "second")
        await live.until("run_ended", 2)

    assert live.text == "one two threeSecond."
    assert "gap" not in live.kinds
    later = await read_conversation(patient_product.http, agent.id)
    assert later.placed == live.placed


async def test_an_ending_api_breaks_the_stream_off_instead_of_ending_it(product: Product, processes: Processes) -> None:
    """A clean end says that the conversation was deleted; a client would not come back."""
    port, agent = free_port(), await product.agent()
    api = await processes.api(port)
    async with api_at(port) as http:
        reader = ConversationReader(http, f"/v1/conversations/{agent.id}/events")
        reading = asyncio.ensure_future(reader.read())
        await reader.until("caught_up")
        assert await api.terminate() == 0
        [ended] = await asyncio.gather(reading, return_exceptions=True)

    assert isinstance(ended, httpx.HTTPError)
    assert not reader.done
