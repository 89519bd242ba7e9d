"""The step loop's interface to models: the call, its route, the events of the answer, and the limit on silence. Only
these types leave this folder."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from shared.concurrency import LATE_S, MovingTimer
from shared.domain.agents import ModelOptions
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import Message, estimate_message_tokens, estimate_tokens, tokens_in, weight
from shared.domain.model_servers import Wire, origin_of, without_credentials
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
    """The beginning of the answer, which the model must continue. Only for models that can (`continues_answers`)."""
    must_call: bool = False
    """The answer must call one of the tools."""
    forced_tool: str = ""
    """With `must_call`: the answer must call this one of the tools. Empty: any of them."""
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
"""Why an answer ends: it is complete, or the model had more to say."""


class Finished(msgspec.Struct, frozen=True):
    """The answer is complete. Always the last event; a stream that ends without it raises instead."""

    reason: FinishReason
    usage: Usage
    provider_response: str | None
    """JSON that must go back to the provider with the next turn (signatures, ids); None if it needs nothing."""


class AttemptFailed(msgspec.Struct, frozen=True):
    """The call failed and is tried again after `wait` seconds. What came before stays; the answer goes on with it."""

    attempt: int
    wait: float
    error: str
    """As in `ModelError.facts`."""


ModelEvent = Text | Thought | CallStarted | CallArguments | CallFinished | Finished | AttemptFailed


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
        """Something arrived, such as a ping. Before the first event that is not enough: a queue may send pings for
        ever."""
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
