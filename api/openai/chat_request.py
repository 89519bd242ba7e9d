"""A request for a chat completion, and what of it becomes an agent's input.

An agent keeps its own history, so the list of messages that such a client sends each time is not stored again: what is
new stands behind the last answer in it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.letta.content import as_object
from api.letta.message_input import ClientToolIn, MessageIn, MessagesRequest

_DATA_URL = re.compile(r"data:(?P<media_type>[\w.+-]+/[\w.+-]+);base64,(?P<data>[A-Za-z0-9+/=\s]+)")
_INSTRUCTIONS = ("system", "developer")
_ROLES = (*_INSTRUCTIONS, "user", "assistant", "tool", "function")


class StreamOptions(BaseModel):
    """What a stream shows beside the answer."""

    include_usage: bool | None = None


class FunctionTool(BaseModel):
    """A tool that the client runs itself."""

    type: Literal["function"]
    function: ClientToolIn


def _new_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    input_of(messages)
    return messages


def _only_text(value: Any) -> Any:
    if value in (None, ["text"]) or as_object(value) == {"type": "text"}:
        return value
    raise ValueError("an agent answers in text, in its own way: leave it out")


def _no_functions(value: Any) -> Any:
    if value:
        raise ValueError("the form that came before tools is not understood: use tools and tool_choice")
    return value


def _free_choice(value: Any) -> Any:
    if value in (None, "auto", "none"):
        return value
    raise ValueError("must be 'auto' or 'none': the agent chooses among its tools and yours")


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`. Fields that it does not have are not acted on."""

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
    """Kept with the message, as its sender."""
    response_format: Annotated[Any, AfterValidator(_only_text)] = None
    modalities: Annotated[Any, AfterValidator(_only_text)] = None
    functions: Annotated[Any, AfterValidator(_no_functions)] = None
    function_call: Annotated[Any, AfterValidator(_no_functions)] = None

    @property
    def shows_usage(self) -> bool:
        """Whether a stream of it ends with the tokens that were used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def submitted(self) -> MessagesRequest:
        """What is submitted to the agent."""
        offered = [] if self.tool_choice == "none" else self.tools or []
        return MessagesRequest(
            messages=input_of(self.messages, self.user),
            streaming=bool(self.stream),
            stream_tokens=bool(self.stream),
            client_tools=[tool.function for tool in offered] or None,
        )


def input_of(messages: Sequence[Mapping[str, Any]], user: str | None = None) -> list[MessageIn]:
    """The agent's input: the results of tools behind the last answer in the list, and the last message of the user's
    there. Raises `ValueError`, which names the message that is not understood.

    Users' messages before the last one were sent before, by a request whose answer the client does not know.
    """
    results: list[dict[str, Any]] = []
    said: MessageIn | None = None
    for number, message in _new(messages):
        place = f"messages[{number}]"
        role = message.get("role")
        if role == "user":
            content = _content(message.get("content"), place)
            said = MessageIn(content=content, name=_text(message, "name", place), sender_id=user)
        elif role == "tool":
            call_id = _text(message, "tool_call_id", place)
            if not call_id:
                raise ValueError(f"{place}.tool_call_id is missing: name the call that this is the result of")
            content = _content(message.get("content"), place)
            results.append({"type": "tool", "tool_call_id": call_id, "tool_return": content, "status": "success"})
    given = [MessageIn(type="tool_return", tool_returns=results)] if results else []
    given += [said] if said is not None else []
    if not given:
        raise ValueError(
            "nothing is new behind the last answer: end the list with a message of the user's, or with the results of "
            "tools. The agent keeps its own history"
        )
    return given


def left_out(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The kinds of messages that do not become input, as `messages[system]`. The list has been accepted."""
    new = list(_new(messages))
    users = [number for number, message in new if message.get("role") == "user"]
    taken = {number for number, message in new if message.get("role") == "tool"} | set(users[-1:])
    for number, message in enumerate(messages):
        if number not in taken:
            yield f"messages[{message.get('role')}]"


def _new(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """What stands behind the last answer, with its place in the list."""
    roles = [message.get("role") for message in messages]
    for number, role in enumerate(roles):
        if role not in _ROLES:
            raise ValueError(f"messages[{number}].role is {str(role)[:50]!r}: it must be one of {', '.join(_ROLES)}")
    last = max((number for number, role in enumerate(roles) if role == "assistant"), default=-1)
    for number, message in enumerate(messages[last + 1 :], start=last + 1):
        if message.get("role") == "function":
            raise ValueError(f"messages[{number}]: results of functions are not understood: use tools")
        yield number, message


def _text(message: Mapping[str, Any], name: str, place: str) -> str | None:
    match message.get(name):
        case str() | None as value:
            return value
        case _:
            raise ValueError(f"{place}.{name} must be a text")


def _content(content: Any, place: str) -> str | list[dict[str, Any]]:
    match content:
        case str():
            return content
        case list():
            parts = cast("list[Any]", content)
            return [_part(as_object(part) or {}, f"{place}.content[{number}]") for number, part in enumerate(parts)]
        case _:
            raise ValueError(f"{place}.content is missing: it must be a text or a list of parts")


def _part(part: dict[str, Any], place: str) -> dict[str, Any]:
    """A part of a message in Letta's form."""
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    image = as_object(part.get("image_url")) or {}
    url = image.get("url")
    if kind == "image_url" and isinstance(url, str):
        return {"type": "image", "source": _source(url, place)}
    raise ValueError(
        f"{place} is not understood: use {{'type': 'text', 'text': …}} or "
        "{'type': 'image_url', 'image_url': {'url': …}}"
    )


def _source(url: str, place: str) -> dict[str, Any]:
    if url.startswith(("http://", "https://")):
        return {"type": "url", "url": url}
    data = _DATA_URL.fullmatch(url)
    if data is None:
        raise ValueError(f"{place}.image_url.url must be http://…, https://… or data:image/…;base64,…")
    return {"type": "base64", "media_type": data["media_type"], "data": data["data"]}
