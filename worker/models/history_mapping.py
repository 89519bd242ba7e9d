"""Our history as pydantic-ai's messages: always a request that every provider accepts, whatever state a cancel or a
crash left the history in.

What the model is told about the past, beyond the messages themselves:
* a summary is said to be one, so that the model does not take it for what the user says now;
* an answer that was cut off ends in a note that says so, and a message that was never answered gets one in place of
  the answer, so that roles alternate and the model does not take up what the user has stopped;
* every tool call has a result: one whose result is missing gets "outcome unknown", a result without its call is left
  out;
* reasoning goes back only to the model that wrote it, unchanged, and never from an answer that was cut off.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from pydantic_ai import messages as sdk

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
from worker.models.provider import ModelCall
from worker.models.user_content import images_in, plain_text, replace_surrogates, user_content

CUT_BY_CANCEL = "[This reply was cut off: the user cancelled it.]"
CUT_BY_ERROR = "[This reply was cut off by an error.]"
NEVER_ANSWERED = "[No reply: the user cancelled this turn.]"
ENDED_AFTER_TOOLS = "[This turn ended here, before a reply.]"
NO_TEXT = "[This reply had no text.]"
BEGINNING = "[The conversation begins with your own message.]"
GO_ON = "[Please go on.]"
SUMMARY_OF_EARLIER = "[Earlier messages are left out here. This is a summary of them.]"


def map_history(
    call: ModelCall,
    *,
    provider_name: str,
    safe_call_id: Callable[[str], str] | None = None,
    results_as_objects: bool = False,
) -> list[sdk.ModelMessage]:
    """The messages of one request, without the instructions. It begins and ends with something not said by the model.

    `provider_name` is how pydantic-ai signs this wire's answers.
    """
    mapping = _MappedHistory(call.handle, provider_name, safe_call_id or str, results_as_objects)
    for message in call.history:
        mapping.add(message)
    return mapping.finish()


class _MappedHistory:
    """The messages so far, and the calls that still wait for their results."""

    def __init__(
        self, handle: str, provider_name: str, safe_call_id: Callable[[str], str], results_as_objects: bool
    ) -> None:
        self._handle = handle
        self._provider_name = provider_name
        self._safe_call_id = safe_call_id
        self._results_as_objects = results_as_objects
        self._messages: list[sdk.ModelMessage] = []
        self._open_calls: list[sdk.ToolCallPart] = []
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
                told = plain_text(f"{SUMMARY_OF_EARLIER}\n{text}")
                self._ask(sdk.UserPromptPart(told, timestamp=message.created_at))
            case UserMessage(role="assistant", content=content):
                self._close_calls()
                self._say(plain_text(text_of(content)), message.created_at)
            case UserMessage() as body:
                self._close_calls()
                self._separate_turns(message)
                self._ask(sdk.UserPromptPart(user_content(body.content), timestamp=message.created_at))
            case AssistantMessage() as body:
                self._close_calls()
                self._answer(self._kept_or_rebuilt(body), message.created_at)
        self._last = message

    def finish(self) -> list[sdk.ModelMessage]:
        """The whole history."""
        self._close_calls()
        if not self._messages or isinstance(self._messages[0], sdk.ModelResponse):
            self._messages.insert(0, sdk.ModelRequest(parts=[sdk.UserPromptPart(BEGINNING)]))
        if isinstance(self._messages[-1], sdk.ModelResponse):
            self._ask(sdk.UserPromptPart(GO_ON))
        return self._messages

    def _separate_turns(self, message: Message) -> None:
        """Put a note where the model would have spoken, had the turn before this message come to its end."""
        last = self._last
        if last is None or last.run_id == message.run_id:
            return
        if not self._messages or isinstance(self._messages[-1], sdk.ModelResponse):
            return
        match last.body:
            case UserMessage():
                self._say(NEVER_ANSWERED, last.created_at)
            case ToolReturns() | AssistantMessage():
                self._say(ENDED_AFTER_TOOLS, last.created_at)
            case _:
                return

    def _kept_or_rebuilt(self, body: AssistantMessage) -> sdk.ModelResponse:
        if not body.partial and body.provider_response is not None and body.model in (None, self._handle):
            kept = _kept_answer(body.provider_response, self._provider_name)
            if kept is not None:
                return kept
        return sdk.ModelResponse(parts=_rebuilt_answer(body))

    def _ask(self, *parts: sdk.ModelRequestPart) -> None:
        """Add to what the model is told; one request, until it speaks again."""
        last = self._messages[-1] if self._messages else None
        if isinstance(last, sdk.ModelRequest):
            self._messages[-1] = sdk.ModelRequest(parts=[*last.parts, *parts])
        else:
            self._messages.append(sdk.ModelRequest(parts=list(parts)))

    def _say(self, text: str, at: datetime) -> None:
        self._answer(sdk.ModelResponse(parts=[sdk.TextPart(text)]), at)

    def _answer(self, answer: sdk.ModelResponse, at: datetime) -> None:
        """Add what the model said. Its calls are open until the next message that is not a result."""
        parts = [self._with_safe_call(part) if isinstance(part, sdk.ToolCallPart) else part for part in answer.parts]
        self._open_calls = [part for part in parts if isinstance(part, sdk.ToolCallPart)]
        self._called_at = at
        self._messages.append(replace(answer, parts=parts, timestamp=at))

    def _with_safe_call(self, part: sdk.ToolCallPart) -> sdk.ToolCallPart:
        arguments = part.args if isinstance(part.args, dict) else _object_or_note(part.args)
        return replace(part, tool_call_id=self._safe_call_id(part.tool_call_id), args=arguments)

    def _close_calls(self) -> None:
        """Give every call of the last answer its result, in the order of the calls."""
        results = {self._safe_call_id(call_id): result for call_id, result in self._results.items()}
        parts = [self._result(call, results.get(call.tool_call_id)) for call in self._open_calls]
        self._open_calls, self._results = [], {}
        if parts:
            self._ask(*parts)

    def _result(self, call: sdk.ToolCallPart, found: tuple[ToolReturn, datetime] | None) -> sdk.ToolReturnPart[Any]:
        if found is None:
            at = self._called_at
            envelope = {"status": "Failed", "message": OUTCOME_UNKNOWN}
        else:
            result, at = found
            envelope = {
                "status": "OK" if result.status == "success" else "Failed",
                "message": replace_surrogates(result.text if result.parts is None else text_of(result.parts)),
            }
        envelope["time"] = at.isoformat()
        content = envelope if self._results_as_objects else json.dumps(envelope, ensure_ascii=False)
        images = [] if found is None else images_in(found[0].parts or [])
        return sdk.ToolReturnPart(
            call.tool_name, [content, *images] if images else content, call.tool_call_id, timestamp=at
        )


def _rebuilt_answer(body: AssistantMessage) -> list[sdk.ModelResponsePart]:
    """The answer from its text and its calls, for a model that did not give it or did not finish it."""
    text = body.text
    if body.partial:
        note = CUT_BY_CANCEL if body.cut_by == "cancel" else CUT_BY_ERROR
        text = f"{text}\n\n{note}" if text.strip() else note
    if not text.strip():
        text = "" if body.tool_calls else NO_TEXT
    parts: list[sdk.ModelResponsePart] = [sdk.TextPart(plain_text(text))] if text else []
    parts.extend(sdk.ToolCallPart(call.name, call.arguments, call.id) for call in body.tool_calls)
    return parts


def _kept_answer(provider_response: str, provider_name: str) -> sdk.ModelResponse | None:
    """The answer as the provider sent it, or None when it is another provider's or of an unknown form."""
    try:
        [answer] = sdk.ModelMessagesTypeAdapter.validate_json(provider_response)
    except ValueError:
        return None
    return answer if isinstance(answer, sdk.ModelResponse) and answer.provider_name == provider_name else None


def _object_or_note(arguments: str | None) -> str | dict[str, str]:
    """The arguments if they are a JSON object, as every provider demands; else an object that holds the text."""
    if not arguments or not arguments.strip():
        return "{}"
    try:
        msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {"INVALID_JSON": plain_text(arguments)}
    return arguments
