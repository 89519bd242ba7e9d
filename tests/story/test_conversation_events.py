"""One stream per conversation: everything that happens in it, over all its runs, the same for every reader."""

import asyncio
from typing import Any

import pytest

from tests.kit.model_server import Turn
from tests.kit.model_server.turn import FOREVER
from tests.kit.product import Product
from tests.kit.product.conversation_reader import place_of, read_conversation, reading_conversation
from tests.kit.product.waiting_calls import WaitingCalls, waiting_calls
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product


async def begin(product: Product) -> str:
    agent = await product.agent()
    return (await product.client.conversations.create(agent_id=agent.id)).id


async def say(product: Product, conversation: str, text: str, **fields: Any) -> None:
    body = {"messages": [{"role": "user", "content": text, **fields}], "streaming": False}
    answer = await product.http.post(f"/v1/conversations/{conversation}/messages", json=body)
    assert answer.status_code == 200, answer.text


async def parked(product: Product) -> WaitingCalls:
    """An agent whose own history has a run that waits for a person."""
    return await waiting_calls(product, "moon")


async def whole(product: Product, conversation: str, agent: str | None = None) -> list[bytes]:
    reader = await read_conversation(product.http, conversation, agent=agent)
    return reader.placed


async def test_a_reader_sees_every_run_of_the_conversation_as_it_comes(product: Product) -> None:
    conversation = await begin(product)
    product.models.say("One.")
    await say(product, conversation, "first", otid="mine")

    async with reading_conversation(product.http, conversation) as reader:
        await reader.until("caught_up")
        product.models.say("Two.")
        await say(product, conversation, "second")
        await reader.until("run_ended", 2)

    assert reader.text == "One.Two."
    first, second = reader.notes("run_started")
    assert [(one["turn"], one["leg"]) for one in (first, second)] == [(first["turn"], 0), (first["turn"] + 1, 0)]
    assert [(one["otid"], one["content"]) for one in first["input"]] == [("mine", "first")]
    assert [one["content"] for one in second["input"]] == ["second"]
    assert [(one["status"], one["stop_reason"]) for one in reader.notes("run_ended")] == [("completed", "end_turn")] * 2
    assert reader.kinds.index("caught_up") == reader.kinds.index("run_ended") + 1
    assert [place_of(one) for one in reader.cursors] == sorted(map(place_of, reader.cursors))
    assert len(set(reader.cursors)) == len(reader.cursors)
    assert all(
        frame["cursor"] == cursor for frame, cursor in zip(placed_frames(reader.frames), reader.cursors, strict=True)
    )


def placed_frames(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [frame for frame in frames if "cursor" in frame]


async def test_live_and_later_readers_and_those_of_every_cursor_get_the_same_bytes(product: Product) -> None:
    conversation = await begin(product)
    async with reading_conversation(product.http, conversation) as live:
        await live.until("caught_up")
        for text in ("first", "second"):
            product.models.say("An answer in several words.")
            await say(product, conversation, text)
        await live.until("run_ended", 2)

    later = await read_conversation(product.http, conversation)

    assert later.placed == live.placed
    assert later.kinds[-2:] == ["caught_up", "end"]
    assert later.notes("caught_up") == [{"cursor": later.cursors[-1], "running": None, "queued": [], "waiting": []}]
    for number, cursor in enumerate(later.cursors, start=1):
        tail = await read_conversation(product.http, conversation, after=cursor)
        assert tail.placed == later.placed[number:], cursor


async def test_an_answered_approval_is_told_from_an_open_one_in_every_replay(product: Product) -> None:
    asked = await parked(product)
    async with reading_conversation(product.http, "default", agent=asked.agent_id) as live:
        await live.until("caught_up")
        open_still = await read_conversation(product.http, asked.agent_id)
        product.models.say("Launched.")
        await asked.decide(reason="all set", decided_by="ada")
        await live.until("run_ended", 2)

    assert open_still.kinds[-3:] == ["run_ended", "caught_up", "end"]
    assert open_still.notes("caught_up")[0]["waiting"] == asked.ids
    [stopped] = open_still.notes("run_ended")
    assert (stopped["status"], stopped["stop_reason"]) == ("awaiting_approval", "requires_approval")
    assert [one["id"] for one in stopped["approvals"]] == asked.ids
    replay = await read_conversation(product.http, asked.agent_id)
    assert replay.placed == live.placed
    assert replay.placed[: len(open_still.placed)] == open_still.placed
    first, second = replay.notes("run_started")
    assert (first["leg"], second["leg"], second["turn"]) == (0, 1, first["turn"])
    assert (second["continues"], second["input"]) == (asked.run_id, [])
    [resolved] = replay.notes("approvals_resolved")
    [decided] = resolved["decisions"]
    assert (decided["decision"], decided["reason"], decided["decided_by"]) == ("approve", "all set", "ada")
    assert second["decisions"] == [decided]
    resolved_at = replay.kinds.index("approvals_resolved")
    assert replay.kinds[resolved_at - 1 : resolved_at + 2] == ["run_ended", "approvals_resolved", "run_started"]
    assert replay.notes("caught_up")[0]["waiting"] == []


async def test_a_reader_of_notes_gets_every_note_and_no_frame_of_a_run(product: Product) -> None:
    asked = await parked(product)
    product.models.say("Launched.")
    await asked.decide()
    whole = await read_conversation(product.http, asked.agent_id)
    frames = [frame for frame in placed_frames(whole.frames) if frame["message_type"] == "event_message"]

    notes = await read_conversation(product.http, asked.agent_id, only_notes=True)
    assert placed_frames(notes.frames) == frames
    assert [frame["event_type"] for frame in frames].count("run_ended") == 2
    assert notes.kinds[-2:] == ["caught_up", "end"]
    rest = await read_conversation(product.http, asked.agent_id, after=frames[1]["cursor"], only_notes=True)
    assert placed_frames(rest.frames) == frames[2:]


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"decision": "deny", "reason": "no"}, "deny"),
        ({"decision": "approve", "arguments": {"target": "mars"}}, "approve"),
    ],
)
async def test_the_frames_say_how_each_call_was_decided(product: Product, fields: dict[str, Any], verdict: str) -> None:
    asked = await parked(product)
    product.models.say("So be it.")
    seen = {"arguments_hash": asked.approvals[0]["arguments_hash"]}
    status, answer = await asked.decide(**fields, **seen)
    assert status == 200
    await product.ended(answer["run"]["id"])

    replay = await read_conversation(product.http, asked.agent_id)

    [decided] = replay.notes("approvals_resolved")[0]["decisions"]
    assert (decided["decision"], decided["tool_call_id"]) == (verdict, "call_0")
    assert decided["edited"] is ("arguments" in fields)


async def test_a_cancelled_approval_is_resolved_although_no_run_follows(product: Product) -> None:
    asked = await parked(product)
    async with reading_conversation(product.http, asked.agent_id) as live:
        await live.until("caught_up")
        await product.client.agents.messages.cancel(asked.agent_id)
        await live.until("approvals_resolved")

    [decided] = live.notes("approvals_resolved")[0]["decisions"]
    assert decided["decision"] == "cancelled"
    assert live.notes("run_ended")[0]["status"] == "awaiting_approval", "what became of it is no matter of this frame"
    product.models.say("Here.")
    await product.client.agents.messages.create(asked.agent_id, input="Still there?")
    replay = await read_conversation(product.http, asked.agent_id)
    assert replay.placed[: len(live.placed)] == live.placed
    assert replay.text.endswith("Here.")


async def test_a_reader_in_the_middle_of_an_answer_is_told_that_it_has_caught_up(product: Product) -> None:
    conversation = await begin(product)
    seen = asyncio.Event()
    product.models.play(Turn(text="Once upon a time", silent_after=2, resume=seen))
    body = {"messages": [{"role": "user", "content": "Tell."}], "background": True, "stream_tokens": True}
    async with (
        product.http.stream("POST", f"/v1/conversations/{conversation}/messages", json=body),
        reading_conversation(product.http, conversation) as live,
    ):
        await wait_until(lambda: live.text == "Once upon", description="the beginning of the answer")
        async with reading_conversation(product.http, conversation, after="now") as late:
            await late.until("caught_up")
            seen.set()
            await live.until("run_ended")
            await late.until("run_ended")

    [begun] = [frame for frame in live.frames if frame.get("event_type") == "run_started"]
    assert late.notes("caught_up")[0]["running"] == begun["run_id"]
    assert (live.text, late.text) == ("Once upon a time", " a time")
    assert live.placed[-len(late.placed) :] == late.placed


@pytest.mark.parametrize(
    "cursor", ["1", "1.2", "a.b.c", "1.2.3.4", "-1.0.0", "1.0.99999999999999999999", "9999999999.0.1"]
)
async def test_a_cursor_that_no_frame_has_is_refused_by_name(product: Product, cursor: str) -> None:
    conversation = await begin(product)
    path = f"/v1/conversations/{conversation}/events"

    by_query = await product.http.get(path, params={"after": cursor})
    by_header = await product.http.get(path, headers={"Last-Event-ID": cursor})

    assert (by_query.status_code, by_header.status_code) == (422, 422)
    assert (by_query.json()["field"], by_header.json()["field"]) == ("query.after", "header.Last-Event-ID")
    assert "3.0.17" in by_query.text


async def test_a_browser_that_comes_back_goes_on_where_it_was(product: Product) -> None:
    """It repeats its first query, in which `after` is older than the frame that it has seen last."""
    conversation = await begin(product)
    for text in ("first", "second"):
        product.models.say("Yes.")
        await say(product, conversation, text)
    seen = await read_conversation(product.http, conversation)

    path, last = f"/v1/conversations/{conversation}/events", seen.cursors[-2]
    params = {"after": seen.cursors[1], "follow": "false"}
    answer = await product.http.get(path, params=params, headers={"Last-Event-ID": last})

    assert [line for line in answer.text.split("\n") if line.startswith("id: ")] == [f"id: {seen.cursors[-1]}"]


async def test_the_stream_of_a_deleted_conversation_ends(product: Product) -> None:
    conversation = await begin(product)
    async with reading_conversation(product.http, conversation) as reader:
        await reader.until("caught_up")
        await product.http.delete(f"/v1/conversations/{conversation}")
        await wait_until(lambda: reader.done, description="the stream to end")
    assert reader.kinds == ["caught_up", "end"]


async def test_a_run_that_is_cancelled_in_the_queue_is_shown_behind_the_one_before(product: Product) -> None:
    """Its message is in the history; a reader of the conversation has to see it too."""
    agent = await product.agent()
    seen = asyncio.Event()
    product.models.play(Turn(text="First.", silent_before_headers=FOREVER, resume=seen))
    first = await product.client.agents.messages.create_async(agent.id, input="first")
    await wait_until(lambda: product.models.requests, description="the model to be asked")
    second = await product.client.agents.messages.create_async(agent.id, input="second")
    async with reading_conversation(product.http, agent.id) as live:
        await live.until("caught_up")
        assert live.notes("caught_up")[0]["queued"] == [second.id]
        await product.client.agents.messages.cancel(agent.id, run_ids=[second.id])
        seen.set()
        await live.until("run_ended", 2)

    assert [frame["run_id"] for frame in live.frames if frame.get("event_type") == "run_started"] == [
        first.id,
        second.id,
    ]
    assert [one["status"] for one in live.notes("run_ended")] == ["completed", "cancelled"]
    assert await whole(product, agent.id) == live.placed


async def test_conversations_of_one_agent_see_nothing_of_each_other(product: Product) -> None:
    agent = await product.agent()
    one, other = [(await product.client.conversations.create(agent_id=agent.id)).id for _ in range(2)]
    product.models.say("For one.")
    await say(product, one, "to one")

    assert await whole(product, other) == []
    assert await whole(product, "default", agent.id) == []
    assert len(await whole(product, one)) > 2
