"""The inspector of the Model Context Protocol, unmodified, from npm: what people try a server with first."""

import asyncio
import json
from asyncio.subprocess import PIPE
from typing import Any

import pytest

from tests.kit.clients.installations import program_of_package
from tests.kit.node import need_node
from tests.kit.product import Product
from tests.kit.wait_until import HANGS_S

pytestmark = pytest.mark.shared_product

LAUNCHER = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"


async def inspected(product: Product, era: str, *asked: str) -> Any:
    """What the inspector says to a request, on its command line."""
    node, launcher = need_node().executable, await asyncio.to_thread(program_of_package, "inspector", LAUNCHER)
    where = ["--cli", f"{product.base_url}/mcp", "--transport", "http", "--protocol-era", era]
    key = ["--header", f"Authorization: Bearer {product.key}", "--format", "json", "--quiet"]
    process = await asyncio.create_subprocess_exec(node, launcher, *where, *asked, *key, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(HANGS_S):
        said, wrong = await process.communicate()
    assert process.returncode == 0, f"{said.decode()}\n{wrong.decode()}"
    return json.loads(said)["result"]


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_lists_an_agent_and_calls_it(product: Product, era: str) -> None:
    product.models.say("At seven.")
    agent = await product.agent(description="Knows when buses leave.")

    [tool] = (await inspected(product, era, "--method", "tools/list", "--strict"))["tools"]
    call = ("--method", "tools/call", "--tool-name", tool["name"], "--tool-arg", "message=When?")
    result = await inspected(product, era, *call)

    assert (tool["title"], tool["description"]) == (agent.name, "Knows when buses leave.")
    assert (result["content"], result["isError"]) == ([{"type": "text", "text": "At seven."}], False)
    assert (await product.run(result["structuredContent"]["run_id"]))["agent_id"] == agent.id
