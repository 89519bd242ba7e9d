"""A model that is given the beginning of its answer: what each wire is sent for it, and what comes back."""

from typing import Any

import msgspec
import pytest

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import estimate_tokens
from shared.domain.models import continues_answers
from tests.kit.model_server import Break, Failure, Turn
from tests.kit.model_server.model_calls import GOOGLE, ask, call, ending, models_on_server, text_said
from worker.models.provider import AttemptFailed, ModelCall
from worker.models.registry import Models

CLAUDE = "anthropic/claude-haiku-4-5"
SAID = "One, two,"


def begun(handle: str, text: str = "Count to four.") -> ModelCall:
    return msgspec.structs.replace(call(handle, text, reasoning=False), beginning=SAID)


async def sent(handle: str) -> dict[str, Any]:
    """The body of the request."""
    async with models_on_server() as (server, models):
        server.say(" three, four.")
        assert text_said(await ask(models, begun(handle))) == " three, four."
        return server.requests[0].body


async def test_claude_is_given_the_beginning_as_its_own_last_message() -> None:
    *_, last = (await sent(CLAUDE))["messages"]
    assert last["role"] == "assistant"
    assert SAID in str(last["content"])


async def test_gemini_is_given_the_beginning_as_its_own_last_turn() -> None:
    *_, last = (await sent(GOOGLE))["contents"]
    assert (last["role"], last["parts"]) == ("model", [{"text": SAID}])


@pytest.mark.parametrize(("handle", "is_told"), [("ollama/llama3.2", False), ("vllm/Qwen/Qwen2.5-7B-Instruct", True)])
async def test_a_server_of_ones_own_is_given_the_beginning_as_the_last_message(handle: str, *, is_told: bool) -> None:
    body = await sent(handle)
    assert body["messages"][-1] == {"role": "assistant", "content": SAID}
    told = {name: body.get(name) for name in ("continue_final_message", "add_generation_prompt")}
    given = {"continue_final_message": True, "add_generation_prompt": False}
    assert told == (given if is_told else dict.fromkeys(given))


GO_ON = [CLAUDE, GOOGLE, "ollama/llama3.2", "vllm/Qwen/Qwen2.5-7B-Instruct"]
COUNTS = "One, two, three, four, five, six"


@pytest.mark.parametrize("broken", ["end", "drop", "reset"])
@pytest.mark.parametrize("handle", GO_ON)
async def test_an_answer_whose_connection_was_lost_was_an_error(handle: str, broken: Break) -> None:
    """A model that takes the beginning of its answer goes on with it; both requests are counted."""
    async with models_on_server(retries=1) as (server, models):
        server.play(Turn(text=COUNTS, break_=broken, break_after=4, pace=0.02))
        server.say(" and so on.")
        events = await ask(models, call(handle, "Count.", reasoning=False))
        first, second = server.requests
        place = next(place for place, event in enumerate(events) if isinstance(event, AttemptFailed))
    shown = text_said(events[:place])
    assert shown and COUNTS.startswith(shown)
    assert text_said(events) == f"{shown.rstrip()} and so on." or text_said(events) == f"{shown} and so on."
    assert shown.rstrip() in str(second.body["contents" if handle == GOOGLE else "messages"][-1])
    assert shown.rstrip() not in str(first.body)
    end = ending(events)
    assert (end.usage.estimated, end.provider_response) == (True, None)
    assert end.usage.prompt_tokens > 11 and end.usage.context_tokens < end.usage.prompt_tokens + 50


async def test_an_answer_that_breaks_off_again_is_one_answer() -> None:
    async with models_on_server(retries=2) as (server, models):
        server.play(Turn(text="One, two,", break_="end", break_after=2))
        server.play(Turn(text=" three, four,", break_="end", break_after=2))
        server.say(" five.")
        events = await ask(models, call("ollama/llama3.2", "Count.", reasoning=False))
        assert text_said(events) == "One, two, three, four, five."
        assert server.requests[2].body["messages"][-1]["content"] == "One, two, three, four,"


@pytest.mark.parametrize(
    ("handle", "first", "requests"),
    [
        ("openai/gpt-4o-mini", Turn(text=COUNTS, break_="end", break_after=3), 1),
        (CLAUDE, Turn(text=COUNTS, reasoning="Hm.", break_="end", break_after=3), 1),
        (CLAUDE, Turn(text=COUNTS, break_="end", break_after=3), 2),
    ],
)
async def test_an_answer_that_nothing_goes_on_with_fails_as_it_broke_off(
    handle: str, first: Turn, requests: int
) -> None:
    """Of a model that cannot go on, after reasoning, and of one that refuses."""
    async with models_on_server(retries=3) as (server, models):
        server.play(first)
        server.play(Turn(failure=Failure("bad_request")))
        with pytest.raises(ModelError, match="before its answer did") as caught:
            await ask(models, call(handle, "Count.", reasoning=False))
        assert len(server.requests) == requests
    assert caught.value.error_type == ModelErrorType.ERROR


async def test_an_answer_that_was_whole_is_no_error() -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(text=""))
        events = await ask(models, begun(CLAUDE))
        assert text_said(events) == ""
        assert ending(events).reason == "stop"


@pytest.mark.parametrize("handle", ["builtin/echo", "builtin/scripted"])
async def test_the_built_in_models_go_on_where_they_were(handle: str) -> None:
    text = '{"turns": [{"text": "You said: one two three"}]}' if handle.endswith("scripted") else "one two three"
    models = Models({}, first_event_timeout=180, idle_timeout=180, retries=0, builtin_models=True)
    whole = await ask(models, call(handle, text))
    rest = await ask(models, msgspec.structs.replace(call(handle, text), beginning="You said: one"))
    assert text_said(rest) == "two three", "the white space behind the beginning was shown"
    assert ending(rest).usage.completion_tokens == ending(whole).usage.completion_tokens


def test_the_beginning_counts_as_sent() -> None:
    asked = call(CLAUDE, "Count to four.", reasoning=False)
    more = begun(CLAUDE).estimated_tokens() - asked.estimated_tokens()
    assert more == estimate_tokens(asked.system + SAID) - estimate_tokens(asked.system)


@pytest.mark.parametrize(
    ("handle", "reasons", "continues"),
    [
        ("anthropic/claude-3-5-haiku-20241022", True, True),
        ("anthropic/claude-3-7-sonnet-20250219", False, True),
        ("anthropic/claude-sonnet-4-20250514", False, True),
        ("anthropic/claude-opus-4-1-20250805", False, True),
        ("anthropic/claude-sonnet-4-5-20250929", False, True),
        ("anthropic/claude-haiku-4-5", False, True),
        ("anthropic/claude-haiku-4-5", True, False),
        ("anthropic/claude-opus-4-6", False, False),
        ("anthropic/claude-sonnet-5", False, False),
        ("google_ai/gemini-2.5-flash", False, True),
        ("anthropic/claude-haiku-5-5", False, False),
        ("google_ai/gemini-3.6-flash", False, False),
        ("google_ai/gemini-4-argon", False, False),
        ("ollama/llama3.2", True, True),
        ("vllm/openai/gpt-oss-20b", True, False),
        ("openai/gpt-4o-mini", False, False),
        ("openrouter/anthropic/claude-sonnet-4.5", False, False),
        ("minimax/MiniMax-M2.1", False, False),
        ("builtin/slow", True, True),
    ],
)
def test_which_models_go_on_with_an_answer(handle: str, *, reasons: bool, continues: bool) -> None:
    assert continues_answers(handle, reasons=reasons) is continues
