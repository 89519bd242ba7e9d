"""Taking one answer from the model: its pieces become events as they come, its whole becomes a message."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Literal

import msgspec
import structlog

from shared.domain.agents import requires_approval
from shared.domain.events import ReasoningChunk, TextChunk, ToolCallChunk, ToolCalls
from shared.domain.ids import MessageId, StepId
from shared.domain.messages import AssistantMessage, Message, NewMessage, Reasoning, ToolCall
from shared.domain.runs import Step, Usage
from worker.models.provider import (
    CallArguments,
    CallFinished,
    CallStarted,
    Finished,
    ModelCall,
    ModelEvent,
    Retrying,
    Text,
    Thought,
    ToolSpec,
)
from worker.models.token_estimate import estimate_tokens
from worker.run_work import RunWork
from worker.tool_rules import offered_tools

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Answer(msgspec.Struct, frozen=True):
    """A whole answer of the model."""

    message: NewMessage
    calls: list[ToolCall]
    reason: Literal["stop", "tool_calls", "length", "content_filter"]


async def take_answer(work: RunWork, history: Sequence[Message]) -> Answer:
    """Asks the model once. Raises `ModelError`; what was shown until then is in the publisher's events."""
    services = work.services
    step = Step(
        id=services.ids.step(),
        run_id=work.run.id,
        agent_id=work.run.agent_id,
        number=work.step_count + 1,
        model=work.model,
        created_at=services.clock.now(),
    )
    work.step = step
    work.asked = work.system + _as_text(history)
    _count_lost_calls(work)
    draft = _Draft(work, step.id)
    call = ModelCall(
        handle=work.model,
        system=work.system,
        history=history,
        tools=tool_specs(work),
        options=work.options,
    )
    async with aclosing(services.models.stream(call)) as events:
        async for event in events:
            draft.take(event)
    return draft.finish()


def _count_lost_calls(work: RunWork) -> None:
    """Calls whose worker died were paid for, too: each had the prompt that is about to be sent again."""
    if work.lost_calls:
        prompts = work.lost_calls * estimate_tokens(work.asked)
        lost = Usage(prompt_tokens=prompts, completion_tokens=estimate_tokens(work.lost_text), estimated=True)
        work.usage = work.usage.plus(lost)
        work.lost_calls, work.lost_text = 0, ""


def tool_specs(work: RunWork) -> list[ToolSpec]:
    """The tools that the model may call now: the agent's, as its rules allow, and the client's."""
    allowed = offered_tools(work.agent.tool_rules, list(work.tools), work.called)
    own = [
        ToolSpec(tool.name, tool.json_schema.get("description") or tool.description, tool.parameters)
        for name, tool in work.tools.items()
        if name in allowed
    ]
    clients = [ToolSpec(tool.name, tool.description, tool.parameters) for tool in work.run.options.client_tools]
    names = {tool.name for tool in clients}
    return [*(tool for tool in own if tool.name not in names), *clients]


def waits(work: RunWork, name: str) -> bool:
    """Whether a call of this tool waits for a person or for the client."""
    if any(tool.name == name for tool in work.run.options.client_tools):
        return True
    tool = work.tools.get(name)
    return tool is not None and requires_approval(work.agent, name, tool.default_requires_approval)


def _as_text(history: Sequence[Message]) -> str:
    """The conversation as text, to count its tokens by."""
    return msgspec.json.encode([message.body for message in history]).decode()


class _Draft:
    """An answer in the making.

    The parts of an answer share one message id. When some calls wait for a person and others do not, the kind that
    comes second gets an id of its own, because the wire shows it as a message of its own.
    """

    def __init__(self, work: RunWork, step_id: StepId) -> None:
        self._work = work
        self._step_id = step_id
        self._by_tokens = work.run.options.stream_tokens
        self._id: MessageId = work.services.ids.message()
        self._sibling: MessageId | None = None
        self._first_kind: bool | None = None
        self._parts: dict[str, int] = {}
        self._text: list[str] = []
        self._thought: list[str] = []
        self._signature: str | None = None
        self._open: dict[int, tuple[str, str]] = {}
        self._finished_calls: dict[int, ToolCall] = {}
        self._finished: Finished | None = None

    def take(self, event: ModelEvent) -> None:
        """Takes the next piece; shows it at once when the run was made for tokens."""
        match event:
            case Text():
                self._text.append(event.text)
                if self._by_tokens:
                    self._show_text(event.text)
            case Thought():
                self._take_thought(event)
            case CallStarted() | CallArguments():
                self._take_call_piece(event)
            case CallFinished():
                self._finished_calls[event.index] = self._whole_call(event)
            case Finished():
                self._finished = event
            case Retrying():
                log.info("model_call_retried", attempt=event.attempt, wait_s=event.wait, error=event.error)

    def _take_thought(self, event: Thought) -> None:
        self._signature = event.signature or self._signature
        self._thought.append(event.text)
        if self._by_tokens and event.text:
            self._show_thought(event.text, None)

    def _take_call_piece(self, event: CallStarted | CallArguments) -> None:
        if isinstance(event, CallStarted):
            self._open[event.index] = (event.call_id, event.name)
        if not self._by_tokens:
            return
        call_id, name = self._open[event.index]
        if isinstance(event, CallStarted):
            self._show_call(call_id, tool=name, name=name)
        else:
            self._show_call(call_id, tool=name, arguments=event.text)

    def _whole_call(self, event: CallFinished) -> ToolCall:
        needs_approval = waits(self._work, event.name)
        return ToolCall(event.call_id, event.name, event.arguments, needs_approval)

    def finish(self) -> Answer:
        """The whole answer; shows it now when the run was made for steps."""
        finished = self._finished
        if finished is None:
            raise AssertionError("a model's stream ended without Finished")
        if not self._by_tokens:
            self._show_whole()
        work, calls = self._work, self._calls
        work.usage = work.usage.plus(finished.usage)
        work.step_count += 1
        if work.step is not None:
            work.step = msgspec.structs.replace(work.step, status="success", usage=finished.usage, stop_reason=None)
        body = AssistantMessage(
            text="".join(self._text),
            reasoning=Reasoning("".join(self._thought), self._signature) if self._thought else None,
            tool_calls=calls,
            model=work.model,
            provider_response=finished.provider_response,
            sibling_id=self._sibling,
            sibling_holds=None if self._sibling is None else ("calls" if self._first_kind else "approvals"),
        )
        message = NewMessage(id=self._id, created_at=work.services.clock.now(), body=body, step_id=self._step_id)
        return Answer(message, calls, finished.reason)

    @property
    def _calls(self) -> list[ToolCall]:
        # Interleaved deltas can finish a call twice: the last word on it counts.
        return list(self._finished_calls.values())

    def _show_text(self, text: str) -> None:
        self._work.emit(TextChunk(self._work.at, self._step_id, self._id, text, self._part("text")))

    def _show_thought(self, text: str, signature: str | None) -> None:
        self._work.emit(
            ReasoningChunk(self._work.at, self._step_id, self._id, text, self._part("reasoning"), signature)
        )

    def _show_call(self, call_id: str, *, tool: str, name: str | None = None, arguments: str | None = None) -> None:
        needs_approval = waits(self._work, tool)
        self._work.emit(
            ToolCallChunk(
                self._work.at,
                self._step_id,
                self._id_for(needs_approval),
                call_id,
                name,
                arguments,
                self._part("approvals" if needs_approval else "calls"),
                needs_approval,
            )
        )

    def _show_whole(self) -> None:
        if self._thought:
            self._show_thought("".join(self._thought), self._signature)
        if self._text:
            self._show_text("".join(self._text))
        for needs_approval in (False, True):
            calls = [call for call in self._calls if call.needs_approval is needs_approval]
            if calls:
                part = self._part("approvals" if needs_approval else "calls")
                message_id = self._id_for(needs_approval)
                self._work.emit(ToolCalls(self._work.at, self._step_id, message_id, calls, part, needs_approval))

    def _id_for(self, needs_approval: bool) -> MessageId:
        if self._first_kind is None:
            self._first_kind = needs_approval
        if self._first_kind is needs_approval:
            return self._id
        if self._sibling is None:
            self._sibling = self._work.services.ids.message()
        return self._sibling

    def _part(self, kind: str) -> int:
        return self._parts.setdefault(kind, len(self._parts))
