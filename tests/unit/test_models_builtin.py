"""The offline models: what they say, at which pace, and how a script is written."""

import json
import subprocess
import sys
import time
import tracemalloc
from contextlib import aclosing, suppress
from typing import Any

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import AssistantMessage, ToolCall, ToolReturns, UserMessage
from tests.kit.model_server.model_calls import ask, call, calls_made, ending, history, returned, text_said, thoughts
from worker.models.builtin import LONGEST_ANSWER
from worker.models.provider import CallArguments, CallStarted, ModelCall, ModelEvent, Text
from worker.models.registry import Models

SCRIPTED = "builtin/scripted"


class Pauses:
    """A sleep that only writes down how long it was asked to."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def _models(pauses: Pauses) -> Models:
    return Models({}, first_event_timeout=180, idle_timeout=180, retries=2, builtin_models=True, clock_sleep=pauses)


async def _played(asked: ModelCall) -> list[ModelEvent]:
    return await ask(_models(Pauses()), asked)


def _script(*turns: dict[str, Any], **rest: Any) -> str:
    return json.dumps({"turns": turns, **rest})


async def test_echo_says_what_the_user_said() -> None:
    pauses = Pauses()
    events = await ask(_models(pauses), call("builtin/echo", "good  morning"))
    assert text_said(events) == "You said: good  morning"
    assert [pause for pause in pauses.seconds if pause] == [0.01] * 4
    usage = ending(events).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (6, 6)
    assert ending(events).reason == "stop"


async def test_slow_gives_time_to_cancel() -> None:
    pauses = Pauses()
    events = await ask(_models(pauses), call("builtin/slow", "Hi."))
    assert text_said(events).startswith("You said: Hi. 1 2 3 ")
    assert text_said(events).endswith(" 199 200")
    assert sum(pauses.seconds) > 15


async def test_scripted_explains_itself() -> None:
    said = text_said(await _played(call(SCRIPTED, "What can you do?")))
    assert '{"turns"' in said
    assert "first_delay_ms" in said


async def test_a_script_is_played_turn_by_turn() -> None:
    script = _script({"text": "Looking.", "calls": [{"name": "find", "arguments": {"x": 1}}]}, {"text": "Found."})
    first = await _played(call(SCRIPTED, script))
    [made] = calls_made(first)
    assert text_said(first) == "Looking."
    assert CallStarted(0, made.call_id, "find") in first
    assert CallArguments(0, '{"x":1}') in first
    assert ending(first).reason == "tool_calls"
    messages = history(
        UserMessage(script),
        AssistantMessage(text="Looking.", tool_calls=[ToolCall(made.call_id, "find", "{}")]),
        ToolReturns([returned(made.call_id, "1")]),
    )
    second = await _played(call(SCRIPTED, messages))
    assert text_said(second) == "Found."
    messages = [*messages, *history(AssistantMessage(text="Found."))]
    assert "no more turns" in text_said(await _played(call(SCRIPTED, messages)))


async def test_the_last_turn_can_be_played_for_ever() -> None:
    script = _script({"text": "One."}, {"text": "Again."}, loop=True)
    messages = history(UserMessage(script), *[AssistantMessage(text="…")] * 5)
    assert text_said(await _played(call(SCRIPTED, messages))) == "Again."


async def test_calls_of_different_turns_have_different_ids() -> None:
    script = _script({"calls": [{"name": "a"}, {"name": "a"}]}, loop=True)
    first = calls_made(await _played(call(SCRIPTED, script)))
    second = calls_made(await _played(call(SCRIPTED, history(UserMessage(script), AssistantMessage()))))
    assert len({made.call_id for made in [*first, *second]}) == 4
    assert first == calls_made(await _played(call(SCRIPTED, script))), "the same when a step is played again"


async def test_a_fenced_script_stands_between_other_words() -> None:
    fenced = "Please play:\n```script\n" + _script({"text": "Played.", "reasoning": "As asked."}) + "\n```\nThanks."
    events = await _played(call(SCRIPTED, fenced))
    assert (thoughts(events), text_said(events)) == ("As asked.", "Played.")


async def test_pauses_and_repeats() -> None:
    pauses = Pauses()
    script = _script({"text": "tick ", "repeat": 3, "delay_ms": 20, "first_delay_ms": 500})
    events = await ask(_models(pauses), call(SCRIPTED, script))
    assert text_said(events) == "tick tick tick "
    assert pauses.seconds == [0.5, 0.02, 0.02, 0.02]


@pytest.mark.parametrize(
    ("name", "error_type"),
    [
        ("rate_limit", ModelErrorType.RATE_LIMIT),
        ("auth", ModelErrorType.AUTHENTICATION),
        ("server", ModelErrorType.ERROR),
        ("timeout", ModelErrorType.TIMEOUT),
        ("context", ModelErrorType.CONTEXT_WINDOW),
    ],
)
async def test_scripted_errors(name: str, error_type: ModelErrorType) -> None:
    events: list[ModelEvent] = []
    with pytest.raises(ModelError) as caught:
        async for event in _models(Pauses()).stream(
            call(SCRIPTED, _script({"text": "a b c d", "error": name, "error_after": 2}))
        ):
            events.append(event)
    assert caught.value.error_type == error_type
    assert text_said(events) == "a b "
    with pytest.raises(ModelError):
        await _played(call(SCRIPTED, _script({"error": name})))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("```script\n", ""),
        ("```scripted is not it, ```script  \t\n", "``` and ```script\n{}```"),
        ("```script ```script\n\n", "\n```"),
    ],
)
async def test_a_fence_is_found_where_it_begins(before: str, after: str) -> None:
    assert text_said(await _played(call(SCRIPTED, before + _script({"text": "Played."}) + after))) == "Played."


async def test_a_word_in_backticks_is_no_script() -> None:
    assert "plays a script" in text_said(await _played(call(SCRIPTED, "What is a ```script``` in here?")))


NESTED = '{"turns": [{"calls": [{"name": "a", "arguments": {"a": ' + "[" * 20_000 + "]" * 20_000 + "}}]}]}"


@pytest.mark.parametrize(
    "script",
    [
        "{",
        '{"turns": [{"txt": "a"}]}',
        '{"turns": [{"delay_ms": -1}]}',
        '{"a": 1}',
        NESTED,
        '{"turns": [{"' + "x" * 40_000 + '": 1}]}',
        '{"turns": [{"repeat": ' + "9" * 40_000 + "}]}",
        '{"turns": [{"text": "\ud800"}]}',
    ],
    ids=lambda script: script[:20],
)
async def test_a_script_that_cannot_be_read_says_why(script: str) -> None:
    with pytest.raises(ModelError, match="cannot be read") as caught:
        await _played(call(SCRIPTED, script))
    assert caught.value.error_type == ModelErrorType.BAD_REQUEST
    assert len(caught.value.message) < 2000


@pytest.mark.parametrize(
    ("script", "limit"),
    [
        (_script({"text": "a ", "repeat": 1_000_000_000}), "1000000"),
        (_script({"text": "a ", "repeat": 600_000}), "1000000"),
        (_script({"text": "a ", "repeat": 600_000}, {"text": "Never reached."}), "1000000"),
        (_script({"text": "a ", "error_after": 2_000_000}), "1000000"),
        (_script({"delay_ms": 600_001}), "600000"),
        (_script({"first_delay_ms": 3_500_000}), "600000"),
        (_script({"calls": [{"name": "a"}] * 129}), "128"),
        (_script(*[{"text": "a"}] * 1001), "1000"),
        (_script({"text": "a" * 50_000}), "50000"),
        ("```script" + "\n" * 100_000, "50000"),
    ],
    ids=lambda value: value[:50] if len(value) < 60 else "long",
)
async def test_a_script_over_a_limit_is_refused_with_the_limit(script: str, limit: str) -> None:
    with pytest.raises(ModelError, match=limit) as caught:
        await _played(call(SCRIPTED, script))
    assert caught.value.error_type == ModelErrorType.BAD_REQUEST


async def test_an_unclosed_fence_took_the_worker_with_it() -> None:
    """The search for the closing fence went back to every line break: 40 s for 100,000 of them, with the loop held."""
    shapes = ["```script" + "\n" * 49_000, "```script " * 4_900, "```" * 16_000, "```script\n" * 4_900, " " * 49_000]
    began = time.process_time()
    for shape in shapes:
        with suppress(ModelError):
            await _played(call(SCRIPTED, shape))
    assert time.process_time() - began < 10


async def test_a_repeated_text_took_the_workers_memory() -> None:
    """All words of an answer stood in one list, twice: 62 bytes for each, and `repeat` had no limit."""
    models = _models(Pauses())
    tracemalloc.start()
    try:
        async with aclosing(models.stream(call(SCRIPTED, _script({"text": "a ", "repeat": 500_000})))) as events:
            assert await anext(events) == Text("a ")
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


async def test_tokens_of_a_long_answer_are_counted_as_it_goes() -> None:
    script = _script({"text": "tick ", "reasoning": "a b ", "repeat": 2000})
    events = await _played(call(SCRIPTED, script))
    usage = ending(events).usage
    assert (usage.reasoning_tokens, usage.completion_tokens) == (1, 2501)
    assert len(events) == 2003


async def test_an_answer_never_has_more_than_a_provider_would_give() -> None:
    long_word = "w" * 1_999 + " "
    events = [event async for event in _models(Pauses()).stream(call("builtin/echo", long_word * 600))]
    assert ending(events).reason == "length"
    assert LONGEST_ANSWER <= len(text_said(events)) < LONGEST_ANSWER + len(long_word), "and the word that went over it"


async def test_an_endless_word_comes_in_pieces() -> None:
    events = await _played(call("builtin/echo", "x" * 5_000 + " " * 5_000 + "y"))
    assert text_said(events) == "You said: " + "x" * 5_000 + " " * 5_000 + "y"
    assert all(len(event.text) <= 2_000 for event in events if isinstance(event, Text))


@pytest.mark.parametrize("turn", [{"text": "late", "first_delay_ms": 600_000}, {"text": "late", "delay_ms": 600_000}])
async def test_a_script_held_a_place_of_a_worker_for_an_hour(turn: dict[str, Any]) -> None:
    models = Models({}, first_event_timeout=0.05, idle_timeout=180, retries=3, builtin_models=True)
    with pytest.raises(ModelError, match=r"no event within 0\.05 s") as caught:
        await ask(models, call(SCRIPTED, _script(turn)))
    assert caught.value.error_type == ModelErrorType.TIMEOUT


async def test_a_pause_in_the_middle_is_silence_too() -> None:
    models = Models({}, first_event_timeout=180, idle_timeout=0.05, retries=0, builtin_models=True)
    events: list[ModelEvent] = []
    with pytest.raises(ModelError, match="silent in the middle"):
        async for event in models.stream(call(SCRIPTED, _script({"text": "a b", "delay_ms": 300}))):
            events.append(event)
    assert text_said(events) == "a "


async def test_they_are_off_unless_asked_for() -> None:
    models = Models({}, first_event_timeout=180, idle_timeout=180, retries=0)
    for handle in ("builtin/echo", "builtin/slow", SCRIPTED):
        with pytest.raises(ModelError, match="HOLDFAST_BUILTIN_MODELS") as caught:
            await ask(models, call(handle))
        assert caught.value.error_type == ModelErrorType.BAD_REQUEST


async def test_an_answer_can_be_limited() -> None:
    events = await _played(call("builtin/echo", "one two three", max_output_tokens=3))
    assert text_said(events) == "You said: one "
    assert ending(events).reason == "length"


async def test_there_is_no_other_builtin_model() -> None:
    with pytest.raises(ModelError, match="builtin/echo"):
        await _played(call("builtin/parrot"))


def test_no_sdk_is_imported_for_them() -> None:
    code = """
import asyncio, sys
from tests.kit.model_server.model_calls import ask, call
from worker.models.registry import Models
models = Models({}, first_event_timeout=180, idle_timeout=180, retries=0, builtin_models=True)
asyncio.run(ask(models, call("builtin/echo", "x")))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"pydantic_ai", "openai", "anthropic", "google"}))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
