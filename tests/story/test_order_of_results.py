"""Calls of one answer that end in another order than they began: a page has the same order live and after a reload."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.kit.ag_ui import Page
from tests.kit.mcp.official import OfficialServer, official_server
from tests.kit.mcp.taken_over import taken_over
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.tools import LAUNCH, ROLL_DICE
from tests.kit.wait_until import wait_until


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"reachable_networks": "127.0.0.0/8", "mcp_timeout": 60.0}


@pytest.fixture
async def server() -> AsyncGenerator[OfficialServer]:
    async with official_server("json") as running:
        yield running


async def page_of(product: Product, server: OfficialServer) -> Page:
    """The page of an agent whose model calls a tool that waits, and beside it one that ends at once."""
    slow = await taken_over(product, server.target, ["wait"], enable_parallel_execution=True)
    quick = await product.tool(ROLL_DICE, enable_parallel_execution=True)
    agent = await product.agent(tools=[*slow, quick])
    product.models.play(Turn(text="So.", calls=[Call("wait"), Call("roll_dice", {"num_sides": 6})]))
    return Page(product.http, agent.id, "desk")


async def first_result(page: Page) -> None:
    await wait_until(lambda: page.client.of_role("tool") == ["6"], description="the quick tool's result")


async def reloaded(product: Product, page: Page) -> list[dict[str, Any]]:
    """The messages of a page that joins when the answer is no longer the newest."""
    product.models.say("More.")
    await page.say("And?")
    late = Page(product.http, page.agent_id, page.thread)
    await late.connect()
    return late.client.messages


async def test_a_page_had_the_results_as_they_ended_and_after_a_reload_as_they_were_called(
    product: Product, server: OfficialServer
) -> None:
    page = await page_of(product, server)
    saying = asyncio.create_task(page.say("Go on."))
    await first_result(page)
    product.models.say("Done.")
    server.going_on.set()
    client = await saying
    assert client.of_role("tool") == ["6", "waited"]
    assert await reloaded(product, page) == client.messages


async def test_a_cancelled_page_had_the_results_in_another_order_after_a_reload(
    product: Product, server: OfficialServer
) -> None:
    page = await page_of(product, server)
    saying = asyncio.create_task(page.say("Go on."))
    await first_result(page)
    await page.stop()
    client = await saying
    assert len(client.of_role("tool")) == 2
    assert await reloaded(product, page) == client.messages


async def test_a_page_had_a_denied_call_behind_the_call_that_was_made_and_after_a_reload_before_it(
    product: Product,
) -> None:
    launch, roll = await product.tool(LAUNCH, default_requires_approval=True), await product.tool(ROLL_DICE)
    agent = await product.agent(tools=[launch, roll])
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"}), Call("launch", {"target": "mars"})]))
    page = Page(product.http, agent.id, "desk")
    client = await page.say("Go on.")
    product.models.say("Done.")
    first, second = (one["id"] for one in client.pending)
    await page.resume(**{first: {"approved": False}, second: {"approved": True}})
    assert client.of_role("tool")[0] == "mars"
    assert await reloaded(product, page) == client.messages
