"""A worker that dies between the calls of a response with `max_tool_calls`."""

import pytest

from shared.crash_points import CrashPoint
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.processes import Processes
from tests.kit.product.responses_client import created, responses_client, when_over
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import ROLL_DICE

ROLL = Call("roll_dice", {"num_sides": 6})


@pytest.mark.parametrize("crash_at", [f"{CrashPoint.CHECKPOINT}:after:1", f"{CrashPoint.CHECKPOINT}:after:3"])
async def test_a_worker_that_dies_between_calls_leaves_the_limit_as_it_was(
    product: Product, processes: Processes, models: ModelServer, crash_at: str
) -> None:
    models.play(Turn(calls=[ROLL]), Turn(calls=[ROLL, ROLL]), Turn(text="Sixes."))
    async with responses_client(product.base_url, product.key) as openai:
        agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
        begun = await created(openai, model=agent.id, input="Roll.", background=True, max_tool_calls=2)
        worker = await processes.worker(crash_at=crash_at, sweep_s=3600.0)
        assert await worker.ended() == -9
        await end_leases(product.context.redis)
        await processes.worker()
        response = await when_over(openai, begun.id)
    assert (response.status, response.output_text) == ("completed", "Sixes.")
    texts = [item.output or str(item.to_dict()["error"]) for item in response.output if item.type == "mcp_call"]
    assert len(texts) == 3
    assert "max_tool_calls" not in texts[0] + texts[1]
    assert "max_tool_calls" in texts[2]
