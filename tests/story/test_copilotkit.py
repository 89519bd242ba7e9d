"""CopilotKit's client, unmodified, without its runtime: what its React hooks ask, asked from Node.js."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.ag_ui import Page
from tests.kit.clients import ClientProgram, client_program
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.turn import Failure
from tests.kit.product import Product
from tests.kit.tools import LAUNCH, ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

WORDS = "Grüße aus Köln, 你好 and 🎉 for you."
PAINT = {"name": "paint", "description": "Paints the page.", "result": "painted"}


class Tab:
    """A page with CopilotKit, on the conversation `desk` of an agent."""

    def __init__(self, program: ClientProgram, agent_id: str, name: str = "page") -> None:
        self.program, self.agent_id, self.page = program, agent_id, f"{agent_id}-{name}"
        self.told: dict[str, Any] = {}

    async def tells(self, story: str, **fields: Any) -> dict[str, Any]:
        """Tells a story, of which the client must not complain."""
        self.told = await self.program.told(story, page=self.page, **fields)
        assert self.told["warnings"] == []
        return self.told

    async def open(self, **fields: Any) -> dict[str, Any]:
        told = await self.tells("open", agent=self.agent_id, thread="desk", **fields)
        assert told["errors"] == []
        return told

    async def say(self, text: str, message_id: str, story: str = "run") -> dict[str, Any]:
        return await self.tells(story, messages=[{"id": message_id, "role": "user", "content": text}])

    @property
    def text(self) -> str:
        return "".join(one.get("content", "") for one in self.of("assistant"))

    def of(self, role: str) -> list[dict[str, Any]]:
        return [one for one in self.told["messages"] if one["role"] == role]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def program() -> AsyncIterator[ClientProgram]:
    async with client_program("@copilotkit/core") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def tab(program: ClientProgram, product: Product) -> Tab:
    program.calls(product)
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    return Tab(program, agent.id)


async def test_it_finds_the_agents_and_streams_an_answer(product: Product, tab: Tab) -> None:
    opened = await tab.open()
    assert (tab.agent_id in opened["agents"], opened["status"], opened["messages"]) == (True, "connected", [])
    product.models.play(Turn(text=WORDS, reasoning="Let me think."))
    told = await tab.say("Hi", "u1")
    assert tab.text == WORDS == "".join(tab.program.notes)
    assert [one["content"] for one in tab.of("reasoning")] == ["Let me think."]
    assert told["errors"] == []


async def test_a_page_that_is_loaded_again_goes_on_in_the_middle_of_the_answer(product: Product, tab: Tab) -> None:
    product.models.say("First.")
    await tab.open()
    await tab.say("Hi", "u1")
    other, resume = Page(product.http, tab.agent_id, "desk", is_current=False), asyncio.Event()
    await other.connect()
    product.models.play(Turn(text=WORDS, silent_after=3, resume=resume))
    saying = asyncio.ensure_future(other.say("More."))
    await wait_until(lambda: "Grüße" in other.client.text, description="the answer to begin")
    reloaded = Tab(tab.program, tab.agent_id, "reloaded")
    tab.program.notes = []
    opening = asyncio.ensure_future(reloaded.open())
    await wait_until(lambda: "Grüße" in "".join(tab.program.notes), description="the page to catch up")
    resume.set()
    await asyncio.gather(saying, opening)
    assert reloaded.text == f"First.{WORDS}"
    assert [one["content"] for one in reloaded.of("user")] == ["Hi", "More."]
    product.models.say("Third.")
    await reloaded.say("And?", "u3")
    assert reloaded.text == f"First.{WORDS}Third."


@pytest.mark.parametrize(
    ("payload", "result"),
    [
        ({"approved": True}, "moon"),
        ({"approved": True, "editedArgs": {"target": "mars"}}, "mars"),
        ({"approved": False, "reason": "Too far."}, "Too far."),
        (None, "cancelled by the user"),
    ],
)
async def test_the_answer_to_an_interrupt_was_taken_for_the_result_of_its_call(
    product: Product, tab: Tab, payload: dict[str, Any] | None, result: str
) -> None:
    """CopilotKit sends the answer in `resume`, and once more as a message of the role `tool`."""
    await tab.open()
    product.models.play(Turn(text="Up.", calls=[Call("launch", {"target": "moon"})]))
    told = await tab.say("Launch.", "u1")
    assert [one["reason"] for one in told["interrupts"]] == ["tool_call"]
    product.models.say("Done.")
    told = await tab.tells("resolve", payload=payload)
    assert (told["errors"], told["interrupts"], tab.text) == ([], [], "Up.Done.")
    reloaded = Tab(tab.program, tab.agent_id, "reloaded")
    await reloaded.open()
    assert [result in one["content"] for one in reloaded.of("tool")] == [True]
    assert reloaded.text == "Up.Done."
    product.models.say("Again.")
    await reloaded.say("Again?", "u2")
    await tab.say("And here?", "u3")
    assert reloaded.told["errors"] == tab.told["errors"] == []


async def test_a_page_that_is_loaded_again_is_told_what_waits(product: Product, tab: Tab) -> None:
    await tab.open()
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]))
    await tab.say("Launch.", "u1")
    reloaded = Tab(tab.program, tab.agent_id, "reloaded")
    told = await reloaded.open()
    assert len(told["interrupts"]) == 1
    product.models.say("Done.")
    told = await reloaded.tells("resolve", payload={"approved": True})
    assert (told["errors"], reloaded.text) == ([], "Done.")


async def test_the_page_runs_its_own_tool_and_the_agent_goes_on(product: Product, tab: Tab) -> None:
    await tab.open(tools=[PAINT])
    product.models.play(Turn(calls=[Call("paint", {"color": "red"})]), Turn(text="Red."))
    told = await tab.say("Paint.", "u1")
    assert (tab.text, told["errors"]) == ("Red.", [])
    assert [one["content"] for one in tab.of("tool")] == ["painted"]


async def test_its_stop_button_ends_the_run(product: Product, tab: Tab) -> None:
    await tab.open()
    product.models.play(Turn(text=WORDS, silent_after=2))
    told = await tab.say("Hi", "u1", story="stopped")
    assert told["errors"] == []
    [run] = (await product.http.get("/v1/runs", params={"agent_id": tab.agent_id})).json()
    assert run["status"] == "cancelled"
    product.models.say("Again.")
    told = await tab.say("Again?", "u2")
    assert tab.text.endswith("Again.")
    assert told["errors"] == []


async def test_a_failure_is_told(product: Product, tab: Tab) -> None:
    await tab.open()
    product.models.play(Turn(failure=Failure("auth")))
    told = await tab.say("Hi", "u1")
    assert "llm_authentication" in [one["code"] for one in told["errors"]]


@pytest.mark.parametrize("names", [["paint", "launch"], ["paint", "roll_dice"], ["roll_dice", "paint"]])
async def test_a_page_that_puts_its_results_after_their_calls_waited_for_ever(
    product: Product, program: ClientProgram, names: list[str]
) -> None:
    """The answer also called a tool of the agent, whose call is in a message after the page's result."""
    agent = await product.agent(tools=[await product.tool(ROLL_DICE), await product.tool(LAUNCH)])
    program.calls(product)
    page = Tab(program, agent.id)
    await page.open(tools=[PAINT])
    arguments = {"paint": {"color": "red"}, "roll_dice": {"num_sides": 6}, "launch": {"target": "moon"}}
    product.models.play(Turn(text="So.", calls=[Call(name, arguments[name]) for name in names]), Turn(text="Red."))
    told = await page.say("Paint.", "u1")
    assert (page.text, told["errors"]) == ("So.Red.", [])
    assert len(page.of("tool")) == 2
