"""Tries a call of a model again after a failure, and has the model go on with an answer that broke off.

This is the only retry loop around a model call. What was shown of an answer cannot be revoked here. So after its first
event, a failed answer is only continued: by a model that takes its beginning, and if nothing but text has come.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import count

import msgspec
from msgspec.structs import replace

from shared.domain.errors import ModelError
from shared.domain.messages import estimate_tokens
from shared.domain.models import continues_answers
from shared.domain.runs import Usage
from worker.models.provider import (
    LONGEST_WAIT,
    AttemptFailed,
    Finished,
    ModelCall,
    ModelEvent,
    ModelProvider,
    Text,
)

FIRST_WAIT = 0.5
JITTER = 0.25
"""Up to a quarter is added to each wait, so that many workers do not retry at the same time."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often a failed call is retried, with the clock and the randomness that it uses."""

    retries: int
    sleep: Callable[[float], Awaitable[None]]
    jitter: Callable[[], float]

    def wait_before(self, attempt: int, error: ModelError) -> float | None:
        """Seconds to wait before retry number `attempt` (from 1); None if the error is final."""
        if not error.retryable or attempt > self.retries:
            return None
        asked_for = error.retry_after
        if asked_for is not None and asked_for > LONGEST_WAIT:
            return None
        wait = asked_for if asked_for is not None else FIRST_WAIT * 2.0 ** (attempt - 1)
        return min(wait * (1 + JITTER * self.jitter()), LONGEST_WAIT)


LEAST_REPEATED = 20
"""Characters. Some servers repeat the text that they got, others do not. A shorter beginning could also be words that
the model uses again."""


class ContinuedText:
    """Joins the model's new text to the text that readers have seen, so that they see nothing twice."""

    def __init__(self, shown: str) -> None:
        self.asked = shown.rstrip()
        """The text for the model: some providers refuse an answer that ends in white space."""
        self._shown = shown
        self._space = shown[len(self.asked) :]
        self._held = ""
        self._is_joined = False

    def more(self, text: str) -> str:
        """The new part of the next piece."""
        if self._is_joined:
            return text
        self._held += text
        may_repeat = len(self._shown) >= LEAST_REPEATED
        if may_repeat and self._held.startswith(self._shown):
            return self._join(self._held[len(self._shown) :])
        if may_repeat and self._shown.startswith(self._held):
            return ""
        return self._join(self._without_space(self._held))

    def rest(self) -> str:
        """The remaining new text at the end of the answer, if a possible repetition turned out to be none."""
        if self._is_joined or self._held == self.asked:
            return ""
        return self._join(self._without_space(self._held))

    def _join(self, text: str) -> str:
        self._is_joined = True
        return text

    def _without_space(self, text: str) -> str:
        """Removes the white space that readers have seen and the model did not get, if the model begins with it."""
        return text.removeprefix(self._space)


async def stream_with_retries(
    provider: ModelProvider, call: ModelCall, policy: RetryPolicy
) -> AsyncGenerator[ModelEvent]:
    """Yields the answer to `call`. Retries according to the policy what fails before its first event, and continues
    what breaks off later, as one answer. Raises `ModelError`."""
    begun: _BegunText | None = None
    for number in count(1):
        attempt = _Attempt(provider, call, begun)
        async with aclosing(attempt.events()) as events:
            async for event in events:
                yield event
        if attempt.failure is None:
            return
        begun = attempt.begun()
        goes_on = begun is not None or not attempt.seen
        wait = policy.wait_before(number, attempt.failure) if goes_on else None
        if wait is None:
            raise attempt.final(attempt.failure)
        yield AttemptFailed(number, wait, attempt.failure.facts)
        await policy.sleep(wait)


class _BegunText(msgspec.Struct, frozen=True):
    """An answer that broke off in its text."""

    text: str
    lost: Usage
    """An estimate of what the attempts have cost that broke off."""
    failure: ModelError
    """Of the last of them."""


class _Attempt:
    """One call, and its outcome."""

    def __init__(self, provider: ModelProvider, call: ModelCall, before: _BegunText | None) -> None:
        self._provider = provider
        self._call = call
        self._before = before
        self._continued = None if before is None else ContinuedText(before.text)
        self.failure: ModelError | None = None
        self.seen: list[ModelEvent] = []
        """What has come of the answer, as it was shown."""

    async def events(self) -> AsyncGenerator[ModelEvent]:
        """The events as they arrive. A failure ends them and is stored."""
        answer = self._provider.stream(self._call) if self._continued is None else self._rest(self._continued)
        try:
            async with aclosing(answer) as events:
                async for event in events:
                    self.seen.append(event)
                    yield event
        except ModelError as error:
            self.failure = error

    async def _rest(self, continued: ContinuedText) -> AsyncGenerator[ModelEvent]:
        async with aclosing(self._provider.stream(replace(self._call, beginning=continued.asked))) as events:
            async for event in events:
                for part in self._joined(event, continued):
                    yield part

    def _joined(self, event: ModelEvent, continued: ContinuedText) -> list[ModelEvent]:
        """The event as part of the one answer."""
        match event:
            case Text():
                text = continued.more(event.text)
                return [Text(text)] if text else []
            case Finished():
                rest = continued.rest()
                used = event.usage if self._before is None else self._before.lost.plus(event.usage)
                # The provider's own form of the answer has only the rest of it.
                end = replace(event, usage=used, provider_response=None)
                return [Text(rest), end] if rest else [end]
            case _:
                return [event]

    def final(self, failure: ModelError) -> ModelError:
        """The error for the caller. If a model refuses to go on, it is the one that broke the answer off."""
        is_refused = self._before is not None and not self.seen and not failure.retryable
        return self._before.failure if self._before is not None and is_refused else failure

    def begun(self) -> _BegunText | None:
        """What the model may go on with; None if there is nothing, or if it cannot."""
        call, before = self._call, self._before
        if not self.seen or self.failure is None:
            return before
        if call.beginning or call.must_call or not continues_answers(call.handle, reasons=call.options.reasoning):
            return None
        pieces = [event.text for event in self.seen if isinstance(event, Text)]
        new = "".join(pieces)
        if len(pieces) < len(self.seen) or not new.strip():
            return None
        text, lost = ("", Usage()) if before is None else (before.text, before.lost)
        used = call.estimated_tokens() + estimate_tokens(text)
        lost = lost.plus(Usage(prompt_tokens=used, completion_tokens=estimate_tokens(new), estimated=True))
        return _BegunText(text + new, lost, self.failure)
