"""The AI SDK itself, unmodified, in the versions 5, 6 and 7: the chats that `useChat` wraps."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.clients import AI_SDKS, ClientProgram, client_program
from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.tools import LAUNCH, ROLL_DICE, ROLL_SLOWLY
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

WORDS = "Grüße aus Köln, 你好 and 🎉 for you."
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {}},
}


class Page:
    """A page with one chat of an agent."""

    def __init__(self, program: ClientProgram, product: Product, sdk: int, agent_id: str) -> None:
        self.program, self.product, self.sdk, self.agent_id = program, product, sdk, agent_id
        program.calls(product)

    async def does(self, *acts: Any, **given: Any) -> dict[str, Any]:
        """What the page has after these acts."""
        sdk = {} if self.sdk == 7 else {"sdk": self.sdk}
        return await self.program.told(
            "page", agent=self.agent_id, id=given.pop("id", "chat"), acts=list(acts), **sdk, **given
        )

    async def listed(self) -> list[dict[str, Any]]:
        """The chat's messages, as the server has them."""
        path = f"/ai-sdk/{self.agent_id}/chat/chat?sdk={self.sdk}"
        return (await self.product.http.get(path)).json()["messages"]

    @asynccontextmanager
    async def doing(self, *acts: Any, **given: Any) -> AsyncGenerator[asyncio.Task[dict[str, Any]]]:
        """The acts at work."""
        self.program.notes = []  # those of the story before are no sign of this one
        async with asyncio.TaskGroup() as group:
            yield group.create_task(self.does(*acts, **given))


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=AI_SDKS)
async def program(request: pytest.FixtureRequest) -> AsyncIterator[tuple[int, ClientProgram]]:
    name: str = request.param
    async with client_program(name) as running:
        yield int(name.removeprefix("ai ")), running


@pytest_asyncio.fixture(loop_scope="session")
async def page(program: tuple[int, ClientProgram], product: Product) -> Page:
    sdk, running = program
    return Page(running, product, sdk, (await product.agent()).id)


async def launching(page: Page) -> Page:
    """The page of an agent whose tool a person has to allow."""
    tool = await page.product.tool(LAUNCH, default_requires_approval=True)
    agent = await page.product.agent(tools=[tool])
    return Page(page.program, page.product, page.sdk, agent.id)


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


async def test_a_page_reads_answers_and_has_them_again_after_a_reload(page: Page) -> None:
    page.product.models.play(Turn(text=WORDS, reasoning="Let me think."), Turn(text="Again."))
    told = await page.does(["say", "Hi"], ["say", "More"])
    assert (told["status"], told["errors"]) == ("ready", [])
    assert [text_of(one) for one in told["messages"]] == ["Hi", WORDS, "More", "Again."]
    assert told["messages"][1]["parts"][1]["type"] == "reasoning"
    assert await page.listed() == plain(told["messages"])
    again = await page.does(["resume"], loads=True)
    assert plain(again["messages"]) == plain(told["messages"])
    assert again["requests"] == [["GET", 204, None]]
    assert [request.body["messages"][-1]["content"] for request in page.product.models.requests][-1] == "More"


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without what the SDK adds to those of its users."""
    return [{name: value for name, value in one.items() if name != "metadata" or value} for one in messages]


async def test_a_page_that_comes_back_in_the_middle_of_an_answer_sees_the_whole(page: Page) -> None:
    resume = asyncio.Event()
    page.product.models.play(Turn(text=WORDS, silent_after=2, resume=resume))
    left = await page.does(["leave", "Hi", 1])
    assert text_of(left["messages"][-1]) != WORDS
    async with page.doing(["resume"], loads=True) as coming_back:
        await wait_until(lambda: page.program.notes, description="the page to show the beginning")
        resume.set()
        told = await coming_back
    assert [text_of(one) for one in told["messages"]] == ["Hi", WORDS], "nothing is there twice"
    assert told["messages"][-1]["id"] == left["messages"][-1]["id"]
    assert await page.listed() == plain(told["messages"])


THINKS = {"text": WORDS, "reasoning": "Let me think."}
ROLLS = {"text": "Up.", "calls": [Call("roll_slowly", {"num_sides": 6})]}


@pytest.mark.parametrize(
    ("at", "turn", "silent_after"),
    [
        ("reasoning", THINKS, 1),
        ("text", THINKS, 5),
        ("input-streaming", ROLLS, 3),
        ("input-available", ROLLS, None),
    ],
    ids=["inside reasoning", "inside text", "inside the arguments of a call", "between a call and its result"],
)
@pytest.mark.parametrize("is_reloaded", [False, True], ids=["same page", "reloaded"])
async def test_a_page_that_resumes_has_the_whole_answer_once_wherever_it_was_cut_off(
    page: Page, at: str, turn: dict[str, Any], silent_after: int | None, is_reloaded: bool
) -> None:
    if page.sdk == 5 and not is_reloaded:
        pytest.skip(
            "version 5 puts a stream that is read again behind the parts that it has: its page makes a new chat"
        )
    agent = await page.product.agent(tools=[await page.product.tool(ROLL_SLOWLY)])
    page = Page(page.program, page.product, page.sdk, agent.id)
    resume = asyncio.Event()
    page.product.models.play(Turn(**turn, silent_after=silent_after, resume=resume), Turn(text="Done."))
    leaves = ["leaveAt", "Hi", at]
    if is_reloaded:
        await page.does(leaves)
    async with page.doing(*([] if is_reloaded else [leaves]), ["resume"], loads=is_reloaded, tells=True) as reading:
        await wait_until(lambda: "GET" in page.program.notes or reading.done(), description="the page to ask again")
        resume.set()
        told = await reading
    if told["requests"][-1][:2] == ["GET", 204]:  # the answer has ended meanwhile
        told = await page.does(loads=True)
    assert told["errors"] == []
    assert [one["role"] for one in told["messages"]] == ["user", "assistant"]
    assert plain(told["messages"]) == await page.listed()


async def test_hanging_up_stops_nothing_and_stopping_does(page: Page) -> None:
    page.product.models.play(Turn(text=WORDS, silent_after=2))
    async with page.doing(["say", "Hi"]) as reading:
        await wait_until(lambda: page.program.notes, description="the page to show the beginning")
        stopped = await page.product.http.post(f"/ai-sdk/{page.agent_id}/chat/chat/stop")
        told = await reading
    assert stopped.json()["status"] == "cancelled"
    assert (told["status"], told["errors"]) == ("ready", [])
    assert told["finishes"][0]["finishReason"] == ("interrupted" if page.sdk == 7 else "other")
    assert WORDS.startswith(text_of(told["messages"][-1]))
    nothing = await page.product.http.post(f"/ai-sdk/{page.agent_id}/chat/chat/stop")
    assert (nothing.status_code, nothing.headers["x-holdfast-error"]) == (409, "NOTHING_TO_CANCEL")


@pytest.mark.parametrize("approves", [True, False])
async def test_a_call_is_decided_by_the_user_of_a_page(page: Page, approves: bool) -> None:
    if page.sdk == 5:
        pytest.skip("version 5 knows no approvals")
    page = await launching(page)
    page.product.models.play(Turn(text="Shall I?", calls=[Call("launch", {"target": "moon"})]), Turn(text="So be it."))
    told = await page.does(["say", "Launch."], ["decide", approves, "because"], sends="approvals")
    assert (told["status"], told["errors"]) == ("ready", [])
    assert [request[0] for request in told["requests"]] == ["POST", "POST"]
    assert len(told["messages"]) == 2, "the answer goes on in the same message"
    [call] = [part for part in told["messages"][-1]["parts"] if part["type"] == "dynamic-tool"]
    assert call["state"] == ("output-available" if approves else "output-denied")
    assert text_of(told["messages"][-1]) == "Shall I?So be it."
    assert call["approval"]["approved"] is approves
    assert await page.listed() == plain(told["messages"])


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("rolls", [{"num_sides": 6}, {}], ids=["made", "refused"])
async def test_a_page_did_not_send_a_decision_beside_a_call_that_nobody_decides(
    page: Page, is_first: bool, rolls: dict[str, Any]
) -> None:
    if page.sdk == 5:
        pytest.skip("version 5 knows no approvals")
    product = page.product
    tools = [await product.tool(LAUNCH, default_requires_approval=True), await product.tool(ROLL_DICE)]
    page = Page(page.program, product, page.sdk, (await product.agent(tools=tools)).id)
    both = [Call("roll_dice", rolls), Call("launch", {"target": "moon"})]
    product.models.play(Turn(calls=both if is_first else both[::-1]), Turn(text="Done."))
    asked = await page.does(["say", "Do both."])
    assert await page.listed() == plain(asked["messages"])
    told = await page.does(["resume"], ["decide", True], loads=True, sends="approvals")
    assert text_of(told["messages"][-1]) == "Done."
    calls = [part for part in told["messages"][-1]["parts"] if part["type"] == "dynamic-tool"]
    states = {part["toolName"]: part["state"] for part in calls}
    assert states == {"launch": "output-available", "roll_dice": "output-available" if rolls else "output-error"}
    assert "decided" not in str(calls)
    assert await page.listed() == plain(told["messages"])


async def test_a_reloaded_page_asks_its_user_again(page: Page) -> None:
    if page.sdk == 5:
        pytest.skip("version 5 knows no approvals")
    page = await launching(page)
    page.product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Done."))
    asked = await page.does(["say", "Launch."])
    assert asked["finishes"][0]["finishReason"] == "tool-calls"
    assert await page.listed() == plain(asked["messages"])
    told = await page.does(["resume"], ["decide", True], loads=True, sends="approvals")
    assert told["requests"][0] == ["GET", 204, None], "a call that waits is no answer at work"
    assert (text_of(told["messages"][-1]), len(told["messages"])) == ("Done.", 2)


async def test_a_page_runs_its_own_tool_and_sends_on_by_itself(page: Page) -> None:
    page.product.models.play(Turn(text="Let me see.", calls=[Call("weather", {})]), Turn(text="It is sunny."))
    told = await page.does(
        ["say", "Weather?"], output={"sky": "clear"}, sends="results", body={"client_tools": [WEATHER]}
    )
    assert (told["status"], told["errors"]) == ("ready", [])
    assert [request[0] for request in told["requests"]] == ["POST", "POST"], "it does not send on for ever"
    assert text_of(told["messages"][-1]) == "Let me see.It is sunny."
    [call] = [part for part in told["messages"][-1]["parts"] if part["type"] == "tool-weather"]
    assert (call["state"], call["output"]) == ("output-available", {"sky": "clear"})
    assert await page.listed() == plain(told["messages"])
    results = [one for one in page.product.models.requests[-1].body["messages"] if one["role"] == "tool"]
    assert "clear" in str(results[-1]["content"])


async def test_an_answer_that_stops_behind_the_results_of_a_page_is_not_asked_for_again(page: Page) -> None:
    page.product.models.play(Turn(calls=[Call("weather", {})]), Turn(text=WORDS, silent_before_headers=60))
    given: dict[str, Any] = {"output": "clear", "sends": "results", "body": {"client_tools": [WEATHER]}}
    async with page.doing(["say", "Weather?"], **given) as reading:
        await wait_until(lambda: len(page.product.models.requests) == 2, description="the model to be asked again")
        await page.product.http.post(f"/ai-sdk/{page.agent_id}/chat/chat/stop")
        told = await reading
    assert [request[:2] for request in told["requests"]] == [["POST", 200]] * 2


async def test_users_read_why_a_request_is_refused(page: Page) -> None:
    page = await launching(page)
    page.product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))
    told = await page.does(["say", "Launch."], ["say", "And now?"])
    assert told["status"] == "error"
    assert told["errors"][0].startswith("the agent waits for answers")
    assert told["requests"][-1] == ["POST", 409, "PENDING_APPROVAL"]
    again = await page.does(["say", "Hi"], ["again"], id="other")
    assert again["requests"][-1] == ["POST", 501, "NOT_IMPLEMENTED"]
    assert "cannot answer a message again" in again["errors"][-1]
    nobody = Page(page.program, page.product, page.sdk, "agent-00000000-0000-4000-8000-000000000000")
    unknown = await nobody.does(["say", "Hi"])
    assert unknown["requests"] == [["POST", 404, "NOT_FOUND"]]


async def test_a_run_that_fails_is_an_error_with_its_sentence(page: Page) -> None:
    page.product.models.play(Turn(failure=Failure("bad_request")))
    told = await page.does(["say", "Hi"])
    assert told["status"] == "error"
    assert told["finishes"][0]["isError"] is True
    assert told["errors"][0]


async def test_a_message_in_the_middle_of_an_answer_is_in_the_answer(page: Page) -> None:
    resume = asyncio.Event()
    page.product.models.play(Turn(text="One and two.", silent_after=1, resume=resume), Turn(text="Three."))
    async with page.doing(["say", "Hi"]) as reading:
        await wait_until(lambda: page.program.notes, description="the page to show the beginning")
        body = {
            "id": "chat",
            "messages": [{"id": "u2", "role": "user", "parts": [{"type": "text", "text": "And?"}]}],
            "if_busy": "inject",
        }
        async with page.product.http.stream("POST", f"/ai-sdk/{page.agent_id}/chat", json=body) as other:
            assert other.status_code == 200
            resume.set()
            told = await reading
    assert (told["status"], told["errors"]) == ("ready", [])
    kinds = [part["type"] for part in told["messages"][-1]["parts"]]
    steered = "steering-message" if page.sdk == 7 else "data-holdfast-input"
    assert kinds == ["step-start", "text", steered, "step-start", "text"]
    assert await page.listed() == plain(told["messages"])


async def test_an_api_that_ends_in_the_middle_of_an_answer_is_no_success(page: Page) -> None:
    resume = asyncio.Event()
    page.product.models.play(Turn(text=WORDS, silent_after=2, resume=resume))
    ending = page.product.services.streaming.ending
    async with page.doing(["say", "Hi"]) as reading:
        await wait_until(lambda: page.program.notes, description="the page to show the beginning")
        ending.set()
        try:
            told = await reading
        finally:
            ending.clear()
    assert told["status"] == "error"
    assert told["finishes"][0]["isError"] is True
    async with page.doing(["resume"], loads=True) as coming_back:
        await wait_until(lambda: page.program.notes, description="the page to show the beginning")
        resume.set()
        again = await coming_back
    assert [text_of(one) for one in again["messages"]] == ["Hi", WORDS]
