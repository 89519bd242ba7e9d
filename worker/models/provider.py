"""The step loop's interface to models: the call, its route, the events of the answer, the limit on silence, and the
attempts of a call. Only these types leave this folder."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from shared.concurrency import LATE_S, MovingTimer
from shared.domain.agents import ModelOptions
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import Message, estimate_message_tokens, estimate_tokens, tokens_in, weight
from shared.domain.model_servers import Wire, origin_of, without_credentials
from shared.domain.models import continues_answers
from shared.domain.runs import Usage

COUNTS_WITHIN_S = 2.0
"""Seconds that a server has to send its counts after the reason for the answer's end."""

LONGEST_WAIT = 60.0
"""Seconds. If a provider asks for a longer pause, the call fails and its error names the pause."""


class Route(msgspec.Struct, frozen=True):
    """The server for the calls of one handle. Hashable, because built models are cached by it."""

    handle: str
    provider: str
    model: str
    wire: Wire
    api_key: str = ""
    base_url: str = ""
    """Empty for the built-in models only."""
    api_version: str = ""
    """Sent with every request, if the server needs it."""

    @property
    def asked(self) -> str:
        """The provider and its address, for errors: without credentials, and without a path, which may contain some."""
        return f"{self.provider} at {origin_of(self.base_url)}"

    def __repr__(self) -> str:
        """Without the key, so that it never reaches a log."""
        return f"Route({self.handle!r}, {self.wire!r}, base_url={without_credentials(self.base_url)!r})"


class WireRequest(msgspec.Struct, frozen=True):
    """An encoded request: the headers that authenticate it, and JSON."""

    headers: dict[str, str]
    body: bytes


TOOL_CHOICE = "tool_choice"
"""The name in `ModelCall.demanded` of a call that the run itself demands."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool in the form that the model gets. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool | None = None
    """As in `ClientTool`."""


class ModelCall(msgspec.Struct, frozen=True):
    """One request to a model."""

    handle: str
    """`provider/model`, split at the first slash."""
    system: str
    history: Sequence[Message]
    """The conversation in order, without system messages; every call in it has its result."""
    tools: Sequence[ToolSpec] = ()
    options: ModelOptions = ModelOptions()
    beginning: str = ""
    """The beginning of the answer, which the model must continue. Only for models with `continues_answers`."""
    must_call: bool = False
    """The answer must call one of the tools."""
    forced_tool: str = ""
    """With `must_call`: the tool that the answer must call. Empty: any of the tools."""
    may_call: bool = True
    """False: the answer must not call a tool. The request still contains the tools, which explain the calls in the
    history."""
    demanded: Collection[str] = ()
    """Names of `ModelOptions` that a model must support; otherwise the call is refused and names the option. A model
    may ignore other options."""
    thread_id: str = ""
    """The conversation's id: providers find their prompt cache for it by this id. Empty: there is none."""
    taken_call_ids: frozenset[str] = frozenset()
    """Ids of tool calls that were decided in the conversation, including those of answers that have left the
    history."""

    def demanded_option(self, name: str) -> Any:
        """The value of the option if the run demands it, else None."""
        return getattr(self.options, name) if name in self.demanded else None

    def weight(self) -> int:
        """The cost of encoding the call as a request, in characters of text."""
        return len(self.system) + CHARACTERS_OF_A_TOOL * len(self.tools) + weight(self.history)

    def estimated_tokens(self) -> int:
        """Estimates the tokens that the call sends: instructions, tools and history, without images."""
        tools = b"" if not self.tools else msgspec.json.encode(self.tools)
        history = sum(estimate_message_tokens(message.body) for message in self.history)
        return estimate_tokens(self.system + self.beginning) + tokens_in(len(tools)) + history


CHARACTERS_OF_A_TOOL = 2000
"""The cost of encoding a tool's schema, in characters of text."""


class Text(msgspec.Struct, frozen=True):
    """A piece of the answer's text."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """A piece of reasoning. The signature comes once, at the end of the reasoning, with empty text allowed."""

    text: str
    signature: str | None = None


class CallStarted(msgspec.Struct, frozen=True):
    """The model begins to write a tool call. `index` tells parallel calls apart."""

    index: int
    call_id: str
    name: str
    has_arguments: bool = False
    """Whether the provider has sent a piece of the arguments with the name. It is the next event."""


class CallArguments(msgspec.Struct, frozen=True):
    """A piece of a call's JSON arguments."""

    index: int
    text: str


class CallFinished(msgspec.Struct, frozen=True):
    """A tool call is complete. The event is repeated, with the same index, if the provider continues the call after
    all."""

    index: int
    call_id: str
    name: str
    arguments: str


FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]
"""Why an answer ends: it is complete, it calls tools, or it was cut off."""


class Finished(msgspec.Struct, frozen=True):
    """The answer is complete. Always the last event; a stream that ends without it raises instead."""

    reason: FinishReason
    usage: Usage
    provider_response: str | None
    """JSON that must go back to the provider with the next turn (signatures, ids); None if it needs nothing."""


class AttemptFailed(msgspec.Struct, frozen=True):
    """The call failed and is tried again after `wait` seconds. Earlier events stay valid; the answer continues them."""

    attempt: int
    wait: float
    error: str
    """As in `ModelError.facts`."""


ModelEvent = Text | Thought | CallStarted | CallArguments | CallFinished | Finished | AttemptFailed


class EmptyAnswer(ModelError):
    """The model has answered with nothing."""

    def __init__(self, detail: str, usage: Usage, *, retryable: bool) -> None:
        super().__init__(ModelErrorType.ERROR, detail, retryable=retryable)
        self.usage = usage


class ModelProvider(Protocol):
    """One way to call models. Implementations: over plain HTTP, over pydantic-ai, and the built-in one, which needs no
    network."""

    def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """Yields the answer's events as they arrive. Raises `ModelError`; closes its connection when the generator is
        closed."""
        ...


_Result = TypeVar("_Result")


class SilenceLimit:
    """The time limits of one attempt: for the first event of the answer, and then for each of the next. Seconds of the
    event loop's clock.

    The limit encloses the iterator of events, because the SDKs' own timeouts differ (one of them has none for a stream)
    and start again with every attempt. The built-in models have the same limit.
    """

    def __init__(self, first_event: float, idle: float) -> None:
        self._first_event = first_event
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + first_event
        self._answering = False
        self._waiting: asyncio.Timeout | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._has_passed = False
        self._timer = MovingTimer()
        """Checks the deadline. Does nothing if the answer has ended."""

    def event_seen(self) -> None:
        """The answer has begun: from now on only the limit on silence applies."""
        self._answering = True
        self._deadline = self._loop.time() + self._idle

    def bytes_seen(self) -> None:
        """Something arrived, such as a ping. Before the first event that is not enough: a server may send pings for
        ever while the request is in its queue."""
        if self._answering:
            self._deadline = self._loop.time() + self._idle

    async def wait(self, awaitable: Awaitable[_Result]) -> _Result:
        """Returns the result of `awaitable`. Raises `ModelError` if the limit passes first."""
        limit = asyncio.timeout(None)
        self._timer.look_at(self._deadline, self._look)
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

    async def wait_for(self, arrival: "asyncio.Future[None]") -> None:
        """`wait` for a future that another task completes, without the timeout scope, which would be created for each
        token."""
        self._arrival = arrival
        self._timer.look_at(self._deadline, self._look)
        await arrival
        if self._has_passed:
            raise self._expired()

    def _look(self) -> None:
        awaits_arrival = self._arrival is not None and not self._arrival.done()
        if not awaits_arrival and (self._waiting is None or self._waiting.expired()):
            return
        now = self._loop.time()
        if now - self._deadline > LATE_S:  # this process stood still, and may not have read data that has arrived
            self._deadline = now + (self._idle if self._answering else self._first_event)
        if now < self._deadline:
            self._timer.look_at(self._deadline, self._look)
        elif self._arrival is not None and awaits_arrival:
            self._has_passed = True
            self._arrival.set_result(None)
        elif self._waiting is not None:
            self._waiting.reschedule(self._deadline)

    def _expired(self) -> ModelError:
        if self._answering:
            detail = f"The model went silent in the middle of its answer for {self._idle:g} s."
        else:
            detail = f"The model sent no event within {self._first_event:g} s."
        return ModelError(ModelErrorType.TIMEOUT, detail)


# Tries a model call again after a failure, and lets the model continue an answer that broke off.
#
# This is the only retry loop around a model call. Events that were shown cannot be revoked here. So after its first
# event, a failed answer is only continued, if the model can do that and all events so far are text.


LOADS = re.compile(r"loading model|currently loading", re.IGNORECASE)
"""How the 503 of a server says that it has not loaded its model yet: llama.cpp's, and those of Hugging Face."""
LOADING_WAIT, FIRST_WAIT = 10.0, 0.5
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
        first = LOADING_WAIT if error.status == 503 and LOADS.search(error.message) else FIRST_WAIT
        wait = asked_for if asked_for is not None else first * 2.0 ** (attempt - 1)
        return min(wait * (1 + JITTER * self.jitter()), LONGEST_WAIT)


LEAST_REPEATED = 20
"""Characters. Some servers repeat the text that they got, others do not. A shorter beginning could also be words that
the model repeats by itself."""


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
    """Yields the answer to `call`. Retries failures before its first event according to the policy, and continues an
    answer that breaks off later. Its usage includes that of empty answers before it. Raises `ModelError`."""
    begun, spent = None, Usage()
    for number in count(1):
        attempt = _Attempt(provider, call, begun)
        async with aclosing(attempt.events()) as events:
            async for event in events:
                yield replace(event, usage=spent.plus(event.usage)) if isinstance(event, Finished) else event
        if attempt.failure is None:
            return
        if isinstance(empty := attempt.failure.__cause__, EmptyAnswer):  # inside the error that names the server
            spent = spent.plus(empty.usage)
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
    """An estimate of the cost of the attempts that broke off."""
    failure: ModelError
    """The failure of the last attempt."""


class _Attempt:
    """One call, and its outcome."""

    def __init__(self, provider: ModelProvider, call: ModelCall, before: _BegunText | None) -> None:
        self._provider = provider
        self._call = call
        self._before = before
        self._continued = None if before is None else ContinuedText(before.text)
        self.failure: ModelError | None = None
        self.seen: list[ModelEvent] = []
        """The events of the answer, as they were shown."""

    async def events(self) -> AsyncGenerator[ModelEvent]:
        """Yields the events as they arrive. A failure ends them and is stored."""
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
        """The event as part of the whole answer."""
        match event:
            case Text():
                text = continued.more(event.text)
                return [Text(text)] if text else []
            case Finished():
                rest = continued.rest()
                used = event.usage if self._before is None else self._before.lost.plus(event.usage)
                # The provider's own form of the answer contains only the rest of it.
                end = replace(event, usage=used, provider_response=None)
                return [Text(rest), end] if rest else [end]
            case _:
                return [event]

    def final(self, failure: ModelError) -> ModelError:
        """The error for the caller. If a model refuses to continue, that is the error that broke the answer off."""
        is_refused = self._before is not None and not self.seen and not failure.retryable
        return self._before.failure if self._before is not None and is_refused else failure

    def begun(self) -> _BegunText | None:
        """The text that the model may continue; None if there is none, or if the model cannot continue it."""
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
