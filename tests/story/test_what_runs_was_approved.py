"""What ran is what was approved, once: any answer of a provider, and any decisions in any form and order, repeated,
late and forged.

Both tools write a word into the agent's memory, so that the memory says what has run, and how often.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.redis.embedded import connect_embedded
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.services.databases import patient_database
from tests.kit.wait_until import wait_until

GATED, FREE, CLIENTS = "core_memory_append", "memory_insert", "sensor"
SENSOR: dict[str, Any] = {"name": CLIENTS, "description": "Reads.", "parameters": {"type": "object", "properties": {}}}
IDS = (None, "one", "one", "", "two'", 'th"ree', "ü\u2028\n{}%", "\0", "x" * 9_000, "approval-1", "message-1")
"""Ids that a provider may give to its calls."""

Verdict = Literal["approve", "deny", "return"]
Named = tuple[Literal["call", "approval", "message", "given", "forged"], int]
Body = dict[str, Any]


@dataclass(frozen=True)
class OneByOne:
    """A decision by the list of approvals."""

    number: int
    verdict: Literal["approve", "deny", "return", "edit"]
    shown: bool
    """With the hash of the arguments that were shown, else with another one."""


@dataclass(frozen=True)
class InOlderForm:
    """One verdict, and the id of what it decides."""

    named: Named | None
    approve: bool


@dataclass(frozen=True)
class InAMessage:
    """A verdict for each of these names."""

    items: list[tuple[Named, Verdict]]


@dataclass(frozen=True)
class AllThatWaits:
    """As a well-made client decides: a verdict for each call that waits."""

    verdicts: list[Verdict]


@dataclass(frozen=True)
class Again:
    """An earlier request comes once more."""

    number: int


Step = OneByOne | InOlderForm | InAMessage | AllThatWaits | Again

numbers = st.integers(0, 3)
verdicts = st.sampled_from(["approve", "deny", "return"])
names = st.tuples(st.sampled_from(["call", "approval", "message", "given", "forged"]), numbers)
answers = st.lists(
    st.tuples(st.sampled_from([GATED, GATED, GATED, FREE, CLIENTS]), st.sampled_from(IDS)), min_size=1, max_size=4
)
steps = st.lists(
    st.one_of(
        st.builds(OneByOne, numbers, st.sampled_from(["approve", "deny", "return", "edit"]), st.booleans()),
        st.builds(InOlderForm, st.none() | names, st.booleans()),
        st.builds(InAMessage, st.lists(st.tuples(names, verdicts), max_size=4)),
        st.builds(AllThatWaits, st.lists(verdicts, min_size=4, max_size=4)),
        st.builds(Again, numbers),
    ),
    min_size=1,
    max_size=6,
)


class Decided:
    """One agent, what it was asked to do, and what was said of that."""

    def __init__(self, product: Product, agent_id: str) -> None:
        self.product, self.agent_id, self.url = product, agent_id, f"/v1/agents/{agent_id}"
        self.given: list[str | None] = []
        self.asked: list[Body] = []
        self.free: list[str] = []
        self.sent: list[Request] = []

    @classmethod
    async def begin(cls, product: Product) -> "Decided":
        made = await product.http.post(
            "/v1/agents",
            json={
                "model": "openai/gpt-4o-mini", "include_base_tools": False, "tools": [GATED, FREE],
                "tool_rules": [{"type": "requires_approval", "tool_name": GATED}],
                "memory_blocks": [{"label": "log", "value": ""}],
            },
        )  # fmt: skip
        return cls(product, made.json()["id"])

    async def ask(self, turn: int, answer: Sequence[tuple[str, str | None]]) -> None:
        """One turn of the model that asks for these calls."""
        calls: list[Call] = []
        for number, (name, call_id) in enumerate(answer):
            word = f"{turn}.{number}"
            written = {GATED: {"label": "log", "content": word}, FREE: {"label": "log", "new_string": word}}
            calls.append(Call(name, written.get(name, {}), id=call_id))
            if name == FREE:
                self.free.append(word)
        self.given = [call_id for _, call_id in answer]
        self.product.models.play(Turn(calls=calls))
        body = {"input": "Go.", "client_tools": [SENSOR]}
        assert (await self.product.http.post(f"{self.url}/messages", json=body)).status_code == 200
        self.asked = await self.waiting()
        assert len({one["tool_call_id"] for one in self.asked}) == sum(name != FREE for name, _ in answer)

    async def waiting(self) -> list[Body]:
        return (await self.product.http.get("/v1/approvals", params={"agent_id": self.agent_id})).json()

    async def decided(self) -> list[Body]:
        params = {"agent_id": self.agent_id, "decided": True}
        return (await self.product.http.get("/v1/approvals", params=params)).json()

    async def take(self, step: Step) -> None:
        """Sends what the step says. It decides what it names, exactly, or nothing."""
        waiting = await self.waiting()
        match step:
            case Again(number=number):
                if self.sent:
                    await self.send(self.sent[number % len(self.sent)], waiting)
            case OneByOne() if self.asked:
                await self.send(_one_by_one(self.asked[step.number % len(self.asked)], step), waiting)
            case InOlderForm(named=named, approve=approve):
                await self.send(_in_older_form(None if named is None else self._name(named), approve=approve), waiting)
            case InAMessage(items=items):
                await self.send(_in_a_message([(self._name(named), verdict) for named, verdict in items]), waiting)
            case AllThatWaits(verdicts=all_of_them):
                pairs = zip(waiting, all_of_them, strict=False)
                await self.send(_in_a_message([(one["tool_call_id"], verdict) for one, verdict in pairs]), waiting)
            case _:
                pass

    async def send(self, request: "Request", before: list[Body]) -> None:
        """Sends a request: it decides what it is to decide of what waits before, and nothing else."""
        self.sent.append(request)
        url = request.path or f"{self.url}/messages"
        answer = await self.product.http.post(url, json=request.body)
        was_waiting = {one["id"] for one in before}
        came = {one["id"]: _verdict_of(one) for one in await self.decided() if one["id"] in was_waiting}
        expected = request.decides(before)
        assert came == expected, (request.body, answer.status_code, answer.text)
        assert answer.is_success or not expected, answer.text

    def _name(self, named: Named) -> str:
        kind, number = named
        if kind == "forged" or not self.asked:
            return f"call_of_nobody_{number}"
        if kind == "given":
            return self.given[number % len(self.given)] or ""
        one = self.asked[number % len(self.asked)]
        return {"call": one["tool_call_id"], "approval": one["id"], "message": one["message_id"]}[kind]

    async def rest(self) -> None:
        """Denies what still waits, and waits until nothing is at work."""
        for one in await self.waiting():
            assert (await self.product.http.post(f"/v1/approvals/{one['id']}", json={"decision": "deny"})).is_success

        async def at_rest() -> bool:
            active = await self.product.http.get("/v1/runs/active", params={"agent_id": self.agent_id})
            return active.json() == []

        await wait_until(at_rest, description="every run to end")

    async def check(self) -> None:
        """The memory has what was approved and what nobody had to approve, each once."""
        approved = [
            (one["decision"]["arguments"] or one["arguments_object"])["content"]
            for one in await self.decided()
            if one["status"] == "approved"
        ]
        block = (await self.product.http.get(f"{self.url}/core-memory/blocks/log")).json()
        assert sorted(block["value"].split()) == sorted([*approved, *self.free])


def _names_of(one: Body, *, alone: bool = True) -> list[str]:
    return [one["tool_call_id"], one["id"], *([one["message_id"]] if alone else [])]


def _verdict_of(one: Body) -> str:
    return {"approved": "approve", "denied": "deny", "returned": "return"}[one["status"]]


def _item(name: str, verdict: Verdict) -> Body:
    if verdict == "return":
        return {"type": "tool", "tool_call_id": name, "tool_return": "warm", "status": "success"}
    return {"type": "approval", "tool_call_id": name, "approve": verdict == "approve"}


def _exactly(meant: dict[str, set[str]], waiting: list[Body]) -> dict[str, str]:
    """What a message decides: all that waits, each in one way that its tool allows; else nothing."""
    clients = {one["id"] for one in waiting if one["client_side"]}
    if set(meant) != {one["id"] for one in waiting}:
        return {}
    if any(len(said) > 1 or (one in clients and "approve" in said) for one, said in meant.items()):
        return {}
    return {one: said.copy().pop() for one, said in meant.items()}


@dataclass(frozen=True)
class Request:
    """A request that is to decide something. `decides` says what, by what waits when it comes: how each is decided, by
    the approval's id."""

    body: Body
    decides: Callable[[list[Body]], dict[str, str]]
    path: str = ""
    """Empty: it is a message."""


def _one_by_one(one: Body, step: OneByOne) -> Request:
    verdict, approves = step.verdict, step.verdict in ("approve", "edit")
    body: Body = {"decision": {"edit": "approve", "return": "tool_return"}.get(verdict, verdict)}
    body["arguments_hash"] = one["arguments_hash"] if step.shown else "0" * 64
    if verdict == "return":
        body["tool_return"] = "warm"
    if verdict == "edit":
        body["arguments"] = {"label": "log", "content": "edited"}

    def decides(waiting: list[Body]) -> dict[str, str]:
        waits = one["id"] in {other["id"] for other in waiting}
        may = waits and step.shown and not (one["client_side"] and approves)
        return {one["id"]: "approve" if approves else verdict} if may else {}

    return Request(body, decides, f"/v1/approvals/{one['id']}")


def _in_older_form(name: str | None, *, approve: bool) -> Request:
    message = {"type": "approval", "approve": approve, "approval_request_id": name}

    def decides(waiting: list[Body]) -> dict[str, str]:
        found = [one for one in waiting if name == one["message_id"] or (len(waiting) == 1 and name in _names_of(one))]
        return _exactly({one["id"]: {"approve" if approve else "deny"} for one in found}, waiting)

    return Request({"messages": [message]}, decides)


def _in_a_message(items: list[tuple[str, Verdict]]) -> Request:
    def decides(waiting: list[Body]) -> dict[str, str]:
        meant: dict[str, set[str]] = {}
        for name, verdict in items:
            found = [one for one in waiting if name in _names_of(one, alone=len(waiting) == 1)]
            meant.setdefault(found[0]["id"] if found else name, set()).add(verdict)
        return _exactly(meant, waiting)

    message = {"type": "approval", "approvals": [_item(name, verdict) for name, verdict in items]}
    return Request({"messages": [message]}, decides)


@asynccontextmanager
async def a_product(url: str) -> AsyncGenerator[Product]:
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(ModelServer())
        database = patient_database(url)
        stack.push_async_callback(database.aclose)
        yield await stack.enter_async_context(running_product(database, connect_embedded(), models))


async def play(
    product: Product, answer: list[tuple[str, str | None]], first: Sequence[Step], second: Sequence[Step]
) -> None:
    """Two turns with the same answer of the provider. All that was sent in the first comes again in the second."""
    conversation = await Decided.begin(product)
    await conversation.ask(1, answer)
    for step in first:
        await conversation.take(step)
    await conversation.rest()
    await conversation.check()
    await conversation.ask(2, answer)
    waiting = await conversation.waiting()
    for number in range(len(conversation.sent)):
        await conversation.take(Again(number))
    assert await conversation.waiting() == waiting
    for step in second:
        await conversation.take(step)
    await conversation.rest()
    await conversation.check()


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_a_call_ran_that_nobody_had_approved(sqlite_url: str, examples: int) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        product = runner.run(stack.enter_async_context(a_product(sqlite_url)))

        @settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(answer=answers, first=steps, second=steps)
        def every_example(answer: Any, first: Any, second: Any) -> None:
            runner.run(play(product, answer, first, second))

        try:
            every_example()
        finally:
            runner.run(stack.aclose())
