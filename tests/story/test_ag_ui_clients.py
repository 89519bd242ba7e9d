"""The public clients of AG-UI, unmodified: the release of 1.0, the one that CopilotKit brings, and an older one.

`tests/kit/ag_ui` verifies streams in Python, and makes messages of them; here both come to the same.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, seed, settings

from api.ag_ui.leg_fold import Client
from shared.domain import events
from tests.kit.ag_ui import AgUiClient, ClientRefused, OldestAgUiClient, Page
from tests.kit.ag_ui.one_leg import RUN, OneLeg, log_of
from tests.kit.clients import ClientProgram, client_program
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.turn import Failure
from tests.kit.product import Product
from tests.kit.runs.random_logs import logs
from tests.kit.tools import LAUNCH, ROLL_SLOWLY
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

CLIENTS = ("@ag-ui/client 1.0.0", "@ag-ui/client 0.0.59", "@ag-ui/client 0.0.47")
WORDS = "Grüße aus Köln, 你好 and 🎉 for you."
PAINT = {"name": "paint", "description": "Paints the page.", "parameters": {"type": "object"}}
LAUNCHES = Call("launch", {"target": "moon"})
SAID: list[dict[str, Any]] = [{"id": "u1", "role": "user", "content": "Hi"}]


class Tab:
    """A page of the program: its agent, and what it has of the conversation."""

    def __init__(self, program: ClientProgram, product: Product, agent_id: str, name: str = "page") -> None:
        self.program, self.product, self.agent_id = program, product, agent_id
        self.named = {"page": f"{agent_id}-{name}", "agent": agent_id, "thread": "desk"}
        self.told: dict[str, Any] = {}

    async def tells(self, story: str, **fields: Any) -> dict[str, Any]:
        """Tells a story, which must raise nothing and warn of nothing."""
        self.told = await self.program.told(story, **self.named, **fields)
        assert (self.told["thrown"], self.told["warnings"]) == (None, [])
        return self.told

    async def say(self, text: str, message_id: str, **fields: Any) -> dict[str, Any]:
        return await self.tells("run", messages=[{"id": message_id, "role": "user", "content": text}], **fields)

    async def resume(self, payload: Any) -> dict[str, Any]:
        entries = [
            {"interruptId": one["id"], "status": "resolved", "payload": payload} for one in self.told["interrupts"]
        ]
        return await self.tells("run", resume=entries)

    @property
    def text(self) -> str:
        return "".join(one.get("content", "") for one in self.of("assistant"))

    def of(self, role: str) -> list[dict[str, Any]]:
        return [one for one in self.told["messages"] if one["role"] == role]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=CLIENTS)
async def program(request: pytest.FixtureRequest) -> AsyncIterator[ClientProgram]:
    async with client_program(request.param) as running:
        yield running


@pytest.fixture
def is_current(request: pytest.FixtureRequest) -> bool:
    return "1.0.0" in request.node.callspec.params["program"]


@pytest.fixture
def knows_interrupts(request: pytest.FixtureRequest) -> None:
    if "0.0.47" in request.node.callspec.params["program"]:
        pytest.skip("0.0.47 has no interrupts: its page shows the call, and somebody decides it elsewhere")


@pytest.fixture
def in_python(request: pytest.FixtureRequest, is_current: bool) -> Callable[[], AgUiClient]:
    """Makes the client in Python that does what the release does."""
    if "0.0.47" in request.node.callspec.params["program"]:
        return lambda: OldestAgUiClient(SAID)
    return lambda: AgUiClient(SAID, is_current=is_current)


@pytest_asyncio.fixture(loop_scope="session")
async def tab(program: ClientProgram, product: Product) -> Tab:
    program.calls(product)
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    return Tab(program, product, agent.id)


async def test_an_answer_with_reasoning_is_streamed(product: Product, tab: Tab) -> None:
    product.models.play(Turn(text=WORDS, reasoning="Let me think."))
    told = await tab.say("Hi", "u1")
    assert tab.text == WORDS == "".join(tab.program.notes)
    assert [one["content"] for one in tab.of("reasoning")] == ["Let me think."]
    assert told["finished"]["outcome"] in ("success", {"type": "success"}, None)
    same = Page(product.http, tab.agent_id, "desk")
    await same.connect()
    assert same.client.messages == told["messages"], "the client in Python makes the same of it"


@pytest.mark.usefixtures("knows_interrupts")
@pytest.mark.parametrize(
    ("payload", "result"),
    [
        ({"approved": True}, "moon"),
        ({"approved": True, "editedArgs": {"target": "mars"}}, "mars"),
        ({"approved": False, "reason": "Too far."}, "Too far."),
    ],
)
async def test_a_call_is_decided(product: Product, tab: Tab, payload: dict[str, Any], result: str) -> None:
    product.models.play(Turn(text="Up.", calls=[LAUNCHES]))
    told = await tab.say("Launch.", "u1")
    [interrupt] = told["interrupts"]
    [call] = tab.of("assistant")[-1]["toolCalls"]
    assert interrupt["toolCallId"] == call["id"]
    product.models.say("Done.")
    told = await tab.resume(payload)
    assert (tab.text, told["interrupts"]) == ("Up.Done.", [])
    assert [one["content"].endswith(result) for one in tab.of("tool")] == [True]


@pytest.mark.usefixtures("knows_interrupts")
async def test_a_resume_that_does_not_fit_is_heard_as_an_error(product: Product, tab: Tab) -> None:
    product.models.play(Turn(calls=[LAUNCHES]))
    await tab.say("Launch.", "u1")
    told = await tab.resume({"approved": "yes"})
    assert [one["code"] for one in told["errors"]] == ["BAD_PAYLOAD"]
    assert len(told["interrupts"]) == 1
    reloaded = Tab(tab.program, product, tab.agent_id, "reloaded")
    told = await reloaded.say("And?", "u2")
    assert [one["code"] for one in told["errors"]] == ["PENDING_APPROVAL"], "a reloaded page does not know what waits"
    product.models.say("Done.")
    await tab.resume({"approved": False})
    assert tab.text == "Done."


async def test_the_page_runs_its_own_tool(product: Product, tab: Tab, is_current: bool) -> None:
    product.models.play(Turn(calls=[Call("paint", {"color": "red"})]))
    told = await tab.say("Paint.", "u1", tools=[PAINT])
    [call] = tab.of("assistant")[-1]["toolCalls"]
    assert call["function"] == {"name": "paint", "arguments": '{"color": "red"}'}
    if is_current:
        assert told["finished"]["pending"] == [call["id"]]
    product.models.say("Red.")
    result = {"id": "t1", "role": "tool", "toolCallId": call["id"], "content": "painted"}
    await tab.tells("run", messages=[result], tools=[PAINT])
    assert tab.text == "Red."
    assert [one["id"] for one in tab.of("tool")] == ["t1"]


async def test_a_page_joins_in_the_middle_and_after_the_end(product: Product, tab: Tab, is_current: bool) -> None:
    sender = Page(product.http, tab.agent_id, "desk", is_current=is_current)
    product.models.say("First.")
    await sender.say("Hi")
    resume = asyncio.Event()
    product.models.play(Turn(text=WORDS, reasoning="Hm.", silent_after=3, resume=resume))
    sending = asyncio.ensure_future(sender.say("More."))
    await wait_until(lambda: sender.client.text.startswith("First.Grüße"), description="the answer to begin")
    seen, cursor = [*map(dict, sender.client.messages)], sender.client.cursor
    tab.program.notes = []
    joining = asyncio.ensure_future(tab.tells("connect"))
    await wait_until(lambda: "Grüße" in "".join(tab.program.notes), description="the page to catch up")
    resume.set()
    await asyncio.gather(sending, joining)
    assert tab.told["messages"] == sender.client.messages

    tail = Tab(tab.program, product, tab.agent_id, "tail")
    await tail.tells("connect", messages=seen, after=cursor)
    assert tail.told["messages"] == sender.client.messages, "it goes on where it was"
    after = Tab(tab.program, product, tab.agent_id, "after")
    await after.tells("connect")
    assert after.told["messages"] == sender.client.messages
    product.models.say("Third.")
    await after.say("And now?", "u3")
    assert after.text == f"First.{WORDS}Third."


async def test_a_run_is_stopped(product: Product, tab: Tab, is_current: bool) -> None:
    product.models.play(Turn(text=WORDS, silent_after=2))
    tab.program.notes = []
    telling = asyncio.ensure_future(tab.say("Hi", "u1"))
    await wait_until(lambda: tab.program.notes or telling.done(), description="the answer to begin")
    page = Page(product.http, tab.agent_id, "desk")
    assert (await page.stop()).status_code == 200
    told = await telling
    assert told["kinds"][-1] == "RUN_FINISHED"
    assert told["finished"]["outcome"] in (("cancelled",) if is_current else ("success", None))
    product.models.say("Again.")
    await tab.say("Again?", "u2")
    assert tab.text.endswith("Again.")


async def test_hanging_up_does_not_stop_a_run(product: Product, tab: Tab) -> None:
    resume = asyncio.Event()
    product.models.play(Turn(text=WORDS, silent_after=2, resume=resume))
    await tab.program.told("abandoned", **tab.named, messages=SAID, at="TEXT_MESSAGE_CONTENT")
    resume.set()
    reader = Tab(tab.program, product, tab.agent_id, "reader")
    await reader.tells("connect")
    assert reader.text == WORDS


THINKS = {"text": WORDS, "reasoning": "Let me think."}
ROLLS = {"text": "Up.", "calls": [Call("roll_slowly", {"num_sides": 6})]}


@pytest.mark.parametrize(
    ("at", "turn", "silent_after"),
    [
        ("REASONING_MESSAGE_CONTENT", THINKS, 1),
        ("TEXT_MESSAGE_CONTENT", THINKS, 5),
        ("TOOL_CALL_ARGS", ROLLS, 3),
        ("TOOL_CALL_END", ROLLS, None),
    ],
    ids=["inside reasoning", "inside text", "inside the arguments of a call", "between a call and its result"],
)
async def test_a_page_that_joins_again_has_the_whole_answer_once_wherever_it_was_cut_off(
    product: Product, program: ClientProgram, at: str, turn: dict[str, Any], silent_after: int | None
) -> None:
    program.calls(product)
    tab = Tab(program, product, (await product.agent(tools=[await product.tool(ROLL_SLOWLY)])).id)
    resume = asyncio.Event()
    product.models.play(Turn(**turn, silent_after=silent_after, resume=resume), Turn(text="Done."))
    await program.told("abandoned", **tab.named, messages=SAID, at=at)
    joining = asyncio.ensure_future(tab.tells("connect"))
    resume.set()
    await joining
    reloaded = Page(product.http, tab.agent_id, "desk")
    await reloaded.connect()
    assert by_id(tab.told["messages"]) == by_id(reloaded.client.messages)


def by_id(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages in an order that does not depend on the release: 0.0.47 puts results at the end."""
    return sorted(messages, key=lambda message: message["id"])


async def test_a_failure_is_heard(product: Product, tab: Tab) -> None:
    product.models.play(Turn(failure=Failure("auth")))
    told = await tab.say("Hi", "u1")
    assert [one["code"] for one in told["errors"]] == ["llm_authentication"]


def streams_of(log: list[events.Event], *, is_current: bool) -> list[bytes]:
    """The stream of a log, whole, and without each of its frames."""
    client = Client("thread-1", is_current=is_current, sent=SAID)
    whole, _ = OneLeg(RUN, client).of(log_of(*log))
    frames = whole.split(b"\n\n")[:-1]
    broken = (frames[:number] + frames[number + 1 :] for number in range(len(frames)))
    return [whole, *(b"".join(frame + b"\n\n" for frame in one) for one in broken)]


def verdict(body: bytes, client: AgUiClient) -> list[dict[str, Any]] | None:
    """What the client in Python has after a stream; None if it refuses it."""
    try:
        return client.read(body).messages
    except ClientRefused:
        return None


async def test_the_verifier_of_these_tests_refuses_what_the_clients_refuse(
    product: Product, program: ClientProgram, is_current: bool, in_python: Callable[[], AgUiClient]
) -> None:
    """Every stream of random logs, and each of them with a frame missing."""
    program.calls(product)
    bodies: list[bytes] = []

    @seed(1)
    @settings(
        max_examples=15,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(logs())
    def collect(log: list[events.Event]) -> None:
        bodies.extend(streams_of(log, is_current=is_current))

    collect()
    told = await program.told("reads", streams=[{"messages": SAID, "body": body.decode()} for body in bodies])
    ours = [verdict(body, in_python()) for body in bodies]
    accepted = [one["thrown"] is None for one in told]
    assert 15 < sum(accepted) < len(bodies) - 15
    for body, one, messages in zip(bodies, told, ours, strict=True):
        if messages is not None:
            assert (one["thrown"], one["messages"]) == (None, messages), body.decode()
        elif is_current:  # the older ones do not verify reasoning
            assert one["thrown"] is not None, body.decode()
