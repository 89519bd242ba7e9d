"""Chat completions in OpenAI's dialect."""

from typing import Literal, NotRequired

from typing_extensions import TypeAliasType, TypedDict

from api.answers.runs import RunUsage
from api.answers.values import Fields, Nothing


class CalledFunction(TypedDict):
    """What a call names."""

    name: str
    arguments: str


class ChatToolCall(TypedDict):
    """A call of one of the client's tools; `index` in a stream."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: NotRequired[int]


class ChatMessage(TypedDict):
    """What the agent answered."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: NotRequired[list[ChatToolCall]]


class ChatChoice(TypedDict):
    """The answer, and why it ends there."""

    index: int
    message: ChatMessage
    logprobs: Nothing
    finish_reason: str
    native_finish_reason: str | None


class ChatCompletion(TypedDict):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: Nothing
    choices: list[ChatChoice]
    usage: RunUsage


class ChatDelta(TypedDict):
    """The next piece of the answer."""

    role: NotRequired[str]
    content: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[ChatToolCall]]


class ChatChunkChoice(TypedDict):
    """The next piece of the answer; the last one says why it ends there."""

    index: int
    delta: ChatDelta
    logprobs: Nothing
    finish_reason: str | None
    native_finish_reason: NotRequired[str | None]


class ChatChunk(TypedDict):
    """A chunk of a stream. With `stream_options.include_usage` the last one has `usage`, and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: Nothing
    choices: list[ChatChunkChoice]
    usage: NotRequired[RunUsage | None]


class ChatError(TypedDict):
    """What stands in the place of a chunk when the run failed."""

    error: Fields


ChatFrame = TypeAliasType("ChatFrame", ChatChunk | ChatError)
"""The `data` of each server-sent event of a stream. The last one is the text `[DONE]`."""
