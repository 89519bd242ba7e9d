"""The log of a run whose dialect asks for the events of items: each item of each answer is opened and closed once, each
tool starts and ends by itself, and the run that follows a decision begins with it. Letta's readers see what they see of
any other run."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.domain.events import (
    FIRST_SEQ,
    Answered,
    AnsweredCall,
    CallDecided,
    ItemEvent,
    StatusChanged,
    ToolCallChunk,
    ToolCalls,
    ToolEnded,
    ToolsReturned,
    ToolStarted,
    decode,
)
from shared.domain.ids import RunId
from shared.domain.tools import ClientTool
from shared.redis.event_log import EventLog
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.runs.folded_items import FoldedItems
from tests.kit.runs.item_runs import log_of, submit_run
from tests.kit.tools import ROLL_DICE
from tests.kit.wait_until import wait_until
from tests.story.test_what_runs_was_approved import a_product

GATED, FREE, CLIENTS = "core_memory_append", "memory_insert", "sensor"
SENSOR = ClientTool(name=CLIENTS, description="Reads.", parameters={"type": "object", "properties": {}})
WRITTEN = {GATED: {"label": "log", "content": "word"}, FREE: {"label": "log", "new_string": "word"}}
OF_THEIR_RUN = ("id", "run_id", "seq_id", "otid", "date", "step_id", "tool_call_id")

pytestmark = pytest.mark.timeout(600)


async def agent_with(product: Product, *, gated: bool = True) -> str:
    rules = [{"type": "requires_approval", "tool_name": GATED}] if gated else []
    made = await product.http.post(
        "/v1/agents",
        json={
            "model": "openai/gpt-4o-mini", "include_base_tools": False, "tools": [GATED, FREE], "tool_rules": rules,
            "memory_blocks": [{"label": "log", "value": ""}],
        },
    )  # fmt: skip
    return made.json()["id"]


def turn_of(names: Sequence[str], **fields: Any) -> Turn:
    """An answer that says something and calls these tools."""
    return Turn(text="I will do that.", calls=[Call(name, WRITTEN.get(name, {})) for name in names], **fields)


def without_names(value: Any) -> Any:
    """A frame, or a part of it, without what is different in every run."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: without_names(one) for key, one in fields.items() if key not in OF_THEIR_RUN}
    return [without_names(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


@pytest.mark.parametrize("stream_tokens", [True, False], ids=["tokens", "steps"])
async def test_lettas_readers_see_the_same_frames(product: Product, models: ModelServer, stream_tokens: bool) -> None:
    """In a run that asks for these events, pings stand in their places. Any other run's log has none of them."""
    shown: dict[bool, list[Any]] = {}
    for item_events in (False, True):
        agent_id = await agent_with(product, gated=False)
        models.play(turn_of([FREE, GATED]), Turn(text="Done."))
        run_id = await submit_run(product, agent_id, item_events=item_events, stream_tokens=stream_tokens)
        log = await log_of(product, run_id)
        assert any(isinstance(event, get_args(ItemEvent)) for event in log) is item_events
        reader = await read_whole(product.http, run_id)
        reader.assert_complete()
        shown[item_events] = [without_names(frame) for frame in reader.frames if frame["message_type"] != "ping"]
        if not item_events:
            assert reader.seq_ids == list(range(1, len(log) + 2)), "every number is a frame"
    assert shown[True] == shown[False]


@pytest.mark.parametrize("stream_tokens", [True, False], ids=["tokens", "steps"])
async def test_each_tool_starts_and_ends_by_itself(product: Product, models: ModelServer, stream_tokens: bool) -> None:
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    models.play(
        Turn(calls=[Call("roll_dice", {"num_sides": 6}), Call("roll_dice", {"num_sides": "?"})]), Turn(text="6")
    )
    log = await log_of(product, await submit_run(product, agent.id, item_events=True, stream_tokens=stream_tokens))

    folded = FoldedItems(log)
    assert folded.broken == []
    [called, spoken] = [event for event in log if isinstance(event, Answered)]
    assert (called.reason, spoken.reason) == ("tool_calls", "stop")
    [first, second] = called.calls
    assert first == AnsweredCall(first.call_id, "roll_dice"), "what was shown of its arguments is the last word"
    happened = [event for event in log if isinstance(event, ToolStarted | ToolEnded | ToolsReturned)]
    assert [type(event) for event in happened] == [ToolStarted, ToolEnded, ToolsReturned], "one was refused"
    ended = next(event for event in log if isinstance(event, ToolEnded))
    assert (ended.call_id, ended.status, ended.text, ended.characters) == (first.call_id, "success", "6", 1)
    assert second.call_id not in folded.unanswered


async def test_who_answers_a_call_and_what_was_decided_stands_in_the_log(product: Product, models: ModelServer) -> None:
    agent_id = await agent_with(product)
    for stream_tokens in (True, False):
        models.play(turn_of([GATED, CLIENTS, FREE]))
        options = {"item_events": True, "stream_tokens": stream_tokens, "client_tools": [SENSOR]}
        run_id = await submit_run(product, agent_id, **options)
        log = await log_of(product, run_id)
        opened = [event for event in log if isinstance(event, ToolCallChunk | ToolCalls) and event.answered_by]
        assert len(opened) == (2 if stream_tokens else 1)
        [answered] = [event for event in log if isinstance(event, Answered)]
        by = {call.name: call.answered_by for call in answered.calls}
        assert by == {GATED: "person", CLIENTS: "client", FREE: "worker"}

        continuation = ""
        waiting = (await product.http.get("/v1/approvals", params={"agent_id": agent_id})).json()
        edited = '{"label": "log", "content": "edited"}'
        for one in waiting:
            body: dict[str, Any] = {"decision": "tool_return", "tool_return": "warm"}
            if not one["client_side"]:
                body = {"decision": "approve", "arguments": {"label": "log", "content": "edited"}, "decided_by": "ada"}
            models.play(Turn(text="Done.")) if one is waiting[-1] else None
            decided = (await product.http.post(f"/v1/approvals/{one['id']}", json=body)).json()
            continuation = (decided["run"] or {"id": ""})["id"]
        log = await log_of(product, continuation)
        [shown] = [event for event in log if isinstance(event, CallDecided)]
        asked = next(one for one in waiting if not one["client_side"])
        assert log[0] is shown, "the run that continues begins with it"
        assert (shown.call_id, shown.name, shown.approval_id) == (asked["tool_call_id"], GATED, asked["id"])
        assert (shown.verdict, shown.decided_by) == ("edited", "ada")
        assert shown.arguments.replace(" ", "") == edited.replace(" ", "")
        assert FoldedItems(log).broken == []


async def test_an_answer_that_the_model_had_more_to_say_of_ends_with_the_reason(
    product: Product, models: ModelServer
) -> None:
    agent_id = await agent_with(product, gated=False)
    models.play(turn_of([], finish="length"))
    log = await log_of(product, await submit_run(product, agent_id, item_events=True, status_events=True))
    assert isinstance(log[0], StatusChanged)
    assert [event.reason for event in log if isinstance(event, Answered)] == ["length"]
    assert FoldedItems(log).broken == []


async def test_a_cancel_in_a_tool_leaves_nothing_open(product: Product, models: ModelServer) -> None:
    agent = await product.agent(tools=[await product.tool(ROLL_DICE.replace("return", "while True: pass\n    return"))])
    models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6})]))
    run_id = await submit_run(product, agent.id, item_events=True, stream_tokens=True)

    async def has_started() -> bool:
        entries = await EventLog(product.context.redis, ttl_s=60).read(RunId(run_id), FIRST_SEQ, limit=None)
        return any(isinstance(decode(entry), ToolStarted) for _, entry in entries)

    await wait_until(has_started, description="readers to see that the tool starts")
    await product.http.post(f"/v1/runs/{run_id}/cancel")
    log = await log_of(product, run_id)
    assert not any(isinstance(event, ToolEnded) for event in log)
    folded = FoldedItems(log)
    assert (folded.broken, folded.unanswered, folded.cut_off) == ([], set(), set())


Cut = Literal["no", "in the answer", "behind the answer"]


async def play(product: Product, answers: list[list[str]], verdicts: list[bool], *, tokens: bool, cut: Cut) -> None:
    """One run of an agent, and those that follow its decisions: every log keeps the promises."""
    agent_id = await agent_with(product)
    silent = {"silent_after": 2} if cut == "in the answer" else {}
    turns = iter([turn_of(names, **silent) for names in answers])
    # Not played: turns that a cancel leaves over are not to come in the next example.
    product.models.answer_with(lambda _: next(turns, Turn(text="Done.")))
    asked = len(product.models.requests)
    run_id = await submit_run(
        product, agent_id, item_events=True, stream_tokens=tokens, client_tools=[SENSOR], max_steps=len(answers) + 1
    )
    if cut != "no":
        if cut == "in the answer":
            await wait_until(lambda: len(product.models.requests) > asked, description="the model to be asked")
        await product.http.post(f"/v1/runs/{run_id}/cancel")
    logs = [await log_of(product, run_id)]
    for approve in verdicts:
        waiting = (await product.http.get("/v1/approvals", params={"agent_id": agent_id})).json()
        decided: dict[str, Any] = {}
        for one in waiting:
            body: dict[str, Any] = {"decision": "approve" if approve else "deny"}
            if one["client_side"]:
                body = {"decision": "tool_return", "tool_return": "warm"}
            decided = (await product.http.post(f"/v1/approvals/{one['id']}", json=body)).json()
        if waiting:
            logs.append(await log_of(product, decided["run"]["id"]))
            made = {event.call_id for event in logs[-1] if isinstance(event, CallDecided)}
            assert made == {one["tool_call_id"] for one in waiting if not one["client_side"]}
    for log in logs:
        assert FoldedItems(log).broken == [], log


@pytest.mark.parametrize("examples", [12, pytest.param(150, marks=pytest.mark.exhaustive)])
def test_every_log_can_be_folded(sqlite_url: str, examples: int) -> None:
    names = st.lists(st.sampled_from([GATED, FREE, FREE, CLIENTS]), max_size=3)
    with asyncio.Runner() as runner:
        products = a_product(sqlite_url)
        product = runner.run(products.__aenter__())

        @settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        @given(
            answers=st.lists(names.filter(bool), max_size=3),
            verdicts=st.lists(st.booleans(), max_size=3),
            tokens=st.booleans(),
            cut=st.sampled_from(get_args(Cut)),
        )
        def every_example(answers: Any, verdicts: Any, tokens: Any, cut: Any) -> None:
            runner.run(play(product, answers, verdicts, tokens=tokens, cut=cut))

        try:
            every_example()
        finally:
            runner.run(products.__aexit__(None, None, None))
