"""AG-UI over HTTP: what a page sends and is shown."""

import asyncio
import copy
from typing import Any

import pytest

from tests.kit.ag_ui import AgUiClient, Page
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.turn import Failure
from tests.kit.product import Product
from tests.kit.tools import LAUNCH, ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

WORDS = "Grüße aus Köln, 你好 and 🎉 for you."
COLOR = {"name": "paint", "description": "Paints the page.", "parameters": {"type": "object"}}


async def page_of(
    product: Product, *, tools: list[str] | None = None, thread: str = "desk", is_current: bool = True
) -> Page:
    agent = await product.agent(tools=tools or [])
    return Page(product.http, agent.id, thread, is_current=is_current)


async def asking(product: Product, *, is_current: bool = True) -> Page:
    """A page whose agent must ask before it launches."""
    launch = await product.tool(LAUNCH, default_requires_approval=True)
    return await page_of(product, tools=[launch], is_current=is_current)


async def test_a_page_is_streamed_an_answer(product: Product) -> None:
    page = await page_of(product)
    product.models.play(Turn(text=WORDS, reasoning="Let me think."))
    client = await page.say("Hi")
    assert client.text == WORDS
    assert client.of_role("reasoning") == ["Let me think."]
    assert client.outcomes[-1]["outcome"] == {"type": "success"}
    assert client.outcomes[-1]["usage"][0]["outputTokens"] > 0

    product.models.say("Again.")
    await page.say("And now?")
    assert client.of_role("assistant") == [WORDS, "Again."]
    sent = product.models.requests[-1].body["messages"]
    assert [one["content"] for one in sent if one["role"] == "user"] == ["Hi", "And now?"], "history is the server's"


async def test_an_older_client_is_sent_nothing_that_it_does_not_know(product: Product) -> None:
    page = await asking(product, is_current=False)
    product.models.play(Turn(text="Up.", reasoning="Hm.", calls=[Call("launch", {"target": "moon"})]))
    client = await page.say("Launch.")
    [interrupt] = client.pending
    product.models.say("Done.")
    await page.resume(**{interrupt["id"]: {"approved": True}})
    assert (client.text, client.pending, client.of_role("tool")) == ("Up.Done.", [], ["moon"])
    assert b"protocolVersion" not in page.received


@pytest.mark.parametrize(
    ("payload", "result"),
    [
        ({"approved": True}, "moon"),
        ({"approved": True, "editedArgs": {"target": "mars"}}, "mars"),
        ({"approved": False, "reason": "Too far."}, "Too far."),
        (None, "cancelled by the user"),
    ],
)
async def test_a_call_waits_for_the_pages_user(product: Product, payload: object, result: str) -> None:
    page = await asking(product)
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))
    client = await page.say("Launch.")
    [interrupt] = client.pending
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", client.calls[0][0])

    product.models.say("So be it.")
    await page.resume(**{interrupt["id"]: payload})

    assert client.pending == []
    assert client.text == "So be it."
    assert client.of_role("tool")[0].endswith(result)
    assert [name for _, name, _ in client.calls] == ["launch"], "the call is not shown again"


async def test_decisions_must_cover_every_call_and_are_taken_once(product: Product) -> None:
    page = await asking(product)
    calls = [Call("launch", {"target": "moon"}), Call("launch", {"target": "mars"})]
    product.models.play(Turn(calls=calls))
    client = await page.say("Launch.")
    first, second = (one["id"] for one in client.pending)
    waiting = list(client.messages)

    for refused, code in (
        (lambda: page.say("And?"), "PENDING_APPROVAL"),
        (lambda: page.resume(**{first: {"approved": True}}), "INCOMPLETE_RESUME"),
        (lambda: page.resume(**{first: {"approved": "yes"}, second: None}), "BAD_PAYLOAD"),
        (lambda: page.resume(**{first: {"approved": True, "editedArgs": 1}, second: None}), "BAD_PAYLOAD"),
        (lambda: page.resume(**{"approval-none": None, first: None, second: None}), "UNKNOWN_INTERRUPT"),
    ):
        client.messages = list(waiting)
        await refused()
        assert (page.status, client.outcomes[-1]["type"], client.outcomes[-1]["code"]) == (200, "RUN_ERROR", code)
        assert len(client.pending) == 2, "what waits still waits"
    client.messages = list(waiting)

    product.models.say("Up.")
    answers = {first: {"approved": True}, second: {"approved": False}}
    await page.resume(**answers)
    once = list(client.messages)
    assert client.text == "Up."

    client.messages = list(waiting)
    await page.resume(**answers)
    assert client.messages == once, "the same again is the same run"
    await page.resume(**{first: {"approved": False}, second: {"approved": False}})
    assert client.outcomes[-1]["code"] == "NO_PENDING_APPROVAL"


async def test_a_repeated_resume_was_refused_once_its_run_waited_again(product: Product) -> None:
    """The page had lost the response. Its client keeps its interrupts after a refusal, and was stuck."""
    page = await asking(product)
    product.models.play(*(Turn(calls=[Call("launch", {"target": target})]) for target in ("moon", "mars")))
    client = await page.say("Launch.")
    asked, waiting = client.pending[0]["id"], list(client.messages)
    await page.resume(**{asked: {"approved": True}})
    [interrupt] = client.pending

    client.messages, client.pending = list(waiting), []
    await page.resume(**{asked: {"approved": True}})
    assert (client.pending, len(client.calls)) == ([interrupt], 2)
    for refused, code in (
        (lambda: page.resume(**{asked: {"approved": False}}), "NO_PENDING_APPROVAL"),
        (lambda: page.say("Hello?", resume=approvals(asked)), "PENDING_APPROVAL"),
    ):
        await refused()
        assert client.outcomes[-1].get("code") == code
        assert client.pending == [interrupt]


async def test_a_page_that_repeated_new_words_beside_known_answers_was_a_500_or_got_the_run_before(
    product: Product,
) -> None:
    page = await asking(product)
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Up."), Turn(text="Hello."))
    client = await page.say("Launch.")
    asked = client.pending[0]["id"]
    await page.resume(**{asked: {"approved": True}})
    before, words = list(client.messages), {"id": "words", "role": "user", "content": "Hello?"}
    for times in (2, 1, 2):
        client.messages = [*before, *[words] * times]
        await page.run(resume=approvals(asked))
        assert client.outcomes[-1]["type"] == "RUN_FINISHED"
        assert [one["content"] for one in client.messages[-2:]] == ["Hello?", "Hello."]


async def test_an_old_result_beside_a_call_that_waits_was_taken_for_another_decision(product: Product) -> None:
    """CopilotKit adds a result of its own for each call that its user has approved."""
    page = await asking(product)
    product.models.play(*(Turn(calls=[Call("launch", {"target": target})]) for target in ("moon", "mars")))
    client = await page.say("Launch.")
    asked, call_id = client.pending[0]["id"], client.calls[0][0]
    await page.resume(**{asked: {"approved": True}})
    place = next(place for place, one in enumerate(client.messages) if one.get("toolCalls")) + 1
    client.messages.insert(place, {"id": "own", "role": "tool", "toolCallId": call_id, "content": "approved"})
    await page.say("Stop.")
    assert client.outcomes[-1]["code"] == "PENDING_APPROVAL"


def approvals(*interrupts: str) -> list[dict[str, Any]]:
    return [{"interruptId": one, "status": "resolved", "payload": {"approved": True}} for one in interrupts]


async def test_the_page_runs_a_tool_of_its_own(product: Product) -> None:
    page = await page_of(product)
    product.models.play(Turn(text="Let me.", calls=[Call("paint", {"color": "red"})]))
    client = await page.say("Paint it.", tools=[COLOR])
    [(call_id, name, arguments)] = client.calls
    assert (name, arguments) == ("paint", '{"color": "red"}')
    assert client.outcomes[-1]["outcome"] == {"type": "success", "pendingToolCallIds": [call_id]}

    await page.say("Well?", tools=[COLOR])
    assert client.outcomes[-1]["code"] == "PENDING_APPROVAL"
    client.messages.pop()

    product.models.say("It is red.")
    client.messages.append({"id": "mine", "role": "tool", "toolCallId": call_id, "content": "painted"})
    await page.run(tools=[COLOR])
    assert client.text == "Let me.It is red."
    assert [one["id"] for one in client.messages if one["role"] == "tool"] == ["mine"], "it has its own result"
    product.models.say("Again?")
    await page.say("Thanks.")
    assert client.text.endswith("Again?")


@pytest.mark.parametrize("names", ["paint roll launch", "roll paint launch", "launch roll", "roll launch roll launch"])
async def test_a_page_that_was_loaded_again_had_the_results_in_another_order(product: Product, names: str) -> None:
    """The server stores all results of an answer after its calls, which can be in two messages of the page."""
    launch, roll = await product.tool(LAUNCH, default_requires_approval=True), await product.tool(ROLL_DICE)
    page = await page_of(product, tools=[launch, roll])
    calls = {
        "paint": Call("paint", {"color": "red"}),
        "roll": Call("roll_dice", {"num_sides": 6}),
        "launch": Call("launch", {"target": "moon"}),
    }
    product.models.play(Turn(text="So.", calls=[calls[name] for name in names.split()]))
    client = await page.say("Go.", tools=[COLOR])
    product.models.say("Done.")
    painted = {"id": "mine", "role": "tool", "content": "painted"}
    for call_id in [call_id for call_id, name, _ in client.calls if name == "paint"]:
        client.messages.append({**painted, "toolCallId": call_id})
    approved = {one["id"]: {"approved": True} for one in client.pending}
    await page.resume(**approved)
    product.models.say("More.")
    await page.say("And?")

    late = Page(product.http, page.agent_id, page.thread)
    await late.connect()
    assert order_without(late, "painted") == order_without(page, "painted")


def order_without(page: Page, result: str) -> list[Any]:
    """The page's messages in order, without a result that the page itself placed. The results of one message's calls
    are a set, because they arrive as they are made."""
    shown = list[Any]()
    for one in page.client.messages:
        if one["role"] != "tool":
            shown += [one["id"], set[str]()]
        elif one["content"] != result:
            shown[-1].add(one["toolCallId"])
    return shown


async def test_a_message_that_is_sent_again_is_the_same_run(product: Product) -> None:
    page = await page_of(product)
    product.models.say("Once.")
    client = await page.say("Hi", message_id="m1")
    [said] = [one for one in client.messages if one["role"] == "user"]
    client.messages = [said]
    await page.run()
    assert client.text == "Once."
    assert len(product.models.requests) == 1
    await page.run()
    assert page.status == 422, "nothing is new behind the answer"
    assert "nothing is new" in page.answer["message"]


async def test_a_reader_joins_in_the_middle_of_an_answer_and_one_goes_on(product: Product) -> None:
    page = await page_of(product)
    product.models.say("First.")
    await page.say("Hi")
    resume = asyncio.Event()
    product.models.play(Turn(text=WORDS, reasoning="Hm.", silent_after=3, resume=resume))
    sending = asyncio.ensure_future(page.say("More."))
    await wait_until(lambda: page.client.text.startswith("First.Grüße"), description="the beginning of the answer")

    late, tail = (Page(product.http, page.agent_id, page.thread) for _ in range(2))
    tail.client.messages = copy.deepcopy(page.client.messages)
    joining = [
        asyncio.ensure_future(late.connect()),
        asyncio.ensure_future(tail.connect(after=page.client.cursor)),
    ]
    await wait_until(lambda: late.client.text == page.client.text, description="the late reader to catch up")
    resume.set()
    await asyncio.gather(sending, *joining)

    assert page.client.text == f"First.{WORDS}"
    assert late.client.messages == tail.client.messages == page.client.messages
    assert late.client.outcomes[-1]["outcome"] == {"type": "success"}
    again = Page(product.http, page.agent_id, page.thread)
    await again.connect()
    assert again.client.messages == page.client.messages
    seen = again.client.cursor
    await again.connect(after=seen)
    assert (again.status, again.received) == (200, b"")


async def test_nothing_to_show_is_an_empty_stream(product: Product) -> None:
    page = await page_of(product)
    await page.connect()
    assert (page.status, page.received) == (200, b"")


async def test_the_page_stops_its_run(product: Product) -> None:
    page = await page_of(product)
    assert (await page.stop()).status_code == 409
    product.models.play(Turn(text=WORDS, silent_after=2))
    sending = asyncio.ensure_future(page.say("Hi", runId="mine"))
    await wait_until(lambda: page.client.text != "", description="the answer to begin")
    stopped = (await page.stop(runId="mine")).json()
    await sending
    assert (stopped["stopped"], stopped["runId"], stopped["status"]) == (True, "mine", "cancelled")
    assert page.client.outcomes[-1]["outcome"] == {"type": "cancelled"}


async def test_a_cancel_ends_the_waiting_of_a_page_that_follows(product: Product) -> None:
    page = await asking(product)
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))
    await page.say("Launch.")
    reader = Page(product.http, page.agent_id, page.thread)
    following = asyncio.ensure_future(reader.connect(follow="true"))
    await wait_until(lambda: reader.client.pending != [], description="the reader to know the interrupt")
    assert (await page.stop()).status_code == 200
    await wait_until(lambda: reader.client.pending == [], description="the reader to know that nothing waits")
    following.cancel()
    later = Page(product.http, page.agent_id, page.thread)
    await later.connect()
    assert later.client.pending == [], "an answered interrupt is not shown as open"


async def test_an_injected_message_is_shown_where_the_agent_read_it(product: Product) -> None:
    page = await page_of(product, tools=[await product.tool(ROLL_DICE)])
    resume = asyncio.Event()
    product.models.play(
        Turn(text="One more.", calls=[Call("roll_dice", {"num_sides": 6})], silent_after=1, resume=resume)
    )
    product.models.say("Two.")
    first = asyncio.ensure_future(page.say("Go."))
    await wait_until(lambda: page.client.text != "", description="the answer to begin")
    other = Page(product.http, page.agent_id, page.thread)
    other.client.messages = copy.deepcopy(page.client.messages)
    second = asyncio.ensure_future(
        other.say("Hurry.", message_id="u2", forwardedProps={"holdfast": {"if_busy": "inject"}})
    )
    await wait_until(lambda: b"RUN_STARTED" in other.received, description="the message to be taken in")
    resume.set()
    await asyncio.gather(first, second)
    assert other.client.messages == page.client.messages
    assert [one["role"] for one in page.client.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert page.client.messages[3] == {"id": "u2", "role": "user", "content": "Hurry."}


async def test_a_failure_is_an_error_of_the_run(product: Product) -> None:
    page = await page_of(product)
    product.models.play(Turn(failure=Failure("auth")))
    client = await page.say("Hi")
    assert client.outcomes[-1]["type"] == "RUN_ERROR"
    loaded = Page(product.http, page.agent_id, page.thread)
    await loaded.connect()
    assert loaded.client.outcomes == client.outcomes, "a page that was loaded again says why"
    product.models.say("Better.")
    await page.say("Again.")
    assert client.text.endswith("Better.")


async def test_a_conversation_has_one_name_for_all_and_the_agents_own_history_is_default(product: Product) -> None:
    page = await page_of(product, thread="default")
    product.models.say("Mine.")
    await page.say("Hi")
    messages = (await product.http.get(f"/v1/agents/{page.agent_id}/messages")).json()
    assert any(one.get("content") == "Mine." for one in messages)


async def test_the_pages_context_is_told_to_the_model(product: Product) -> None:
    page = await page_of(product)
    product.models.say("I see.")
    await page.say("What is on the page?", context=[{"description": "The open file", "value": "a.txt"}], state={"a": 1})
    assert "The open file: a.txt" in str(product.models.requests[-1].body["messages"][0])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "threadId"),
        ({"threadId": ""}, "threadId"),
        ({"threadId": "a", "messages": [{"id": "a"}]}, "messages[0].role is missing"),
        ({"threadId": "a", "messages": [{"id": "a", "role": "user"}]}, "messages[0].content"),
        ({"threadId": "a", "messages": [{"id": "a", "role": "user", "content": [{"type": "audio"}]}]}, "content[0]"),
        ({"threadId": "a", "messages": [{"id": "x" * 201, "role": "user", "content": "Hi"}]}, "messages[0].id"),
        ({"threadId": "a", "resume": [{"interruptId": "a", "status": "maybe"}]}, "resume"),
        ({"threadId": "a", "forwardedProps": {"holdfast": {"if_busy": "never"}}}, "if_busy"),
        ({"threadId": "a", "tools": [{"description": "no name"}]}, "name"),
    ],
)
async def test_what_a_request_lacks_is_named(product: Product, body: dict[str, object], field: str) -> None:
    page = await page_of(product)
    answer = await product.http.post(f"/ag-ui/{page.agent_id}", json=body)
    assert answer.status_code == 422
    assert field in answer.text


@pytest.mark.parametrize("role", ["User", "assistant ", "bot"])
async def test_a_message_of_an_unknown_role_was_lost(product: Product, role: str) -> None:
    page = await page_of(product)
    path, asked = f"/ag-ui/{page.agent_id}", {"id": "u1", "role": "user", "content": "Hi"}
    for messages in ([{**asked, "role": role}], [asked, {"id": "u2", "role": role, "content": "Hi"}]):
        refused = (await product.http.post(path, json={"threadId": "a", "messages": messages})).json()
        assert refused["field"] == f"messages[{len(messages) - 1}].role"
        assert f"{role!r}: it must be one of user, assistant" in refused["message"]
    product.models.say("Hello.")
    earlier = [{"id": "u0", "role": role, "content": "Hi"}, {"id": "a0", "role": "assistant", "content": "Yes?"}, asked]
    taken = await product.http.post(path, json={"threadId": "a", "messages": earlier})
    assert "RUN_FINISHED" in taken.text, "what comes before the last answer is the server's own"


async def test_an_unknown_agent_is_not_found(product: Product) -> None:
    nobody = "agent-00000000-0000-4000-8000-000000000000"
    page = Page(product.http, nobody, "desk")
    await page.say("Hi")
    assert page.status == 404
    await page.connect()
    assert page.status == 404


async def test_copilotkit_talks_without_its_runtime(product: Product) -> None:
    page = await page_of(product)
    about = (await product.http.get("/ag-ui/info")).json()
    assert about["mode"] == "sse"
    assert about["agents"][page.agent_id]["description"] == ""
    body: dict[str, Any] = {"threadId": "desk", "runId": "r1", "messages": [], "tools": [], "context": [], "state": {}}
    path = f"/ag-ui/agent/{page.agent_id}"
    assert (await product.http.post(f"{path}/connect", json=body)).content == b""
    product.models.say("Hello.")
    said = {**body, "messages": [{"id": "u1", "role": "user", "content": "Hi"}]}
    run = await product.http.post(f"{path}/run", json=said)
    older = AgUiClient(said["messages"], is_current=False).read(run.content)
    assert older.text == "Hello."
    connected = await product.http.post(f"{path}/connect", json=body)
    assert AgUiClient(is_current=False).read(connected.content).messages == older.messages
    assert (await product.http.post(f"{path}/stop/desk")).status_code == 409
