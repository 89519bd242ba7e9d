"""Our history as turns: always a request that every provider accepts, whatever state a cancel or a crash left the
history in.

What the model is told about the past, beyond the messages themselves:
* a summary is said to be one, so that the model does not take it for what the user says now;
* an answer that was cut off ends in a note that says so, and a message that was never answered gets one in place of
  the answer, so that roles alternate and the model does not take up what the user has stopped;
* every tool call has a result: one whose result is missing gets "outcome unknown", a result without its call is left
  out;
* reasoning goes back only to the model that wrote it, unchanged, and never from an answer that was cut off.
"""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Message,
    Summary,
    SystemMessage,
    ToolReturn,
    ToolReturns,
    UserMessage,
    text_of,
)
from shared.domain.settling import OUTCOME_UNKNOWN
from worker.models.characters import whole_characters
from worker.models.kept_answer import read_kept
from worker.models.provider import ModelCall
from worker.models.turns import Answered, AnswerPart, Asked, Called, Prompt, Result, Said, Turn
from worker.models.user_content import images_in, plain_text, user_content

CUT_BY_CANCEL = "[This reply was cut off: the user cancelled it.]"
CUT_BY_ERROR = "[This reply was cut off by an error.]"
NEVER_ANSWERED = "[No reply: the user cancelled this turn.]"
ENDED_AFTER_TOOLS = "[This turn ended here, before a reply.]"
NO_TEXT = "[This reply had no text.]"
BEGINNING = "[The conversation begins with your own message.]"
GO_ON = "[Please go on.]"
SUMMARY_OF_EARLIER = "[Earlier messages are left out here. This is a summary of them.]"


def map_history(call: ModelCall, *, provider_name: str, safe_call_id: Callable[[str], str] | None = None) -> list[Turn]:
    """The turns of one request, without the instructions. They begin and end with something not said by the model.

    `provider_name` is how this wire's answers are signed where they are kept.
    """
    mapping = _MappedHistory(call.handle, provider_name, safe_call_id or str)
    for message in call.history:
        mapping.add(message)
    return mapping.finish()


class _MappedHistory:
    """The turns so far, and the calls that still wait for their results."""

    def __init__(self, handle: str, provider_name: str, safe_call_id: Callable[[str], str]) -> None:
        self._handle = handle
        self._provider_name = provider_name
        self._safe_call_id = safe_call_id
        self._turns: list[Turn] = []
        self._open_calls: list[Called] = []
        self._called_at = datetime.fromtimestamp(0, UTC)
        self._results: dict[str, tuple[ToolReturn, datetime]] = {}
        self._last: Message | None = None

    def add(self, message: Message) -> None:
        """Take the next message of the history."""
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
        """The whole history."""
        self._close_calls()
        if not self._turns or isinstance(self._turns[0], Answered):
            self._turns.insert(0, Asked([Prompt(BEGINNING)]))
        if isinstance(self._turns[-1], Answered):
            self._ask(Prompt(GO_ON))
        return self._turns

    def _separate_turns(self, message: Message) -> None:
        """Put a note where the model would have spoken, had the turn before this message come to its end."""
        last = self._last
        if last is None or last.run_id == message.run_id:
            return
        if not self._turns or isinstance(self._turns[-1], Answered):
            return
        match last.body:
            case UserMessage():
                self._say(NEVER_ANSWERED, last.created_at)
            case ToolReturns() | AssistantMessage():
                self._say(ENDED_AFTER_TOOLS, last.created_at)
            case _:
                return

    def _kept_or_rebuilt(self, body: AssistantMessage) -> Answered:
        if not body.partial and body.provider_response is not None and body.model in (None, self._handle):
            kept = read_kept(body.provider_response, self._provider_name)
            if kept is not None:
                return kept
        return Answered(_rebuilt_answer(body))

    def _ask(self, *parts: Prompt | Result) -> None:
        """Add to what the model is told; one turn, until it speaks again."""
        last = self._turns[-1] if self._turns else None
        if isinstance(last, Asked):
            last.parts.extend(parts)
        else:
            self._turns.append(Asked(list(parts)))

    def _say(self, text: str, at: datetime) -> None:
        self._answer(Answered([Said(text)]), at)

    def _answer(self, answer: Answered, at: datetime) -> None:
        """Add what the model said. Its calls are open until the next message that is not a result."""
        parts = [self._with_safe_call(part) if isinstance(part, Called) else part for part in answer.parts]
        self._open_calls = [part for part in parts if isinstance(part, Called)]
        self._called_at = at
        self._turns.append(replace(answer, parts=parts))

    def _with_safe_call(self, call: Called) -> Called:
        return replace(call, id=self._safe_call_id(call.id), arguments=_object_or_note(call.arguments))

    def _close_calls(self) -> None:
        """Give every call of the last answer its result, in the order of the calls."""
        results = {self._safe_call_id(call_id): result for call_id, result in self._results.items()}
        parts = [self._result(call, results.get(call.id)) for call in self._open_calls]
        self._open_calls, self._results = [], {}
        if parts:
            self._ask(*parts)

    def _result(self, call: Called, found: tuple[ToolReturn, datetime] | None) -> Result:
        if found is None:
            envelope = {"status": "Failed", "message": OUTCOME_UNKNOWN, "time": self._called_at.isoformat()}
            return Result(call.id, call.name, envelope)
        result, at = found
        envelope = {
            "status": "OK" if result.status == "success" else "Failed",
            "message": whole_characters(result.text if result.parts is None else text_of(result.parts)),
            "time": at.isoformat(),
        }
        return Result(call.id, call.name, envelope, images_in(result.parts or []))


def _rebuilt_answer(body: AssistantMessage) -> list[AnswerPart]:
    """The answer from its text and its calls, for a model that did not give it or did not finish it."""
    text = body.text
    if body.partial:
        note = CUT_BY_CANCEL if body.cut_by == "cancel" else CUT_BY_ERROR
        text = f"{text}\n\n{note}" if text.strip() else note
    if not text.strip():
        text = "" if body.tool_calls else NO_TEXT
    parts: list[AnswerPart] = [Said(plain_text(text))] if text else []
    parts.extend(Called(call.id, call.name, call.arguments) for call in body.tool_calls)
    return parts


def _object_or_note(arguments: str) -> str:
    """The arguments if they are a JSON object, as every provider demands; else an object that holds the text."""
    if not arguments.strip():
        return "{}"
    try:
        msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return msgspec.json.encode({"INVALID_JSON": plain_text(arguments)}).decode()
    return arguments
