"""A request of `useChat`: it has the messages of the whole chat, and this module finds the new messages.

The server owns the history, so only the end of the chat counts: the users' messages after the last answer, and in the
last answer's last step the decisions and the results of the page's own calls. Parts of other kinds concern only the
page, in the versions 5 to 7 of the SDK and in later versions.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from api.ai_sdk.answer_chunks import Seen, own_id
from api.input_limits import MOST_ENTRIES, BoundedSchema, Parts, as_object
from api.pages.decisions import PageAnswer
from api.pages.threads import LONGEST_NAME
from api.runs.command import DATA_URL, BusyPolicy, attached_file, image_at
from shared.domain.errors import InvalidRequest
from shared.domain.messages import ContentPart, TextContent, UserMessage
from shared.domain.tools import ClientTool

MOST_MESSAGES = 10_000

_DYNAMIC, _STATIC = "dynamic-tool", "tool-"
"""Types of the parts for calls: the type for the server's tools, and the prefix of types for the page's own tools."""

Id = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class UiMessage(BaseModel):
    """A message in the page's form."""

    model_config = ConfigDict(extra="ignore")

    id: Id
    role: Literal["system", "user", "assistant"]
    parts: Parts


class PageTool(BaseModel):
    """A tool that the page runs itself."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: BoundedSchema | None = None

    def client_tool(self) -> ClientTool:
        """The tool in the domain's terms."""
        return ClientTool(self.name, self.description or "", self.parameters or {})


class UiChatRequest(BaseModel):
    """The body of `POST /ai-sdk/{agent_id}/chat`, as `DefaultChatTransport` sends it. `client_tools` and `if_busy` come
    from the transport's option `body`."""

    model_config = ConfigDict(extra="ignore")

    id: Id
    """The id of the chat: a conversation's id, `default`, or a name that the page has chosen."""
    messages: Annotated[list[UiMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    client_tools: Annotated[list[PageTool], Field(max_length=MOST_ENTRIES)] | None = None
    if_busy: BusyPolicy | None = None

    def said(self) -> list[UserMessage]:
        """The users' messages at the end, oldest first. Raises `InvalidRequest` for a part that no model can read."""
        return [_user_message(self.messages[place], f"messages[{place}]") for place in self.said_at()]

    def said_at(self) -> list[int]:
        """The places of these messages. Messages with the role `system` between them are ignored."""
        return [place for place in range(self._answered, len(self.messages)) if self.messages[place].role == "user"]

    def answers(self) -> list[PageAnswer]:
        """The decisions and the results in the last answer's last step. Raises `InvalidRequest`."""
        return [answer for part in self._last_step() if (answer := _answer_in(part)) is not None]

    def seen(self, answer_id: str) -> Seen | None:
        """The parts that the page has of the answer with this id. None: the answer is not the page's last message, so
        the stream shows it from its beginning."""
        last = self.messages[-1]
        if last.id != answer_id or last.role != "assistant":
            return None
        # Calls of earlier steps have their results, and later calls may reuse their ids.
        calls = [part for part in self._last_step() if _is_call(part) and isinstance(part.get("toolCallId"), str)]
        asked = (as_object(part.get("approval")) or {} for part in calls)
        return Seen(
            calls={own_id(part["toolCallId"]): part["toolCallId"] for part in calls},
            approvals=frozenset(str(one["id"]) for one in asked if "id" in one),
            own=frozenset(part["toolCallId"] for part in calls if part.get("type") != _DYNAMIC),
            answered=frozenset(part["toolCallId"] for part in calls if _is_result(part)),
            messages=frozenset(message.id for message in self.messages),
        )

    def tools(self) -> list[ClientTool]:
        """The page's own tools."""
        return [tool.client_tool() for tool in self.client_tools or []]

    @property
    def _answered(self) -> int:
        """The number of messages up to the last answer."""
        answers = [place for place, one in enumerate(self.messages, start=1) if one.role == "assistant"]
        return answers[-1] if answers else 0

    def _last_step(self) -> Sequence[dict[str, Any]]:
        last = self.messages[self._answered - 1] if self._answered else None
        if last is None:
            return ()
        begins = [place for place, part in enumerate(last.parts, start=1) if part.get("type") == "step-start"]
        return last.parts[begins[-1] if begins else 0 :]


def _is_call(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and (kind == _DYNAMIC or kind.startswith(_STATIC))


def _is_result(part: dict[str, Any]) -> bool:
    """Whether the part is the result of a call that the page has made itself."""
    is_whole = part.get("state") in ("output-available", "output-error") and part.get("preliminary") is not True
    return is_whole and part.get("providerExecuted") is not True


def _answer_in(part: dict[str, Any]) -> PageAnswer | None:
    """The answer to a waiting call in a part. None: the part has none."""
    if not _is_call(part):
        return None
    call, approval = part.get("toolCallId"), as_object(part.get("approval")) or {}
    if not isinstance(call, str):
        raise InvalidRequest("a part for a call has no toolCallId", field="messages")
    if part.get("state") == "approval-responded":
        approved, reason = approval.get("approved"), approval.get("reason")
        if not isinstance(approved, bool) or not isinstance(approval.get("id"), str):
            raise InvalidRequest(
                f"the approval of {call} must have an id, and approved must be true or false", field="messages"
            )
        return PageAnswer(call=approval["id"], approve=approved, reason=reason if isinstance(reason, str) else None)
    if not _is_result(part):
        return None
    if part["state"] == "output-error":
        return PageAnswer(call=own_id(call), result=str(part.get("errorText") or "error"), is_error=True)
    return PageAnswer(call=own_id(call), result=_text_of(part.get("output")))


def _text_of(output: Any) -> str:
    """A result for the model: a text unchanged, every other value as JSON."""
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


def _user_message(message: UiMessage, place: str) -> UserMessage:
    content = list(_content(message.parts, place))
    if not content:
        raise InvalidRequest(f"{place}.parts has neither text nor a file", field=f"{place}.parts")
    match content:
        case [TextContent(text=text, file=None)]:
            return UserMessage(text, otid=message.id)
        case _:
            return UserMessage(content, otid=message.id)


def _content(parts: Sequence[dict[str, Any]], place: str) -> Iterator[ContentPart]:
    for number, part in enumerate(parts):
        kind, where = part.get("type"), f"{place}.parts[{number}]"
        if kind == "text" and isinstance(part.get("text"), str):
            if part["text"]:
                yield TextContent(part["text"])
        elif kind == "file":
            yield _file(part, where)
        elif not (isinstance(kind, str) and kind.startswith("data-")):
            raise InvalidRequest(
                f"{where} is not understood: a user's message has parts of the types text, file and data-…", field=where
            )


def _file(part: dict[str, Any], where: str) -> ContentPart:
    url, media_type = part.get("url"), part.get("mediaType")
    if not isinstance(url, str) or not isinstance(media_type, str):
        raise InvalidRequest(f"{where} needs a url and a mediaType", field=where)
    if media_type.startswith("image/"):
        return image_at(url, field=f"{where}.url", named=part.get("filename"))
    data = DATA_URL.fullmatch(url)
    if data is None:
        raise InvalidRequest(f"{where}.url must be data:…;base64,…", field=f"{where}.url")
    return attached_file(part.get("filename"), data["media_type"], data["data"], field=f"{where}.url")
