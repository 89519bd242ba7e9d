"""A crash between two edits of one answer: the next worker knows of the first what its author knew."""

from shared.crash_points import CrashPoint
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.careful_client import ask_until_answered
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases

NOTE = Call("core_memory_append", {"label": "human", "content": "Likes tea."}, id="first")
REWRITE = Call("memory_rethink", {"label": "human", "new_memory": "Ada likes tea."}, id="second")


async def test_an_agents_own_edit_was_taken_for_somebody_elses_after_a_crash(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """It was told that somebody had changed the block since it saw it, and its second edit was refused."""
    agent_id = await agent_that_rewrites(product)
    models.play(Turn(calls=[NOTE, REWRITE]), Turn(text="Noted."))
    worker = await processes.worker(crash_at=f"{CrashPoint.INTENT}:before", sweep_s=3600.0)

    run = await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "I like tea."})
    assert await worker.ended() == -9
    assert await value_of(product, agent_id) == "Ada.\nLikes tea."
    await end_leases(product.context.redis)
    await processes.worker()

    assert (await product.ended(run["id"]))["stop_reason"] == "end_turn"
    assert await value_of(product, agent_id) == "Ada likes tea."
    assert [one["status"] for one in await results_of(product, agent_id)] == ["success", "success"]


async def test_somebody_elses_edit_between_the_two_is_still_not_written_over(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    agent_id = await agent_that_rewrites(product)
    models.play(Turn(calls=[NOTE, REWRITE]), Turn(text="I see."))
    worker = await processes.worker(crash_at=f"{CrashPoint.INTENT}:before", sweep_s=3600.0)

    run = await ask_until_answered(product.http, f"/v1/agents/{agent_id}/messages/async", {"input": "I like tea."})
    assert await worker.ended() == -9
    await product.client.agents.blocks.update("human", agent_id=agent_id, value="Bob.")
    await end_leases(product.context.redis)
    await processes.worker()

    assert (await product.ended(run["id"]))["stop_reason"] == "end_turn"
    assert await value_of(product, agent_id) == "Bob."
    assert [one["status"] for one in await results_of(product, agent_id)] == ["success", "error"]


async def agent_that_rewrites(product: Product) -> str:
    tools = [(await product.client.tools.list(name=call.name)).items[0].id for call in (NOTE, REWRITE)]
    return (await product.agent(tools=tools, memory_blocks=[{"label": "human", "value": "Ada."}])).id


async def value_of(product: Product, agent_id: str) -> str:
    return (await product.client.agents.blocks.retrieve("human", agent_id=agent_id)).value


async def results_of(product: Product, agent_id: str) -> list[dict[str, str]]:
    history = await product.history(agent_id)
    [returned] = [message for message in history if message["message_type"] == "tool_return_message"]
    return returned["tool_returns"]
