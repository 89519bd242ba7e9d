"""The page of a run at work: what it shows before the run's first step is stored, and how it is brought up to date."""

import asyncio
import re

from playwright.async_api import Locator, Route, expect

from tests.kit.browser.console_runs import say
from tests.kit.browser.run_streams import run_streams_of
from tests.kit.browser.viewer import Viewer
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import wait_until

A_TIME = re.compile(r"^[\d.]+ (ms|s)$")


def fact(viewer: Viewer, name: str) -> Locator:
    """A figure of the run, by its name."""
    return viewer.page.locator(f"main > .facts div:has(dt:text-is('{name}')) dd")


async def test_the_first_token_of_a_run_at_work_was_a_dash_until_its_step_had_ended(
    viewer: Viewer, product: Product
) -> None:
    go_on, agent = asyncio.Event(), await product.agent()
    product.models.play(Turn(text="one two three", silent_after=2, resume=go_on))
    run = await say(product.http, agent.id, "Count.")
    await viewer.open(f"/runs/{run['id']}")
    await expect(viewer.page.locator(".item-text .said")).to_have_text("one two")
    assert (await product.run(run["id"]))["metadata"]["first_token_ms"] is None
    await expect(fact(viewer, "First token")).to_have_text(A_TIME)
    await expect(fact(viewer, "Steps")).to_have_text("0")
    # Behind the first token the stream does not say when that was.
    await viewer.open(f"/runs/{run['id']}?from=1000")
    await expect(viewer.page.locator(".connection [data-state]")).to_have_text("Live")
    await expect(fact(viewer, "First token")).to_have_text("\u2013")
    go_on.set()
    await expect(fact(viewer, "First token")).to_have_text(A_TIME)


async def test_a_run_is_followed_to_its_end_without_a_reload(viewer: Viewer, product: Product) -> None:
    """Text, reasoning and calls as they come, over a connection that is lost; the figures at the end."""
    tool = await product.tool(LAUNCH, default_requires_approval=False)
    agent, page = await product.agent(tools=[tool]), viewer.page
    asks, ends = asyncio.Event(), asyncio.Event()
    product.models.play(
        Turn(text="I start it.", calls=[Call("launch", {"target": "moon"})], silent_after=2, resume=asks),
        Turn(text="It is on its way.", silent_after=2, resume=ends),
    )
    run = await say(product.http, agent.id, "Launch it.")
    streams = run_streams_of(page)
    await viewer.open(f"/runs/{run['id']}")
    await expect(page.locator(".item-text .said")).to_have_text("I start")
    await expect(page.locator(".page-head .status")).to_have_text("running")
    await viewer.hide()
    await wait_until(lambda: streams.open == [], description="the stream to be left")
    asks.set()
    await wait_until(lambda: len(product.models.requests) == 2, description="the model to be asked again")
    await viewer.show()
    await expect(page.locator(".item-call summary").first).to_contain_text("success")
    await expect(page.locator(".item-text .said")).to_have_text(["I start it.", "It is"])
    assert streams.last_began_after > 1
    await expect(fact(viewer, "Steps")).to_have_text("1")
    ends.set()
    await expect(page.locator(".item-text .said")).to_have_text(["I start it.", "It is on its way."])
    await expect(page.locator(".page-head .status")).to_have_text("completed")
    await expect(fact(viewer, "Steps")).to_have_text("2")
    await expect(fact(viewer, "First token")).to_have_text(A_TIME)
    ended = await product.run(run["id"])
    tokens = ended["metadata"]["prompt_tokens"] + ended["metadata"]["completion_tokens"]
    await expect(page.locator(".panel .facts div", has_text="Total").locator("dd")).to_have_text(f"{tokens}")


async def test_the_output_of_a_run_moved_down_when_its_input_came_behind_it(viewer: Viewer, product: Product) -> None:
    go_on, page = asyncio.Event(), viewer.page

    async def hold(route: Route) -> None:
        await go_on.wait()
        await route.continue_()

    product.models.say("Otters swim.")
    run = await say(product.http, (await product.agent()).id, "What do otters do?")
    await product.ended(run["id"])
    await page.route("**/v1/runs/*/messages?**", hold)
    await viewer.open(f"/runs/{run['id']}")
    text = page.locator(".item-text .said")
    await expect(text).to_have_text("Otters swim.")
    before = await text.bounding_box()
    async with page.expect_response("**/v1/runs/*/messages?**"):
        go_on.set()
    await expect(page.locator("[data-kind=asked]:not([data-first-words]) .said")).to_have_text(["What do otters do?"])
    assert await text.bounding_box() == before


async def test_a_run_that_waits_for_a_person_was_said_to_wait_until_nothing(viewer: Viewer, product: Product) -> None:
    tool = await product.tool(LAUNCH, default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))
    run = await say(product.http, agent.id, "Launch it.")
    await viewer.open(f"/runs/{run['id']}")
    await expect(viewer.page.get_by_text("The run waits for a person's decision on its calls.")).to_be_visible()
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})
