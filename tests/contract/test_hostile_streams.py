"""Whatever a provider sends, on each wire: an answer, or an error of ours that says so. Nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import ModelError
from tests.kit.hostile_values import bounded, mutated, texts
from tests.kit.model_server import Call, ModelServer, Turn, anthropic_messages, gemini, openai_chat, openai_responses
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    CHAT,
    GOOGLE,
    RESPONSES,
    ask,
    call,
    calls_made,
    ending,
    models_on_server,
    text_said,
    thoughts,
)
from worker.models.registry import Models

WIRES: dict[str, Any] = {
    CHAT: openai_chat,
    RESPONSES: openai_responses,
    ANTHROPIC: anthropic_messages,
    GOOGLE: gemini,
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
"""SDKs warn of what they do not know or cannot read, and go on."""

TURN = Turn(reasoning="Two and two.", text="I add them up.", calls=[Call("add", {"a": 2, "b": 2})])
WAYS = ["wrong", "wrong", "wrong", "gone", "double", "elsewhere", "cut", "huge", "garbage"]
HUGE = "x" * 300_000


def whole(handle: str) -> list[bytes]:
    """The events of an answer as the provider sends them."""
    stream = b"".join(frame.data for frame in WIRES[handle].frames(TURN, {"model": "m"}, 1))
    return [event + b"\n\n" for event in stream.split(b"\n\n") if event]


@st.composite
def wrong_event(draw: st.DrawFn, event: bytes) -> bytes:
    """The event with something else in its JSON, or something else than JSON."""
    name, found, text = event.partition(b"data: ")
    if not found or not text.startswith(b"{") or draw(st.integers(0, 9)) == 0:
        return event[: draw(st.integers(0, len(event)))] + draw(st.binary(max_size=20))
    try:
        changed = draw(mutated(json.loads(text)))
    except ValueError:
        return event  # changed before: it is cut off, or no text
    return name + b"data: " + json.dumps(changed).encode() + b"\n\n"


@st.composite
def wrong_stream(draw: st.DrawFn, events: list[bytes]) -> list[bytes]:
    """The stream with one to three events wrong, gone, doubled or in another place; or cut off."""
    changed = list(events)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(changed) - 1))
        match draw(st.sampled_from(WAYS)):
            case "gone" if len(changed) > 1:
                del changed[place]
            case "double":
                changed.insert(place, changed[place])
            case "elsewhere":
                changed.insert(draw(st.integers(0, len(changed) - 1)), changed.pop(place))
            case "cut":
                changed = [*changed[:place], changed[place][: draw(st.integers(1, len(changed[place])))]]
            case "huge":
                changed[place] = changed[place].replace(b"add", HUGE.encode()).replace(b"Two", HUGE.encode())
            case "garbage":
                changed.insert(place, draw(st.one_of(st.binary(max_size=50), texts.map(as_bytes))))
            case _:
                changed[place] = draw(wrong_event(changed[place]))
    return changed


def as_bytes(text: str) -> bytes:
    return b"data: " + text.encode("utf-8", "surrogatepass") + b"\n\n"


async def answered(server: ModelServer, models: Models, handle: str, events: list[bytes]) -> None:
    """Asks a server that answers so. Fails when anything but an answer or a `ModelError` comes of it."""
    server.play(Turn(raw=tuple(event for event in events if event)))
    try:
        found = await ask(models, call(handle, tools=[ADD]))
    except ModelError as error:
        error.message.encode()
        assert len(error.message) < 5_000
        return
    usage = ending(found).usage
    assert min(usage.prompt_tokens, usage.completion_tokens) >= 0
    # What an answer holds is stored, and shown as JSON.
    for text in (text_said(found), thoughts(found), *(one.arguments + one.name for one in calls_made(found))):
        text.encode()


@pytest.mark.parametrize("handle", WIRES)
async def test_the_stream_that_is_spoilt_is_an_answer_before(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(raw=tuple(whole(handle))))
        found = await ask(models, call(handle, tools=[ADD]))
    assert text_said(found) == "I add them up."
    assert [json.loads(one.arguments) for one in calls_made(found)] == [{"a": 2, "b": 2}]


@pytest.mark.parametrize("handle", WIRES)
@bounded(25)
@given(data=st.data())
async def test_any_stream(handle: str, data: st.DataObject) -> None:
    async with models_on_server() as (server, models):
        await answered(server, models, handle, data.draw(wrong_stream(whole(handle))))


async def test_a_usage_that_is_half_there_was_a_warning_past_the_logs() -> None:
    """Found by fuzzing with seed 100: when its first event is cut off, the answer's usage has no `input_tokens`."""
    async with models_on_server() as (server, models):
        await answered(server, models, ANTHROPIC, [b"event: message_sta", *whole(ANTHROPIC)[1:]])


@pytest.mark.parametrize("handle", WIRES)
async def test_a_deep_event_of_a_provider_was_an_error_of_the_worker(handle: str) -> None:
    async with models_on_server() as (server, models):
        deep = b'data: {"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"
        await answered(server, models, handle, [*whole(handle)[:2], deep])


@pytest.mark.parametrize("handle", WIRES)
async def test_a_stream_that_is_cut_off_anywhere(handle: str) -> None:
    stream = b"".join(whole(handle))
    async with models_on_server() as (server, models):
        for length in range(1, len(stream), max(1, len(stream) // 20)):
            await answered(server, models, handle, [stream[:length]])
