"""The body of a run, as AG-UI's clients send it: its new messages, and its answers to calls.

Clients send all their messages with each request. The server keeps the history, so it ignores everything before the
last answer, and recognises the rest by its ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from api.ag_ui.messages import read_content, result_id
from api.input_limits import MOST_ENTRIES, BoundedSchema, as_object
from api.pages.decisions import PageAnswer, PageRefusal, RefusalCode
from api.pages.leg_parts import AGAIN
from api.pages.threads import LONGEST_NAME
from api.runs.command import BusyPolicy
from shared.domain.errors import InvalidRequest
from shared.domain.messages import TextContent, UserMessage, text_with_notes
from shared.domain.tools import ClientTool

MOST_MESSAGES = 10_000
LONGEST_ID = 200

ROLES = ("user", "assistant", "tool", "system", "developer", "reasoning", "activity")
"""All roles of the protocol. Only the roles of users, answers and results matter here."""

Message = Mapping[str, Any]
Placed = tuple[int, Message]
"""A message, and its place in the request."""

ThreadId = Annotated[str, Field(alias="threadId", min_length=1, max_length=LONGEST_NAME)]
Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=False)


class ToolIn(_Body):
    """A tool that the page runs itself."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: BoundedSchema | None = None


class ContextIn(_Body):
    """A piece of context that the page gives to the agent for this run."""

    description: str = ""
    value: str


class ResumeIn(_Body):
    """The answer to an interrupt."""

    interrupt_id: Annotated[Id, Field(alias="interruptId")]
    status: Literal["resolved", "cancelled"]
    payload: Any = None

    def answer(self) -> PageAnswer:
        """The decision on the call. Raises `PageRefusal` for an answer of another form."""
        if self.status == "cancelled":
            return PageAnswer(call=self.interrupt_id, cancelled=True)
        payload = as_object(self.payload) or {}
        approved, edited, reason = (payload.get(name) for name in ("approved", "editedArgs", "reason"))
        if not isinstance(approved, bool):
            raise self._refusal("approved must be true or false")
        if edited is not None and as_object(edited) is None:
            raise self._refusal("editedArgs must be an object: the whole arguments of the call")
        if reason is not None and not isinstance(reason, str):
            raise self._refusal("reason must be a text")
        return PageAnswer(call=self.interrupt_id, approve=approved, reason=reason, edited_arguments=as_object(edited))

    def _refusal(self, flaw: str) -> PageRefusal:
        return PageRefusal(RefusalCode.BAD_PAYLOAD, f"the payload is not understood ({flaw})", [self.interrupt_id])


class RunAgentInput(_Body):
    """The body of a run. The page's state is ignored: the server's agents have none."""

    thread_id: ThreadId
    run_id: Annotated[Id | None, Field(alias="runId")] = None
    protocol_version: Annotated[str | None, Field(alias="protocolVersion", max_length=50)] = None
    messages: Annotated[list[dict[str, Any]] | None, Field(max_length=MOST_MESSAGES)] = None
    tools: Annotated[list[ToolIn] | None, Field(max_length=MOST_ENTRIES)] = None
    context: Annotated[list[ContextIn] | None, Field(max_length=MOST_ENTRIES)] = None
    forwarded: Annotated[Any, Field(alias="forwardedProps")] = None
    resume: Annotated[list[ResumeIn] | None, Field(max_length=MOST_ENTRIES)] = None

    @field_validator("messages")
    @classmethod
    def _have_roles(cls, given: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for number, message in enumerate(given or ()):
            flaw = next((name for name in ("id", "role") if not isinstance(message.get(name), str)), None)
            if flaw is not None:
                raise ValueError(f"messages[{number}].{flaw} is missing: it must be a text")
        return given

    @property
    def is_current(self) -> bool:
        """Whether the client has declared version 1.0 of the protocol, or a later one."""
        return speaks_current(self.protocol_version)

    def said(self) -> list[UserMessage]:
        """The users' messages after the last answer, oldest first. Raises `InvalidRequest`, also for a message there
        with an unknown role, because it would be lost."""
        given = self.messages or ()
        for number, one in _after_answer(given):
            if one["role"] not in ROLES:
                raise _unknown_role(number, one["role"])
        return [_user_message(number, given[number]) for number in self.said_at()]

    def said_at(self) -> list[int]:
        """The places of these messages."""
        return [number for number, one in _after_answer(self.messages or ()) if one["role"] == "user"]

    def answers(self) -> list[PageAnswer]:
        """The answers to interrupts, and the results of calls that the page has run. Raises `InvalidRequest`, and
        `PageRefusal` for an unreadable answer to an interrupt."""
        results = [_result(number, one) for number, one in _new_results(self.messages or ())]
        return [*(one.answer() for one in self.resume or ()), *results]

    def client_tools(self) -> list[ClientTool]:
        """The page's tools."""
        return [ClientTool(one.name, one.description or "", one.parameters or {}) for one in self.tools or ()]

    def instructions(self) -> str | None:
        """The page's context as instructions for the run."""
        facts = [f"{one.description}: {one.value}" if one.description else one.value for one in self.context or ()]
        return "\n\n".join(["The user's application says:", *facts]) if facts else None

    def if_busy(self) -> BusyPolicy | None:
        """The policy if the conversation has an active run. Raises `InvalidRequest`."""
        options = as_object((as_object(self.forwarded) or {}).get("holdfast")) or {}
        policy = options.get("if_busy")
        if policy is not None and policy not in get_args(BusyPolicy):
            field = "forwardedProps.holdfast.if_busy"
            raise InvalidRequest(f"{field} must be one of {', '.join(get_args(BusyPolicy))}", field=field)
        return cast("BusyPolicy | None", policy)


class StopIn(_Body):
    """The body of a stop."""

    thread_id: ThreadId
    run_id: Annotated[Id | None, Field(alias="runId")] = None


class StopRunIn(_Body):
    """The body of a stop whose path names the conversation."""

    run_id: Annotated[Id | None, Field(alias="runId")] = None


def speaks_current(version: str | None) -> bool:
    """Whether a client with this version of the protocol supports all of 1.0."""
    major = (version or "").partition(".")[0]
    return major.isdecimal() and major.isascii() and int(major) >= 1


def _after_answer(messages: Sequence[Message]) -> Iterator[Placed]:
    """The messages after the last answer."""
    last = max((number for number, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
    yield from enumerate(messages[last + 1 :], start=last + 1)


def _new_results(messages: Sequence[Message]) -> Iterator[Placed]:
    """The page's own results of calls of the last answer. Results with our ids came from this server."""
    answers = [number for number, one in enumerate(messages) if one["role"] == "assistant"]
    calling = [number for number in answers if messages[number].get("toolCalls")][-2:]
    # If only some of an answer's calls wait, they are in two messages, perhaps with the page's results between them.
    between = messages[calling[0] + 1 : calling[-1]] if calling else ()
    if between and (messages[calling[-1]].get("content") or any(one["role"] != "tool" for one in between)):
        del calling[0]
    # An answer's text may follow its calls, as a separate message.
    of_answer = {messages[number]["id"] for number in calling}
    follows = [number for number in answers if number > max(calling, default=-1)]
    if any(messages[number]["id"].rstrip(AGAIN) not in of_answer for number in follows):
        return
    start = calling[0] + 1 if calling else 0
    for number, one in enumerate(messages[start:], start=start):
        if one["role"] == "tool" and one["id"] != result_id(str(one.get("toolCallId"))):
            yield number, one


def _user_message(number: int, message: Message) -> UserMessage:
    place = f"messages[{number}]"
    content = read_content(message.get("content"), f"{place}.content")
    if not content:
        field = f"{place}.content"
        raise InvalidRequest(f"{field} is empty: send a text, or a part with one, an image or a file", field=field)
    if isinstance(content, list) and all(isinstance(one, TextContent) and one.file is None for one in content):
        content = text_with_notes(content)
    return UserMessage(content=content, otid=_id(message, "id", place))


def _result(number: int, message: Message) -> PageAnswer:
    place = f"messages[{number}]"
    content = read_content(message.get("content"), f"{place}.content")
    error = message.get("error")
    is_error = isinstance(error, str) and bool(error)
    said = error if is_error and not content else content
    return PageAnswer(call=_id(message, "toolCallId", place), result=said, is_error=is_error)


def _unknown_role(number: int, role: str) -> InvalidRequest:
    field = f"messages[{number}].role"
    said = f"{field} is {role[:50]!r}: it must be one of {', '.join(ROLES)}; new words for the agent have the role user"
    return InvalidRequest(said, field=field)


def _id(message: Message, name: str, place: str) -> str:
    found = message.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= LONGEST_ID:
        field = f"{place}.{name}"
        raise InvalidRequest(f"{field} must be a text of 1 to {LONGEST_ID} characters", field=field)
    return found
