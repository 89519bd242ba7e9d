"""Which runs a talk follows: the one that runs, those that wait for a person, and none of other conversations."""

import asyncio
import re

from playwright.async_api import expect

from tests.kit.browser.console_runs import queue, say
from tests.kit.browser.run_streams import run_streams_of
from tests.kit.browser.viewer import Viewer
from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import HANGS_S, wait_until

QUEUED = "The run has not begun yet."


async def test_queued_runs_took_all_connections_of_the_browser_and_nothing_could_be_stopped(
    viewer: Viewer, product: Product
) -> None:
    agent, page = await product.agent(model="builtin/slow"), viewer.page
    runs = [await say(product.http, agent.id, f"message {number}") for number in range(8)]
    streams = run_streams_of(page, "/events")
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.locator(".answer .said")).to_contain_text(" 3 ")
    await expect(page.get_by_text(QUEUED)).to_have_count(7)
    assert len(streams.open) == 2, "the conversation's, and that of the agent's runs while one is at work"

    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Stopped: cancelled.")).to_have_count(8)
    asked = await page.locator(".said-here .said").all_text_contents()
    assert sorted(asked) == [f"message {number}" for number in range(8)]
    assert [(await product.run(run["id"]))["status"] for run in runs] == ["cancelled"] * 8


async def test_a_queued_run_is_streamed_when_its_turn_has_come(viewer: Viewer, product: Product) -> None:
    agent, page = await product.agent(), viewer.page
    go_on = asyncio.Event()
    product.models.play(Turn(text="first answer", silent_after=1, resume=go_on), Turn(text="second answer"))
    for text in ("first", "second"):
        await say(product.http, agent.id, text)
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.get_by_text(QUEUED)).to_have_count(1)
    go_on.set()

    await expect(page.locator(".talk-entries .said")).to_have_text(["first", "first answer", "second", "second answer"])


async def test_a_hidden_tab_kept_the_connection_of_its_stream(viewer: Viewer, product: Product) -> None:
    agent, page = await product.agent(model="builtin/slow"), viewer.page
    run = await say(product.http, agent.id, "count")
    streams = run_streams_of(page, f"/{agent.id}/events")
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.locator(".answer .said")).to_contain_text(" 3 ")
    await viewer.hide()
    await wait_until(lambda: streams.open == [], description="the stream to be left")
    await viewer.show()
    await expect(page.locator(".answer .said")).to_contain_text(" 12 ")
    await wait_until(lambda: streams.open, description="the stream to be read again")

    [last] = re.findall(r"/conversations/.*after=1\.0\.(\d+)", " ".join(request.url for request in streams.open))
    assert int(last) > 1
    # A tab that was seen again once asked for the history anew, and read the stream from the beginning.
    assert len([request for request in streams.asked if request.url.endswith("after=0.0.0")]) == 1
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})
    await expect(page.get_by_text("Stopped: cancelled.")).to_be_visible()
    counted = (await page.locator(".answer .said").inner_text()).removeprefix("You said: count").split()
    assert counted == [str(number) for number in range(1, len(counted) + 1)]


async def test_answers_of_the_past_were_followed_for_as_long_as_the_page_was_open(
    viewer: Viewer, product: Product
) -> None:
    agent, page = await product.agent(model="builtin/echo"), viewer.page
    streams = run_streams_of(page, "/events")
    await viewer.open(f"/agents/{agent.id}")
    expected: list[str] = []
    for text in ("one", "two", "three"):
        await page.get_by_label("Message").fill(text)
        await page.keyboard.press("Enter")
        expected += [text, f"You said: {text}"]
        await expect(page.locator(".talk-entries .said")).to_have_text(expected)
    # The stream of the agent's runs is left when nothing is at work.
    await wait_until(lambda: len(streams.open) == 1, description="one stream to be left")


async def test_an_answer_that_had_failed_sank_below_those_that_came_later(viewer: Viewer, product: Product) -> None:
    """A turn that failed without any output leaves no message in the history that could say where it was."""
    agent, page = await product.agent(), viewer.page
    await viewer.open(f"/agents/{agent.id}")
    for number, text in enumerate(["one", "two", "three"], 1):
        answers = asyncio.Event()
        failure, said = (Failure("bad_request"), "") if text == "one" else (None, "Well." if text == "two" else "Good.")
        product.models.play(Turn(text=said, failure=failure, silent_before_headers=HANGS_S, resume=answers))
        await page.get_by_label("Message").fill(text)
        await page.keyboard.press("Enter")
        await expect(page.locator(".answer[data-at-work=true]")).to_have_count(1)
        answers.set()
        await expect(page.locator(".answer .item-error, .answer .said")).to_have_count(number)
        await expect(page.get_by_role("button", name="Stop")).to_have_count(0)

    await expect(page.locator(".talk-entries .item-error, .talk-entries .said")).to_have_text(
        ["one", re.compile("invalid|request|400", re.IGNORECASE), "two", "Well.", "three", "Good."]
    )


async def test_runs_of_a_conversation_hid_what_the_agents_own_history_was_answering(
    viewer: Viewer, product: Product
) -> None:
    agent, page = await product.agent(model="builtin/slow"), viewer.page
    own = await say(product.http, agent.id, "count")
    conversation = await product.client.conversations.create(agent_id=agent.id)
    await queue(product.http, conversation.id, 21)
    await viewer.open(f"/agents/{agent.id}")

    await expect(page.locator(".answer .said")).to_contain_text(" 3 ")
    await expect(page.get_by_text(QUEUED)).to_have_count(0)
    await expect(page.locator(".answer")).to_have_count(1)
    for cancel in (f"/v1/conversations/{conversation.id}/cancel", f"/v1/runs/{own['id']}/cancel"):
        assert (await product.http.post(cancel, json={"wait": 30})).is_success


async def test_a_run_that_waits_for_a_person_was_hidden_by_those_queued_behind_it(
    viewer: Viewer, product: Product
) -> None:
    """Somebody decides elsewhere: the run that goes on is shown where the talk is."""
    tool = await product.tool(LAUNCH, default_requires_approval=True)
    agent, page = await product.agent(tools=[tool]), viewer.page
    go_on, next_goes_on = asyncio.Event(), asyncio.Event()
    asks = Turn(calls=[Call("launch", {"target": "moon"})], silent_after=0, resume=go_on)
    # The next one is held, or twenty answers would push this one behind the button for older ones.
    held = Turn(text="Said later.", silent_before_headers=60, resume=next_goes_on)
    product.models.play(asks, Turn(text="It is on its way."), held)
    asked = await say(product.http, agent.id, "Launch what is ready.")
    await wait_until(lambda: product.models.requests, description="the model to be asked")
    for number in range(20):
        await say(product.http, agent.id, f"message {number}")
    go_on.set()
    await viewer.open(f"/agents/{agent.id}")
    await expect(page.get_by_role("button", name="Approve launch")).to_be_visible()
    await expect(page.get_by_label("Message")).to_be_disabled()

    [approval] = await waiting(product, agent_id=agent.id)
    assert (await product.http.post(f"/v1/approvals/{approval['id']}", json={"decision": "approve"})).is_success
    await expect(page.locator(f".answer[data-run={asked['id']}] .said")).to_have_text("It is on its way.")
    next_goes_on.set()
    await expect(page.get_by_label("Message")).to_be_enabled()
