"""Folds the log of a call's run into the call's results and notifications.

It does no I/O, so every process that reads the log gives the same answer.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from api.mcp.messages import (
    INTERNAL_ERROR,
    RUN_ID,
    ClientRequest,
    RequestId,
    error_bytes,
    notification_bytes,
    result_bytes,
    sse,
)
from shared.domain import events
from shared.domain.errors import ErrorCode
from shared.domain.events import decode
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.log_writer import Entries
from shared.domain.messages import ToolCall
from shared.domain.runs import Run

BETWEEN_TEXTS = "\n\n"
LONGEST_PROGRESS = 200
LONGEST_QUESTION = 2_000
LONGEST_SILENCE_S = 15.0
"""Seconds. The official clients wait longer, and proxies on the way allow 30 or more."""

_CUT_SHORT: Mapping[str, str] = {
    events.StopReason.STEPS_USED_UP: "The agent stopped because it has used up its steps.",
    events.StopReason.TOKENS_USED_UP: "The agent stopped because it has used up its tokens.",
}


class _Piece(NamedTuple):
    seq: Seq
    message_id: MessageId
    part: int
    text: str


class CallFold:
    """Folds the log of a call's run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step: StepId | None = None
        self._pieces: list[_Piece] = []
        """The pieces of the last step with text."""
        self._earlier = ""
        """The text of the step before that, because a restart may void the last step."""
        self._asked: list[tuple[Seq, MessageId, ToolCall]] = []
        self._names: dict[str, str] = {}
        self._stop_reason: str = events.StopReason.ANSWERED
        self._failure: events.Failed | None = None
        self._has_gap = False
        self.is_over = False

    def take(self, seq: Seq, event: events.Event | events.Unknown) -> str:
        """Applies the next event. Returns its news for a waiting client; empty for most events."""
        match event:
            case events.TextChunk() if event.text:
                return self._said(seq, event)
            case events.ToolCalls(needs_approval=True):
                self._asked += [(seq, event.message_id, call) for call in event.calls]
                return f"waits for approval of {', '.join(call.name for call in event.calls)}"
            case events.StepRestarted() | events.LogContinued():
                return self._taken_back(event)
            case events.Stopped():
                self._stop_reason = event.reason
            case events.Failed():
                self._failure = event
            case events.Gap():
                self._has_gap = True
            case events.Ended():
                self.is_over = True
            case _:
                return self._at_work(event)
        return ""

    @property
    def text(self) -> str:
        """The agent's last text."""
        texts: dict[tuple[MessageId, int], list[str]] = {}
        for piece in self._pieces:
            texts.setdefault((piece.message_id, piece.part), []).append(piece.text)
        return BETWEEN_TEXTS.join(map("".join, texts.values())) or self._earlier

    @property
    def waiting(self) -> list[ToolCall]:
        """The tool calls that a person has to decide."""
        return [call for _, _, call in self._asked] if self._stop_reason == events.StopReason.PARKED else []

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was cancelled."""
        return self._stop_reason == events.StopReason.CANCELLED

    def result(self) -> dict[str, Any]:
        """Returns the call's result once the whole log is applied, if no call waits for a person, or if the client
        cannot ask a person."""
        text = BETWEEN_TEXTS.join(filter(None, (self.text, _CUT_SHORT.get(self._stop_reason))))
        return call_result(self._run, text, problem=self._problem(), status=self._status(), waiting=self.waiting)

    def _problem(self) -> str:
        if self._failure is not None:
            detail = self._failure.detail
            said = self._failure.message
            return f"{said} {detail}" if detail and detail not in said else said
        if self._has_gap:
            return "There is a gap in the run's log, so its answer is not known."
        if not self.is_over:
            return "The run was deleted."
        return "The run was cancelled." if self.is_cancelled else ""

    def _status(self) -> str:
        if self._failure is not None or self._has_gap or not self.is_over:
            return "failed"
        if self.is_cancelled:
            return "cancelled"
        return "awaiting_approval" if self.waiting else "completed"

    def _said(self, seq: Seq, event: events.TextChunk) -> str:
        if event.step_id != self._step:
            self._earlier = self.text
            self._step, self._pieces = event.step_id, []
        self._pieces.append(_Piece(seq, event.message_id, event.part, event.text))
        return f"says: {event.text}"

    def _taken_back(self, restart: events.StepRestarted | events.LogContinued) -> str:
        self._pieces = [one for one in self._pieces if not _is_void(one.seq, one.message_id, restart)]
        self._asked = [one for one in self._asked if not _is_void(one[0], one[1], restart)]
        return "goes on at another worker" if restart.lost_call else ""

    def _at_work(self, event: events.Event | events.Unknown) -> str:
        match event:
            case events.RunCreated():
                return f"run {self._run.id} is accepted"
            case events.ToolStarted():
                self._names[event.call_id] = event.name
                return f"calls {event.name}"
            case events.ToolEnded():
                ended = "has ended" if event.status == "success" else "has failed"
                return f"{self._names.pop(event.call_id, 'the tool')} {ended}"
            case events.CallDecided():
                return f"{event.name} was {event.verdict}"
            case events.CompactionBegan():
                return "shortens its history"
            case _:
                return ""


def _is_void(seq: Seq, message_id: MessageId, restart: events.StepRestarted | events.LogContinued) -> bool:
    is_voided = isinstance(restart, events.StepRestarted) and message_id in restart.void_message_ids
    return seq > restart.follows or is_voided


def call_result(
    run: Run, text: str, *, problem: str = "", status: str, waiting: Iterable[ToolCall] = ()
) -> dict[str, Any]:
    """Returns a call's result for the calling model: the agent's text, the problem, or both."""
    asked = [call.name for call in waiting]
    said = [text] if text else []
    if problem:
        said.append(problem)
    if asked:
        said.append(
            f"The agent waits for a person's approval of {', '.join(asked)}. Nobody is asked here: GET /v1/approvals"
            f"?agent_id={run.agent_id} shows what is asked, and POST /v1/approvals/{{approval_id}} decides."
        )
    whole = BETWEEN_TEXTS.join(said)
    structured: dict[str, Any] = {"text": whole, "status": status, "run_id": run.id, "agent_id": run.agent_id}
    if run.conversation_id is not None:
        structured["conversation"] = run.conversation_id
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": whole}],
        "structuredContent": structured,
        "isError": bool(problem),
        "_meta": {RUN_ID: run.id},
    }


def input_required(run: Run, waiting: Iterable[ToolCall]) -> dict[str, Any]:
    """Returns the result of a call that needs a person's decision. The client asks the person, and repeats the request
    with the decisions. The state is the run's id, which gives its sender no further access."""
    return {
        "resultType": "input_required",
        "inputRequests": input_requests(waiting),
        "requestState": run.id,
        "_meta": {RUN_ID: run.id},
    }


def input_requests(waiting: Iterable[ToolCall]) -> dict[str, Any]:
    """Returns the forms in which a person decides calls, by the ids of the calls."""
    return {call.id: _form(call) for call in waiting}


def _form(call: ToolCall) -> dict[str, Any]:
    given = call.arguments
    shown = given if len(given) <= LONGEST_QUESTION else f"{given[:LONGEST_QUESTION]}… ({len(given)} characters)"
    return {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": f"The agent wants to call {call.name} with {shown}",
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "approve": {"type": "boolean", "title": "Approve the call", "description": "No: it is denied."},
                    "reason": {"type": "string", "title": "Why not", "description": "Told to the agent, if denied."},
                },
                "required": ["approve"],
            },
        },
    }


class CallStream:
    """A call's stream: progress notifications, if the client wants them, and the result. The news of an event depends
    on earlier events, so each reader has its own fold."""

    shared_as = None
    longest_silence_s = LONGEST_SILENCE_S

    def __init__(self, run: Run, asked: ClientRequest) -> None:
        self._run = run
        self._id: RequestId = asked.id
        self._token = asked.progress_token
        self._can_ask = asked.can_ask_people
        self._fold = CallFold(run)

    @property
    def cut(self) -> bytes:
        """An error, because this stream cannot be resumed."""
        said = f"This server is ending, and the run goes on: see GET /v1/runs/{self._run.id} and its messages"
        data = {"code": ErrorCode.SERVER_ENDING, "hint": ErrorCode.SERVER_ENDING.hint, "run_id": self._run.id}
        return sse(error_bytes(self._id, INTERNAL_ERROR, said, data))

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The messages for some entries, and whether the last one ends the stream."""
        shown: list[bytes] = []
        for seq, entry in entries:
            new = self._fold.take(seq, decode(entry))
            if new and self._token is not None:
                shown.append(self._progress(seq, new))
        if self._fold.is_over:
            shown.append(self.end_of(Seq(0)))
        return b"".join(shown), self._fold.is_over

    def silence(self, _last: Seq, _now: datetime) -> bytes:
        """Nothing: a comment suffices to keep the connection alive."""
        return b""

    def end_of(self, _last: Seq) -> bytes:
        """The result, also if the log has no end because the run was deleted."""
        return sse(result_bytes(self._id, ended_call(self._run, self._fold, can_ask=self._can_ask)))

    def _progress(self, seq: Seq, new: str) -> bytes:
        message = new if len(new) <= LONGEST_PROGRESS else f"{new[: LONGEST_PROGRESS - 1]}…"
        # Progress must grow, and an entry's number does. The total is unknown.
        params = {"progressToken": self._token, "progress": seq, "message": message}
        return sse(notification_bytes("notifications/progress", params))


def ended_call(run: Run, fold: CallFold, *, can_ask: bool) -> dict[str, Any]:
    """Returns the answer to a call whose run's log has ended."""
    return input_required(run, fold.waiting) if fold.waiting and can_ask else fold.result()
