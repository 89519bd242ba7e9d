"""Models that need no key and no network, for a first look and for tests of everything around a model.

* `builtin/echo` says what the user said, 10 ms per word
* `builtin/slow` does the same at 100 ms per word and then counts to 200, so that there is something to cancel
* `builtin/scripted` plays a script that the user's message holds (format: `builtin_script.py`): reasoning, text, tool
  calls, pauses and errors

They stream like a provider, count tokens like one, and never import an SDK.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.runs import Usage
from worker.models.builtin_script import ScriptedTurn, last_user_text, turn_due
from worker.models.handles import Route
from worker.models.provider import (
    CallArguments,
    CallFinished,
    CallStarted,
    Finished,
    ModelCall,
    ModelEvent,
    Text,
    Thought,
)
from worker.models.token_estimate import estimate_prompt_tokens, estimate_tokens

ECHO_DELAY_MS = 10
SLOW_DELAY_MS = 100
COUNTED = " ".join(str(number) for number in range(1, 201))

_ERRORS = {
    "rate_limit": (ModelErrorType.RATE_LIMIT, 429, "Rate limit reached (scripted)."),
    "auth": (ModelErrorType.AUTHENTICATION, 401, "Incorrect API key provided (scripted)."),
    "server": (ModelErrorType.ERROR, 500, "The server had an error while processing your request (scripted)."),
    "timeout": (ModelErrorType.TIMEOUT, 408, "The model did not answer in time (scripted)."),
    "context": (ModelErrorType.CONTEXT_WINDOW, 400, "This model's maximum context length is exceeded (scripted)."),
}


class BuiltinModel:
    """A `ModelProvider` without a provider."""

    def __init__(self, route: Route, sleep: Callable[[float], Awaitable[None]]) -> None:
        if route.model not in ("echo", "slow", "scripted"):
            raise ModelError(
                ModelErrorType.BAD_REQUEST,
                f"There is no built-in model {route.model!r}: use builtin/echo, builtin/slow or builtin/scripted.",
            )
        self._name = route.model
        self._sleep = sleep

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """The answer, at the turn's pace."""
        turn = self._turn(call)
        await self._sleep(turn.first_delay_ms / 1000)
        said = 0
        limit = call.options.max_output_tokens
        for event in _spoken(turn):
            if turn.error is not None and said >= turn.error_after:
                break
            if limit is not None and said >= limit:
                yield _finished(call, turn, said, "length")
                return
            await self._sleep(turn.delay_ms / 1000)
            said += 1
            yield event
        if turn.error is not None:
            # Not retryable: the script would play the same error again.
            error_type, status, detail = _ERRORS[turn.error]
            raise ModelError(error_type, detail, status=status)
        for event in _calls(call, turn):
            yield event
        yield _finished(call, turn, said, "tool_calls" if turn.calls else "stop")

    def _turn(self, call: ModelCall) -> ScriptedTurn:
        if self._name == "scripted":
            return turn_due(call.history)
        text, _ = last_user_text(call.history)
        if self._name == "slow":
            return ScriptedTurn(text=f"You said: {text} {COUNTED}", delay_ms=SLOW_DELAY_MS)
        return ScriptedTurn(text=f"You said: {text}", delay_ms=ECHO_DELAY_MS)


def _spoken(turn: ScriptedTurn) -> list[Thought | Text]:
    thoughts = [Thought(word) for word in _words(turn.reasoning)]
    return [*thoughts, *(Text(word) for word in _words(turn.text) * turn.repeat)]


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*|^\s+", text)


def _calls(call: ModelCall, turn: ScriptedTurn) -> list[ModelEvent]:
    """The events of the turn's tool calls. Their ids are the same when the same history is asked again."""
    place = hashlib.sha256("".join(message.id for message in call.history).encode()).hexdigest()[:16]
    events: list[ModelEvent] = []
    for index, scripted in enumerate(turn.calls):
        call_id = f"call_{place}_{index}"
        arguments = msgspec.json.encode(scripted.arguments).decode()
        events.append(CallStarted(index, call_id, scripted.name))
        events.append(CallArguments(index, arguments))
        events.append(CallFinished(index, call_id, scripted.name, arguments))
    return events


def _finished(
    call: ModelCall, turn: ScriptedTurn, said: int, reason: Literal["stop", "tool_calls", "length"]
) -> Finished:
    spoken = _spoken(turn)[:said]
    reasoning = estimate_tokens("".join(event.text for event in spoken if isinstance(event, Thought)))
    text = estimate_tokens("".join(event.text for event in spoken if isinstance(event, Text)))
    arguments = estimate_tokens("".join(msgspec.json.encode(scripted).decode() for scripted in turn.calls))
    prompt = estimate_prompt_tokens(call)
    completion = reasoning + text + (arguments if reason == "tool_calls" else 0)
    usage = Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
        context_tokens=prompt + completion,
    )
    return Finished(reason, usage, provider_response=None)
