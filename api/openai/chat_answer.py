"""A run's log as one chat completion: a pure fold of events, without I/O.

An agent's answer may consist of several texts with tool calls between them. A completion has one text, so the fold
joins them with empty lines. It omits calls of tools that run on this server: clients make every call that they see.

The same fold produces the whole completion and the chunks of a streamed one.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from api.event_stream import KEEP_ALIVE
from api.openai.chat_request import interrupted, model_error
from shared.domain import events
from shared.domain.errors import ErrorCode
from shared.domain.events import decode
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.log_writer import Entries
from shared.domain.messages import ToolCall
from shared.domain.runs import Run

BETWEEN_TEXTS = "\n\n"

_CUT_SHORT = frozenset({events.StopReason.TOKENS_USED_UP, events.StopReason.STEPS_USED_UP, events.StopReason.CANCELLED})
"""Stop reasons of incomplete answers. OpenAI has one word for all of them; `native_finish_reason` has ours."""


Owned = events.StepRestarted | events.LogContinued
"""Possible first entries of a new owner."""


def is_void(seq: Seq, message_id: MessageId, restart: Owned) -> bool:
    """Whether an earlier entry is void: by its number if the last worker's entries were lost with Redis and their
    owner is unknown, otherwise by its message."""
    is_named = isinstance(restart, events.StepRestarted) and message_id in restart.void_message_ids
    return seq > restart.follows or is_named


class ChatOutcome:
    """The state of a run without its text: its waiting calls, its stop reason, its tokens."""

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
        """The body of the error that replaces an answer's end. None: the answer has a regular end."""
        if self.failure is not None:
            return model_error(self.failure.error_type, self.failure.message, self.failure.detail)
        if self._has_gap:
            return interrupted("A part of the run's log is gone", ErrorCode.LOG_GAP, self._run.id)
        if not self.is_over:
            return interrupted("The run was deleted", ErrorCode.RUN_DELETED, self._run.id)
        return None

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls that the client has to make."""
        return [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self._waiting().values()
            if call.name in self._tools_of_client
        ]

    @property
    def refusal(self) -> str | None:
        """A sentence about the decisions for which the agent waits. It is not the agent's text, so it is no content."""
        names = [call.name for call in self._waiting().values() if call.name not in self._tools_of_client]
        if not names:
            return None
        asked = f"GET /v1/approvals?agent_id={self._run.agent_id} shows what is asked"
        decide = "POST /v1/approvals/{approval_id} decides"
        return f"Waiting for approval of {', '.join(names)}: {asked}, and {decide}."

    def ending(self) -> dict[str, Any]:
        """The last fields of a choice, with the reason why the answer ends."""
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
        """The waiting calls, by id. Only the first piece of a streamed call has its name. Empty unless the run is
        parked: an answer that was cut off or cancelled has no waiting calls."""
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
        """The texts of completed steps, which no new owner can void."""
        self._step: StepId | None = None
        self._pieces: list[tuple[Seq, events.TextChunk]] = []
        """The pieces of the current step."""
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
    """The fields that begin completions and their chunks. Clients cancel and read the run by the id, which is the
    run's."""
    return {
        "id": run.id,
        "object": kind,
        "created": int(run.created_at.timestamp()),
        "model": model,
        "system_fingerprint": None,
    }


class ChatChunks:
    """Turns one run's events into chunks. With `with_usage` the last chunk has the tokens, and no choice."""

    def __init__(self, run: Run, model: str, *, with_usage: bool) -> None:
        self._head = completion_head(run, model, "chat.completion.chunk") | ({"usage": None} if with_usage else {})
        self._with_usage = with_usage
        self._outcome = ChatOutcome(run)
        self._text = _ShownText()

    def of(self, seq: Seq, event: events.Event | events.Unknown) -> Iterator[dict[str, Any]]:
        """The chunks of the next event of the log, with its number. Most events have none."""
        self._outcome.take(seq, event)
        match event:
            case events.RunCreated():
                yield self._chunk({"role": "assistant", "content": ""})
            case events.TextChunk() if event.text:
                if text := self._text.more(seq, event):
                    yield self._chunk({"content": text})
            case events.StepRestarted() | events.LogContinued():
                self._text.take_back(event)
            case events.Ended():
                yield from self._ending()
            case _:
                pass

    @property
    def is_over(self) -> bool:
        """Whether the fold has seen the end of the log."""
        return self._outcome.is_over

    def lost_ending(self) -> Iterator[dict[str, Any]]:
        """The end of a stream whose log has no end, as after the run was deleted."""
        if not self._outcome.is_over:
            yield from self._ending()

    def _ending(self) -> Iterator[dict[str, Any]]:
        outcome = self._outcome
        if outcome.error is not None:
            yield outcome.error
            return
        if calls := outcome.tool_calls:
            yield self._chunk({"tool_calls": [{"index": number, **call} for number, call in enumerate(calls)]})
        if outcome.refusal is not None:
            yield self._chunk({"refusal": outcome.refusal})
        yield self._chunk({}, **outcome.ending())
        if self._with_usage:
            yield {**self._head, "choices": [], "usage": outcome.usage()}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, **ending: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **ending}
        return {**self._head, "choices": [choice]}


LONGEST_SILENCE_S = 4.0
"""Voice clients such as LiveKit's give up a stream after five or ten seconds without a byte, and repeat the request."""

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def chunk_bytes(chunk: object) -> bytes:
    """One chunk, or an error in place of one. It has no id: OpenAI's streams cannot be resumed."""
    return b"data: %b\n\n" % _encoder.encode(chunk)


class ChunkStream:
    """A run's stream as chunks. A chunk depends on the chunks before it, so each reader has its own fold."""

    shared_as = None
    longest_silence_s = LONGEST_SILENCE_S

    def __init__(self, run: Run, model: str, *, with_usage: bool) -> None:
        self._run_id = run.id
        self._chunks = ChatChunks(run, model, with_usage=with_usage)

    @property
    def cut(self) -> bytes:
        """An error: this stream cannot be resumed."""
        error = interrupted("This server is ending, and the run goes on", ErrorCode.SERVER_ENDING, self._run_id)
        return chunk_bytes(error) + DONE

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The chunks of some entries, and whether the last one ends the stream."""
        shown = b"".join(chunk_bytes(chunk) for seq, entry in entries for chunk in self._chunks.of(seq, decode(entry)))
        if self._chunks.is_over:
            return shown + DONE, True
        # Chunks contain no reasoning, and a voice client gives up after seconds without a byte.
        return shown or KEEP_ALIVE, False

    def silence(self, _last: Seq, _now: datetime) -> bytes:
        """No chunk: a comment keeps the stream alive while the agent reasons or its tools run."""
        return b""

    def end_of(self, _last: Seq) -> bytes:
        """The end of a stream whose log has no end, as after the run was deleted."""
        return b"".join(map(chunk_bytes, self._chunks.lost_ending())) + DONE


class _ShownText:
    """The text that the client has received, which cannot be withdrawn.

    When a step begins again, or an answer continues from before its last words, a model mostly repeats the text that
    the client has. That text is not sent twice. A different text follows after an empty line.
    """

    def __init__(self) -> None:
        self._message: MessageId | None = None
        self._part: int | None = None
        self._is_first = True
        self._was_first = True
        """Whether no text came before the current message."""
        self._of_message = ""
        """The valid text of the current message, with the separator before it."""
        self._pieces: list[tuple[Seq, int]] = []
        """The pieces of that text: the number of each, and the length of the text up to its end."""
        self._void = ""
        """All text of the message that the client has received, if its end is void and not repeated yet; otherwise
        empty."""

    def more(self, seq: Seq, chunk: events.TextChunk) -> str:
        """The part of the chunk to send now."""
        text = chunk.text
        if chunk.message_id != self._message:
            self._message, self._was_first = chunk.message_id, self._is_first
            self._of_message, self._pieces = "", []
            text = text if self._is_first else BETWEEN_TEXTS + text
        elif chunk.part != self._part:
            text = BETWEEN_TEXTS + text
        self._part, self._is_first = chunk.part, False
        self._of_message += text
        self._pieces.append((seq, len(self._of_message)))
        return self._not_shown_yet() if self._void else text

    def take_back(self, restart: Owned) -> None:
        """A new owner continues, which voids a part of the current message."""
        if self._message is None:
            return
        kept = [piece for piece in self._pieces if not is_void(piece[0], self._message, restart)]
        if len(kept) == len(self._pieces):
            return
        # Until the new text catches up, the client has received more than the model has repeated.
        self._void = self._void or self._of_message
        self._pieces, self._of_message = kept, self._of_message[: kept[-1][1]] if kept else ""
        if not kept:
            self._message, self._is_first = None, self._was_first

    def _not_shown_yet(self) -> str:
        if self._void.startswith(self._of_message):
            if len(self._void) == len(self._of_message):
                self._void = ""
            return ""
        void, self._void = self._void, ""
        if self._of_message.startswith(void):
            return self._of_message[len(void) :]
        return BETWEEN_TEXTS + self._of_message.removeprefix(BETWEEN_TEXTS)
