"""Runs as tasks. A client that supports tasks gets a task as the immediate answer to a call, and polls it.

A task's id is its run's id, so any process can answer for a task, and no process stores data for it. A decision closes
the parked run and starts its continuation; the task keeps the id of its first run.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never

from api.access.callers import Caller
from api.input_limits import as_object
from api.mcp.call_fold import CallFold, input_requests
from api.mcp.messages import INVALID_PARAMS, RECEIPT, RUN_ID, RpcError
from api.runs.cancel import Cancel, CancelService
from api.runs.reader import RunReader
from api.runs.submission import SubmissionTraces
from shared.concurrency import Clock
from shared.domain.approvals import Approval
from shared.domain.errors import Conflict, NotFound
from shared.domain.events import decode
from shared.domain.ids import RunId, is_id
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.messages import Decision, ToolCall
from shared.domain.runs import Run, WaitsFor
from shared.runs.orphans import ApprovalService
from shared.sql.runs.run_store import RunStore

DIALECT = "mcp"
POLL_MS = 1_000
"""Milliseconds that a client should wait between two polls."""

DAY_MS = 86_400_000
BY = "mcp"
DECLINED = "The person declined to decide."
LONGEST_REASON = 2_000


@dataclass(frozen=True, kw_only=True)
class TaskService:
    """Reads, decides and cancels tasks."""

    runs: RunStore
    reader: RunReader
    decisions: ApprovalService
    traces: SubmissionTraces
    cancels: CancelService
    retain_days: int
    """Days for which the log of an ended run is kept; 0: for ever."""
    clock: Clock

    async def find(self, caller: Caller, task_id: object) -> Run:
        """Returns the run of a task. Raises `RpcError` if the caller has no such task."""
        run = None
        if isinstance(task_id, str) and is_id(task_id, "run"):
            with suppress(NotFound):
                run = await self.runs.get(caller.project_id, RunId(task_id))
        hidden = run is not None and caller.scopes.agents and run.agent_id not in caller.scopes.agents
        if run is None or hidden or run.options.dialect != DIALECT:
            raise RpcError(INVALID_PARAMS, f"Task not found: {str(task_id)[:100]!r}")
        return run

    async def newest(self, run: Run) -> Run:
        """Returns the last continuation of a run, or the run itself."""
        while run.continued_by is not None:
            run = await self.runs.get(run.project_id, run.continued_by)
        return run

    async def get(self, first: Run) -> dict[str, Any]:
        """Returns the present state of a task."""
        run = await self.newest(first)
        shown = {"resultType": "complete", **self.seed(first, run), "_meta": {RUN_ID: run.id}}
        if run.pruned_at is not None:
            raise RpcError(
                INVALID_PARAMS, f"Task has expired: the log of run {run.id} was deleted (HOLDFAST_RETAIN_DAYS)"
            )
        match run.status:
            case RunStatus.CREATED | RunStatus.RUNNING | RunStatus.CANCELLED:
                return shown
            case RunStatus.AWAITING_APPROVAL:
                return shown | {"inputRequests": input_requests(calls_of(await self.waiting(run)))}
            case RunStatus.COMPLETED | RunStatus.FAILED:
                return shown | {"result": (await self.folded(run)).result()}
            case _:
                assert_never(run.status)

    def seed(self, first: Run, run: Run) -> dict[str, Any]:
        """The common fields of answers about a task. `run` is the task's newest run."""
        return {
            "taskId": first.id,
            "status": _STATUSES[run.status],
            "statusMessage": _said_of(run),
            "createdAt": _time(first.created_at),
            "lastUpdatedAt": _time(run.completed_at or run.started_at or run.created_at),
            "ttlMs": self.retain_days * DAY_MS or None,
            "pollIntervalMs": POLL_MS,
        }

    async def folded(self, run: Run) -> CallFold:
        """Folds the log of an ended run."""
        fold = CallFold(run)
        async for entries in self.reader.present(run):
            for seq, entry in entries:
                fold.take(seq, decode(entry))
        return fold

    async def waiting(self, run: Run) -> list[Approval]:
        """Returns the undecided calls of a parked run."""
        return [one for one in await self.decisions.approvals.of_run(run) if one.decision is None]

    async def decide(self, run: Run, responses: Mapping[str, Any]) -> None:
        """Stores the decisions of a client's person. Ignores answers to calls that do not wait, and forms that the
        person closed. Raises `RpcError` for a malformed answer."""
        decisions = {call_id: decision_of(call_id, said) for call_id, said in responses.items()}
        if run.status is not RunStatus.AWAITING_APPROVAL:
            return
        for asked in await self.waiting(run):
            decision = decisions.get(asked.tool_call_id)
            if decision is not None:
                await self._decide(asked, decision)

    async def cancel(self, first: Run, reason: str | None, *, wait_s: float | None = None) -> Run:
        """Cancels a task's run, and returns the run as it is then."""
        run = await self.newest(first)
        return await self.cancels.cancel_one(run.project_id, run.id, Cancel(reason=reason, wait_s=wait_s))

    async def _decide(self, asked: Approval, decision: Decision) -> None:
        began_at = self.clock.now()
        try:
            decided = await self.decisions.decide(asked, decision, by=BY)
        except (Conflict, NotFound):
            return  # another caller decided it or cancelled the run first
        if decided.run is not None:
            self.traces.decided(decided.run, began_at)


def calls_of(asked: Sequence[Approval]) -> list[ToolCall]:
    """The calls of these approvals."""
    return [ToolCall(one.tool_call_id, one.tool_name, one.arguments) for one in asked]


def decision_of(call_id: str, said: object) -> Decision | None:
    """Returns the decision in a person's form. None: the person closed the form. Raises `RpcError`."""
    answer = as_object(said) or {}
    content = as_object(answer.get("content")) or {}
    match answer.get("action"):
        case "accept" if isinstance(content.get("approve"), bool):
            reason = content.get("reason")
            denied_for = reason[:LONGEST_REASON] if isinstance(reason, str) and reason.strip() else None
            approve = content["approve"]
            return Decision(tool_call_id=call_id, approve=approve, reason=None if approve else denied_for)
        case "decline":
            return Decision(tool_call_id=call_id, approve=False, reason=DECLINED)
        case "cancel":
            return None
        case _:
            raise RpcError(
                INVALID_PARAMS,
                f"inputResponses[{call_id[:100]!r}] must be the result of an elicitation: an action (accept, decline "
                "or cancel), and with accept content.approve, true or false",
            )


def receipt(run: Run) -> dict[str, Any]:
    """The receipt of a cancel: the state of the run now."""
    request, stopped = run.cancel, run.status in TERMINAL
    return {
        "run_id": run.id,
        "status": run.status.value if stopped else "cancelling",
        "cause": run.cause,
        "requested_at": None if request is None else _time(request.requested_at),
        "acknowledged_at": None if request is None else _time(request.acknowledged_at),
        "stopped_at": _time(run.completed_at) if stopped else None,
        "reason": None if request is None else request.reason,
    }


def cancelled_answer(run: Run) -> dict[str, Any]:
    """The answer to the cancel of a task: empty, as the protocol demands, with the receipt in `_meta`."""
    return {"resultType": "complete", "_meta": {RUN_ID: run.id, RECEIPT: receipt(run)}}


_STATUSES: Mapping[RunStatus, str] = {
    RunStatus.CREATED: "working",
    RunStatus.RUNNING: "working",
    RunStatus.AWAITING_APPROVAL: "input_required",
    RunStatus.COMPLETED: "completed",
    # The protocol's `failed` means that a call has no result. A failed run has a result, which contains the error.
    RunStatus.FAILED: "completed",
    RunStatus.CANCELLED: "cancelled",
}


_WAITS: Mapping[WaitsFor | None, str] = {
    "budget": "The run waits for room in a budget.",
    "runs": "The run waits for other agents.",
    "time": "The agent has gone to sleep for a time.",
}


def _said_of(run: Run) -> str:
    match run.status:
        case RunStatus.CREATED:
            return "The run waits for a worker."
        case RunStatus.RUNNING:
            waits = "The agent is at work." if run.waits_until is None else _WAITS.get(run.waits_for, "The run waits.")
            return f"{waits} Steps so far: {run.step_count}."
        case RunStatus.AWAITING_APPROVAL:
            return "A person has to approve calls of tools."
        case RunStatus.COMPLETED:
            return "The agent has answered."
        case RunStatus.FAILED:
            return "The run has failed." if run.error is None else f"The run has failed: {run.error.message}"
        case RunStatus.CANCELLED:
            reason = run.cancel.reason if run.cancel is not None else None
            return f"The run was cancelled: {reason}" if reason else "The run was cancelled."
        case _:
            assert_never(run.status)


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
