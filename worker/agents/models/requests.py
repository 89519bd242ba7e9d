"""Requests of OpenAI's two dialects, chat completions and responses, as calls of the worker's models.

A field that the worker's models lack, and that would change the answer, is refused by name.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from shared.domain.agents import ModelOptions
from shared.domain.errors import InvalidRequest
from shared.domain.messages import (
    AssistantMessage,
    ContentPart,
    ImageContent,
    MessageBody,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
    text_of,
    text_with_notes,
)
from worker.models.provider import TOOL_CHOICE, ToolSpec

Dialect = Literal["chat", "responses"]

OF_WORKER = "holdfast/"
"""A prefix for the handle of a worker's model, by which a program can tell it from its own models."""

_REFUSED: Mapping[Dialect, Sequence[str]] = {
    "chat": (
        *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "presence_penalty"),
        *("stop", "top_logprobs", "web_search_options"),
    ),
    "responses": ("background", "conversation", "max_tool_calls", "previous_response_id", "prompt", "top_logprobs"),
}
_STREAM_FIELDS = ("stream", "stream_options")


class _ImageUrl(msgspec.Struct):
    url: str


class _Part(msgspec.Struct):
    type: Literal["text", "input_text", "output_text", "refusal", "image_url", "input_image"]
    text: str = ""
    refusal: str = ""
    image_url: str | _ImageUrl | None = None


_Content = str | list[_Part] | None


class _Function(msgspec.Struct):
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    arguments: str = ""


class _ChatCall(msgspec.Struct):
    id: str
    function: _Function


class _ChatMessage(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: _Content = None
    tool_calls: list[_ChatCall] | None = None
    tool_call_id: str = ""


class _Item(msgspec.Struct):
    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: _Content = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: _Content = None


class _Tool(_Function):
    """Chat completions nest the function one level deeper."""

    type: Literal["function"] = "function"
    function: _Function | None = None


class _Choice(msgspec.Struct):
    type: Literal["function"]
    name: str = ""
    function: _Function | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Common(msgspec.Struct):
    model: str
    stream: bool | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _Choice | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None


class _Chat(_Common, kw_only=True):
    messages: Annotated[list[_ChatMessage], msgspec.Meta(min_length=1)]
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    verbosity: str | None = None
    n: Literal[1] | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class _TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _Responses(_Common, kw_only=True):
    input: str | Annotated[list[_Item], msgspec.Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    reasoning: _Reasoning | None = None
    text: _TextOptions | None = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a program, in the domain's terms."""

    dialect: Dialect
    name: str
    """The name of the model in the program's request."""
    system: str
    history: list[MessageBody]
    tools: list[ToolSpec]
    options: dict[str, Any]
    """The fields of `ModelOptions` that the request sets."""
    choice: str
    """`auto`, `none`, `required`, or `=` and the name of the tool that must be called."""
    streams: bool
    shows_usage: bool
    hash: str
    """Equal for requests that ask for the same answer, streamed or not."""

    @property
    def handle(self) -> str:
        """The model's handle. A name without a provider is one of OpenAI's."""
        name = self.name.removeprefix(OF_WORKER)
        return name if "/" in name else f"openai/{name}"

    @property
    def demanded(self) -> list[str]:
        """The options that the model must support, as in `ModelCall`."""
        return [*self.options, *([TOOL_CHOICE] if self.choice not in ("auto", "none") else [])]

    def model_options(self) -> ModelOptions:
        """The options of the call."""
        return ModelOptions(**self.options)


def read_request(dialect: Dialect, body: bytes) -> ModelRequest:
    """Reads a request. Raises `InvalidRequest`, which names the field."""
    raw = _decoded(body, dict[str, Any])
    if refused := [name for name in _REFUSED[dialect] if raw.get(name)]:
        raise InvalidRequest(f"{refused[0]}: the worker's models do not take it. Leave it out.", field=refused[0])
    content = {name: value for name, value in raw.items() if name not in _STREAM_FIELDS}
    hashed = sha256(msgspec.json.encode([dialect, content], order="sorted")).hexdigest()[:32]
    return (
        _of_chat(_decoded(body, _Chat), hashed)
        if dialect == "chat"
        else _of_responses(_decoded(body, _Responses), hashed)
    )


_Decoded = TypeVar("_Decoded")


def _decoded(body: bytes, kind: type[_Decoded]) -> _Decoded:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(str(error)) from error


def _of_chat(asked: _Chat, hashed: str) -> ModelRequest:
    story = _Story()
    for message in asked.messages:
        match message.role:
            case "assistant":
                story.answer(_content(message.content))
                for call in message.tool_calls or ():
                    story.call(call.id, call.function.name, call.function.arguments)
            case "tool":
                story.returned(message.tool_call_id, _content(message.content))
            case role:
                story.say(role, _content(message.content))
    options = {
        "max_output_tokens": asked.max_completion_tokens or asked.max_tokens,
        "response_format": asked.response_format,
        "verbosity": asked.verbosity,
        **_reasoning(asked.reasoning_effort),
    }
    shows_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
    return _request("chat", asked, story, options, hashed, shows_usage=shows_usage)


def _of_responses(asked: _Responses, hashed: str) -> ModelRequest:
    story = _Story()
    if asked.instructions:
        story.say("system", asked.instructions)
    if isinstance(asked.input, str):
        story.say("user", asked.input)
    else:
        for item in asked.input:
            _add_item(story, item)
    text = asked.text or _TextOptions()
    options = {
        "max_output_tokens": asked.max_output_tokens,
        "response_format": _as_in_chat(text.format),
        "verbosity": text.verbosity,
        **_reasoning(None if asked.reasoning is None else asked.reasoning.effort),
    }
    return _request("responses", asked, story, options, hashed, shows_usage=True)


def _add_item(story: "_Story", item: _Item) -> None:
    match item.type:
        case "message" if item.role == "assistant":
            story.answer(_content(item.content))
        case "message":
            story.say(item.role, _content(item.content))
        case "function_call":
            story.call(item.call_id, item.name, item.arguments)
        case "function_call_output":
            story.returned(item.call_id, _content(item.output))
        case "reasoning":
            pass  # the journal has the provider's own form of it


def _request(
    dialect: Dialect, asked: _Common, story: "_Story", options: dict[str, Any], hashed: str, *, shows_usage: bool
) -> ModelRequest:
    options |= {"temperature": asked.temperature, "top_p": asked.top_p}
    if asked.parallel_tool_calls is False:
        options["parallel_tool_calls"] = False
    choice = asked.tool_choice or "auto"
    if isinstance(choice, _Choice):
        choice = f"={(choice.function or choice).name}"
    functions = [tool.function or tool for tool in asked.tools or ()]
    if choice.startswith("=") and choice[1:] not in [one.name for one in functions]:
        raise InvalidRequest(f"tool_choice names {choice[1:]!r}, which is none of the tools.", field="tool_choice")
    return ModelRequest(
        dialect=dialect,
        name=asked.model,
        system="\n\n".join(story.system),
        history=story.bodies,
        tools=[ToolSpec(one.name, one.description or "", one.parameters or {}, one.strict) for one in functions],
        options={name: value for name, value in options.items() if value is not None},
        choice=choice,
        streams=bool(asked.stream),
        shows_usage=shows_usage,
        hash=hashed,
    )


def _reasoning(effort: str | None) -> dict[str, Any]:
    return {} if effort is None else {"reasoning_effort": effort, "reasoning": effort != "none"}


def _as_in_chat(chosen: dict[str, Any] | None) -> dict[str, Any] | None:
    if chosen is None or chosen.get("type") != "json_schema":
        return chosen
    return {"type": "json_schema", "json_schema": {name: value for name, value in chosen.items() if name != "type"}}


class _Story:
    """The messages that were read so far."""

    def __init__(self) -> None:
        self.system: list[str] = []
        self.bodies: list[MessageBody] = []
        self._names: dict[str, str] = {}

    def say(self, role: str, content: str | list[ContentPart]) -> None:
        if role == "user":
            self.bodies.append(UserMessage(content))
        elif self.bodies:
            self.bodies.append(UserMessage(content, role="system"))
        else:
            self.system.append(text_of(content))

    def answer(self, content: str | list[ContentPart]) -> None:
        self.bodies.append(AssistantMessage(text=text_of(content)))

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Adds a call to the answer before it, or to an answer of its own."""
        last = self.bodies[-1] if self.bodies else None
        if not isinstance(last, AssistantMessage):
            self.bodies.append(last := AssistantMessage())
        self._names[call_id] = name
        calls = [*last.tool_calls, ToolCall(call_id, name, arguments)]
        self.bodies[-1] = AssistantMessage(text=last.text, tool_calls=calls)

    def returned(self, call_id: str, content: str | list[ContentPart]) -> None:
        """Adds a result to the other results of the same answer."""
        parts = None if isinstance(content, str) else content
        text = content if isinstance(content, str) else text_with_notes(content)
        name = self._names.get(call_id, "")
        result = ToolReturn(call_id, name, "success", text, parts=parts, is_plain=True)
        last = self.bodies[-1] if self.bodies else None
        if isinstance(last, ToolReturns):
            last.returns.append(result)
        else:
            self.bodies.append(ToolReturns([result]))


def _content(content: _Content) -> str | list[ContentPart]:
    if isinstance(content, list):
        return [_part(part) for part in content]
    return content or ""


def _part(part: _Part) -> ContentPart:
    if part.type not in ("image_url", "input_image"):
        return TextContent(part.text or part.refusal)
    url = part.image_url.url if isinstance(part.image_url, _ImageUrl) else part.image_url or ""
    if not url.startswith("data:"):
        return ImageContent(url=url)
    head, _, data = url.partition(",")
    return ImageContent(data=data, media_type=head.removeprefix("data:").partition(";")[0] or None)
