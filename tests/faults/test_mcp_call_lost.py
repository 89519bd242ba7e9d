"""A worker that dies in the middle of a call of an MCP server's tool: the call is made once, unless the tool may be
started twice."""

import json

import pytest

from tests.faults.test_worker_lost import submit
from tests.kit.mcp.official import official_server
from tests.kit.mcp.taken_over import taken_over
from tests.kit.model_server import ModelServer
from tests.kit.product import Product
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

SETTINGS = {**PLAIN_TOOLS, "reachable_networks": "127.0.0.0/8"}


@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_a_call_is_not_made_again_when_its_worker_is_killed(
    product: Product, processes: Processes, models: ModelServer, *, is_idempotent: bool
) -> None:
    async with official_server("json") as server:
        tools = await taken_over(product, server.target, ["wait"], idempotent=is_idempotent)
        models.call("wait")
        models.say("So it is.")
        first = await processes.worker(**SETTINGS)
        agent_id, run_id = await submit(product, tools=tools)
        await wait_until(lambda: server.calls == ["wait"], description="the call")
        await first.kill()
        await end_leases(product.context.redis)
        server.going_on.set()
        await processes.worker(**SETTINGS)
        assert (await product.ended(run_id))["status"] == "completed"
        [result] = [one for one in await product.history(agent_id) if one["message_type"] == "tool_return_message"]

    assert server.calls == ["wait"] * (2 if is_idempotent else 1)
    said = "waited" if is_idempotent else "outcome unknown"
    assert said in result["tool_return"]
    assert said in json.dumps(models.requests[1].body)
