"""The requests that clients send to agents: their form on the wire, and the messages and decisions in them."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self, assert_never, cast

from msgspec.structs import replace
from pydantic import AfterValidator, BaseModel, Field, StrictBool, ValidationError, field_validator, model_validator

from api.input_limits import MOST_ENTRIES, BoundedSchema, Parts, as_object
from api.runs.command import BusyPolicy, Part, ReadDecisions, attached_image, image_at
from shared.domain.agents import ClientSkill
from shared.domain.approvals import Approval
from shared.domain.errors import Conflict, InvalidRequest, WrongToolCalls
from shared.domain.ids import IdMaker
from shared.domain.messages import (
    AssistantMessage,
    ContentPart,
    Decision,
    ImageContent,
    NewMessage,
    TextContent,
    UserMessage,
    text_with_notes,
)
from shared.domain.models import split_handle
from shared.domain.tools import ClientTool
from shared.network.addresses import flaw_of_url

# Content on the wire, text and images, of users' messages and of tools' results.


def content_parts(given: list[Any], *, field: str) -> list[ContentPart]:
    """The parts of a list that a client sent in `field`. Raises `InvalidRequest`, which names the invalid part."""
    return [_read_part(as_object(part) or {}, f"{field}[{number}]") for number, part in enumerate(given)]


def tool_result(value: Any) -> tuple[str, list[ContentPart] | None]:
    """A client's result as text, and in its original parts; None if it was plain text."""
    if isinstance(value, list):
        parts = content_parts(cast("list[Any]", value), field="tool_return")
        return text_with_notes(parts), parts
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    return "" if value is None else text, None


def _read_part(part: dict[str, Any], where: str) -> ContentPart:
    kind = part.get("type", "text")
    if kind == "text" and isinstance(part.get("text"), str):
        return TextContent(part["text"])
    given = as_object(part.get("source"))
    if kind == "image" and given is not None:
        if given.get("type") == "url" and isinstance(given.get("url"), str):
            return image_at(given["url"], field=f"{where}.source.url")
        media_type = given.get("media_type") or "image/png"
        if given.get("type") == "base64" and isinstance(given.get("data"), str) and isinstance(media_type, str):
            return attached_image(given["data"], media_type, field=f"{where}.source.data")
    raise InvalidRequest(
        f"{where} is not understood: use {{'type': 'text', 'text': …}} or "
        "{'type': 'image', 'source': {'type': 'url' | 'base64', …}}",
        field=where,
    )


def wire_content(content: str | list[ContentPart]) -> str | list[dict[str, Any]]:
    """Content in the wire's form: text stays text."""
    if isinstance(content, str):
        return content
    return [_wire_part(part) for part in content]


def _wire_part(part: ContentPart) -> dict[str, Any]:
    match part:
        case TextContent():
            return {"type": "text", "text": part.text}
        case ImageContent(url=str() as url):
            return {"type": "image", "source": {"type": "url", "url": url}}
        case ImageContent():
            source = {"type": "base64", "media_type": part.media_type, "data": part.data}
            return {"type": "image", "source": source}
        case _:
            assert_never(part)


def _checked(url: str) -> str:
    flaw = flaw_of_url(url)
    if flaw is not None:
        raise ValueError(f"callback_url {flaw}")
    return url


CallbackUrl = Annotated[str, Field(max_length=2000), AfterValidator(_checked)]
"""An http(s) URL with a host."""


Decisions = Annotated[list[dict[str, Any]], Field(max_length=1000)]


class MessageIn(BaseModel):
    """One message of a request: a user's message, a decision, or results of tools that the client ran."""

    type: Literal["message", "approval", "tool_return"] = "message"
    role: Literal["user", "system", "assistant"] = "user"
    content: str | Parts | None = None
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    approvals: Decisions | None = None
    approve: StrictBool | None = None
    approval_request_id: str | None = None
    reason: str | None = None
    tool_returns: Decisions | None = None

    @model_validator(mode="before")
    @classmethod
    def _type_may_be_missing(cls, value: Any) -> Any:
        """Older SDKs send a decision without its type, and a client may leave out any type or send null."""
        given = as_object(value)
        if given is None or given.get("type") is not None:
            return value
        decides = given.get("approve") is not None or given.get("approval_request_id") or given.get("approvals")
        other = "tool_return" if given.get("tool_returns") else "message"
        return {**given, "type": "approval" if decides else other}

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> "MessageIn":
        if self.type == "message" and self.content is None:
            raise ValueError("content is missing: a message needs text or a list of content parts")
        if self.type == "tool_return" and not self.tool_returns:
            raise ValueError("tool_returns is missing: name at least one result")
        return self

    def texts(self) -> list[object]:
        """The countable parts of the message, for the limit on its length."""
        return [self.content, self.approvals, self.tool_returns, self.reason]


class ClientToolIn(BaseModel):
    """A tool that the client runs itself."""

    name: str
    description: str | None = None
    parameters: BoundedSchema | None = None


class ClientSkillIn(BaseModel):
    """A skill of the client: the model gets its name, its purpose and its place."""

    name: str
    description: str = ""
    location: str = ""


MessageType = Literal[
    "system_message",
    "user_message",
    "assistant_message",
    "reasoning_message",
    "hidden_reasoning_message",
    "tool_call_message",
    "tool_return_message",
    "approval_request_message",
    "approval_response_message",
    "summary_message",
    "event_message",
]
"""The types that clients can ask a run or a list for."""

Messages = Annotated[list[MessageIn], Field(max_length=10_000)]


class GivenInput(BaseModel):
    """The messages of a request, or one text in their place."""

    messages: Messages | None = None
    input: str | Parts | None = None

    @model_validator(mode="after")
    def _has_input(self) -> Self:
        if self.messages is None and self.input is None:
            raise ValueError("Must specify either 'input' or 'messages'.")
        if self.messages is not None and self.input is not None:
            raise ValueError("Specify either 'input' or 'messages', not both.")
        return self

    def given_messages(self) -> list[MessageIn]:
        """The messages; `input` is short for one user's message."""
        return [MessageIn(content=self.input)] if self.messages is None else self.messages


class MessagesRequest(GivenInput):
    """The body of a submission."""

    streaming: bool | None = None
    stream_tokens: bool = False
    background: bool = False
    include_pings: bool = True
    max_steps: Annotated[int, Field(ge=1)] = 50
    client_tools: Annotated[list[ClientToolIn], Field(max_length=MOST_ENTRIES)] | None = None
    client_skills: Annotated[list[ClientSkillIn], Field(max_length=1000)] | None = None
    include_return_message_types: Annotated[list[MessageType], Field(max_length=MOST_ENTRIES)] | None = None
    override_model: str | None = None
    override_system: str | None = None
    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    callback_url: CallbackUrl | None = None
    if_busy: BusyPolicy | None = None
    include_status_events: bool = False
    include_compaction_messages: bool = False

    @field_validator("override_model")
    @classmethod
    def _can_be_a_model(cls, handle: str | None) -> str | None:
        if handle:
            split_handle(handle)
        return handle

    def tools_of_client(self) -> list[ClientTool]:
        """The client's own tools."""
        return [
            ClientTool(name=tool.name, description=tool.description or "", parameters=tool.parameters or {})
            for tool in self.client_tools or []
        ]

    def skills_of_client(self) -> list[ClientSkill]:
        """The client's own skills."""
        return [ClientSkill(skill.name, skill.description, skill.location) for skill in self.client_skills or []]


class InjectRequest(GivenInput):
    """The body of an injection into a running run."""

    if_ended: Literal["refuse", "next"] = "refuse"


def user_bodies(given: Sequence[MessageIn]) -> list[UserMessage]:
    """The messages of a request that are not decisions. Raises `InvalidRequest`."""
    return [
        UserMessage(
            content=_content(message.content),
            role=message.role,
            otid=message.otid,
            name=message.name,
            sender_id=message.sender_id,
        )
        for message in given
        if message.type == "message"
    ]


def user_messages(given: Sequence[MessageIn], ids: IdMaker, now: datetime) -> list[NewMessage]:
    """The messages in the form in which they are stored."""
    return [NewMessage(id=ids.message(), created_at=now, body=body) for body in user_bodies(given)]


def parts_in(given: Sequence[MessageIn]) -> list[Part]:
    """The keys that identify repeated messages."""
    return [Part(message.otid, message.model_dump_json) for message in given]


def decisions_in(given: Sequence[MessageIn]) -> ReadDecisions | None:
    """The decisions of a request, to be matched once the waiting calls are known. None: the request has none.

    In place of the call, a decision may name the approval, or the request's message if one call waits: the ids are
    easily confused. Matching raises `WrongToolCalls` if the older form names anything but the waiting calls.
    """
    deciding = [message for message in given if message.type != "message"]
    if not deciding:
        return None

    def read(waiting: Sequence[Approval]) -> list[Decision]:
        decisions = [decision for message in deciding for decision in _decisions_of(message, waiting)]
        return [_by_its_call(decision, waiting) for decision in decisions]

    return read


def _calls_of(waiting: Sequence[Approval]) -> list[str]:
    return [approval.tool_call_id for approval in waiting]


def _by_its_call(decision: Decision, waiting: Sequence[Approval]) -> Decision:
    """The decision with the id of its call."""
    named = decision.tool_call_id
    for approval in waiting:
        if named == approval.id or (len(waiting) == 1 and named == approval.message_id):
            return replace(decision, tool_call_id=approval.tool_call_id)
    return decision


def _decisions_of(message: MessageIn, waiting: Sequence[Approval]) -> list[Decision]:
    items = message.tool_returns if message.type == "tool_return" else message.approvals
    if items:
        default_kind = "tool" if message.type == "tool_return" else "approval"
        decisions = [_decision(item, default_kind) for item in items]
        for item in items:
            _refuse_other_call(item, waiting)
        _refuse_contradiction(message, decisions, waiting)
        return decisions
    if message.approve is None:
        if waiting and message.approvals is not None:
            raise WrongToolCalls(_calls_of(waiting), [])
        raise InvalidRequest(
            "approvals is missing: say for each waiting tool call whether it is approved", field="approvals"
        )
    return [
        Decision(tool_call_id=call_id, approve=message.approve, reason=message.reason)
        for call_id in _named_by_older_form(message.approval_request_id, waiting)
    ]


def _named_by_older_form(request_id: str | None, waiting: Sequence[Approval]) -> list[str]:
    """The calls that `approve` without `approvals` covers: all calls of the named message, or the only waiting call.
    The verdict covers all waiting calls, so the request may name one call only if no other waits."""
    calls = _calls_of(waiting)
    if not waiting:
        return [request_id] if request_id else []
    if request_id in {approval.message_id for approval in waiting}:
        return calls
    if len(waiting) == 1 and request_id in (calls[0], waiting[0].id):
        return calls
    raise WrongToolCalls(calls, [request_id] if request_id else [])


def _refuse_contradiction(message: MessageIn, decisions: Sequence[Decision], waiting: Sequence[Approval]) -> None:
    """Raises `InvalidRequest` or `WrongToolCalls` if a message has both forms of a decision and these differ."""
    if message.approve is not None and any(
        decision.kind == "approval" and decision.approve is not message.approve for decision in decisions
    ):
        raise InvalidRequest("approve and approvals say different things: send one of the two", field="approve")
    named = message.approval_request_id
    if named and waiting and not any(named in (one.message_id, one.id, one.tool_call_id) for one in waiting):
        raise WrongToolCalls(_calls_of(waiting), [named])


def _refuse_other_call(item: Mapping[str, Any], waiting: Sequence[Approval]) -> None:
    """Raises `Conflict` if a decision is for other arguments, or another version of the tool, than the waiting call's.
    Raises `InvalidRequest` if the decision contains new arguments: a message cannot change them, and the call would
    run with the old ones."""
    changed = next((name for name, value in item.items() if "arg" in name and value and name != "arguments_hash"), None)
    if changed is not None:
        way = "POST /v1/approvals/{approval_id} with `arguments`"
        raise InvalidRequest(f"a message cannot change arguments: {way} does", field=f"approvals[].{changed}")
    for one in waiting:
        if item.get("tool_call_id") not in (one.tool_call_id, one.id):
            continue
        for name, shown in (("arguments_hash", one.arguments_hash), ("tool_version", one.tool_version)):
            given = item.get(name)
            if given is not None and given != shown:
                raise Conflict(
                    f"{name} is {str(given)[:100]}, but call {one.tool_call_id} of {one.tool_name} waits with {shown}: "
                    "look at it again before deciding"
                )


def _decision(item: dict[str, Any], default_kind: str) -> Decision:
    call_id = item.get("tool_call_id")
    if not isinstance(call_id, str):
        raise InvalidRequest(
            "approvals[].tool_call_id is missing: name the tool call that is decided", field="approvals[].tool_call_id"
        )
    kind = item.get("type") or default_kind
    if kind not in ("approval", "tool"):
        raise InvalidRequest(
            f"approvals[].type is {str(kind)[:100]!r}: use 'approval' or 'tool'", field="approvals[].type"
        )
    if kind == "tool":
        if "tool_return" not in item:
            raise InvalidRequest(f"tool_return is missing for {call_id}", field="tool_returns[].tool_return")
        status = item.get("status", "success")
        if status not in ("success", "error"):
            raise InvalidRequest(
                f"tool_returns[].status is {status!r}: it must be 'success' or 'error'", field="tool_returns[].status"
            )
        text, parts = tool_result(item.get("tool_return"))
        return Decision(
            tool_call_id=call_id,
            kind="tool",
            tool_return=text,
            status=status,
            stdout=_lines(item.get("stdout")),
            stderr=_lines(item.get("stderr")),
            parts=parts,
        )
    approve = item.get("approve")
    if not isinstance(approve, bool):
        raise InvalidRequest(
            f"approvals[].approve is missing for {call_id}: it must be true or false", field="approvals[].approve"
        )
    reason = item.get("reason")
    if not isinstance(reason, str | None):
        raise InvalidRequest(f"approvals[].reason is no text for {call_id}", field="approvals[].reason")
    return Decision(tool_call_id=call_id, approve=approve, reason=reason)


def _lines(value: Any) -> list[str] | None:
    if value is None:
        return None
    return [str(line) for line in cast("list[Any]", value)] if isinstance(value, list) else [str(value)]


def _content(content: str | list[dict[str, Any]] | None) -> str | list[ContentPart]:
    return content_parts(content, field="content") if isinstance(content, list) else content or ""


# A turn that a program had with a model without Holdfast, and sends afterwards: Letta's `messages/capture`. The request
# has the program's messages and the model's answer. The history stores the users' messages among the former and the
# text of the latter. The rest (instructions, repeated answers, tools) belongs to the program.


Given = Annotated[list[dict[str, Any]], Field(max_length=1000)]


class CaptureRequest(BaseModel):
    """The body of a capture."""

    provider: Annotated[str, Field(min_length=1, max_length=100)]
    model: Annotated[str, Field(min_length=1, max_length=500)]
    request_messages: Given
    """The program's messages. Only messages with the role `user` are stored."""
    response_dict: dict[str, Any]
    """The model's answer. Only its `content`, a text, is stored."""

    def users_messages(self) -> list[MessageIn]:
        """The users' messages in the form of a submission. Raises `InvalidRequest` for content that is neither text nor
        parts."""
        said: list[MessageIn] = []
        for number, message in enumerate(self.request_messages):
            content: Any = message.get("content")
            if message.get("role") != "user" or not content:
                continue
            try:
                said.append(MessageIn(content=content))
            except ValidationError as error:
                text = f"request_messages[{number}].content must be a text or a list of content parts"
                raise InvalidRequest(text) from error
        return said

    def answer(self) -> str:
        """The model's text; empty without one. Raises `InvalidRequest` for content that is not text."""
        content = self.response_dict.get("content")
        if content is None:
            return ""
        if not isinstance(content, str):
            raise InvalidRequest("response_dict.content must be the text that the model answered")
        return content


def captured_messages(request: CaptureRequest, ids: IdMaker, now: datetime) -> list[NewMessage]:
    """The turn's messages to store. Raises `InvalidRequest`."""
    bodies: list[UserMessage | AssistantMessage] = []
    for message in request.users_messages():
        content = message.content or ""
        is_text = isinstance(content, str)
        bodies.append(UserMessage(content if is_text else content_parts(content, field="request_messages[].content")))
    answer = request.answer()
    if answer:
        bodies.append(AssistantMessage(text=answer, model=f"{request.provider}/{request.model}"))
    return [NewMessage(id=ids.message(), created_at=now, body=body) for body in bodies]
