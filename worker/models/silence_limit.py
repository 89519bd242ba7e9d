"""How long a silent model is waited for: from the start of the call to the first event of the answer, and inside the
answer.

The limit stands around the iterator of events, because the SDKs' own timeouts differ (one of them has none for a
stream) and start again with every attempt. The built-in models have the same limit.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from shared.domain.errors import ModelError, ModelErrorType

_Result = TypeVar("_Result")


class SilenceLimit:
    """The limits of one attempt. Seconds; the clock is the event loop's."""

    def __init__(self, first_event: float, idle: float) -> None:
        self._first_event = first_event
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + first_event
        self._answering = False
        self._waiting: asyncio.Timeout | None = None

    def event_seen(self) -> None:
        """The answer has begun: from here on only silence counts."""
        self._answering = True
        self._deadline = self._loop.time() + self._idle

    def bytes_seen(self) -> None:
        """Something arrived, if only a ping. Before the first event that is not enough: a queue may ping for ever."""
        if not self._answering:
            return
        self._deadline = self._loop.time() + self._idle
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._deadline)

    async def wait(self, awaitable: Awaitable[_Result]) -> _Result:
        """What `awaitable` gives, or `ModelError` when the limit passes first."""
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit:
                self._waiting = limit
                return await awaitable
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._expired() from error
        finally:
            self._waiting = None

    def _expired(self) -> ModelError:
        if self._answering:
            detail = f"The model went silent in the middle of its answer for {self._idle:g} s."
        else:
            detail = f"The model sent no event within {self._first_event:g} s."
        return ModelError(ModelErrorType.TIMEOUT, detail)
