"""Several tabs and a terminal on one conversation show the same at every moment."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.kit.browser.console_runs import say as submit
from tests.kit.browser.viewer import Viewer, viewer_of
from tests.kit.free_ports import free_port
from tests.kit.model_server import Turn
from tests.kit.product import Product
from tests.kit.product.processes import api_at, processes_in
from tests.kit.product.terminal import clean_environment, on_terminal
from tests.kit.product.waiting_calls import waiting_calls

QUEUED = "The run has not begun yet."
CUT = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"


async def say(page: Page, text: str) -> None:
    """Sends a message, as somebody who types."""
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


async def texts(page: Page) -> list[str]:
    """What was said and answered, in order."""
    return [text.strip() for text in await page.locator(".talk-entries .said").all_text_contents()]


def numbers(answer: str) -> list[int]:
    """What `builtin/slow` has counted."""
    return [int(word) for word in answer.split() if word.isdigit()]


async def test_what_one_tab_says_is_streamed_in_the_other_and_a_stop_there_ends_both(
    viewer: Viewer, product: Product, browser: Browser
) -> None:
    agent = await product.agent(model="builtin/slow")
    async with viewer_of(browser, product.base_url) as other:
        await viewer.open(f"/agents/{agent.id}")
        await other.open(f"/agents/{agent.id}")
        await expect(other.page.get_by_role("heading", name="Nothing has been said yet")).to_be_visible()
        await say(viewer.page, "alpha beta")
        for page in (other.page, viewer.page):
            await expect(page.locator(".said-here .said")).to_have_text("alpha beta")
            await expect(page.locator(".answer .said")).to_contain_text(" 4 ")
            await expect(page.get_by_text("The agent is at work.")).to_be_visible()
        await other.page.get_by_role("button", name="Stop").click()
        for page in (other.page, viewer.page):
            await expect(page.get_by_text("Stopped: cancelled.")).to_be_visible()
            await expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        assert await texts(viewer.page) == await texts(other.page)
        counted = numbers((await texts(other.page))[1])
        assert counted == list(range(1, len(counted) + 1))


async def test_a_message_that_waits_for_its_turn_is_shown_in_the_other_tab(
    viewer: Viewer, product: Product, browser: Browser
) -> None:
    agent, go_on = await product.agent(), asyncio.Event()
    product.models.play(Turn(text="one two three", silent_after=1, resume=go_on), Turn(text="Well."))
    async with viewer_of(browser, product.base_url) as other:
        await viewer.open(f"/agents/{agent.id}")
        await other.open(f"/agents/{agent.id}")
        await say(viewer.page, "first")
        await expect(other.page.locator(".answer .said")).to_have_text("one")
        await say(viewer.page, "second")
        for page in (other.page, viewer.page):
            await expect(page.get_by_text(QUEUED)).to_have_count(1)
            await expect(page.locator(".said-here .said")).to_have_text(["first", "second"])
        await other.page.reload()
        await expect(other.page.locator(".said-here .said")).to_have_text(["first", "second"])
        go_on.set()
        for page in (other.page, viewer.page):
            await expect(page.locator(".talk-entries .said")).to_have_text(
                ["first", "one two three", "second", "Well."]
            )


async def test_an_approval_decided_in_one_tab_is_shown_as_decided_in_the_other(
    viewer: Viewer, product: Product, browser: Browser
) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("It is on its way.")
    async with viewer_of(browser, product.base_url) as other:
        for one in (viewer, other):
            await one.open(f"/agents/{asked.agent_id}")
            await expect(one.page.get_by_role("button", name="Approve launch")).to_be_visible()
        await viewer.page.get_by_role("button", name="Approve launch").click()
        for page in (other.page, viewer.page):
            await expect(page.get_by_text("Approved by console")).to_be_visible()
            await expect(page.get_by_role("button", name="Approve launch")).to_have_count(0)
            await expect(page.locator(".talk-entries .said")).to_have_text(
                ["Launch what is ready.", "It is on its way."]
            )
            await expect(page.get_by_label("Message")).to_be_enabled()
        # A replay tells an answered call from an open one.
        await other.page.reload()
        await expect(other.page.get_by_text("Approved by console")).to_be_visible()
        await expect(other.page.get_by_role("button", name="Approve launch")).to_have_count(0)


async def test_a_run_that_was_cancelled_while_it_waited_asks_nobody(viewer: Viewer, product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    page = viewer.page
    await viewer.open(f"/agents/{asked.agent_id}")
    await expect(page.get_by_role("button", name="Approve launch")).to_be_visible()
    await product.http.post(f"/v1/runs/{asked.run_id}/cancel", json={"wait": 30})
    await expect(page.get_by_text("Not decided: the run was cancelled")).to_be_visible()
    await expect(page.get_by_text("Stopped: cancelled.")).to_be_visible()
    await expect(page.get_by_role("button", name="Approve launch")).to_have_count(0)
    await expect(page.get_by_label("Message")).to_be_enabled()


async def test_a_tab_and_a_terminal_show_each_other_what_they_say(viewer: Viewer, product: Product) -> None:
    agent, page = await product.agent(model="builtin/echo"), viewer.page
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.get_by_role("heading", name="Nothing has been said yet")).to_be_visible()
    environment = clean_environment(HOLDFAST_URL=product.base_url)
    with on_terminal(["chat", agent.id], environment) as terminal:
        await terminal.shows("» ")
        await say(page, "From the tab")
        await terminal.shows("» From the tab (said elsewhere)\n")
        await terminal.shows("You said: From the tab")
        terminal.type("From the terminal\n")
        await terminal.shows("You said: From the terminal")
        await expect(page.locator(".talk-entries .said")).to_have_text(
            ["From the tab", "You said: From the tab", "From the terminal", "You said: From the terminal"]
        )
        terminal.type("/quit\n")
        assert await terminal.ended() == 0
        assert "From the terminal (said elsewhere)" not in terminal.text


async def test_a_tab_decides_what_a_terminal_asks(viewer: Viewer, product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("It is on its way.")
    await viewer.open(f"/agents/{asked.agent_id}")
    environment = clean_environment(HOLDFAST_URL=product.base_url)
    with on_terminal(["chat", asked.agent_id], environment) as terminal:
        await terminal.shows("[a]pprove")
        await viewer.page.get_by_role("button", name="Approve launch").click()
        await terminal.shows("approved by console]")
        await terminal.shows("It is on its way.")
        terminal.type("a\n")
        await terminal.shows("» ", times=2)
        terminal.type("/quit\n")
        assert await terminal.ended() == 0


async def test_a_reload_in_the_middle_shows_what_was_before_and_every_word_once(
    viewer: Viewer, product: Product
) -> None:
    agent, page = await product.agent(model="builtin/slow"), viewer.page
    for text in ("one", "two", "three"):
        run = await submit(product.http, agent.id, text)
        await viewer.open(f"/agents/{agent.id}")
        await expect(page.locator(".answer .said").last).to_contain_text(f"{text} 1 2 ")
        await page.reload()
        await expect(page.locator(".answer .said").last).to_contain_text(f"{text} 1 2 3 4")
        if text != "three":
            await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})
    shown = await texts(page)
    assert shown[::2] == ["one", "two", "three"]
    for answer in shown[1::2]:
        assert numbers(answer) == list(range(1, len(numbers(answer)) + 1))
    await expect(page.get_by_text("Stopped: cancelled.")).to_have_count(2)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Stopped: cancelled.")).to_have_count(3)


@pytest.mark.slow
async def test_the_api_is_killed_in_the_middle_of_an_answer_and_nothing_is_lost_or_shown_twice(
    tmp_path: Path, browser: Browser
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with processes_in(tmp_path, {}) as processes:
        server = await processes.dev(port)
        async with api_at(port) as http:
            agent = (await http.post("/v1/agents", json={"model": "builtin/slow", "name": "slow"})).json()["id"]
        async with viewer_of(browser, url) as viewer:
            page = viewer.page
            await viewer.open(f"/agents/{agent}")
            with on_terminal(["chat", agent], clean_environment(HOLDFAST_URL=url)) as terminal:
                await terminal.shows("» ")
                await say(page, "count")
                await expect(page.locator(".answer .said")).to_contain_text(" 3 ")
                await server.kill()
                await expect(page.get_by_text("Trying again.")).to_be_visible()
                await terminal.shows("resuming when it answers]")
                await processes.dev(port)
                await expect(page.locator(".answer .said")).to_contain_text(" 30 ")
                await expect(page.get_by_text("Trying again.")).to_have_count(0)
                await terminal.shows("[the connection is back]")
                await page.get_by_role("button", name="Stop").click()
                await expect(page.get_by_text("Stopped: cancelled.")).to_be_visible()
                await terminal.shows("cancelled]")
                counted = numbers((await texts(page))[1])
                assert counted == list(range(1, len(counted) + 1))
                told = re.sub(r"\[[^\]]*\]", "", terminal.text).partition("You said: count")[2].replace("»", "")
                assert numbers(told) == counted
            viewer.forgive(CUT)
