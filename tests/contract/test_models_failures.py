"""What a provider does wrong becomes one `ModelError`, the same for every wire; a cut stream is never a success."""

import pytest
from msgspec.structs import replace

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.model_server import Break, Failure, Turn
from tests.kit.model_server.frames import data
from tests.kit.model_server.model_calls import (
    ADD,
    ANTHROPIC,
    CHAT,
    GOOGLE,
    HANDLES,
    RESPONSES,
    ask,
    call,
    models_on_server,
    text_said,
)
from tests.kit.model_server.turn import ErrorKind
from worker.models.provider import AttemptFailed, Finished, ModelEvent
from worker.models.registry import Models

SIX_WORDS = "one two three four five six"

EXPECTED: dict[ErrorKind, tuple[ModelErrorType, bool, str]] = {
    "rate_limit": (ModelErrorType.RATE_LIMIT, True, "too quickly"),
    "auth": (ModelErrorType.AUTHENTICATION, False, "not valid"),
    "server": (ModelErrorType.ERROR, True, "server had an error"),
    "overloaded": (ModelErrorType.ERROR, True, "overloaded"),
    "bad_request": (ModelErrorType.BAD_REQUEST, False, "not valid"),
    "not_found": (ModelErrorType.BAD_REQUEST, False, "no model"),
}


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("kind", EXPECTED)
async def test_an_http_error_keeps_the_providers_words(handle: str, kind: ErrorKind) -> None:
    error_type, retryable, words = EXPECTED[kind]
    async with models_on_server() as (server, models):
        server.play(Turn(failure=Failure(kind)))
        with pytest.raises(ModelError) as caught:
            await ask(models, call(handle))
    assert caught.value.error_type == error_type
    assert caught.value.retryable is retryable
    assert words in caught.value.message
    assert caught.value.status is not None


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_context_that_is_too_long_has_its_own_type(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(failure=Failure("context")))
        with pytest.raises(ModelError) as caught:
            await ask(models, call(handle))
    assert caught.value.error_type == ModelErrorType.CONTEXT_WINDOW
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 8192 tokens, however you requested 9000 tokens",
        "the request exceeds the available context size (8192 tokens), try increasing it",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000",
    ],
)
async def test_compatible_servers_tell_an_overflow_in_their_own_words(text: str) -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(failure=Failure("bad_request", text)))
        with pytest.raises(ModelError) as caught:
            await ask(models, call("vllm/m"))
    assert caught.value.error_type == ModelErrorType.CONTEXT_WINDOW


async def test_too_many_tokens_per_minute_is_no_overflow() -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(failure=Failure("rate_limit", "Request exceeds the tokens per minute; prompt is too long")))
        with pytest.raises(ModelError) as caught:
            await ask(models, call(CHAT))
    assert caught.value.error_type == ModelErrorType.RATE_LIMIT


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("broken", ["end", "drop", "reset", "garbage", "garbage_only", "error_event"])
async def test_a_stream_that_breaks_is_an_error_after_what_it_gave(handle: str, broken: Break) -> None:
    """Of a model that cannot go on: this one must call a tool. See `test_models_continued.py`."""
    events: list[ModelEvent] = []
    async with models_on_server(retries=3) as (server, models):
        server.play(Turn(text=SIX_WORDS, break_=broken, break_after=3, pace=0.005))
        with pytest.raises(ModelError) as caught:
            async for event in models.stream(replace(call(handle, tools=[ADD]), must_call=True)):
                events.append(event)
        assert len(server.requests) == 1, "no retry once something was shown"
    assert caught.value.error_type == ModelErrorType.ERROR
    assert SIX_WORDS.startswith(text_said(events))
    if broken in ("end", "error_event"):
        assert text_said(events) == "one two three"
    if broken == "error_event":
        assert "broke down" in caught.value.message


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_whole_answer_without_its_end_is_no_answer(handle: str) -> None:
    async with models_on_server() as (server, models):
        server.say("Nearly done.", finish=None)
        with pytest.raises(ModelError) as caught:
            await ask(models, call(handle))
    assert caught.value.error_type == ModelErrorType.ERROR


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_empty_answer_is_an_error(handle: str) -> None:
    async with models_on_server(retries=1, jitter=lambda: 0.0) as (server, models):
        server.play(*[Turn()] * 2)
        with pytest.raises(ModelError, match="LLM provider returned empty content in response") as caught:
            await ask(models, call(handle))
        assert len(server.requests) == 2
    assert caught.value.error_type == ModelErrorType.ERROR


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_server_that_is_not_there(handle: str) -> None:
    async with models_on_server() as (server, models):
        await ask(models, call(handle))
        await models.aclose()
        server_url = server.origin
        await server.__aexit__()
        with pytest.raises(ModelError) as caught:
            await ask(models, call(handle))
    assert caught.value.error_type == ModelErrorType.ERROR
    assert caught.value.retryable
    assert server_url in caught.value.message, "which of several servers it is"
    assert "test-" not in caught.value.message, "keys are nobody's business"


@pytest.mark.parametrize("handle", [*HANDLES, "ollama/qwen3"])
@pytest.mark.parametrize(
    "turn",
    [
        Turn(failure=Failure("auth")),
        Turn(failure=Failure("server")),
        Turn(silent_after_headers=3600.0),
        Turn(text=SIX_WORDS, break_="reset", break_after=2),
        Turn(),
    ],
)
async def test_every_error_says_who_was_asked_and_where(handle: str, turn: Turn) -> None:
    async with models_on_server(first_event_timeout=0.5) as (server, models):
        server.play(turn)
        with pytest.raises(ModelError) as caught:
            await ask(models, call(handle))
        provider = handle.partition("/")[0]
        assert caught.value.message.endswith(f" [Asked: {provider} at {server.origin}]")


async def test_ollama_was_down_and_nobody_said_where_it_was_looked_for() -> None:
    models = Models({"OLLAMA_BASE_URL": "http://127.0.0.1:9/v1"}, first_event_timeout=180, idle_timeout=180, retries=0)
    with pytest.raises(ModelError) as caught:
        await ask(models, call("ollama/qwen3"))
    await models.aclose()
    assert "Connection error" in caught.value.message
    assert "[Asked: ollama at http://127.0.0.1:9]" in caught.value.message


async def test_no_part_of_an_address_that_may_hold_a_key_is_in_an_error() -> None:
    address = "http://user:secret@127.0.0.1:9/path-secret/v1?key=secret"
    models = Models({"VLLM_BASE_URL": address}, first_event_timeout=180, idle_timeout=180, retries=0)
    with pytest.raises(ModelError) as caught:
        await ask(models, call("vllm/m"))
    await models.aclose()
    assert "secret" not in caught.value.message
    assert "vllm at http://127.0.0.1:9" in caught.value.message


async def test_a_server_without_the_responses_api_gets_a_hint() -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(failure=Failure("not_found", "404 page not found")))
        server.play(Turn(failure=Failure("not_found")))
        with pytest.raises(ModelError, match="openai_compatible/gpt-5 asks it over Chat Completions"):
            await ask(models, call(RESPONSES))
        with pytest.raises(ModelError) as caught:
            await ask(models, call(CHAT))
    assert "Responses" not in caught.value.message


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_error_that_passes_is_retried_and_told(handle: str) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with models_on_server(retries=2, clock_sleep=sleep, jitter=lambda: 1.0) as (server, models):
        server.play(Turn(failure=Failure("server")), Turn(failure=Failure("rate_limit", headers={"retry-after": "2"})))
        server.say("At last.")
        events = await ask(models, call(handle))
        assert len(server.requests) == 3, "the SDK itself retries nothing"
    retries = [event for event in events if isinstance(event, AttemptFailed)]
    assert [retry.attempt for retry in retries] == [1, 2]
    assert [retry.error for retry in retries] == ["llm_error (HTTP 500)", "llm_rate_limit (HTTP 429)"]
    assert waits == [retry.wait for retry in retries] == [0.5 * 1.25, 2 * 1.25]
    assert text_said(events) == "At last."


ENDED_IN_ERROR = {
    CHAT: data({"choices": [{"delta": {}, "finish_reason": "error"}]}),
    GOOGLE: data({"candidates": [{"content": {"parts": []}, "finishReason": "MALFORMED_FUNCTION_CALL"}]}),
}


@pytest.mark.parametrize(
    ("handle", "nothing"),
    [*((handle, Turn()) for handle in HANDLES), *((one, Turn(raw=(raw,))) for one, raw in ENDED_IN_ERROR.items())],
)
async def test_an_answer_with_nothing_in_it_failed_the_run(handle: str, nothing: Turn) -> None:
    """Models give one now and then, and another one when they are asked again."""
    async with models_on_server(retries=1, jitter=lambda: 0.0) as (server, models):
        server.play(nothing, Turn(text="Here."))
        events = await ask(models, call(handle))
    assert text_said(events) == "Here."
    assert isinstance(events[0], AttemptFailed)


@pytest.mark.parametrize("handle", HANDLES)
async def test_empty_answers_that_were_asked_for_again_cost_nothing(handle: str) -> None:
    async with models_on_server(retries=2, jitter=lambda: 0.0) as (server, models):
        server.play(*(Turn(text=text, cached_tokens=0) for text in ("", "", "Here at last.")))
        end = (await ask(models, call(handle)))[-1]
    assert isinstance(end, Finished)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (3 * 11, 3)
    assert end.usage.context_tokens == 11 + 3, "of the last request alone"


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_wait_in_milliseconds_is_honoured(handle: str) -> None:
    async with models_on_server(retries=1, jitter=lambda: 0.0) as (server, models):
        server.play(Turn(failure=Failure("rate_limit", headers={"retry-after-ms": "50"})))
        events = await ask(models, call(handle))
    retry = events[0]
    assert isinstance(retry, AttemptFailed)
    assert retry.wait == pytest.approx(0.05)


async def test_a_provider_that_asks_for_too_long_a_wait_gets_none() -> None:
    async with models_on_server(retries=3) as (server, models):
        server.play(Turn(failure=Failure("rate_limit", headers={"retry-after": "61"})))
        with pytest.raises(ModelError) as caught:
            await ask(models, call(CHAT))
        assert len(server.requests) == 1
    assert caught.value.retry_after == 61


async def test_a_connection_lost_before_the_first_event_is_retried() -> None:
    async def sleep(_seconds: float) -> None: ...

    async with models_on_server(retries=1, clock_sleep=sleep) as (server, models):
        server.play(Turn(text="Hello", break_="drop"), Turn(text="Hello again"))
        assert text_said(await ask(models, call(ANTHROPIC))) == "Hello again"


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize("silent", ["before headers", "after headers"])
async def test_a_model_that_never_answers_is_given_up_once(handle: str, silent: str) -> None:
    silence = {"silent_before_headers": 3600.0} if silent == "before headers" else {"silent_after_headers": 3600.0}
    async with models_on_server(first_event_timeout=0.3, retries=3) as (server, models):
        await models.model_for(handle)
        server.say("Too late.", **silence)
        with pytest.raises(ModelError, match=r"no event within 0\.3 s") as caught:
            await ask(models, call(handle))
        assert len(server.requests) <= 1, "it was asked again; the one request may come too late on a busy machine"
    assert caught.value.error_type == ModelErrorType.TIMEOUT


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_model_that_falls_silent_is_given_up(handle: str) -> None:
    events: list[ModelEvent] = []
    async with models_on_server(idle_timeout=1.0) as (server, models):
        server.say(SIX_WORDS, silent_after=2)
        with pytest.raises(ModelError, match="silent in the middle") as caught:
            async for event in models.stream(call(handle)):
                events.append(event)
    assert caught.value.error_type == ModelErrorType.TIMEOUT
    assert text_said(events) == "one two"


@pytest.mark.parametrize("handle", HANDLES)
async def test_an_answer_may_take_longer_than_either_limit(handle: str) -> None:
    async with models_on_server(first_event_timeout=1.5, idle_timeout=1.5) as (server, models):
        await models.model_for(handle)
        server.say(SIX_WORDS, pace=0.35)
        assert text_said(await ask(models, call(handle))) == SIX_WORDS


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize(
    "body",
    [
        b"<html>Welcome to the proxy</html>",
        b"data: 5\n\n",
        b"data: null\n\n",
        b"data: {}\n\n",
        b": ping\n\n",
        b"\xff\xfe",
    ],
)
async def test_an_answer_that_is_no_answer(handle: str, body: bytes) -> None:
    async with models_on_server() as (server, models):
        server.play(Turn(raw=(body,)))
        with pytest.raises(ModelError) as caught:
            await ask(models, call(handle))
    assert caught.value.error_type == ModelErrorType.ERROR
