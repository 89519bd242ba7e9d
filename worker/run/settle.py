"""Ends a run that this worker owns: stores its end in SQL, ends the stream, and dispatches the thread's next run."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from shared.concurrency import PAUSE_S
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import (
    MODEL_ERROR_MESSAGES,
    BudgetExceeded,
    CancelMode,
    CancelRequested,
    ErrorCode,
    LifecycleError,
    ModelError,
    ModelErrorType,
    MoreInput,
    Unavailable,
    UnreadableSecret,
)
from shared.domain.events import StopReason
from shared.domain.ids import Fence, RunId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import estimate_tokens
from shared.domain.runs import Dispatch, Run, RunError, Step, Usage, WaitsFor
from shared.domain.settling import RunEnd
from shared.redis.queue import RunQueue
from shared.sql.runs.listing import QuietRun
from shared.sql.runs.settlement import Settlement
from worker.run.publisher import FLUSH_S, Publisher
from worker.run.run_handle import AwaitsRuns, Body, Outcome, Parked, RunHandle, RunServices, Sleeps

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NOTHING_LEFT = (
    "Nothing more can be left out of the request: shorten the agent's instructions, its memory blocks or the "
    "descriptions of its tools, or choose a model with a larger window."
)


@dataclass(frozen=True, kw_only=True)
class RunFinisher:
    """Ends runs, and hands them over."""

    services: RunServices
    queue: RunQueue
    on_change: Callable[[Run], Awaitable[None]]
    """Called with each run that has ended or was parked. It raises nothing."""

    async def finish(self, handle: RunHandle, body: Body, outcome: Outcome | Parked | AwaitsRuns | Sleeps) -> None:
        """Stores the run's end, then shows it. Raises `MoreInput` if the next owner has to continue the run, and
        `Unavailable` if the database is unavailable for longer than the worker waits."""
        publisher = handle.publisher
        if isinstance(outcome, Sleeps):
            await self.let_wait(publisher, "its code sleeps", outcome.until, "time")
            return
        if isinstance(outcome, AwaitsRuns):
            publisher.observation.left_as("waits")
            log.info("run_waits_for_runs", runs=len(outcome.seen))
            if outcome.next is not None:
                await self._dispatch(outcome.next)
            return
        if isinstance(outcome, Parked):
            publisher.send_end(outcome.tail)
            publisher.observation.left_as("parked")
            log.info("run_parked")
            await self._finish_stream(publisher, has_flag=False)
            await self.on_change(publisher.run)
            return
        settlement = _settlement(handle, body.model, outcome)
        if outcome.end.trigger is not RunTrigger.COMPLETE:
            settlement = msgspec.structs.replace(settlement, lost=await body.lost_calls(handle))
        try:
            await self._end(publisher, settlement)
        except MoreInput:
            # A message arrived after the body's last check. The run continues from the stored answer, as after a crash.
            log.info("run_goes_on", reason="a message came at the last moment")
            if outcome.messages:
                await handle.checkpoint(outcome.messages)
            raise

    async def let_wait(
        self, publisher: Publisher, reason: str, until: datetime, waits_for: WaitsFor = "budget"
    ) -> None:
        """Gives the run up; no worker executes it before `until`. Raises `Unavailable`."""
        if not await publisher.hand_over(until, waits_for):
            raise Unavailable("the database does not answer; the run is tried again")
        publisher.observation.left_as("waits")
        log.info("run_waits", reason=reason, until=until.isoformat())

    async def hand_over_late(self, publisher: Publisher) -> None:
        """Repeats the hand-over after a long outage of the database, until the database is back or `patience_s` has
        passed."""
        deadline = self.services.clock.monotonic() + self.services.patience_s
        while not await publisher.hand_over():
            if self.services.clock.monotonic() > deadline:
                log.warning("run_left_to_sweeper")
                return
            await asyncio.sleep(PAUSE_S)

    async def _end(self, publisher: Publisher, settlement: Settlement) -> None:
        try:
            async with publisher.ending() as tail:
                whole = msgspec.structs.replace(settlement, tail=tail)
                with publisher.observation.write("settle"):
                    settled = await self.services.settlements.settle(publisher.run, whole)
        except LifecycleError as error:
            publisher.observation.left_as("refused")
            log.warning("settle_refused", reason=str(error))
            return
        publisher.observation.ended_as(settled.run, settlement.now)
        publisher.send_end(settled.tail)
        end = settlement.end
        log_as = log.info if end.error is None else log.warning
        log_as(
            "run_settled",
            status=settled.run.status,
            stop_reason=end.stop_reason,
            cause=end.cause,
            # Only the type: messages and details may contain texts of users and models.
            error=None if end.error is None else end.error.error_type,
        )
        await self._finish_stream(publisher, has_flag=settled.run.cancel is not None)
        if settled.next is not None:
            await self._dispatch(settled.next)
        await self.on_change(settled.run)

    async def _finish_stream(self, publisher: Publisher, *, has_flag: bool) -> None:
        if await publisher.wait_sent(FLUSH_S) and not has_flag:
            return  # the append of the last entry has set the lifetime of the stream
        try:
            await self.services.event_log.expire(publisher.run.id)
        except Unavailable as error:
            log.warning("stream_left_to_sql", reason=str(error))

    async def pass_on(self, run_id: RunId, dispatch: int, fence: Fence) -> None:
        """Dispatches a run again that this worker must not execute, for the workers that have its version. `dispatch`
        and `fence` are the run's as this worker has seen it."""
        seen = QuietRun(run_id, RunStatus.CREATED, dispatch, fence, self.services.clock.now())
        for again in await self.services.runs.dispatch_again([seen]):
            await self._dispatch(again)

    async def _dispatch(self, dispatch: Dispatch) -> None:
        try:
            await self.queue.dispatch(dispatch)
        except Unavailable as error:
            log.warning("dispatch_left_to_sweeper", next_run=dispatch.run_id, reason=str(error))


def _settlement(handle: RunHandle, model: str, outcome: Outcome) -> Settlement:
    """Returns the settlement of a run without the log's tail, which is known only after the last event. `model` is the
    body's, for a cut-off answer."""
    end, now, progress = outcome.end, handle.clock.now(), handle.progress
    rollback = outcome.mode is CancelMode.ROLLBACK
    messages, usage = outcome.messages, progress.usage
    step = handle.step_in_hand
    if end.trigger is not RunTrigger.COMPLETE:
        cut_by = "cancel" if end.trigger is RunTrigger.CANCEL else "error"
        partial = handle.shown.partial_answer(cut_by=cut_by, model=model, now=now)
        messages = [] if partial is None or rollback else [partial]
        step, usage = _cut_off(handle, model, end)
    return Settlement(
        end=end,
        now=now,
        usage=usage,
        step_count=progress.step_count,
        messages=messages,
        step=None if step is None else msgspec.structs.replace(step, stop_reason=end.stop_reason),
        shown_at=handle.shown.first_piece_at,
        known_returns=progress.returns,
        denial_reason=DENIED_BY_CANCEL,
        rollback=rollback,
        compaction=outcome.compaction,
        unless_more_input=outcome.is_answer,
    )


def _cut_off(handle: RunHandle, model: str, end: RunEnd) -> tuple[Step | None, Usage]:
    """Returns the current step as it ended, and the usage with an estimate for a cut-off call."""
    progress, step = handle.progress, handle.step_in_hand
    if progress.in_hand is None or step is None:
        return None, progress.usage
    if step.status != "pending":
        return step, progress.usage
    spoken = handle.shown.text
    is_cancel = end.trigger is RunTrigger.CANCEL
    call = Usage()
    if spoken or is_cancel:
        asked, said = estimate_tokens(progress.in_hand.asked), estimate_tokens(spoken)
        call = Usage(prompt_tokens=asked, completion_tokens=said, estimated=True)
        call = handle.account.priced(model, call)
    ended = msgspec.structs.replace(step, status="cancelled" if is_cancel else "failed", error=end.error, usage=call)
    return ended, progress.usage.plus(call) if call.estimated else progress.usage


def cancelled(request: CancelRequested) -> Outcome:
    """The outcome after a client's cancel."""
    end = RunEnd(trigger=RunTrigger.CANCEL, stop_reason=StopReason.CANCELLED, cause="user")
    return Outcome(end=end, mode=request.mode)


def failed_by_model(error: ModelError, run: Run) -> RunEnd:
    """The end of a run whose model call failed after its retries."""
    detail = error.message
    is_too_long = error.error_type in (ModelErrorType.CONTEXT_WINDOW, ModelErrorType.INSTRUCTIONS)
    if is_too_long and run.answers_messages:
        detail = f"{detail} {NOTHING_LEFT}"
    stop_reason = StopReason.MODEL_FAILED
    if error.error_type is ModelErrorType.INSTRUCTIONS:
        stop_reason = StopReason.INSTRUCTIONS_TOO_LONG
    shown = RunError(error.error_type, MODEL_ERROR_MESSAGES[error.error_type], detail)
    return RunEnd(trigger=RunTrigger.FAIL, stop_reason=stop_reason, cause="model_error", error=shown)


def failed_by_timeout(timeout_s: float) -> RunEnd:
    """The end of a run that exceeded its timeout."""
    shown = RunError(ErrorCode.RUN_TIMEOUT, f"The run took longer than the {timeout_s:g} s that one run may take.")
    return RunEnd(trigger=RunTrigger.FAIL, stop_reason=StopReason.FAILED, cause="timeout", error=shown)


def failed_by_budget(error: BudgetExceeded) -> RunEnd:
    """The end of a run that exceeded its budget, or whose next call would exceed it."""
    shown = RunError(ErrorCode.BUDGET_EXCEEDED, "The run has used up its budget.", error.message)
    return RunEnd(trigger=RunTrigger.FAIL, stop_reason=StopReason.TOKENS_USED_UP, cause="budget", error=shown)


def failed_by_defect(error: Exception) -> RunEnd:
    """The end of a run after a defect of Holdfast or of its environment."""
    shown = RunError(
        ErrorCode.INTERNAL_ERROR, "An error occurred during agent execution.", f"{type(error).__name__}: {error}"
    )
    return RunEnd(trigger=RunTrigger.FAIL, stop_reason=StopReason.FAILED, cause="internal_error", error=shown)


def failed_by_secret(error: UnreadableSecret) -> RunEnd:
    """The end of a run whose tools need a secret that cannot be read."""
    shown = RunError(ErrorCode.INTERNAL_ERROR, "A secret of the agent cannot be read.", error.message)
    return RunEnd(trigger=RunTrigger.FAIL, stop_reason=StopReason.FAILED, cause="internal_error", error=shown)


def failed_by_lost_workers(run: Run) -> RunEnd:
    """The end of a run with which several workers in a row were lost before one of them finished a step."""
    lost = run.attempts_without_progress - 1
    detail = f"{lost} workers were lost before a step was finished; the run may be what ends them"
    shown = RunError(ErrorCode.WORKER_LOST, "The run was given up after several workers were lost with it.", detail)
    return RunEnd(trigger=RunTrigger.FAIL, stop_reason=StopReason.FAILED, cause="worker_lost", error=shown)
