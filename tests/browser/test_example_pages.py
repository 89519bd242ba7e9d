"""The pages of `examples`: what a newcomer copies survives a reload, a second tab, and the end of the server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from tests.kit.browser.example_pages import ChatTab, scripted, served_example
from tests.kit.browser.viewer import Viewer, viewer_of
from tests.kit.free_ports import free_port
from tests.kit.product import Product
from tests.kit.product.processes import processes_in
from tests.kit.services.redis_servers import PrivateRedis

pytestmark = [pytest.mark.slow]

EXAMPLES = ["react-chat", "ag-ui"]
NUMBERS = " ".join(str(number) for number in range(1, 101))
COUNT = scripted("Count", {"reasoning": "One after the other.", "text": NUMBERS, "delay_ms": 60})
PAY = scripted(
    "Pay",
    {"text": "One moment.", "calls": [{"name": "send_money", "arguments": {"to": "Ada", "amount": 20}}]},
    {"text": "That is settled."},
)
KEY = "the-key-of-the-server-behind-the-page"
LOST = "ERR_(CONNECTION|INCOMPLETE_CHUNKED|EMPTY_RESPONSE|FAILED)|network error|Failed to fetch|status of 50|HTTP 50"
"""What browser and client say when a server goes away."""


@pytest_asyncio.fixture(scope="module", params=EXAMPLES, loop_scope="session")
async def example(request: pytest.FixtureRequest, product: Product) -> AsyncIterator[tuple[str, str]]:
    """The name of an example, and where it is served in front of the module's product."""
    async with served_example(request.param, product.base_url) as url:
        yield request.param, url


@pytest_asyncio.fixture(loop_scope="session")
async def tab(viewer: Viewer, example: tuple[str, str]) -> ChatTab:
    """A tab at a new chat."""
    await viewer.page.goto(example[1])
    return ChatTab(viewer.page)


async def test_an_answer_goes_on_in_a_page_that_is_loaded_again_and_in_a_second_tab(tab: ChatTab) -> None:
    await tab.say(COUNT)
    await tab.counted_to(5)
    second = await tab.beside()
    await second.counted_to(10)
    await tab.page.reload()
    await tab.counted_to(15)
    for one in (tab, second):
        await one.shows("Count", NUMBERS)
    await tab.page.reload()
    await tab.shows("Count", NUMBERS)
    await expect(tab.page.locator(".reasoning")).to_contain_text("One after the other.")


async def test_what_is_said_in_one_tab_is_heard_in_the_other(tab: ChatTab) -> None:
    await expect(tab.status).to_have_text("Ready")
    second = await tab.beside()
    await second.say(scripted("Hello", {"text": "Hello to both."}))
    for one in (tab, second):
        await one.shows("Hello", "Hello to both.")
    await tab.say(scripted("And back", {"text": "Heard."}))
    for one in (tab, second):
        await one.shows("Hello", "Hello to both.", "And back", "Heard.")


async def test_what_is_approved_in_one_tab_is_shown_as_decided_in_the_other(viewer: Viewer, tab: ChatTab) -> None:
    await tab.say(PAY)
    await expect(tab.button("Approve")).to_be_visible()
    await expect(tab.calls).to_contain_text('"amount":20')
    second = await tab.beside()
    await expect(second.button("Approve")).to_be_visible()
    await viewer.expect_accessible()
    await second.button("Approve").click()
    for one in (tab, second):
        await one.shows("Pay", "One moment.", "That is settled.")
        await expect(one.calls).to_contain_text("Sent 20 euros to Ada.")
        await expect(one.button("Approve")).to_have_count(0)
    await tab.page.reload()
    await tab.shows("Pay", "One moment.", "That is settled.")
    await expect(tab.calls).to_contain_text("Sent 20 euros to Ada.")


async def test_a_tool_runs_and_a_call_that_is_denied_does_not(tab: ChatTab, example: tuple[str, str]) -> None:
    await tab.button("How is the weather in Oslo?").click()
    await expect(tab.said.last).to_contain_text("sunglasses")
    await expect(tab.calls).to_contain_text("Sun and 21 degrees in Oslo.")
    await tab.say(PAY)
    await expect(tab.button("Deny")).to_be_visible()
    await tab.picture(example[0])
    second = await tab.beside()
    await expect(second.button("Deny")).to_be_visible()
    await tab.button("Deny").click()
    for one in (tab, second):
        await expect(one.said.last).to_have_text("That is settled.")
        await expect(one.calls.last).to_contain_text("denied")


async def test_stop_ends_the_run_in_every_tab(tab: ChatTab, product: Product) -> None:
    await tab.say(COUNT)
    await tab.counted_to(5)
    second = await tab.beside()
    await second.counted_to(8)
    await second.button("Stop").click()
    for one in (tab, second):
        await expect(one.status).to_have_text("Ready")
    newest = (await product.http.get("/v1/runs/", params={"limit": 1})).json()[0]
    assert newest["status"] == "cancelled"
    assert await tab.said.all_inner_texts() == await second.said.all_inner_texts()


async def test_stop_ends_a_run_that_waits_for_a_decision(tab: ChatTab) -> None:
    await tab.say(PAY)
    await expect(tab.button("Approve")).to_be_visible()
    second = await tab.beside()
    await expect(second.button("Approve")).to_be_visible()
    await second.button("Stop").click()
    for one in (tab, second):
        await expect(one.status).to_have_text("Ready")
        await expect(one.button("Approve")).to_have_count(0)
    await tab.say(scripted("Hello", {"text": "Hello."}))
    await expect(second.said.last).to_have_text("Hello.")


async def test_an_error_is_shown_and_the_chat_goes_on(tab: ChatTab) -> None:
    await tab.say(scripted("Fail", {"text": "Half an answer", "error": "auth", "error_after": 2}))
    await expect(tab.page.get_by_role("alert")).to_be_visible()
    await tab.say(scripted("Hello", {"text": "Hello."}))
    await expect(tab.said.last).to_have_text("Hello.")
    await expect(tab.page.get_by_role("alert")).to_be_hidden()


async def test_a_message_whose_answer_was_lost_is_sent_again_and_answered_once(viewer: Viewer, tab: ChatTab) -> None:
    async def lose_once(route: Route) -> None:
        await route.fetch()  # it has arrived
        await route.abort("connectionreset")

    await expect(tab.status).to_have_text("Ready")
    await tab.page.route("**/chat", lose_once, times=1)
    await tab.page.route("**/ag-ui/agent-*", lose_once, times=1)
    await tab.say(scripted("Hello", {"text": "Hello."}))
    await tab.shows("Hello", "Hello.")
    viewer.forgive(LOST)


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_server_is_killed_and_started_again(tmp_path: Path, browser: Browser, name: str) -> None:
    """Worker and API together, in the middle of an answer."""
    port = free_port()
    async with processes_in(tmp_path, {}) as processes, served_example(name, f"http://127.0.0.1:{port}") as url:
        server = await processes.dev(port)
        async with viewer_of(browser, url) as viewer:
            await viewer.page.goto(url)
            tab = ChatTab(viewer.page)
            await tab.say(COUNT)
            await tab.counted_to(10)
            second = await tab.beside()
            await second.counted_to(12)
            await server.kill()
            await expect(tab.status).to_have_text("Connecting")
            await processes.dev(port)
            for one in (tab, second):
                await one.shows("Count", NUMBERS)
            await tab.page.reload()
            await tab.shows("Count", NUMBERS)
            viewer.forgive(LOST)


@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_newcomer_starts_the_page_before_the_server(tmp_path: Path, browser: Browser, name: str) -> None:
    """With `npm run dev`, and loads it again before there is anything to connect to."""
    port = free_port()
    holdfast = f"http://127.0.0.1:{port}"
    async with (
        processes_in(tmp_path, {}) as processes,
        served_example(name, holdfast, is_built=False) as url,
        viewer_of(browser, url) as viewer,
    ):
        await viewer.page.goto(url)
        tab = ChatTab(viewer.page)
        await expect(tab.status).to_have_text("Connecting")
        await tab.page.reload()
        await expect(tab.status).to_have_text("Connecting")
        await processes.dev(port)
        await tab.say(scripted("Hello", {"text": "Hello."}))
        await tab.shows("Hello", "Hello.")
        viewer.forgive(LOST)


@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_question_waits_while_the_server_is_killed(tmp_path: Path, browser: Browser, name: str) -> None:
    """It is there once in both tabs afterwards, and the call is made once."""
    port = free_port()
    async with processes_in(tmp_path, {}) as processes, served_example(name, f"http://127.0.0.1:{port}") as url:
        server = await processes.dev(port)
        async with viewer_of(browser, url) as viewer:
            await viewer.page.goto(url)
            tab = ChatTab(viewer.page)
            await tab.say(PAY)
            await expect(tab.button("Approve")).to_be_visible()
            second = await tab.beside()
            await expect(second.button("Approve")).to_be_visible()
            await server.kill()
            for one in (tab, second):
                await expect(one.status).to_have_text("Connecting")
            await processes.dev(port)
            for one in (tab, second):
                await expect(one.status).to_have_text("Waits for you")
                await expect(one.button("Approve")).to_have_count(1)
            await second.button("Approve").click()
            for one in (tab, second):
                await one.shows("Pay", "One moment.", "That is settled.")
                await expect(one.calls).to_have_count(1)
                await expect(one.calls).to_contain_text("Sent 20 euros to Ada.")
            viewer.forgive(LOST)


@pytest.mark.services
@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_api_is_killed_while_the_worker_goes_on(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis, browser: Browser, name: str
) -> None:
    """The server has keys, and the page only the token that was made for it."""
    port = free_port()
    environment = {
        "HOLDFAST_API_KEYS": f"default={KEY}",
        "HOLDFAST_DATABASE_URL": postgres_url,
        "HOLDFAST_REDIS_URL": private_redis.url,
        "HOLDFAST_BUILTIN_MODELS": "true",
    }
    holdfast = f"http://127.0.0.1:{port}"
    async with processes_in(tmp_path, environment) as processes, served_example(name, holdfast, KEY) as url:
        await processes.worker()
        api = await processes.api(port)
        async with viewer_of(browser, url) as viewer:
            await viewer.page.goto(url)
            tab = ChatTab(viewer.page)
            await tab.say(COUNT)
            await tab.counted_to(10)
            await api.kill()
            await expect(tab.status).to_have_text("Connecting")
            await processes.api(port)
            await tab.shows("Count", NUMBERS)
            viewer.forgive(LOST)
