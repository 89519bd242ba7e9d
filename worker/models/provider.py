"""What the step loop asks of a model, where the call goes, and what comes back. The only types that cross this
folder's border."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from shared.domain.agents import ModelOptions
from shared.domain.messages import Message, estimate_message_tokens, estimate_tokens
from shared.domain.model_catalog import Wire, without_credentials
from shared.domain.runs import Usage


class Route(msgspec.Struct, frozen=True):
    """Where the calls of one handle go. Hashable: it is the key under which built models are kept."""

    handle: str
    provider: str
    model: str
    wire: Wire
    api_key: str = ""
    base_url: str = ""
    """Empty for the built-in models only."""

    @property
    def address(self) -> str:
        """The base URL as it may be shown: without credentials."""
        return without_credentials(self.base_url)

    def __repr__(self) -> str:
        """Without the key, so that it never reaches a log."""
        return f"Route({self.handle!r}, {self.wire!r}, base_url={self.address!r})"


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model is told of it. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class ModelCall(msgspec.Struct, frozen=True):
    """One question to a model."""

    handle: str
    """`provider/model`, split at the first slash."""
    system: str
    history: Sequence[Message]
    """The conversation in order, without system messages; every call in it has its result."""
    tools: Sequence[ToolSpec] = ()
    options: ModelOptions = ModelOptions()

    def estimated_tokens(self) -> int:
        """About how many tokens the call sends: instructions and history, without tools and images."""
        return estimate_tokens(self.system) + sum(estimate_message_tokens(message.body) for message in self.history)


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
    """A tool call is whole. Told again, with the same index, should the provider go on writing it after all."""

    index: int
    call_id: str
    name: str
    arguments: str


class Finished(msgspec.Struct, frozen=True):
    """The answer is whole. Always the last event; a stream that ends without it raises instead."""

    reason: Literal["stop", "tool_calls", "length", "content_filter"]
    usage: Usage
    provider_response: str | None
    """JSON that must go back to the provider with the next turn (signatures, ids); None if it needs nothing."""


class AttemptFailed(msgspec.Struct, frozen=True):
    """The call failed before its first event and is tried again after `wait` seconds."""

    attempt: int
    wait: float
    error: str


ModelEvent = Text | Thought | CallStarted | CallArguments | CallFinished | Finished | AttemptFailed


class ModelProvider(Protocol):
    """One way to reach models. Implementations: the pydantic-ai one, and the built-in offline one."""

    def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """The answer as it comes. Raises `ModelError`; closes its connection when the generator is closed."""
        ...
