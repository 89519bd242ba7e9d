"""Converts our history to turns. The result is always a request that every provider accepts, in whatever state a cancel
or a crash left the history.

The model's view of the past, beyond the messages themselves:
* a summary is marked as one, so that the model does not mistake it for the user's words;
* an answer that was cut off ends in a note, and a message without an answer gets a note in place of one, so that roles
  alternate and the model does not continue what the user has stopped;
* every tool call has a result: a missing result becomes "outcome unknown", and a result without its call is left out;
* reasoning goes back only to the model that wrote it, unchanged, and never from an answer that was cut off.
"""

import base64
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    AttachedFile,
    ContentPart,
    ImageContent,
    Message,
    Summary,
    SystemMessage,
    TextContent,
    ToolReturn,
    ToolReturns,
    UserMessage,
    text_of,
)
from shared.domain.settling import OUTCOME_UNKNOWN
from shared.domain.tools import legal_name
from shared.tool_arguments import as_object
from worker.models.provider import ModelCall
from worker.models.special_tokens import whole_characters

# A conversation as turns of the two sides, in no provider's form. This module makes them from our messages, and each
# protocol makes its own request from them.


class ImageLink(msgspec.Struct, frozen=True):
    """An image that the provider fetches."""

    url: str


class ImageData(msgspec.Struct, frozen=True):
    """An image inside the request, in base64."""

    base64: str
    media_type: str

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


Image = ImageLink | ImageData


class FileData(msgspec.Struct, frozen=True):
    """A file inside the request, in base64."""

    name: str
    media_type: str
    base64: str
    note: str
    """Replaces the file where a server accepts no files."""

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


class Prompt(msgspec.Struct, frozen=True):
    """A user's input."""

    content: str | list[str | Image | FileData]


PLAIN = "plain"
"""The only key of an envelope whose text the model gets unchanged."""


class Result(msgspec.Struct, frozen=True):
    """The result of a tool call."""

    call_id: str
    tool_name: str
    envelope: dict[str, str]
    """The result's status, text and time. If the only key is `PLAIN`, the model gets the text alone."""
    images: list[Image] = []

    @property
    def text(self) -> str:
        """The result in the form that the model gets."""
        plain = self.envelope.get(PLAIN)
        return json.dumps(self.envelope, ensure_ascii=False) if plain is None else plain


class TextPart(msgspec.Struct, frozen=True):
    """Text of the model."""

    text: str


class ReasoningPart(msgspec.Struct, frozen=True):
    """Reasoning of the model. The provider defines its name and its signature."""

    text: str
    id: str | None = None
    signature: str | None = None


class ToolCallPart(msgspec.Struct, frozen=True):
    """A tool call of the model. `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str
    details: dict[str, Any] | None = None
    """Fields that the provider added to the call and needs back."""


AnswerPart = TextPart | ReasoningPart | ToolCallPart


class UserTurn(msgspec.Struct, frozen=True):
    """The inputs between two answers of the model."""

    parts: list[Prompt | Result]


class AssistantTurn(msgspec.Struct, frozen=True):
    """The model's output between two inputs."""

    parts: list[AnswerPart]
    kept: str | None = None
    """The provider's own form of the answer, if its parts come from one."""
    details: dict[str, Any] | None = None
    """Fields that the provider added to the answer as a whole."""


Turn = UserTurn | AssistantTurn


# The content of a user's message or a tool's result in turns: text and images that every provider accepts.


EMPTY = "[This message is empty.]"

_SIGNATURES = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


def plain_text(text: str) -> str:
    """Text that every provider accepts: not blank, and without lone surrogates."""
    return whole_characters(text) if text.strip() else EMPTY


def user_content(content: str | list[ContentPart]) -> str | list[str | Image | FileData]:
    """The content of a user's message."""
    if isinstance(content, str):
        return plain_text(content)
    parts = [part for part in content if isinstance(part, ImageContent) or part.text.strip()]
    return [_part(part) for part in parts] or EMPTY


def images_in(content: list[ContentPart]) -> list[Image]:
    """The images of the content, without its text."""
    images = (_image_of(part) for part in content if isinstance(part, ImageContent))
    return [image for image in images if image is not None]


def _part(part: ContentPart) -> str | Image | FileData:
    match part:
        case TextContent(text=text, file=AttachedFile(name=name, media_type=media_type, data=str(data))):
            return FileData(plain_text(name), media_type, data, plain_text(text))
        case TextContent(text=text):
            return plain_text(text)
        case ImageContent():
            return _image_of(part) or "[An image that could not be read.]"


def _image_of(part: ImageContent) -> Image | None:
    """The image. None if no model can read it, because an error would end every later run of the history."""
    if part.data is not None:
        return _image(part.data, part.media_type)
    url = part.url or ""
    return ImageLink(url) if url.startswith(("http://", "https://", "data:")) else None


def _image(data: str, media_type: str | None) -> ImageData | None:
    try:
        content = base64.b64decode(data, validate=False)
    except ValueError:
        return None
    # Providers refuse an image under another type than its own, and clients name the type after the file.
    found = (kind for signature, kind in _SIGNATURES if content.startswith(signature))
    return ImageData(base64.b64encode(content).decode(), next(found, media_type or "image/png"))


# The stored form of an answer whose provider wants a part of it back: signatures, ids, reasoning. The form is the JSON
# of pydantic-ai's `ModelResponse`, for answers of every provider. So an agent that changes its model continues its
# history over every protocol, two of which are pydantic-ai's.


class _Text(msgspec.Struct, tag_field="part_kind", tag="text"):
    content: str


class _Thinking(msgspec.Struct, tag_field="part_kind", tag="thinking"):
    content: str
    id: str | None = None
    signature: str | None = None
    provider_name: str | None = None


class _ToolCall(msgspec.Struct, tag_field="part_kind", tag="tool-call"):
    tool_name: str
    args: str | dict[str, Any] | None
    tool_call_id: str
    provider_name: str | None = None
    provider_details: dict[str, Any] | None = None


_Part = _Text | _Thinking | _ToolCall


class _OtherPart(msgspec.Struct):
    """A part of any other kind, which only the protocol that wrote it can read."""

    part_kind: str


class _Response(msgspec.Struct, kw_only=True, tag_field="kind", tag="response"):
    parts: list[msgspec.Raw]
    provider_name: str | None = None
    provider_details: dict[str, Any] | None = None


_READ_PARTS: dict[str, msgspec.json.Decoder[_Part]] = {
    "text": msgspec.json.Decoder(_Text),
    "thinking": msgspec.json.Decoder(_Thinking),
    "tool-call": msgspec.json.Decoder(_ToolCall),
}


class Given(msgspec.Struct, frozen=True):
    """The provider of an answer, and its details."""

    provider_name: str
    model: str
    response_id: str | None
    reason: str | None
    """As `WholeAnswer.reason`."""
    details: dict[str, Any] | None = None
    """Fields that the provider added to the answer as a whole and needs back."""


def write_kept(parts: Sequence[AnswerPart], given: Given) -> str | None:
    """Returns the answer in its stored form; None if the provider needs none of it back, because text and calls
    suffice."""
    if all(isinstance(part, TextPart) or (isinstance(part, ToolCallPart) and not part.details) for part in parts):
        return None
    written = {
        "kind": "response",
        "parts": [_written(part, given.provider_name) for part in parts],
        "model_name": given.model,
        "provider_name": given.provider_name,
        "provider_details": given.details,
        "provider_response_id": given.response_id,
        "finish_reason": given.reason,
    }
    try:
        return msgspec.json.encode([written]).decode()
    except UnicodeEncodeError:
        # Half a character (see `special_tokens.py`): an answer that cannot be kept unchanged is rebuilt from text and
        # calls.
        return None


def read_kept(stored: str, provider_name: str) -> AssistantTurn | None:
    """Returns the answer as parts of a turn; None if it is another provider's or has an unknown form."""
    try:
        [answer] = msgspec.json.decode(stored, type=list[_Response])
        if answer.provider_name != provider_name:
            return None
        found = [_read(part) for part in answer.parts]
    except (ValueError, RecursionError):
        return None
    return AssistantTurn([part for part in found if part is not None], stored, answer.provider_details)


def _read(raw: msgspec.Raw) -> AnswerPart | None:
    kind = msgspec.json.decode(raw, type=_OtherPart).part_kind
    decoder = _READ_PARTS.get(kind)
    if decoder is None:
        return None
    match decoder.decode(raw):
        case _Text(content=text):
            return TextPart(text)
        case _Thinking(content=text, id=name, signature=signature):
            return ReasoningPart(text, name, signature)
        case _ToolCall(tool_name=name, args=arguments, tool_call_id=call_id, provider_details=details):
            written = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
            return ToolCallPart(call_id, name, written, details)


def _written(part: AnswerPart, provider_name: str) -> _Part:
    match part:
        case TextPart(text=text):
            return _Text(text)
        case ReasoningPart(text=text, id=name, signature=signature):
            return _Thinking(text, name, signature, provider_name)
        case ToolCallPart(id=call_id, name=name, arguments=arguments, details=details):
            return _ToolCall(name, arguments, call_id, provider_name if details else None, details)


CUT_BY_CANCEL = "[This reply was cut off: the user cancelled it.]"
CUT_BY_ERROR = "[This reply was cut off by an error.]"
NEVER_ANSWERED = "[No reply: the user cancelled this turn.]"
ENDED_AFTER_TOOLS = "[This turn ended here, before a reply.]"
NO_TEXT = "[This reply had no text.]"
BEGINNING = "[The conversation begins with your own message.]"
GO_ON = "[Please go on.]"
SUMMARY_OF_EARLIER = "[Earlier messages are left out here. This is a summary of them.]"

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Models also call tools that do not exist, by names for which providers refuse the next request."""


def map_history(call: ModelCall, *, provider_name: str, safe_call_id: Callable[[str], str] | None = None) -> list[Turn]:
    """The turns of one request, without the instructions. They begin and end with input of the other side.

    `provider_name` is the provider name in this protocol's stored answers.
    """
    mapping = _MappedHistory(call.handle, provider_name, safe_call_id or str)
    for message in call.history:
        mapping.add(message)
    return mapping.finish()


class _MappedHistory:
    """The turns so far, and the calls without results."""

    def __init__(self, handle: str, provider_name: str, safe_call_id: Callable[[str], str]) -> None:
        self._handle = handle
        self._provider_name = provider_name
        self._safe_call_id = safe_call_id
        self._turns: list[Turn] = []
        self._open_calls: list[ToolCallPart] = []
        self._called_at = datetime.fromtimestamp(0, UTC)
        self._results: dict[str, tuple[ToolReturn, datetime]] = {}
        self._last: Message | None = None

    def add(self, message: Message) -> None:
        """Adds the next message of the history."""
        match message.body:
            case SystemMessage() | ApprovalResponse():
                return
            case ToolReturns(returns=returns):
                self._results.update((result.tool_call_id, (result, message.created_at)) for result in returns)
            case Summary(text=text):
                self._close_calls()
                self._ask(Prompt(plain_text(f"{SUMMARY_OF_EARLIER}\n{text}")))
            case UserMessage(role="assistant", content=content):
                self._close_calls()
                self._say(plain_text(text_of(content)), message.created_at)
            case UserMessage() as body:
                self._close_calls()
                self._separate_turns(message)
                self._ask(Prompt(user_content(body.content)))
            case AssistantMessage() as body:
                self._close_calls()
                self._answer(self._kept_or_rebuilt(body), message.created_at)
        self._last = message

    def finish(self) -> list[Turn]:
        """The turns of the whole history."""
        self._close_calls()
        if not self._turns or isinstance(self._turns[0], AssistantTurn):
            self._turns.insert(0, UserTurn([Prompt(BEGINNING)]))
        if isinstance(self._turns[-1], AssistantTurn):
            self._ask(Prompt(GO_ON))
        return self._turns

    def _separate_turns(self, message: Message) -> None:
        """Adds a note in place of the model's answer if the turn before this message did not end."""
        last = self._last
        if last is None or last.run_id == message.run_id:
            return
        if not self._turns or isinstance(self._turns[-1], AssistantTurn):
            return
        match last.body:
            case UserMessage() if last.run_id is None:
                return  # a client has added it to the history, and no run was to answer it
            case UserMessage():
                self._say(NEVER_ANSWERED, last.created_at)
            case ToolReturns() | AssistantMessage():
                self._say(ENDED_AFTER_TOOLS, last.created_at)
            case _:
                return

    def _kept_or_rebuilt(self, body: AssistantMessage) -> AssistantTurn:
        if not body.partial and body.provider_response is not None and body.model in (None, self._handle):
            kept = read_kept(body.provider_response, self._provider_name)
            if kept is not None and _is_answer(kept.parts):
                return kept
        return AssistantTurn(_rebuilt_answer(body))

    def _ask(self, *parts: Prompt | Result) -> None:
        """Adds to the model's input; it stays one turn until the next answer."""
        last = self._turns[-1] if self._turns else None
        if isinstance(last, UserTurn):
            last.parts.extend(parts)
        else:
            self._turns.append(UserTurn(list(parts)))

    def _say(self, text: str, at: datetime) -> None:
        self._answer(AssistantTurn([TextPart(text)]), at)

    def _answer(self, answer: AssistantTurn, at: datetime) -> None:
        """Adds an answer. Its calls are open until a message that is not their result."""
        if self._turns and isinstance(self._turns[-1], AssistantTurn):
            self._ask(Prompt(GO_ON))  # the model was asked for this answer with the same text
        parts = [self._with_safe_call(part) if isinstance(part, ToolCallPart) else part for part in answer.parts]
        self._open_calls = [part for part in parts if isinstance(part, ToolCallPart)]
        self._called_at = at
        self._turns.append(replace(answer, parts=parts))

    def _with_safe_call(self, call: ToolCallPart) -> ToolCallPart:
        arguments = _object_or_note(call.arguments)
        name = call.name if _LEGAL_NAME.fullmatch(call.name) else legal_name(call.name)
        return replace(call, id=self._safe_call_id(call.id), name=name, arguments=arguments)

    def _close_calls(self) -> None:
        """Adds a result for every call of the last answer, in the order of the calls."""
        results = {self._safe_call_id(call_id): result for call_id, result in self._results.items()}
        parts = [self._result(call, results.get(call.id)) for call in self._open_calls]
        self._open_calls, self._results = [], {}
        if parts:
            self._ask(*parts)

    def _result(self, call: ToolCallPart, found: tuple[ToolReturn, datetime] | None) -> Result:
        if found is None:
            envelope = {"status": "Failed", "message": OUTCOME_UNKNOWN, "time": self._called_at.isoformat()}
            return Result(call.id, call.name, envelope)
        result, at = found
        text = whole_characters(result.text if result.parts is None else text_of(result.parts))
        envelope = {PLAIN: text}
        if not result.is_plain:
            status = "OK" if result.status == "success" else "Failed"
            envelope = {"status": status, "message": text, "time": at.isoformat()}
        return Result(call.id, call.name, envelope, images_in(result.parts or []))


def _rebuilt_answer(body: AssistantMessage) -> list[AnswerPart]:
    """The answer from its text and its calls, for another model, or if it is incomplete."""
    text = body.text
    if body.partial:
        note = CUT_BY_CANCEL if body.cut_by == "cancel" else CUT_BY_ERROR
        text = f"{text}\n\n{note}" if text.strip() else note
    if not text.strip():
        text = "" if body.tool_calls else NO_TEXT
    parts: list[AnswerPart] = [TextPart(plain_text(text))] if text else []
    parts.extend(ToolCallPart(call.id, call.name, call.arguments) for call in body.tool_calls)
    return parts


def _is_answer(parts: Sequence[AnswerPart]) -> bool:
    """Whether a provider takes the parts back as an answer. It refuses an answer that ends in reasoning, such as one
    that was cut off there."""
    said = [part for part in parts if not isinstance(part, TextPart) or part.text.strip()]
    return bool(said) and not isinstance(said[-1], ReasoningPart)


def _object_or_note(arguments: str) -> str:
    """Returns the arguments if they are a JSON object, as every provider demands; otherwise an object that contains the
    text."""
    meant = as_object(arguments)
    if not meant.strip():
        return "{}"
    try:
        msgspec.json.decode(meant, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return msgspec.json.encode({"INVALID_JSON": plain_text(arguments)}).decode()
    return meant
