"""A run's log as one chat completion. A pure fold of events, which does not know how they travel.

An agent's answer may be several texts with tool calls between them. A completion has one text, so they are joined by an
empty line. Calls of tools that run here are not in it: a client takes a call that it is shown for one that it has to
make.
"""

from typing import Any

from api.openai.errors import interrupted, model_error
from shared.domain import events
from shared.domain.error_codes import ErrorCode
from shared.domain.ids import MessageId
from shared.domain.messages import ToolCall
from shared.domain.runs import Run

BETWEEN_TEXTS = "\n\n"

_CUT_SHORT = frozenset({"max_tokens_exceeded", "max_steps", "cancelled"})
"""Stop reasons of answers that are not whole. OpenAI has one word for them all; `native_finish_reason` has ours."""


class ChatOutcome:
    """What a run has come to, but for its text: the calls that wait, why it stopped, what it used."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tools_of_client = {tool.name for tool in run.options.client_tools}
        self._waiting: dict[str, tuple[MessageId, ToolCall]] = {}
        self._stop_reason = "end_turn"
        self._usage = events.UsageReported(at=0)
        self._has_gap = False
        self.is_over = False
        self.failure: events.Failed | None = None

    def take(self, event: events.Event | events.Unknown) -> None:
        """Takes the next event of the log."""
        match event:
            case events.ToolCallChunk(needs_approval=True) | events.ToolCalls(needs_approval=True):
                self._take_calls(event)
            case events.StepRestarted():
                void = set(event.void_message_ids)
                self._waiting = {key: kept for key, kept in self._waiting.items() if kept[0] not in void}
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
            for _, call in self._waiting.values()
            if call.name in self._tools_of_client
        ]

    @property
    def refusal(self) -> str | None:
        """What a person has to decide before the agent goes on. The agent has not said it, so it is no content."""
        names = [call.name for _, call in self._waiting.values() if call.name not in self._tools_of_client]
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

    def _take_calls(self, event: events.ToolCallChunk | events.ToolCalls) -> None:
        if isinstance(event, events.ToolCalls):
            self._waiting |= {call.id: (event.message_id, call) for call in event.calls}
            return
        _, known = self._waiting.get(event.call_id, (None, ToolCall(event.call_id, "", "")))
        name, arguments = event.name or known.name, known.arguments + (event.arguments or "")
        self._waiting[event.call_id] = (event.message_id, ToolCall(event.call_id, name, arguments))


class ChatAnswer:
    """The whole answer of a run."""

    def __init__(self, run: Run, model: str) -> None:
        self._run = run
        self._model = model
        self._texts: dict[tuple[MessageId, int], str] = {}
        self.outcome = ChatOutcome(run)

    def take(self, event: events.Event | events.Unknown) -> None:
        """Takes the next event of the log."""
        self.outcome.take(event)
        match event:
            case events.TextChunk() if event.text:
                place = (event.message_id, event.part)
                self._texts[place] = self._texts.get(place, "") + event.text
            case events.StepRestarted():
                void = set(event.void_message_ids)
                self._texts = {place: text for place, text in self._texts.items() if place[0] not in void}
            case _:
                pass

    def completion(self) -> dict[str, Any]:
        """The completion, once all events are taken and there is no error."""
        outcome = self.outcome
        message: dict[str, Any] = {
            "role": "assistant",
            "content": BETWEEN_TEXTS.join(self._texts.values()),
            "refusal": outcome.refusal,
        }
        if outcome.tool_calls:
            message["tool_calls"] = outcome.tool_calls
        return {
            **completion_head(self._run, self._model, "chat.completion"),
            "choices": [{"index": 0, "message": message, "logprobs": None, **outcome.ending()}],
            "usage": outcome.usage(),
        }


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
