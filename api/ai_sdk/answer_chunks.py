"""An answer as the chunks of the AI SDK's UI message stream: a pure fold, without I/O and without a clock.

An answer is one UI message: a run that answers messages, and the runs that continue it after decisions. All these runs
share one message id, derived from the first run's; otherwise the client would copy the parts into a second message.

The fold reads only the runs' submissions and logs, which never change, so a stream that is read again yields an equal
message. A run keeps the version of the fold that it was submitted under (`FOLD`).

Versions 5 and 6 of the SDK fail at an unknown chunk. Instead of newer chunks they get `data-holdfast-…` parts, which
all versions accept.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from api.pages.leg_parts import (
    AGAIN,
    CallCut,
    CallGrew,
    CallIds,
    CallOpened,
    CallReady,
    Compaction,
    DataShown,
    Decided,
    Injected,
    LegEnded,
    LegParts,
    Lost,
    Part,
    ReasoningClosed,
    ReasoningGrew,
    ReasoningOpened,
    Restarted,
    Returned,
    StepBegan,
    TextClosed,
    TextGrew,
    TextOpened,
)
from shared.domain import events
from shared.domain.approvals import Approval
from shared.domain.events import AnsweredBy, StopReason
from shared.domain.ids import RunId, Seq
from shared.domain.messages import ContentPart, TextContent, ToolReturn
from shared.domain.runs import Run, RunError

Chunk = dict[str, Any]
"""One chunk of the stream, as the SDK declares it."""

Sdk = Literal[5, 6, 7]
"""The major version of the page's `ai` package."""

NEWEST_SDK: Sdk = 7

CUT_OFF = "The call was cut off and is not made."
HELD_BACK = "The call is made once the calls beside it are decided."
NO_REASON = "The run has failed."
NEVER_BEGUN = "The run was deleted."

_FAILED = (StopReason.FAILED, StopReason.MODEL_FAILED, StopReason.INSTRUCTIONS_TOO_LONG)

_FINISHES: Mapping[str, str] = {
    StopReason.ANSWERED: "stop",
    StopReason.ENDED_BY_RULE: "stop",
    StopReason.TOKENS_USED_UP: "length",
    StopReason.PARKED: "tool-calls",
}
"""The SDK's reasons by ours. All other reasons are `other`."""


class Seen(NamedTuple):
    """The parts of an answer that the page already has when a run continues it, from the page's request."""

    calls: Mapping[str, str] = {}
    """The ids of calls: by the call's own id, the id under which the page has it."""
    approvals: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    """The page's ids of the calls that the page makes itself."""
    answered: frozenset[str] = frozenset()
    """The calls among `own` whose results the page has sent."""
    messages: frozenset[str] = frozenset()
    """The ids of all the page's messages."""


NOTHING_SEEN = Seen()


class AnswerChunks:
    """The chunks of one answer, in version 1 of the fold. The caller calls, for each run, `begin`, `take` with each
    entry of its log, and `asked` after its end; and `finish` once, after the last run."""

    def __init__(self, answer_id: str, sdk: Sdk, seen: Seen | None = None) -> None:
        """`seen` has the page's parts, if the chunks continue the answer there. None: they begin the answer."""
        self._answer_id = answer_id
        self._sdk: Sdk = sdk
        self._seen = seen or NOTHING_SEEN
        self._calls = dict(self._seen.calls)
        """The ids of earlier runs' calls without results: by the call's own id, the id under which it was shown."""
        self._approvals = set(self._seen.approvals)
        self._is_continued = seen is not None
        self._has_started = False
        self._metadata: dict[str, Any] = {}
        self._parts: LegParts | None = None
        self._names: dict[str, str] = {}
        """The tools of calls, by the ids under which the calls were shown."""
        self._answered_by: dict[str, AnsweredBy] = dict.fromkeys(self._seen.own, "client")
        self._of_leg = CallIds()
        self._denied: set[str] = set()
        self._in_step = self._is_new_step = self._is_reset = False
        self._leg_has_step = True
        self._step_parts: set[str] = set()
        """The ids of the parts in the client's last step."""
        self._end: LegEnded | None = None

    @property
    def is_contradicted(self) -> bool:
        """Whether the log was rewritten after this fold had read it: chunks already sent are then no longer valid."""
        return self._parts is not None and self._parts.is_contradicted

    def begin(self, run: Run) -> Iterator[Chunk]:
        """Returns the chunks with which a run begins."""
        self._parts, self._end = LegParts(run), None
        self._of_leg = CallIds()
        self._denied.clear()
        metadata = self._metadata = answer_metadata(run)
        self._leg_has_step = not (self._has_started or self._is_continued)
        if self._has_started:
            yield {"type": "message-metadata", "messageMetadata": metadata}
            return
        self._has_started = True
        yield {"type": "start", "messageId": self._answer_id, "messageMetadata": metadata}

    def take(self, seq: Seq, event: events.Event | events.Unknown) -> list[Chunk]:
        """Returns the chunks of the next entry of the run's log."""
        parts = () if self._parts is None else self._parts.take(seq, event)
        return [chunk for part in parts for chunk in self._chunks_of(part)]

    def asked(self, asked: Sequence[Approval]) -> Iterator[Chunk]:
        """Returns the chunks after the end of a run's log. `asked` are the decisions for which the run asked."""
        if self._end is None:
            return
        # All unanswered calls wait for the decisions, even calls that need none.
        self._calls = shown = {own_id(one): self._of_leg.of(one) for one in self._end.unanswered}
        for approval in asked:
            call = shown.get(approval.tool_call_id)
            if call is not None and self._sdk >= 6 and not approval.client_side:
                self._approvals.add(approval.id)
                yield {"type": "tool-approval-request", "approvalId": approval.id, "toolCallId": call}
        if self._sdk >= 6 and not all(one.client_side for one in asked):
            # The SDK sends decisions automatically once every other call of the step has an output.
            waiting = {shown.get(one.tool_call_id) for one in asked}
            for call in (one for one in shown.values() if one not in waiting):
                yield self._of_result("tool-output-available", call, output=HELD_BACK)
        if not self._leg_has_step and self._end.reason != StopReason.PARKED:
            # Without a new step the page would send the results of its own calls again, from the last step.
            yield {"type": "start-step"}
            # The client shows the step only with the next chunk.
            yield {"type": "message-metadata", "messageMetadata": self._metadata}
            self._in_step = True
        if self._in_step:
            self._in_step = False
            yield {"type": "finish-step"}

    def finish(self) -> Iterator[Chunk]:
        """Returns the last chunks."""
        if self._end is None:
            for part in [] if self._parts is None else self._parts.lost_ending():
                yield from self._chunks_of(part)
            yield from self.asked(())
        end = self._end
        if end is None:
            yield {"type": "error", "errorText": NEVER_BEGUN}
            return
        if self._has_failed:
            yield (part := failure_part(end.failure))
            # The client reads nothing after an error.
            yield {"type": "error", "errorText": part["data"]["message"]}
            return
        if end.reason == StopReason.CANCELLED:
            yield {"type": "abort", "reason": "cancelled"}
            yield {"type": "finish", "finishReason": "interrupted" if self._sdk >= 7 else "other"}
            return
        yield {"type": "finish", "finishReason": _FINISHES.get(end.reason, "other")}

    @property
    def _has_failed(self) -> bool:
        return self._end is not None and (self._end.failure is not None or self._end.reason in _FAILED)

    def _chunks_of(self, part: Part) -> Iterable[Chunk]:
        return self._RENDERERS[type(part)](self, part)

    def _step_began(self, _part: StepBegan) -> Iterator[Chunk]:
        # A step that was reset continues under its own beginning.
        self._is_new_step = not self._is_reset
        yield from ()

    def _opened(self, part_id: str) -> Iterator[Chunk]:
        """Begins a step in the client, if the opening part is the first of the model's step."""
        if self._is_new_step or not self._in_step:
            if self._in_step:
                yield {"type": "finish-step"}
            yield {"type": "start-step"}
            self._step_parts.clear()
        self._in_step = self._leg_has_step = True
        self._is_new_step = self._is_reset = False
        self._step_parts.add(part_id)

    def _text_opened(self, part: TextOpened) -> Iterator[Chunk]:
        yield from self._opened(part.id)
        yield {"type": "text-start", "id": part.id}

    def _reasoning_opened(self, part: ReasoningOpened) -> Iterator[Chunk]:
        yield from self._opened(part.id)
        yield {"type": "reasoning-start", "id": part.id}

    def _call_opened(self, part: CallOpened) -> Iterator[Chunk]:
        yield from self._opened(part.id)
        call = self._of_leg.open(part.id)
        self._names[call], self._answered_by[call] = part.name, part.answered_by
        yield self._of_call("tool-input-start", call)

    def _call_ready(self, part: CallReady) -> Iterator[Chunk]:
        call = self._of_leg.of(part.id)
        self._answered_by[call] = part.answered_by
        yield self._of_call("tool-input-available", call, input=input_of(part.arguments))

    def _call_cut(self, part: CallCut) -> Iterator[Chunk]:
        call = self._of_leg.of(part.id)
        yield self._of_call("tool-input-error", call, input=part.arguments, errorText=CUT_OFF)

    def _of_call(self, kind: str, call: str, **more: Any) -> Chunk:
        """A chunk with a call's input. Without `providerExecuted` the page makes the call."""
        chunk = {"type": kind, "toolCallId": call, "toolName": self._names.get(call, ""), **more}
        return chunk if self._is_of_page(call) else {**chunk, "dynamic": True, "providerExecuted": True}

    def _of_result(self, kind: str, call: str, **more: Any) -> Chunk:
        """A chunk with a call's result. Version 5 looks for the call only among calls of the chunk's kind."""
        chunk = {"type": kind, "toolCallId": call, **more}
        return chunk if self._is_of_page(call) else {**chunk, "dynamic": True}

    def _is_of_page(self, call: str) -> bool:
        return self._answered_by.get(call) == "client"

    def _decided(self, part: Decided) -> Iterator[Chunk]:
        event = part.event
        call = self._calls.get(event.call_id)
        if event.verdict == "denied":
            self._denied.add(event.call_id)
        if call is None:
            return
        if event.verdict == "edited":
            self._names.setdefault(call, event.name)
            yield self._of_call("tool-input-available", call, input=input_of(event.arguments))
        if self._sdk >= 7 and event.approval_id in self._approvals:
            said = {"approved": event.verdict != "denied", **({"reason": event.reason} if event.reason else {})}
            yield {"type": "tool-approval-response", "approvalId": event.approval_id, **said}

    def _returned(self, part: Returned) -> Iterator[Chunk]:
        call = self._of_leg.of(part.id)
        call = self._calls.pop(part.id, call if call in self._of_leg else None)
        if call is None or call in self._seen.answered:
            # The client would treat the result of an unknown call as a broken stream.
            return
        if own_id(part.id) in self._denied and self._sdk >= 6:
            yield {"type": "tool-output-denied", "toolCallId": call}
        elif part.result.status == "error":
            yield self._of_result("tool-output-error", call, errorText=part.result.text)
        else:
            yield self._of_result("tool-output-available", call, output=output_of(part.result))

    def _injected(self, part: Injected) -> Iterator[Chunk]:
        message_id = part.event.otid or part.event.message_id
        if message_id in self._seen.messages:
            return
        # The message belongs to no step: a later reset of the step must not remove it.
        self._is_reset = False
        yield injected_part(message_id, part.event.text, self._sdk)

    def _restarted(self, part: Restarted) -> Iterator[Chunk]:
        void = set(part.part_ids)
        if not void:
            return
        if self._sdk >= 7 and self._in_step and not self._is_new_step and self._step_parts <= void:
            self._step_parts.clear()
            for one in void:
                self._of_leg.take_back(one)
            self._is_reset = True
            yield {"type": "reset-step"}
            return
        if self._in_step:
            self._in_step = False
            yield {"type": "finish-step"}
        yield {"type": "data-holdfast-void", "data": {"message_ids": sorted(part.message_ids)}}

    def _lost(self, _part: Lost) -> Iterator[Chunk]:
        self._is_reset = False
        yield {"type": "data-holdfast-gap", "data": {}}

    def _compaction(self, part: Compaction) -> Iterator[Chunk]:
        state = "began" if isinstance(part.event, events.CompactionBegan) else "done"
        yield {"type": "data-holdfast-compaction", "data": {"state": state}, "transient": True}

    def _ended(self, part: LegEnded) -> Iterator[Chunk]:
        self._end = part
        yield from ()

    _RENDERERS: ClassVar[dict[type, Callable[[Any, Any], Iterable[Chunk]]]] = {
        StepBegan: _step_began,
        ReasoningOpened: _reasoning_opened,
        ReasoningGrew: lambda _, part: ({"type": "reasoning-delta", "id": part.id, "delta": part.text},),
        ReasoningClosed: lambda _, part: ({"type": "reasoning-end", "id": part.id},),
        TextOpened: _text_opened,
        TextGrew: lambda _, part: ({"type": "text-delta", "id": part.id, "delta": part.text},),
        TextClosed: lambda _, part: ({"type": "text-end", "id": part.id},),
        CallOpened: _call_opened,
        CallGrew: lambda self, part: (
            {"type": "tool-input-delta", "toolCallId": self._of_leg.of(part.id), "inputTextDelta": part.arguments},
        ),
        CallReady: _call_ready,
        CallCut: _call_cut,
        Decided: _decided,
        Returned: _returned,
        Injected: _injected,
        Restarted: _restarted,
        Lost: _lost,
        Compaction: _compaction,
        # No history stores the event, so it is for the page's `onData` and not a part of the message.
        DataShown: lambda _, part: ({"type": f"data-{part.event.name}", "data": part.event.value, "transient": True},),
        LegEnded: _ended,
    }


FOLD = "ai_sdk_fold"
"""Key of the fold's version in the stored part of a run's request."""

FOLD_VERSION = 1
"""The version of the fold, also for runs of other dialects."""


def answer_id_of(first: RunId) -> str:
    """The id of the message that a run begins."""
    return f"answer-{first.removeprefix('run-')}"


def answer_metadata(run: Run) -> dict[str, Any]:
    """The metadata of a message whose newest run is `run`."""
    return {"holdfast": {"run_id": run.id, "conversation_id": run.conversation_id or "default"}}


def own_id(call: str) -> str:
    """The model's own id of a call that was shown under the id `call`."""
    return call.rstrip(AGAIN)


def input_of(arguments: str) -> Any:
    """A call's arguments. Arguments that are not JSON are kept as text."""
    return _value_in(arguments) if arguments.strip() else {}


def output_of(result: ToolReturn) -> Any:
    """A result for the client: an object or an array if its text is one, else the text."""
    if result.parts is not None:
        return [_wire_part(part) for part in result.parts]
    text = result.text
    return _value_in(text) if text.lstrip().startswith(("{", "[")) else text


def failure_part(failure: events.Failed | RunError | None) -> dict[str, Any]:
    """The reason why the answer has failed, in the form of a chunk and of the message's part. A reloaded page has no
    error of its own."""
    code, message = ("error", NO_REASON) if failure is None else (failure.error_type, failure.message)
    return {"type": "data-holdfast-error", "data": {"code": code, "message": message}}


def injected_part(message_id: str, text: str, sdk: Sdk) -> dict[str, Any]:
    """A user's message in the middle of the answer, in the form of a chunk and of the message's part."""
    if sdk >= 7:
        return {"type": "steering-message", "id": message_id, "parts": [{"type": "text", "text": text}]}
    return {"type": "data-holdfast-input", "id": message_id, "data": {"text": text}}


def _value_in(text: str) -> Any:
    """The value of a JSON text; the text itself if it is not JSON, or JSON that cannot be sent on."""
    try:
        value = json.loads(text)
        msgspec.json.encode(value)
    except (ValueError, RecursionError):
        return text
    return value


def _wire_part(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, TextContent):
        return {"type": "text", "text": part.text}
    url = part.url or f"data:{part.media_type or 'image/png'};base64,{part.data or ''}"
    return {"type": "image", "url": url}
