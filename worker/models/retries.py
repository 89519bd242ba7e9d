"""The one retry loop around a model call. It runs only while the caller has seen nothing of the answer: after the first
event a failure is the caller's to handle, since text that was shown cannot be taken back here.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import count

import msgspec

from shared.domain.errors import ModelError
from worker.models.provider import ModelCall, ModelEvent, ModelProvider, Retrying

LONGEST_WAIT = 60.0
"""Seconds. A provider that asks for a longer pause gets none: the call fails and says so."""

FIRST_WAIT = 0.5
JITTER = 0.25
"""Up to a quarter is added to each wait, so that many workers do not come back at the same moment."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often a failed call is tried again, with the clock and the randomness that it uses."""

    retries: int
    sleep: Callable[[float], Awaitable[None]]
    jitter: Callable[[], float]

    def wait_before(self, attempt: int, error: ModelError) -> float | None:
        """Seconds to wait before retry number `attempt` (from 1); None when the error is final."""
        if not error.retryable or attempt > self.retries:
            return None
        asked_for = error.retry_after
        if asked_for is not None and asked_for > LONGEST_WAIT:
            return None
        wait = asked_for if asked_for is not None else FIRST_WAIT * 2.0 ** (attempt - 1)
        return min(wait * (1 + JITTER * self.jitter()), LONGEST_WAIT)


async def stream_with_retries(
    provider: ModelProvider, call: ModelCall, policy: RetryPolicy
) -> AsyncGenerator[ModelEvent]:
    """The answer to `call`; failures before its first event are tried again as the policy says."""
    for number in count(1):
        attempt = _Attempt()
        async with aclosing(attempt.events(provider, call)) as events:
            async for event in events:
                yield event
        if attempt.failure is None:
            return
        wait = None if attempt.has_answered else policy.wait_before(number, attempt.failure)
        if wait is None:
            raise attempt.failure
        yield Retrying(number, wait, attempt.failure.message)
        await policy.sleep(wait)


class _Attempt:
    """One call, and what became of it."""

    def __init__(self) -> None:
        self.failure: ModelError | None = None
        self.has_answered = False

    async def events(self, provider: ModelProvider, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """The events as they come; a failure ends them and is kept."""
        try:
            async with aclosing(provider.stream(call)) as events:
                async for event in events:
                    self.has_answered = True
                    yield event
        except ModelError as error:
            self.failure = error
