"""A request for a chat completion, and the part of it that becomes an agent's input.

An agent keeps its own history. Clients send the whole list of messages each time, and only the messages after the last
answer in it are new.

Errors have the shape that OpenAI's clients read: `{"error": {"message", "type", "param", "code"}}`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from api.errors import Refusal, place_of, sentence_of, showable, wire_waiting
from api.input_limits import BoundedSchema, as_object
from api.runs.command import image_at
from shared.domain.errors import ErrorCode, InvalidRequest, code_of
from shared.domain.messages import ContentPart, Decision, ImageContent, TextContent, UserMessage, text_with_notes
from shared.domain.tools import ClientTool

_INSTRUCTIONS = ("system", "developer")
_ROLES = (*_INSTRUCTIONS, "user", "assistant", "tool", "function")


class StreamOptions(BaseModel):
    """The parts of a stream besides the answer."""

    include_usage: bool | None = None


class Function(BaseModel):
    """The description of a tool that the model sees."""

    name: str
    description: str | None = None
    parameters: BoundedSchema | None = None


class FunctionTool(BaseModel):
    """A tool that the client runs itself."""

    type: Literal["function"]
    function: Function


def _new_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    input_of(messages)
    return messages


def _only_text(value: Any) -> Any:
    if value in (None, ["text"]) or as_object(value) == {"type": "text"}:
        return value
    raise ValueError("an agent answers in text: leave it out")


def _no_functions(value: Any) -> Any:
    if value:
        raise ValueError("the older form of tools is not supported: use tools and tool_choice")
    return value


def _free_choice(value: Any) -> Any:
    if value in (None, "auto", "none"):
        return value
    raise ValueError("must be 'auto' or 'none': the agent chooses among its own tools and yours")


class AnswerSchema(BaseModel):
    """The JSON schema of an answer."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[BoundedSchema, Field(alias="schema")]
    strict: bool | None = None


class AnswerFormat(BaseModel):
    """The shape of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "AnswerFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is missing: give its name and its schema")
        return self


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`. Other fields have no effect."""

    model_config = ConfigDict(extra="ignore")

    model: Annotated[str, Field(max_length=200)]
    """The id of an agent, or of one of its conversations."""
    messages: Annotated[list[dict[str, Any]], Field(max_length=10_000), AfterValidator(_new_messages)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=1000)] | None = None
    tool_choice: Annotated[Any, AfterValidator(_free_choice)] = None
    n: Literal[1] | None = None
    user: Annotated[str, Field(max_length=500)] | None = None
    """Stored with the message, as its sender."""
    response_format: AnswerFormat | None = None
    modalities: Annotated[Any, AfterValidator(_only_text)] = None
    functions: Annotated[Any, AfterValidator(_no_functions)] = None
    function_call: Annotated[Any, AfterValidator(_no_functions)] = None

    @property
    def shows_usage(self) -> bool:
        """Whether a stream ends with the tokens that the run used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def answer_format(self) -> dict[str, Any] | None:
        """The format in a model request. None: plain text."""
        chosen = self.response_format
        return None if chosen is None or chosen.type == "text" else chosen.model_dump(by_alias=True, exclude_none=True)

    def given(self) -> "ChatInput":
        """The input for the agent."""
        return input_of(self.messages, self.user)

    def client_tools(self) -> list[ClientTool]:
        """The client's own tools that the agent may call."""
        offered = [] if self.tool_choice == "none" else self.tools or []
        return [
            ClientTool(name=one.name, description=one.description or "", parameters=one.parameters or {})
            for one in (tool.function for tool in offered)
        ]


class ChatInput(NamedTuple):
    """The new part of a list of messages."""

    results: Sequence[Decision]
    """Results of tools that the client ran."""
    said: UserMessage | None
    texts: Mapping[str, object]
    """The countable parts of each message, by its place in the body, for the limit on its length."""


def _texts_of(said: UserMessage) -> object:
    if isinstance(said.content, str):
        return said.content
    return [part.text for part in said.content if isinstance(part, TextContent)]


def input_of(messages: Sequence[Mapping[str, Any]], user: str | None = None) -> ChatInput:
    """The agent's input: the results of tools after the last answer in the list, and the user's last message there.
    Raises `ValueError`, which names the invalid message.

    An earlier request has sent the user's messages before the last one, and its client does not know the answer.
    """
    results: list[Decision] = []
    said: UserMessage | None = None
    said_at, texts = "", dict[str, object]()
    for number, message in _new(messages):
        place = f"messages[{number}]"
        role = message.get("role")
        if role == "user":
            content, said_at = _content(message.get("content"), place), place
            said = UserMessage(content=content, name=_text(message, "name", place), sender_id=user)
        elif role == "tool":
            call_id = _text(message, "tool_call_id", place)
            if not call_id:
                raise ValueError(f"{place}.tool_call_id is missing: it must be the id of the call that has this result")
            results.append(_result(call_id, _content(message.get("content"), place)))
            texts[place] = results[-1].tool_return
    if not results and said is None:
        raise ValueError(
            "there is no new message after the last answer: end the list with a message of the user, or with results "
            "of tools. The agent keeps its own history"
        )
    return ChatInput(results, said, texts if said is None else {**texts, said_at: _texts_of(said)})


def _result(call_id: str, content: str | list[ContentPart]) -> Decision:
    if isinstance(content, str):
        return Decision(tool_call_id=call_id, kind="tool", tool_return=content)
    return Decision(tool_call_id=call_id, kind="tool", tool_return=text_with_notes(content), parts=content)


def left_out(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The kinds of messages that do not become input, as `messages[system]`. The list must be valid."""
    new = list(_new(messages))
    users = [number for number, message in new if message.get("role") == "user"]
    taken = {number for number, message in new if message.get("role") == "tool"} | set(users[-1:])
    for number, message in enumerate(messages):
        if number not in taken:
            yield f"messages[{message.get('role')}]"


def _new(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The messages after the last answer, with their places in the list."""
    roles = [message.get("role") for message in messages]
    for number, role in enumerate(roles):
        if role not in _ROLES:
            raise ValueError(f"messages[{number}].role is {str(role)[:50]!r}: it must be one of {', '.join(_ROLES)}")
    last = max((number for number, role in enumerate(roles) if role == "assistant"), default=-1)
    for number, message in enumerate(messages[last + 1 :], start=last + 1):
        if message.get("role") == "function":
            raise ValueError(f"messages[{number}]: results of functions are not supported: use tools")
        yield number, message


def _text(message: Mapping[str, Any], name: str, place: str) -> str | None:
    match message.get(name):
        case str() | None as value:
            return value
        case _:
            raise ValueError(f"{place}.{name} must be a text")


def _content(content: Any, place: str) -> str | list[ContentPart]:
    match content:
        case str():
            return content
        case list():
            parts = cast("list[Any]", content)
            return [_part(as_object(part) or {}, f"{place}.content[{number}]") for number, part in enumerate(parts)]
        case _:
            raise ValueError(f"{place}.content is missing: it must be a text or a list of parts")


def _part(part: dict[str, Any], place: str) -> ContentPart:
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return TextContent(part["text"])
    image = as_object(part.get("image_url")) or {}
    url = image.get("url")
    if kind == "image_url" and isinstance(url, str):
        return _image(url, place)
    raise ValueError(
        f"{place} is not understood: use {{'type': 'text', 'text': …}} or "
        "{'type': 'image_url', 'image_url': {'url': …}}"
    )


def _image(url: str, place: str) -> ImageContent:
    try:
        return image_at(url, field=f"{place}.image_url.url")
    except InvalidRequest as error:
        raise ValueError(error.message) from error


_CODES: Mapping[str, str] = {
    ErrorCode.MISSING_API_KEY: "invalid_api_key",
    ErrorCode.CONTEXT_WINDOW_EXCEEDED: "context_length_exceeded",
    ErrorCode.INSTRUCTIONS_TOO_LONG: "context_length_exceeded",
    ErrorCode.LLM_RATE_LIMIT: "rate_limit_exceeded",
}
"""Codes for which OpenAI has a name that programs check."""

_RATE_LIMIT, _INVALID, _SERVER = "rate_limit_error", "invalid_request_error", "server_error"
_MODEL_KINDS = {
    "rate_limit_exceeded": _RATE_LIMIT, "context_length_exceeded": _INVALID, "llm_bad_request": _INVALID,
}  # fmt: skip


def openai_error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The status and the body of a refusal for OpenAI's clients: an invalid body is a 400 there."""
    status = 400 if refusal.status == 422 else refusal.status
    if refusal.flaws:
        return status, invalid_input(refusal.flaws, refusal.code)
    if refusal.failure is not None:
        return status, model_error(refusal.failure.error_type, refusal.message, refusal.failure.detail)
    message, more = refusal.message, dict[str, Any]()
    if refusal.waiting is not None:
        more = wire_waiting(refusal.waiting)
        message += f" To go on: answer calls of your own tools with messages of the role 'tool'; else {more['resolve']}"
    if refusal.run_id is not None:
        more["run_id"] = refusal.run_id
    hint = refusal.hint or more.get("resolve") or refusal.code.hint
    return status, error_body(_kind(status), message, code=refusal.code, param=refusal.field, hint=hint, **more)


def error_body(
    kind: str, message: str, *, code: str | None, hint: str, param: str | None = None, **more: Any
) -> dict[str, Any]:
    """The body of an error, which a stream sends in place of a chunk."""
    shown = {"message": message, "type": kind, "param": param, "code": _CODES.get(code or "", code)}
    return {"error": {**shown, "hint": hint.replace("`field`", "`param`"), **more}}


def model_error(error_type: str, message: str, detail: str | None) -> dict[str, Any]:
    """The error of a run that failed. A provider's refusal of our request does not concern the caller's key."""
    code = _CODES.get(error_type, error_type)
    said = f"{message} {detail}" if detail and detail not in message else message
    return error_body(_MODEL_KINDS.get(code, _SERVER), said, code=code, hint=code_of(error_type).hint)


def invalid_input(found: Sequence[Mapping[str, Any]], code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> dict[str, Any]:
    """The error for a request with these flaws, as pydantic reports them: the first ten, and the place of the first."""
    place = place_of(found[0]["loc"][1:], "").removeprefix(".") if found else ""
    param = showable(place) or None  # a header is named like a field
    return error_body(_INVALID, sentence_of(found), code=code, param=param, hint=code.hint)


def interrupted(message: str, code: ErrorCode, run_id: str) -> dict[str, Any]:
    """The error of a stream that cannot show how its run continues."""
    more = f"see GET /v1/runs/{run_id} and its messages"
    return error_body(_SERVER, f"{message}: {more}", code=code, hint=code.hint, run_id=run_id)


def _kind(status: int) -> str:
    if status == 429:
        return _RATE_LIMIT
    return _SERVER if status >= 500 else _INVALID
