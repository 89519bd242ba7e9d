"""One model that is called over HTTP without an SDK: sends the request, and passes the response to the protocol.

`chat.py` and `anthropic.py` build the requests and parse the answers, without I/O.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from datetime import datetime
from functools import partial
from typing import Protocol

import httpx2

from shared.concurrency import beside
from shared.domain.errors import ModelError, ModelErrorType
from worker.models.answer_parts import AnswerParts, CallIds, CountedTokens, WholeAnswer, finalize, reason_in
from worker.models.connections import body_of
from worker.models.event_streams import EventStream, EventTooLong, is_whole, unstreamed_answers
from worker.models.history_mapping import Given, ReasoningPart, TextPart, ToolCallPart, write_kept
from worker.models.model_errors import LONGEST_DETAIL, named, status_error
from worker.models.provider import COUNTS_WITHIN_S, ModelCall, ModelEvent, Route, SilenceLimit, WireRequest

_HEADERS = {"accept": "application/json", "content-type": "application/json", "user-agent": "holdfast"}

_LONGEST_ERROR = 1_000_000
"""Bytes of an error's body that are read."""

_LAST_BYTES_S = 0.5
"""Seconds that a server has to end a response after the answer in it. Otherwise the connection cannot be reused."""


class Answer:
    """One answer, from its first event to its last. Each protocol parses its own events."""

    def __init__(
        self, call: ModelCall, route: Route, new_call_id: Callable[[], str], *, mends_tokens: bool = False
    ) -> None:
        """`mends_tokens`: see `special_tokens.py`."""
        self._call = call
        self._route = route
        self._parts = AnswerParts(CallIds(call, new_call_id), mends_tokens=mends_tokens)
        self._raw_reason: str | None = None
        self.is_over = False
        """The server has announced that no event follows."""

    @property
    def has_begun(self) -> bool:
        """Whether any part of the answer itself has arrived."""
        return self._parts.has_begun

    @property
    def has_reason(self) -> bool:
        """Whether the server has sent the reason for the answer's end. Counts may follow, but no part of the answer."""
        return reason_in(self._raw_reason) not in (None, "error")

    def take(self, data: bytes) -> None:
        """Parses the next event of the stream. Raises `ModelError` if it is an error, or cannot be read."""
        raise NotImplementedError

    def finish(self) -> None:
        """Ends the stream. Raises `ModelError` if the answer is incomplete."""
        raise NotImplementedError

    def drain_events(self) -> list[ModelEvent]:
        """Returns our events since the last call."""
        return self._parts.drain_events()

    def _end(self, given: Given, counted: CountedTokens, words: str = "") -> None:
        """Ends the answer. `words`: the provider's sentence about the end. Raises as `finish`."""
        parts = self._parts.finish()
        whole = WholeAnswer(
            reason=given.reason,
            text="".join(part.text for part in parts if isinstance(part, TextPart | ReasoningPart)),
            arguments=[part.arguments for part in parts if isinstance(part, ToolCallPart)],
            counted=counted,
            provider_response=write_kept(parts, given),
            details=self._raw_reason,
            words=words,
        )
        self._parts.tell(finalize(self._call, whole))


class ProviderProtocol(Protocol):
    """The requests of one route, and the reader of its answers."""

    @property
    def route(self) -> Route: ...

    @property
    def url(self) -> httpx2.URL: ...

    def request(self, call: ModelCall) -> WireRequest:
        """Returns the request. Raises `ModelError` if it cannot be sent."""
        ...

    def request_after(self, call: ModelCall, error: ModelError) -> WireRequest | None:
        """Returns a changed request if that may avoid the server's error for the first one."""
        ...

    def answer(self, call: ModelCall) -> Answer: ...


class HttpModel:
    """A `ModelProvider` for one handle."""

    def __init__(
        self,
        wire: ProviderProtocol,
        client: httpx2.AsyncClient,
        first_event_timeout: float,
        idle_timeout: float,
        now: Callable[[], datetime],
    ) -> None:
        self._wire = wire
        self._route = wire.route
        self._client = client
        self._first_event_timeout = first_event_timeout
        self._idle_timeout = idle_timeout
        self._now = now

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """One attempt. The connection is closed when this generator ends, is closed or is cancelled."""
        # Outside the `try`: a request that cannot be sent is not the provider's fault.
        request = await beside(partial(self._wire.request, call), call.weight())
        try:
            async with aclosing(self._answer(call, request)) as events:
                async for event in events:
                    yield event
        except ModelError as error:
            raise named(error, self._route) from error
        except (httpx2.HTTPError, httpx2.StreamError, EventTooLong, OSError) as error:
            raise named(_as_model_error(error), self._route) from error

    async def _answer(self, call: ModelCall, request: WireRequest) -> AsyncGenerator[ModelEvent]:
        limit = SilenceLimit(self._first_event_timeout, self._idle_timeout)
        answer, end = self._wire.answer(call), _End()
        async with (
            aclosing(await self._response(call, request, limit)) as response,
            aclosing(_pieces(response, limit)) as pieces,
            aclosing(self._events(answer, pieces, response, end)) as stream,
        ):
            async for data in stream:
                for event in _events(answer, data):
                    yield event
                    end.is_put_off = True
                end.look_at(answer)
                if answer.has_begun:
                    limit.event_seen()
            answer.finish()
            for event in answer.drain_events():
                yield event
            await _last_bytes(pieces)

    async def _events(
        self, answer: Answer, pieces: AsyncIterator[bytes], response: httpx2.Response, end: "_End"
    ) -> AsyncGenerator[list[bytes]]:
        """Yields the data of the events that each piece completes, and then of those that the end of the response
        completes. Raises `ModelError` for a response that is not an answer."""
        events = EventStream()
        try:
            while not answer.is_over and (piece := await end.next_of(pieces)) is not None:
                yield events.feed(piece)
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            # The last bytes may be complete: the end of the answer, or a whole answer in place of a stream.
            if not is_whole(events.before_events):
                yield events.end()
                if not answer.has_reason:
                    raise
                return
        rest, said = events.end(), events.before_events
        if said is not None:
            kind = str(response.headers.get("content-type", ""))
            answers = unstreamed_answers(bytes(said), kind, self._route.provider)
            rest = [json.dumps(whole).encode() for whole in answers]
        yield rest

    async def _response(self, call: ModelCall, request: WireRequest, limit: SilenceLimit) -> httpx2.Response:
        """Returns a response that is not an error."""
        try:
            return await self._send(request, limit)
        except ModelError as error:
            other = self._wire.request_after(call, error)
            if other is None:
                raise
        return await self._send(other, limit)

    async def _send(self, request: WireRequest, limit: SilenceLimit) -> httpx2.Response:
        headers = {**_HEADERS, **request.headers}
        sent = self._client.build_request("POST", self._wire.url, content=request.body, headers=headers)
        response = await limit.wait(self._client.send(sent, stream=True))
        if response.is_success:
            return response
        try:
            body = await limit.wait(_beginning_of(response))
        finally:
            await response.aclose()
        headers, provider = response.headers, self._route.provider
        raise status_error(response.status_code, headers, body, provider=provider, now=self._now())


def url_below(base: str, path: str) -> httpx2.URL:
    """The URL of a path of a server, which may itself be at a path."""
    url = httpx2.URL(base)
    return url.copy_with(path=url.path.rstrip("/") + path)


async def _beginning_of(response: httpx2.Response) -> bytes:
    """The part of an error's body that is read."""
    body = b""
    with suppress(httpx2.HTTPError, httpx2.StreamError, OSError):  # a broken body keeps its status
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _LONGEST_ERROR:
                break
    return body


def _events(answer: Answer, stream: Iterable[bytes]) -> Iterator[ModelEvent]:
    """Returns our events for the stream's. Events before an unreadable one count. After the reason for the answer's
    end, an error does not invalidate the answer."""
    for data in stream:
        try:
            answer.take(data)
        except ModelError:
            if not answer.has_reason:
                raise
            answer.is_over = True
        yield from answer.drain_events()
        if answer.is_over:
            return


async def _pieces(response: httpx2.Response, limit: SilenceLimit) -> AsyncGenerator[bytes]:
    """The pieces of the body. A server may compress it unasked."""
    body = body_of(response)
    if body is None or "content-encoding" in response.headers:
        async with aclosing(response.aiter_bytes()) as decoded:
            while (piece := await limit.wait(anext(decoded, None))) is not None:
                yield piece
        return
    while (piece := body.arrived()) is not None:
        if piece:
            yield piece
        else:
            await limit.wait_for(body.arrival())


class _End:
    """The time to wait after an answer's reason for its end: for its counts, or for more of the answer, because some
    servers send a reason with every event."""

    def __init__(self) -> None:
        self._by: float | None = None
        """The event loop's time."""
        self.is_put_off = False
        """More of the answer has arrived since the last check."""

    def look_at(self, answer: Answer) -> None:
        if answer.has_reason and (self._by is None or self.is_put_off):
            self._by = asyncio.get_running_loop().time() + COUNTS_WITHIN_S
        self.is_put_off = False

    async def next_of(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        """The next piece; None at the end. An answer that lacks only its counts is not lost with its connection."""
        if self._by is None:
            return await anext(pieces, None)
        with suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError, OSError, ModelError):
            async with asyncio.timeout_at(self._by):
                return await anext(pieces, None)
        return None


async def _last_bytes(pieces: AsyncIterator[bytes]) -> None:
    """Reads the end of the response after the answer, because the pool closes a connection with unread bytes."""
    with suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError, OSError, ModelError):
        async with asyncio.timeout(_LAST_BYTES_S):
            async for _piece in pieces:
                pass


def _as_model_error(error: Exception) -> ModelError:
    detail = f"({type(error).__name__}: {error})"[:LONGEST_DETAIL]
    match error:
        case httpx2.PoolTimeout() | httpx2.ConnectTimeout():
            return ModelError(ModelErrorType.TIMEOUT, f"Request timed out. {detail}", retryable=True)
        case httpx2.TimeoutException():
            return ModelError(ModelErrorType.TIMEOUT, f"Request timed out. {detail}")
        case httpx2.TransportError() | OSError():
            return ModelError(ModelErrorType.ERROR, f"Connection error. {detail}", retryable=True)
        case _:
            return ModelError(ModelErrorType.ERROR, f"The model's answer could not be read: {detail}")
