"""Executes runs in a worker: claims each, watches for a cancel, lets its body do the work, and settles it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from structlog.contextvars import bind_contextvars, bound_contextvars

from shared.concurrency import Clock, background, unix_ms
from shared.domain.code_agents import ANY_VERSION, OwnVersions
from shared.domain.errors import (
    BudgetExceeded,
    CancelMode,
    CancelRequested,
    HoldfastError,
    LeaseLost,
    LifecycleError,
    ModelError,
    NotFound,
    OtherVersion,
    QuarantineRequired,
    RunTimeout,
    ShutdownRequested,
    Unavailable,
    UnreadableSecret,
)
from shared.domain.events import StatusChanged
from shared.domain.ids import Fence, RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import AttemptLimits, Run, RunKind
from shared.domain.settling import RunEnd
from shared.redis.connection import CancelSignal
from shared.sql.runs.run_store import RunStore
from worker.run.interruption import Interruption
from worker.run.publisher import Publisher
from worker.run.run_handle import AwaitsRuns, Body, Outcome, Parked, RunHandle, RunServices, Sleeps
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

NEIGHBOURS_S = 10.0
"""Seconds for which the steps of other runs may continue before a run begins alone."""


@dataclass(kw_only=True, eq=False)
class ActiveRun:
    """A run that this worker owns or is about to claim."""

    dispatch: int
    interruption: Interruption
    publisher: Publisher | None = None
    """None until the run is claimed."""


@dataclass(kw_only=True)
class ActiveRuns:
    """Tracks the runs of this worker, and interrupts them for a cancel, a lost lease or a shutdown.

    The API stores a cancel in SQL, and then announces it in Redis by publish and by flag. The publish is fast, the flag
    reaches a worker that was not listening, and the record in SQL reaches it if the API died before the announcement.
    """

    signal: CancelSignal
    runs: RunStore
    clock: Clock
    look_every_s: float
    _leaving: bool = False
    _shutting_down: bool = False
    _alone: ActiveRun | None = None
    _left: asyncio.Event = field(default_factory=asyncio.Event)
    _active: dict[RunId, ActiveRun] = field(default_factory=dict[RunId, ActiveRun])

    def takes_more(self) -> bool:
        """Returns whether this worker may begin more runs: not while it executes a run alone that has not finished a
        step."""
        alone = self._alone
        return alone is None or (alone.publisher is not None and alone.publisher.has_saved)

    @contextmanager
    def tracking(self, run_id: RunId, dispatch: int) -> Generator[ActiveRun]:
        """Makes a run of this dispatch reachable within the block. Raises `ShutdownRequested` if this worker executes
        another run alone."""
        if not self.takes_more():
            raise ShutdownRequested
        active = self._active[run_id] = ActiveRun(dispatch=dispatch, interruption=Interruption())
        if self._leaving:
            active.interruption.leave()
        if self._shutting_down:
            active.interruption.interrupt(ShutdownRequested())
        try:
            yield active
        finally:
            if self._active.get(run_id) is active:
                del self._active[run_id]
                self._left.set()

    @contextmanager
    def alone(self, active: ActiveRun) -> Generator[None]:
        """Prevents other runs from beginning within the block until `active` has finished a step. Raises
        `ShutdownRequested` if this worker already executes another run alone."""
        if not self.takes_more():
            raise ShutdownRequested
        self._alone = active
        try:
            yield
        finally:
            if self._alone is active:
                self._alone = None

    async def others_left(self, active: ActiveRun) -> None:
        """Hands over all other runs: after their steps, or after `NEIGHBOURS_S` in the middle of a step. Raises the
        lost lease or shutdown that interrupted `active` meanwhile."""
        others = [other for other in self._active.values() if other is not active]
        for other in others:
            other.interruption.leave()
        leave_at_once = False
        deadline = self.clock.monotonic() + NEIGHBOURS_S
        while any(other in self._active.values() for other in others):
            if self.clock.monotonic() >= deadline and not leave_at_once:
                leave_at_once = True
                for other in others:
                    other.interruption.interrupt(ShutdownRequested())
            self._left.clear()
            try:
                async with asyncio.timeout(None if leave_at_once else deadline - self.clock.monotonic()):
                    await self._left.wait()
            except TimeoutError:
                continue
        if isinstance(active.interruption.error, (LeaseLost, ShutdownRequested)):
            raise active.interruption.error

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Delivers cancels within the block."""
        async with (
            background(self._listen(), name="listen for cancels"),
            background(self._look_regularly(), name="look for cancels"),
        ):
            yield

    def lease_lost(self, run_id: RunId, dispatch: int) -> None:
        """Stops a run that another worker may own now, unless this worker has it by a newer dispatch."""
        active = self._active.get(run_id)
        if active is not None and active.dispatch == dispatch:
            active.interruption.interrupt(LeaseLost())

    def end_after_steps(self) -> None:
        """Hands every run over after its current step, including runs that are claimed later."""
        self._leaving = True
        for active in self._active.values():
            active.interruption.leave()

    def shut_down(self) -> None:
        """Interrupts every run, so that it is handed over, including runs that are claimed later."""
        self._shutting_down = True
        for active in list(self._active.values()):
            active.interruption.interrupt(ShutdownRequested())

    async def still_owned(self, run_id: RunId, dispatch: int) -> bool:
        """Returns whether, according to SQL, this worker still owns the run by this dispatch and no newer dispatch
        exists. Raises `Unavailable`."""
        active = self._active.get(run_id)
        if active is None or active.publisher is None:
            return False
        run = active.publisher.run
        # The worker may have claimed the run again by a newer dispatch.
        return run.dispatch == dispatch and await self.runs.owns(run.id, run.fence, run.dispatch)

    async def _listen(self) -> None:
        async with self.signal.listen() as announcements:
            async for announced in announcements:
                if announced is None:
                    await self._look_at_flags()
                else:
                    await self._deliver(*announced)

    async def _look_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.look_every_s)
            await self._look_at_flags()
            await self._look_at_records()

    async def _look_at_flags(self) -> None:
        if not self._active:
            return
        try:
            raised = await self.signal.raised(list(self._active))
        except Unavailable as error:
            log.warning("cancel_flags_unreadable", reason=str(error))
            return
        for run_id, mode in raised.items():
            await self._deliver(run_id, mode)

    async def _look_at_records(self) -> None:
        """Finds cancels whose API process died between the record and the announcement."""
        if not self._active:
            return
        try:
            recorded = await self.runs.cancels_among(list(self._active))
        except Unavailable as error:
            log.warning("cancel_records_unreadable", reason=str(error))
            return
        for run_id, mode in recorded.items():
            await self._deliver(run_id, mode)

    async def _deliver(self, run_id: RunId, mode: CancelMode) -> None:
        active = self._active.get(run_id)
        if active is None or not active.interruption.request_cancel(mode) or active.publisher is None:
            return
        now, publisher = self.clock.now(), active.publisher
        if publisher.run.options.status_events:
            publisher.emit_unless_closed(StatusChanged(unix_ms(now), "cancelling", "user"))
        log.info("cancel_reached_run", run_id=run_id, mode=mode)
        try:
            await self.runs.acknowledge_cancel(run_id, publisher.run.fence, now)
        except HoldfastError as error:
            # The run may have ended meanwhile; the cancel itself is delivered.
            log.debug("cancel_not_acknowledged", run_id=run_id, reason=str(error))


# The life of one run.


BUDGET_LOOK = timedelta(minutes=1)
"""How often a run that waits for room in a budget is tried again."""


@dataclass(frozen=True, kw_only=True)
class RunExecutor:
    """Executes runs, one call per dispatch."""

    worker: str
    """The name of this worker."""
    services: RunServices
    bodies: Mapping[RunKind, Body]
    active_runs: ActiveRuns
    finisher: RunFinisher
    limits: AttemptLimits
    run_timeout_s: float
    start_slots: asyncio.Semaphore
    """Limits how many runs start at a time. If many started at once, each would start as late as the last."""
    taker_of: Callable[[str, str], Awaitable[str | None]]
    """Returns the version that continues the runs of a version of an agent (`VersionPresence.taker_of`)."""
    code: OwnVersions = ANY_VERSION
    """The versions of this worker's agents of own code."""

    async def execute_run(self, run_id: RunId, dispatch: int) -> None:
        """Executes the run of one dispatch. Does nothing if the run cannot be claimed now, or not by this dispatch.

        Raises `ShutdownRequested` if this worker hands the run over, `LeaseLost` if another process owns it, and
        `Unavailable` if the caller must try again.
        """
        # Track the run before the claim: then a cancel is either announced to this worker or in the claimed row.
        with bound_contextvars(run_id=run_id), self.active_runs.tracking(run_id, dispatch) as active:
            try:
                await self._execute_tracked(active, run_id, dispatch, limits=self.limits)
            except QuarantineRequired as error:
                with self.active_runs.alone(active):
                    log.warning("run_quarantined", reason=str(error))
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
            body, handle = self.bodies[run.kind], RunHandle(self.services, publisher, active.interruption)
            async with self._announced(run), handle.held:
                with publisher.observation.executing():
                    await self._execute(body, handle, starting)

    @asynccontextmanager
    async def _announced(self, run: Run) -> AsyncGenerator[None]:
        """Announces the run's beginning during its first work, and its next change after the block."""
        log = self.services.event_log
        try:
            async with background(log.announce(run), name=f"announce {run.id}"):
                yield
        finally:
            await log.announce(run)

    async def _claim(self, run_id: RunId, dispatch: int, limits: AttemptLimits | None) -> Run | None:
        """Claims the run. If workers with the version of its code are alive, dispatches the run for them instead."""
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
                    await self.finisher.finish(handle, body, Outcome(end=end))
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
            # It does not count as an attempt. The queue worker releases the job.
            if await handle.publisher.hand_over():
                log.info("run_handed_over")
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
