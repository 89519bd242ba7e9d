"""Executes a run in a worker: claims it, watches for a cancel, lets its body do the work, and settles it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from structlog.contextvars import bind_contextvars, bound_contextvars

from shared.concurrency import background
from shared.domain.code_agents import ANY_VERSION, OwnVersions
from shared.domain.errors import (
    BudgetExceeded,
    CancelRequested,
    LeaseLost,
    LifecycleError,
    ModelError,
    MustRunAlone,
    NotFound,
    OtherVersion,
    RunTimeout,
    ShutdownRequested,
    Unavailable,
    UnreadableSecret,
)
from shared.domain.events import StatusChanged
from shared.domain.ids import Fence, RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import AttemptLimits, Run
from shared.domain.settling import RunEnd
from worker.run.active_runs import ActiveRun, ActiveRuns
from worker.run.run_handle import AwaitsRuns, Bodies, Body, Outcome, Parked, RunHandle, RunServices, Sleeps
from worker.run.settle import (
    RunFinisher,
    cancelled,
    failed_by_budget,
    failed_by_defect,
    failed_by_lost_workers,
    failed_by_model,
    failed_by_secret,
    failed_by_timeout,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BUDGET_LOOK = timedelta(minutes=1)
"""How often a run that waits for room in a budget is tried again."""


async def _nobody(_agent: str, _version: str) -> None:
    """No worker has shown a version."""


@dataclass(frozen=True, kw_only=True)
class RunExecutor:
    """Executes runs, one call per dispatch."""

    worker: str
    """The name of this worker."""
    services: RunServices
    bodies: Bodies
    active_runs: ActiveRuns
    finisher: RunFinisher
    limits: AttemptLimits
    run_timeout_s: float
    start_slots: asyncio.Semaphore
    """Limits how many runs start at a time. If many started at once, each would start as late as the last."""
    code: OwnVersions = ANY_VERSION
    """The versions of this worker's agents of own code."""
    taker_of: Callable[[str, str], Awaitable[str | None]] = _nobody
    """Which version continues the runs that began in a version of an agent (`VersionPresence.taker_of`)."""

    async def execute_run(self, run_id: RunId, dispatch: int) -> None:
        """Executes the run of one dispatch. Does nothing if the run cannot be claimed now, or not by this dispatch.

        Raises `ShutdownRequested` if this worker hands the run over, `LeaseLost` if another process owns it, and
        `Unavailable` if the caller must try again.
        """
        # Track the run before the claim: then a cancel is either announced to this worker or in the claimed row.
        with bound_contextvars(run_id=run_id), self.active_runs.tracking(run_id, dispatch) as active:
            try:
                await self._execute_tracked(active, run_id, dispatch, limits=self.limits)
            except MustRunAlone as error:
                log.warning("run_alone", reason=str(error))
                with self.active_runs.alone(active):
                    await self.active_runs.others_left(active)
                    await self._execute_tracked(active, run_id, dispatch)

    async def _execute_tracked(
        self, active: ActiveRun, run_id: RunId, dispatch: int, *, limits: AttemptLimits | None = None
    ) -> None:
        async with AsyncExitStack() as starting:
            await starting.enter_async_context(self.start_slots)
            run = await self._claim(run_id, dispatch, limits)
            if run is None:
                log.debug("dispatch_ignored", dispatch=dispatch)
                return
            bind_contextvars(project=run.project_id)
            log.info(
                "run_claimed",
                attempt=run.attempts_without_progress,
                fence=run.fence,
                since_submission_ms=round((self.services.clock.now() - run.created_at) / timedelta(milliseconds=1)),
            )
            if run.cancel is not None:
                active.interruption.interrupt(CancelRequested(run.cancel.mode))
            publisher = active.publisher = self.services.publisher(run, self.worker, active.interruption)
            body, handle = self.bodies.of(run), RunHandle(self.services, publisher, active.interruption)
            async with self._announced(run), handle.held:
                with publisher.observation.executing():
                    await self._execute(body, handle, starting)

    @asynccontextmanager
    async def _announced(self, run: Run) -> AsyncGenerator[None]:
        """Announces that the run begins, beside its first work, and that it has changed again."""
        log = self.services.event_log
        try:
            async with background(log.announce(run), name=f"announce {run.id}"):
                yield
        finally:
            await log.announce(run)

    async def _claim(self, run_id: RunId, dispatch: int, limits: AttemptLimits | None) -> Run | None:
        """Claims the run, unless workers with the version of its code live: then it is dispatched for them."""
        try:
            return await self._claimed(run_id, dispatch, limits, self.code)
        except OtherVersion as other:
            own = self.code.versions.get(other.agent, "")
            if await self.taker_of(other.agent, other.version) in (None, own):
                return await self._claimed(run_id, dispatch, limits, self.code._replace(stands_in=True))
            log.info("run_passed_on", agent=other.agent, version=other.version)
            await self.finisher.pass_on(run_id, dispatch, Fence(other.fence))
            return None

    async def _claimed(
        self, run_id: RunId, dispatch: int, limits: AttemptLimits | None, code: OwnVersions
    ) -> Run | None:
        services, owner = self.services, f"{self.worker}/{self.services.ids.claim()}"
        return await services.runs.claim(run_id, dispatch, owner, services.clock.now(), limits=limits, code=code)

    async def _execute(self, body: Body, handle: RunHandle, starting: AsyncExitStack) -> None:
        publisher = handle.publisher
        try:
            try:
                body = await body.loaded(handle)
            except (NotFound, UnreadableSecret) as error:
                end = failed_by_secret(error) if isinstance(error, UnreadableSecret) else failed_by_defect(error)
                log.warning("run_cannot_start", reason=error.message)
                async with publisher.publishing():
                    await self.finisher.fail(publisher, end)
                return
            async with publisher.publishing(goes_on=body.continues_answers):
                await starting.aclose()
                await self._run(body, handle)
        except LifecycleError as error:
            raise LeaseLost(str(error)) from error
        except Unavailable as error:
            # The run is not at fault, and nothing can settle it: it returns to the queue when the database is back.
            log.warning("run_handed_over_late", reason=error.message)
            await self.finisher.hand_over_late(publisher)
            raise

    async def _run(self, body: Body, handle: RunHandle) -> None:
        try:
            await self.finisher.finish(handle, body, await self._outcome_of(body, handle))
        except BudgetExceeded as error:
            await self.finisher.let_wait(handle.publisher, error.message, self._tried_again_at(error))
        except ShutdownRequested:
            await self.finisher.hand_over(handle.publisher)
            raise
        except (LeaseLost, LifecycleError):
            # SQL refuses this if a newer owner exists. Otherwise it stores what readers have seen, for the next owner.
            await handle.publisher.hand_over()
            raise

    async def _outcome_of(self, body: Body, handle: RunHandle) -> Outcome | Parked | AwaitsRuns | Sleeps:
        """Lets the body do the run's work, and returns how it ended. Raises `ShutdownRequested`, `LeaseLost` or
        `Unavailable` if another worker continues the run, and `BudgetExceeded` if the run waits for room."""
        run = handle.run
        try:
            if self.limits.give_up(run):
                return Outcome(end=failed_by_lost_workers(run))
            async with handle.interruption.interrupting(f"run {run.id}", timeout_s=self.run_timeout_s):
                if handle.publisher.follows == 1 and run.options.status_events:
                    handle.emit(StatusChanged(handle.at, RunStatus.RUNNING, turn=run.turn))
                return await body.execute(handle)
        except CancelRequested as request:
            return cancelled(request)
        except RunTimeout:
            return Outcome(end=failed_by_timeout(self.run_timeout_s))
        except BudgetExceeded as error:
            if error.room_at is not None and self.services.budgets.budgets.waits:
                raise
            return Outcome(end=failed_by_budget(error))
        except (ModelError, UnreadableSecret) as error:
            return Outcome(end=_failed_by(handle.run, body.model, error))
        except (ShutdownRequested, LeaseLost, LifecycleError, Unavailable):
            raise
        except Exception as error:
            # The boundary of a job: any failure ends the run, and its worker continues.
            log.exception("run_failed")
            return Outcome(end=failed_by_defect(error))

    def _tried_again_at(self, error: BudgetExceeded) -> datetime:
        """When to try the run again. Running calls may use less than they have reserved, and an operator may raise a
        budget, so the run does not wait until the next day."""
        soon = self.services.clock.now() + BUDGET_LOOK
        return soon if error.room_at is None else min(error.room_at, soon)


def _failed_by(run: Run, model: str, error: ModelError | UnreadableSecret) -> RunEnd:
    if isinstance(error, UnreadableSecret):
        log.warning("run_cannot_go_on", reason=error.message)
        return failed_by_secret(error)
    log.warning("model_gave_no_answer", model=model, error=error.facts)
    return failed_by_model(error, run)
