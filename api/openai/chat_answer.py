"""A run's log as one chat completion. A pure fold of events, which does not know how they travel.

An agent's answer may be several texts with tool calls between them. A completion has one text, so they are joined by an
empty line. Calls of tools that run here are not in it: a client takes a call that it is shown for one that it has to
make.
"""

from collections.abc import Iterator
from typing import Any

from api.openai.errors import interrupted, model_error
from shared.domain import events
from shared.domain.errors import ErrorCode
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.messages import ToolCall
from shared.domain.runs import Run

BETWEEN_TEXTS = "\n\n"

_CUT_SHORT = frozenset({events.StopReason.TOKENS_USED_UP, events.StopReason.STEPS_USED_UP, events.StopReason.CANCELLED})
"""Stop reasons of answers that are not whole. OpenAI has one word for them all; `native_finish_reason` has ours."""


Owned = events.StepRestarted | events.LogContinued
"""What the first entry of a new owner can be."""


def is_void(seq: Seq, message_id: MessageId, told: Owned) -> bool:
    """Whether an entry that came before does not count: by its number, as when the last worker's entries were lost with
    Redis and nobody can say whose they were; or by its message."""
    return seq > told.follows or (isinstance(told, events.StepRestarted) and message_id in told.void_message_ids)


class ChatOutcome:
    """What a run has come to, but for its text: the calls that wait, why it stopped, what it used."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tools_of_client = {tool.name for tool in run.options.client_tools}
        self._asked: list[tuple[Seq, events.ToolCallChunk | events.ToolCalls]] = []
        self._stop_reason: str = events.StopReason.ANSWERED
        self._usage = events.UsageReported(at=0)
        self._has_gap = False
        self.is_over = False
        self.failure: events.Failed | None = None

    def take(self, seq: Seq, event: events.Event | events.Unknown) -> None:
        """Takes the next event of the log, with its number."""
        match event:
            case events.ToolCallChunk(needs_approval=True) | events.ToolCalls(needs_approval=True):
                self._asked.append((seq, event))
            case events.StepRestarted() | events.LogContinued():
                self._asked = [one for one in self._asked if not is_void(one[0], one[1].message_id, event)]
            case events.Stopped():
                self._stop_reason = event.reason
            case events.UsageReported():
                self._usage = event
            case events.Failed():
                self.failure = event
            case events.Gap():
                self._has_gap = True
            case events.Ended():
                self.is_over = True
            case _:
                pass

    @property
    def error(self) -> dict[str, Any] | None:
        """The body of the error that stands in the place of an answer's end. None: it has a good one."""
        if self.failure is not None:
            return model_error(self.failure.error_type, self.failure.message, self.failure.detail)
        if self._has_gap:
            return interrupted("A part of the run's log is gone", ErrorCode.LOG_GAP, self._run.id)
        if not self.is_over:
            return interrupted("The run was deleted", ErrorCode.RUN_DELETED, self._run.id)
        return None

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls that the client is to make."""
        return [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self._waiting().values()
            if call.name in self._tools_of_client
        ]

    @property
    def refusal(self) -> str | None:
        """What a person has to decide before the agent goes on. The agent has not said it, so it is no content."""
        names = [call.name for call in self._waiting().values() if call.name not in self._tools_of_client]
        if not names:
            return None
        asked = f"GET /v1/approvals?agent_id={self._run.agent_id} shows what is asked"
        decide = "POST /v1/approvals/{approval_id} decides"
        return f"Waiting for approval of {', '.join(names)}: {asked}, and {decide}."

    def ending(self) -> dict[str, Any]:
        """Why the answer ends: the last fields of its choice."""
        reason = "length" if self._stop_reason in _CUT_SHORT else "stop"
        if self.tool_calls and self.refusal is None:
            reason = "tool_calls"
        return {"finish_reason": reason, "native_finish_reason": self._stop_reason}

    def usage(self) -> dict[str, Any]:
        """The tokens of all steps."""
        used = self._usage
        return {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
            "total_tokens": used.prompt_tokens + used.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": used.cached_input_tokens},
            "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        }

    def _waiting(self) -> dict[str, ToolCall]:
        """The calls that wait, by id. A call that comes in pieces has its name in the first. An answer that was cut off
        after it was shown, or cancelled, has none."""
        if self._stop_reason != events.StopReason.PARKED:
            return {}
        waiting: dict[str, ToolCall] = {}
        for _, event in self._asked:
            if isinstance(event, events.ToolCalls):
                waiting |= {call.id: call for call in event.calls}
                continue
            known = waiting.get(event.call_id, ToolCall(event.call_id, "", ""))
            name, arguments = event.name or known.name, known.arguments + (event.arguments or "")
            waiting[event.call_id] = ToolCall(event.call_id, name, arguments)
        return waiting


class ChatAnswer:
    """The whole answer of a run."""

    def __init__(self, run: Run, model: str) -> None:
        self._run = run
        self._model = model
        self._texts: list[str] = []
        """Of steps that are over: nobody takes them back."""
        self._step: StepId | None = None
        self._pieces: list[tuple[Seq, events.TextChunk]] = []
        """Of the step in hand."""
        self.outcome = ChatOutcome(run)

    def take(self, seq: Seq, event: events.Event | events.Unknown) -> None:
        """Takes the next event of the log, with its number."""
        self.outcome.take(seq, event)
        match event:
            case events.TextChunk() if event.text:
                if event.step_id != self._step:
                    self._texts.extend(_joined(self._pieces))
                    self._step, self._pieces = event.step_id, []
                self._pieces.append((seq, event))
            case events.StepRestarted() | events.LogContinued():
                self._pieces = [one for one in self._pieces if not is_void(one[0], one[1].message_id, event)]
            case _:
                pass

    def completion(self) -> dict[str, Any]:
        """The completion, once all events are taken and there is no error."""
        outcome = self.outcome
        message: dict[str, Any] = {
            "role": "assistant",
            "content": BETWEEN_TEXTS.join([*self._texts, *_joined(self._pieces)]),
            "refusal": outcome.refusal,
        }
        if outcome.tool_calls:
            message["tool_calls"] = outcome.tool_calls
        return {
            **completion_head(self._run, self._model, "chat.completion"),
            "choices": [{"index": 0, "message": message, "logprobs": None, **outcome.ending()}],
            "usage": outcome.usage(),
        }


def _joined(pieces: list[tuple[Seq, events.TextChunk]]) -> Iterator[str]:
    texts: dict[tuple[MessageId, int], list[str]] = {}
    for _, piece in pieces:
        texts.setdefault((piece.message_id, piece.part), []).append(piece.text)
    yield from map("".join, texts.values())


def completion_head(run: Run, model: str, kind: str) -> dict[str, Any]:
    """The fields that completions and their chunks begin with. The id is the run's, by which it is cancelled and read
    again."""
    return {
        "id": run.id,
        "object": kind,
        "created": int(run.created_at.timestamp()),
        "model": model,
        "system_fingerprint": None,
    }
