"""A stored history as UI messages, with the ids and the parts of a page that has read every answer as it was
streamed."""

from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from api.ai_sdk.answer_chunks import HELD_BACK, Sdk, answer_id_of, failure_part, injected_part, input_of, output_of
from api.pages.leg_parts import AGAIN
from shared.domain.approvals import Approval
from shared.domain.ids import ConversationId, RunId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    AttachedFile,
    ContentPart,
    Decision,
    ImageContent,
    Message,
    NewMessage,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    UserMessage,
    text_of,
)
from shared.domain.runs import Run

UiPart = dict[str, Any]

Asked = Mapping[tuple[RunId | None, str], Approval]
"""Requests for decisions, by the run and the call."""


def ui_messages(
    history: Sequence[Message],
    asked: Sequence[Approval],
    sdk: Sdk,
    conversation_id: ConversationId | None,
    at_work: Collection[int],
    failed: Mapping[int, Run],
) -> list[dict[str, Any]]:
    """The messages of a history, oldest first. `asked` are the requests for decisions about its calls, and `failed`
    are the runs that have failed, by turn.

    The last answers of the turns that are `at_work` are omitted: a stream shows them from their beginning, and older
    releases of the SDK would append that to the parts that they have.
    """
    by_call: Asked = {(one.run_id, one.tool_call_id): one for one in asked}
    shown: list[dict[str, Any]] = []
    for number, of_turn in groupby(history, lambda message: message.turn):
        turn = _Turn(by_call, sdk, conversation_id)
        for message in of_turn:
            turn.take(message)
        if number in failed:
            turn.fail(failed[number])
        shown += turn.messages(without_last=number in at_work)
    return shown


def ui_user_message(message: Message | NewMessage, body: UserMessage) -> dict[str, Any]:
    """A user's message under the page's id for it."""
    content = [TextContent(body.content)] if isinstance(body.content, str) else body.content
    return {"id": body.otid or message.id, "role": "user", "parts": [_user_part(part) for part in content]}


def ui_inputs(given: Sequence[NewMessage]) -> list[dict[str, Any]]:
    """A submission's messages for the page, without the application's messages to the model (role `system`)."""
    said = [(one, one.body) for one in given if isinstance(one.body, UserMessage)]
    return [ui_user_message(one, body) for one, body in said if body.role != "system"]


def never_answered(
    given: Sequence[NewMessage], run: Run, sdk: Sdk, conversation_id: ConversationId | None
) -> list[dict[str, Any]]:
    """The messages of a turn that has failed at once, whose input no history stores."""
    turn = _Turn({}, sdk, conversation_id)
    turn.fail(run)
    return [*ui_inputs(given), *turn.messages(without_last=False)]


class _Answer:
    """One answer: the UI message of a run and of the runs that continue it."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.parts: list[UiPart] = []
        self.runs: list[RunId | None] = []
        self.answering: set[RunId | None] = set()
        """The runs that have parts in the answer."""


class _Turn:
    """The messages of one turn."""

    def __init__(self, asked: Asked, sdk: Sdk, conversation_id: ConversationId | None) -> None:
        self._asked = asked
        self._sdk: Sdk = sdk
        self._conversation_id = conversation_id or "default"
        self._shown: list[dict[str, Any] | _Answer] = []
        self._answer: _Answer | None = None
        self._calls: dict[str, UiPart] = {}
        """The parts of calls without results, by the calls' own ids."""
        self._decisions: dict[str, Decision] = {}
        self._used: set[tuple[RunId | None, str]] = set()

    def take(self, message: Message) -> None:
        """Takes the next message."""
        match message.body:
            case UserMessage():
                self._take_user(message, message.body)
            case AssistantMessage():
                self._take_answer(message, message.body)
            case ApprovalResponse(decisions=decisions):
                for decision in decisions:
                    self._decide(decision)
            case ToolReturns(returns=returns):
                for result in returns:
                    self._return(message, result)
            case _:
                pass  # instructions and summaries are for the model

    def fail(self, run: Run) -> None:
        """Records that the turn has failed, after all of its messages: its last answer gets the reason."""
        answer = self._answer_of(run.id, answer_id_of(run.id))
        if len(answer.runs) > 1 and run.id not in answer.answering:
            answer.parts.append({"type": "step-start"})
        answer.answering.add(run.id)
        answer.parts.append(failure_part(run.error))

    def messages(self, *, without_last: bool) -> list[dict[str, Any]]:
        """The UI messages of the turn."""
        answers = [one for one in self._shown if isinstance(one, _Answer)]
        hidden = answers[-1] if without_last and answers else None
        shown = [one for one in self._shown if one is not hidden]
        return [self._wire_answer(one) if isinstance(one, _Answer) else one for one in shown]

    def _take_user(self, message: Message, body: UserMessage) -> None:
        if body.role == "system":
            return
        if body.role == "assistant":
            parts = [{"type": "text", "text": text_of(body.content), "state": "done"}]
            self._shown.append({"id": message.id, "role": "assistant", "parts": parts})
            return
        if self._answer is not None and message.run_id in self._answer.answering:
            # The message came in the middle of the answer.
            self._answer.parts.append(injected_part(body.otid or message.id, text_of(body.content), self._sdk))
            return
        self._answer = None
        self._shown.append(ui_user_message(message, body))

    def _take_answer(self, message: Message, body: AssistantMessage) -> None:
        run_id = message.run_id
        answer = self._answer_of(run_id, message.id if run_id is None else answer_id_of(run_id))
        answer.answering.add(message.run_id)
        parts = list(self._parts_of(message, body))
        if any(part.get("state") == "approval-requested" for part in parts):
            held_back = {"state": "output-available", "output": HELD_BACK}
            for part in parts:
                part |= held_back if part.get("providerExecuted") and part["state"] == "input-available" else {}
        if parts:
            answer.parts += [{"type": "step-start"}, *parts]

    def _answer_of(self, run_id: RunId | None, answer_id: str) -> _Answer:
        if self._answer is None:
            self._answer = _Answer(answer_id)
            self._shown.append(self._answer)
        if run_id not in self._answer.runs:
            self._answer.runs.append(run_id)
        return self._answer

    def _parts_of(self, message: Message, body: AssistantMessage) -> Iterator[UiPart]:
        if body.reasoning is not None and body.reasoning.text:
            shown_id = f"reasoning-{message.id}"
            yield {"type": "reasoning", "id": shown_id, "text": body.reasoning.text, "state": "done"}
        for text in (body.text, *(call.speech for call in body.tool_calls)):
            if text:
                yield {"type": "text", "text": text, "state": "done"}
        for call in body.tool_calls:
            if call.speech is None:
                yield self._call(message, call)

    def _call(self, message: Message, call: ToolCall) -> UiPart:
        shown_id = call.id
        while (message.run_id, shown_id) in self._used:
            shown_id += AGAIN
        self._used.add((message.run_id, shown_id))
        approval = self._asked.get((message.run_id, call.id))
        part: UiPart = {"toolCallId": shown_id, "state": "input-available", "input": input_of(call.arguments)}
        if approval is not None and approval.client_side:
            part["type"] = f"tool-{call.name}"
        else:
            part |= {"type": "dynamic-tool", "toolName": call.name, "providerExecuted": True}
            if approval is not None and self._sdk >= 6:
                part |= {"state": "approval-requested", "approval": {"id": approval.id}}
        self._calls[call.id] = part
        return part

    def _decide(self, decision: Decision) -> None:
        part = self._calls.get(decision.tool_call_id)
        if part is None or decision.kind != "approval":
            return
        self._decisions[decision.tool_call_id] = decision
        if decision.approve and decision.edited_arguments is not None:
            part["input"] = input_of(decision.edited_arguments)
        if "approval" in part:
            reason = {"reason": decision.reason} if decision.reason else {}
            part["state"] = "approval-responded"
            part["approval"] = {**part["approval"], "approved": decision.approve, **reason}

    def _return(self, message: Message, result: ToolReturn) -> None:
        if self._answer is not None and message.run_id not in self._answer.runs:
            self._answer.runs.append(message.run_id)
        part = self._calls.pop(result.tool_call_id, None)
        decision = self._decisions.pop(result.tool_call_id, None)
        if part is None:
            return
        part.pop("output", None)
        if decision is not None and not decision.approve and self._sdk >= 6:
            part["state"] = "output-denied"
        elif result.status == "error":
            part |= {"state": "output-error", "errorText": result.text}
        else:
            part |= {"state": "output-available", "output": output_of(result)}

    def _wire_answer(self, answer: _Answer) -> dict[str, Any]:
        last = answer.runs[-1] if answer.runs else None
        metadata = {} if last is None else {"holdfast": {"run_id": last, "conversation_id": self._conversation_id}}
        parts = answer.parts
        if len(answer.runs) > 1 and last not in answer.answering:
            # As in the stream, so that a page does not send the results of its calls again.
            parts = [*parts, {"type": "step-start"}]
        return {"id": answer.message_id, "role": "assistant", "metadata": metadata, "parts": parts}


def _user_part(part: ContentPart) -> UiPart:
    match part:
        case TextContent(file=AttachedFile() as file):
            data = file.data or b64encode(part.text.partition("\n")[2].encode()).decode()
            url = f"data:{file.media_type};base64,{data}"
            return {"type": "file", "mediaType": file.media_type, "filename": file.name, "url": url}
        case TextContent():
            return {"type": "text", "text": part.text}
        case ImageContent():
            media_type = part.media_type or "image/*"
            url = part.url or f"data:{media_type};base64,{part.data or ''}"
            named = {"filename": part.name} if part.name else {}
            return {"type": "file", "mediaType": media_type, "url": url, **named}


def asked_about(history: Sequence[Message]) -> set[str]:
    """The ids of the calls in a history that a person or the client had to answer."""
    bodies = (message.body for message in history)
    return {
        call.id
        for body in bodies
        if isinstance(body, AssistantMessage)
        for call in body.tool_calls
        if call.needs_approval
    }
