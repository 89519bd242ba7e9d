"""The effects of a run: its tool calls, the state of each, and the verdict of a probe or a person on a lost call.

A tool that was started and whose result was lost may or may not have had its effect. If the tool names a *probe*, the
run's next owner calls the probe before it continues. Otherwise the outcome stays unknown until a person settles the
call. That does not change the conversation, in which the model has already read that the outcome is unknown.

Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from shared.domain.ids import RunId, StepId
from shared.domain.journal import JournalEntry
from shared.domain.lifecycle import TERMINAL
from shared.domain.messages import ApprovalResponse, AssistantMessage, Message, ToolCall, ToolReturn, ToolReturns
from shared.domain.runs import Run
from shared.domain.settling import CANCELLED_WHILE_RUNNING
from shared.domain.tools import CUSTOM, PYTHON, Tool

KEY_VARIABLE = "HOLDFAST_IDEMPOTENCY_KEY"
"""The environment variable that gives a call its key."""

KEY_PARAMETER = "idempotency_key"
"""The parameter that gives the key to a tool in Python, and to a probe of an MCP server."""

PROBE = "_probe_"
"""The function `_probe_NAME` of a tool's source is the probe of the function `NAME`."""


def effect_key(run_id: RunId, step_id: StepId | None, call_id: str) -> str:
    """Returns the idempotency key of a call: the same in every attempt, and never that of another call. `step_id` is
    the step that asked for the call, because some model servers repeat ids of calls in each answer."""
    return f"hf-{run_id}-{sha256(f'{step_id}/{call_id}'.encode()).hexdigest()[:16]}"


class Verdict(msgspec.Struct, frozen=True):
    """A probe's answer: an object with `happened`, and the call's `result` if there is one."""

    happened: bool
    result: Any = None

    def result_of(self, call: ToolCall, tool: Tool) -> ToolReturn:
        """The call's result, in the form of the tool's own results."""
        is_text, found = isinstance(self.result, str), self.result
        if is_text:
            text = found
        elif (found is None or isinstance(found, bool)) and (tool.tool_type, tool.source_type) == (CUSTOM, PYTHON):
            text = str(found)
        else:
            text = msgspec.json.encode(found).decode()
        return ToolReturn(
            tool_call_id=call.id,
            tool_name=call.name,
            status="success",
            text=text[: tool.return_char_limit],
            is_text=is_text or tool.tool_type != CUSTOM,  # MCP servers return text
        )


def verdict_of(text: str) -> Verdict | None:
    """Parses a probe's answer. None: the probe cannot tell."""
    try:
        return msgspec.json.decode(text, type=Verdict)
    except (msgspec.MsgspecError, RecursionError):
        return None


Outcome = Literal["happened", "did_not_happen"]


class SettledEffect(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a probe or a person on a call whose outcome was unknown."""

    idempotency_key: str
    call_id: str
    by: Literal["probe", "person"]
    who: str | None = None
    """The name of the person."""
    outcome: Outcome
    result: str | None = None
    at: datetime


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The stored start of a tool, with the result if that has not entered the history yet."""

    call_id: str
    tool_name: str
    started_at: datetime
    attempt: int
    result: ToolReturn | None = None


EffectState = Literal["not_started", "started", "done", "failed", "unknown", "settled"]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of a run."""

    call_id: str
    name: str
    state: EffectState
    idempotency_key: str
    attempt: int
    """How often its tool was started; 0 if it was not started by a worker, or if retention has deleted its start."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    settlement: SettledEffect | None = None


def settled(effects: Iterable[Effect], settlements: Mapping[str, SettledEffect]) -> list[Effect]:
    """Returns the effects with their verdicts, which `settlements` holds by idempotency key."""
    return [
        effect
        if (found := settlements.get(effect.idempotency_key)) is None
        else replace(effect, state="settled", settlement=found)
        for effect in effects
    ]


def effects_of_journal(run: Run, entries: Sequence[JournalEntry]) -> list[Effect]:
    """Returns the tool calls of a turn with a journal. A call that was started and had not ended when the run ended
    stays unknown for ever."""
    return [
        Effect(
            call_id=entry.call_id,
            name=entry.name,
            state="unknown" if entry.state == "started" and run.status in TERMINAL else entry.state,
            idempotency_key=entry.idempotency_key,
            attempt=entry.attempt,
            started_at=entry.started_at,
            ended_at=entry.ended_at,
        )
        for entry in entries
        if entry.kind == "tool"
    ]


def effects_of_messages(run: Run, turn: Sequence[Message], intents: Sequence[Intent]) -> list[Effect]:
    """Returns the tool calls of a run in the order in which it reached them. `turn` has the messages of the whole turn,
    because a continuation makes calls that the parked run's answer asked for."""
    found: dict[str, Effect] = {}
    steps: dict[str, StepId | None] = {}
    by_clients: set[str] = set()
    for message in turn:
        body, is_own = message.body, message.run_id == run.id
        if isinstance(body, AssistantMessage):
            steps.update({call.id: message.step_id for call in body.tool_calls})
            begun = [_begun(run, message.step_id, call.id, call.name) for call in body.tool_calls if is_own]
            found.update({effect.idempotency_key: effect for effect in begun})
        elif isinstance(body, ApprovalResponse):
            by_clients |= {one.tool_call_id for one in body.decisions if one.kind == "tool"}
        elif isinstance(body, ToolReturns) and is_own:
            for result in body.returns:
                effect = _begun(run, message.step_id, result.tool_call_id, result.tool_name)
                found[effect.idempotency_key] = _ended(effect, result, message.created_at)
    for intent in intents:
        # A later answer may repeat an id; then the intent of the earlier call is deleted.
        begun = _begun(run, steps.get(intent.call_id), intent.call_id, intent.tool_name)
        found[begun.idempotency_key] = _started(found.get(begun.idempotency_key, begun), intent)
    was_started = by_clients | {intent.call_id for intent in intents}
    return [
        # A call that was refused or denied has an error as its result, and its tool was not started.
        replace(effect, state="not_started", ended_at=None)
        if effect.state == "failed" and run.pruned_at is None and effect.call_id not in was_started
        else effect
        for effect in found.values()
    ]


def _begun(run: Run, step_id: StepId | None, call_id: str, name: str) -> Effect:
    key = effect_key(run.id, step_id, call_id)
    return Effect(call_id=call_id, name=name, state="not_started", idempotency_key=key, attempt=0)


def _ended(effect: Effect, result: ToolReturn, at: datetime | None) -> Effect:
    is_unknown = result.is_unknown or (result.stdout is None and result.text == CANCELLED_WHILE_RUNNING)
    state = "unknown" if is_unknown else "done" if result.status == "success" else "failed"
    return replace(effect, state=state, ended_at=None if is_unknown else at)


def _started(effect: Effect, intent: Intent) -> Effect:
    started = replace(effect, attempt=intent.attempt, started_at=intent.started_at)
    if effect.state != "not_started":
        return started
    return replace(started, state="started") if intent.result is None else _ended(started, intent.result, None)
