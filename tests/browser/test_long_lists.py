"""A table of more runs than a page of the API: it asks for more when they are needed, and draws what is seen."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Locator, Request, Route, expect

from tests.kit.browser.console_runs import say, start_run
from tests.kit.browser.viewer import Viewer
from tests.kit.product import Product

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def with_worker() -> bool:
    """Nobody executes these runs: there are many, and what they say is of no interest."""
    return False


def foot_of(viewer: Viewer) -> Locator:
    """What the table says of its length."""
    return viewer.page.locator(".table-foot span").first


def row_of(viewer: Viewer, run_id: str) -> Locator:
    return viewer.page.locator(f"tr[data-key='{run_id}']")


async def agent_with_runs(product: Product, count: int) -> tuple[str, list[str]]:
    """A new agent, and the ids of its runs, oldest first."""
    first = await start_run(product.http, "The oldest")
    return first["agent_id"], [first["id"], *await more_runs(product, first["agent_id"], count - 1)]


async def more_runs(product: Product, agent_id: str, count: int) -> list[str]:
    return [(await say(product.http, agent_id, f"{number}"))["id"] for number in range(count)]


async def show_all_131(viewer: Viewer, agent_id: str) -> None:
    """Opens the agent's 131 runs and goes to the end of the table."""
    await viewer.open(f"/runs?agent={agent_id}")
    await expect(foot_of(viewer)).to_contain_text("100 runs, more")
    await viewer.page.locator(".table-box").focus()
    await viewer.page.keyboard.press("End")
    await expect(foot_of(viewer)).to_have_text("131 runs")


@asynccontextmanager
async def held_lists(viewer: Viewer, part: str = "/v1/runs?") -> AsyncGenerator[asyncio.Event]:
    """Keeps requests for lists of runs, those with `part` in their address, until the end of the block. The event says
    that one has come."""
    asked, over = asyncio.Event(), asyncio.Event()

    async def hold(route: Route, request: Request) -> None:
        if "/v1/runs?" in request.url and part in request.url and not over.is_set():
            answer = await route.fetch()
            asked.set()
            await over.wait()
            await route.fulfill(response=answer)
        else:
            await route.continue_()

    await viewer.page.route("**/v1/runs?**", hold)
    try:
        yield asked
    finally:
        over.set()


async def test_pages_follow_each_other_and_the_table_draws_what_can_be_seen(viewer: Viewer, product: Product) -> None:
    first = await start_run(product.http, "The oldest")
    last = first
    for number in range(130):
        last = await say(product.http, first["agent_id"], f"{number}")
    await viewer.open(f"/runs?agent={first['agent_id']}")
    table = viewer.page.locator(".table-box")
    await expect(viewer.page.locator(f"tr[data-key='{last['id']}']")).to_be_visible()
    await table.focus()
    await expect(foot_of(viewer)).to_contain_text("100 runs, more")
    await viewer.page.keyboard.press("End")
    await expect(foot_of(viewer)).to_have_text("131 runs")
    await viewer.page.keyboard.press("End")
    await expect(viewer.page.locator(f"tr[data-key='{first['id']}']")).to_have_attribute("aria-current", "true")
    assert await viewer.page.locator("tbody tr").count() < 80
    await viewer.page.keyboard.press("Enter")
    await expect(viewer.page.get_by_role("heading", name=first["id"])).to_be_visible()


async def test_a_row_below_the_newest_page_shows_what_became_of_its_run(viewer: Viewer, product: Product) -> None:
    """Ten rows below the newest page were asked for again, always the same ones, and the others never."""
    agent_id, runs = await agent_with_runs(product, 131)
    await show_all_131(viewer, agent_id)
    await viewer.page.keyboard.press("End")
    status = row_of(viewer, runs[0]).locator(".status")
    await expect(status).to_have_text("created")
    await product.http.post(f"/v1/runs/{runs[0]}/cancel", json={"wait": 30})
    await expect(status).to_have_text("cancelled")


async def test_more_than_a_page_of_new_runs_leaves_no_hole_and_the_table_does_not_grow(
    viewer: Viewer, product: Product
) -> None:
    agent_id, runs = await agent_with_runs(product, 131)
    await show_all_131(viewer, agent_id)
    async with held_lists(viewer) as asked:
        runs += await more_runs(product, agent_id, 1)
        await asked.wait()
        runs += await more_runs(product, agent_id, 119)
    newest = runs[::-1]
    await viewer.page.keyboard.press("Home")
    await expect(row_of(viewer, newest[0])).to_be_visible()
    await expect(foot_of(viewer)).to_have_text("200 runs, more as you scroll")
    table = viewer.page.locator(".table-box")
    for place in (99, 100, 110, 119, 120, 199):
        await table.evaluate("(box, place) => { box.scrollTop = place * 38 - 100; }", place)
        await expect(row_of(viewer, newest[place])).to_have_attribute("aria-rowindex", str(place + 2))
    await viewer.page.keyboard.press("End")
    await expect(foot_of(viewer)).to_have_text("251 runs")


async def test_an_answer_for_other_filters_that_comes_late_is_not_shown(viewer: Viewer, product: Product) -> None:
    agent_id, runs = await agent_with_runs(product, 131)
    other_id, [other] = await agent_with_runs(product, 1)
    await viewer.open(f"/runs?agent={agent_id}")
    await expect(row_of(viewer, runs[-1])).to_be_visible()
    async with held_lists(viewer, "after=") as asked:
        await viewer.page.locator(".table-box").focus()
        await viewer.page.keyboard.press("End")
        await asked.wait()
        await viewer.page.get_by_label("Agent", exact=True).fill(other_id)
        await viewer.page.get_by_label("Agent", exact=True).press("Enter")
        await expect(foot_of(viewer)).to_have_text("1 runs")
    # What is asked for next is asked for after the late answer has come.
    [another] = await more_runs(product, other_id, 1)
    await expect(row_of(viewer, another)).to_be_visible()
    await expect(row_of(viewer, other)).to_be_visible()
    await expect(foot_of(viewer)).to_have_text("2 runs")
