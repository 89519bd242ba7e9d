"""Talking to an agent on its page: nothing is lost or said twice, whatever happens to the page meanwhile."""

import asyncio
import re
from typing import Any

from playwright.async_api import Page, Route, expect

from tests.kit.browser.viewer import Viewer
from tests.kit.model_server import Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.wait_until import wait_until


async def say(page: Page, text: str) -> None:
    """Sends a message, as somebody who types."""
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


async def entries(page: Page) -> list[str]:
    """What was said and answered, in order, without names and times."""
    return await page.locator(".talk-entries .said").all_text_contents()


async def counted_to(page: Page, number: int) -> None:
    """Waits until an answer of `builtin/slow` has come so far."""
    await expect(page.locator(".answer .said")).to_contain_text(f" {number} ")


async def test_an_answer_goes_on_when_the_page_is_loaded_again_in_the_middle(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/slow")
    page = viewer.page
    await viewer.open(f"/agents/{agent.id}")
    await say(page, "alpha beta")
    await counted_to(page, 5)
    await viewer.picture("talk")
    await page.reload()
    await counted_to(page, 12)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Stopped: cancelled.")).to_be_visible()

    said, answered = await entries(page)
    counted = answered.removeprefix("You said: alpha beta ").split()
    assert said == "alpha beta"
    assert counted == [str(number) for number in range(1, len(counted) + 1)]
    # It is in the history now, and that shows the same.
    await page.reload()
    await expect(page.locator(".answer .said")).to_have_text(answered.strip())
    assert [text.strip() for text in await entries(page)] == [said, answered.strip()]


async def test_a_message_whose_answer_was_lost_is_sent_again_and_answered_once(
    viewer: Viewer, product: Product
) -> None:
    agent = await product.agent(model="builtin/echo")
    page = viewer.page
    is_seen, arrived = asyncio.Event(), asyncio.Event()

    async def lose(route: Route) -> None:
        await is_seen.wait()  # the conversation's stream shows the message once the server has it
        await route.fetch()  # the server has it, and the page will never know
        arrived.set()

    await page.route("**/messages", lose)
    await viewer.open(f"/agents/{agent.id}")
    await say(page, "Hello")
    await expect(page.get_by_text("on its way")).to_be_visible()
    is_seen.set()
    await arrived.wait()
    await page.unroute("**/messages", lose)
    await page.reload()

    await expect(page.locator(".answer .said")).to_have_text("You said: Hello")
    await expect(page.locator(".said-here")).to_have_count(1)
    assert len((await product.http.get("/v1/runs", params={"agent_id": agent.id})).json()) == 1


async def test_a_message_that_is_refused_can_be_sent_again(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    page = viewer.page
    refusal = {"detail": "the server is full"}
    await page.route("**/messages", lambda route: route.fulfill(status=429, json=refusal), times=1)
    await viewer.open(f"/agents/{agent.id}")
    await say(page, "Hello")
    await expect(page.get_by_role("alert")).to_contain_text("It was not taken: the server is full")
    await page.get_by_role("button", name="Send again").click()

    await expect(page.locator(".answer .said")).to_have_text("You said: Hello")
    assert await entries(page) == ["Hello", "You said: Hello"]
    viewer.forgive("429")


async def test_a_call_that_waits_is_decided_where_the_talk_is(viewer: Viewer, product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("It is on its way.")
    page = viewer.page
    await viewer.open(f"/agents/{asked.agent_id}")
    await expect(page.get_by_label("Message")).to_be_disabled()
    await viewer.expect_accessible()
    await page.get_by_role("button", name="Approve launch").click()

    await expect(page.locator(".answer .said").last).to_have_text("It is on its way.")
    await expect(page.get_by_label("Message")).to_be_enabled()
    assert await entries(page) == ["Launch what is ready.", "It is on its way."]


async def test_what_is_told_to_an_answer_in_progress_is_shown_once(viewer: Viewer, product: Product) -> None:
    agent, page = await product.agent(), viewer.page
    product.models.play(Turn(text="one two " + "and so on " * 15, pace=0.2), Turn(text="I was told."))
    await viewer.open(f"/agents/{agent.id}")
    await say(page, "first")
    await expect(page.locator(".answer .said")).to_contain_text("one two")
    await page.get_by_label("While it answers").select_option("tell it at its next step")
    await say(page, "second")

    await expect(page.locator(".answer .said").last).to_contain_text("I was told.", timeout=60_000)
    texts = await entries(page)
    assert [text for text in texts if text in ("first", "second")] == ["first", "second"]
    assert sum(text.count("I was told.") for text in texts) == 1


async def test_what_stops_an_answer_in_progress_is_shown_once(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/slow")
    page = viewer.page
    await viewer.open(f"/agents/{agent.id}")
    await say(page, "first")
    await counted_to(page, 2)
    await page.get_by_label("While it answers").select_option("stop it, then ask")
    await say(page, "second")

    await expect(page.locator(".answer .said").last).to_contain_text("You said: second 1 2")
    texts = await entries(page)
    assert [text for text in texts if not text.startswith("You said:")] == ["first", "second"]
    assert len(texts) == 4


async def test_a_conversation_is_begun_and_talked_in(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    page = viewer.page
    await viewer.open(f"/agents/{agent.id}?show=conversations")
    await expect(page.get_by_role("heading", name="The agent has no conversations")).to_be_visible()
    await page.get_by_role("button", name="New conversation").click()
    await say(page, "Hello")
    await expect(page.locator(".answer .said")).to_have_text("You said: Hello")

    assert re.search(r"conversation=conv-", page.url)
    await page.get_by_role("link", name="Conversations").click()
    await page.get_by_role("link", name=re.compile("^conv-")).click()
    await expect(page.locator(".answer .said")).to_have_text("You said: Hello")
    await page.get_by_role("link", name="Talk").click()
    await expect(page.get_by_role("heading", name="Nothing has been said yet")).to_be_visible()


async def test_a_run_that_somebody_else_began_is_shown_while_it_answers(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    page = viewer.page
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.get_by_role("heading", name="Nothing has been said yet")).to_be_visible()
    await product.client.agents.messages.create(agent_id=agent.id, input="From elsewhere")
    await expect(page.locator(".answer .said")).to_have_text("You said: From elsewhere")

    async def both() -> bool:
        return await entries(page) == ["From elsewhere", "You said: From elsewhere"]

    await wait_until(both, description="what was asked to be shown, too")


async def agent_with_a_past(product: Product) -> tuple[str, list[str]]:
    """An agent to whom more was said than a page of its history holds, and what that was."""
    first: list[dict[str, Any]] = [
        {"type": "message", "role": role, "content": f"{role} {number}"}
        for number in range(40)
        for role in ("user", "assistant")
    ]
    agent = await product.agent(model="builtin/echo", initial_message_sequence=first)
    return agent.id, [message["content"] for message in first]


async def test_older_messages_are_a_button_away(viewer: Viewer, product: Product) -> None:
    agent_id, texts = await agent_with_a_past(product)
    page = viewer.page
    await viewer.open(f"/agents/{agent_id}")
    await expect(page.locator(".talk-entries .said").last).to_have_text("assistant 39")
    await page.get_by_role("button", name="Show earlier messages").click()
    await expect(page.locator(".talk-entries .said").first).to_have_text("user 0")
    assert await entries(page) == texts


async def test_a_double_click_showed_older_messages_twice(viewer: Viewer, product: Product) -> None:
    agent_id, texts = await agent_with_a_past(product)
    page = viewer.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "before=" in request.url else None)
    await viewer.open(f"/agents/{agent_id}")
    await page.get_by_role("button", name="Show earlier messages").dblclick()
    await expect(page.locator(".talk-entries .said").first).to_have_text("user 0")
    await expect(page.locator(".talk-entries .said")).to_have_text(texts)
    assert len(asked) == 1


async def test_older_messages_that_could_not_be_fetched_failed_without_a_word(viewer: Viewer, product: Product) -> None:
    agent_id, texts = await agent_with_a_past(product)
    page = viewer.page
    refusal = {"detail": "the database is away"}
    await page.route("**/messages?*before=*", lambda route: route.fulfill(status=503, json=refusal), times=1)
    await viewer.open(f"/agents/{agent_id}")
    button = page.get_by_role("button", name="Show earlier messages")
    await button.click()
    await expect(page.get_by_role("alert")).to_contain_text("the database is away")
    await viewer.expect_accessible()
    await button.click()

    await expect(page.locator(".talk-entries .said")).to_have_text(texts)
    await expect(page.get_by_role("alert")).to_have_count(0)
    viewer.forgive("503")
