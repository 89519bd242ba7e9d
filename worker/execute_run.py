"""The story of a run in its worker: claim it, hold it, watch for a cancel, run its steps, settle it."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog
from structlog.contextvars import bound_contextvars

from shared.domain.errors import (
    BudgetExceeded,
    CancelRequested,
    LeaseLost,
    LifecycleError,
    ModelError,
    NotFound,
    RunTimeout,
    ShutdownRequested,
    Unavailable,
)
from shared.domain.ids import RunId
from shared.domain.runs import Run
from shared.sql.run_store import RunStore
from worker.cancellation import Cancellation
from worker.compaction import compact_thread
from worker.interruption import Interruption
from worker.outcomes import cancelled, failed_by_budget, failed_by_defect, failed_by_model, failed_by_timeout, stalled
from worker.prepare_run import RunPreparation
from worker.run_work import Outcome, Parked, RunWork
from worker.settle_run import RunSettling
from worker.step_loop import run_steps

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunExecution:
    """Executes runs, one call per ring."""

    runs: RunStore
    preparation: RunPreparation
    cancellation: Cancellation
    settling: RunSettling
    max_stalled_claims: int
    run_timeout_s: float
    beginning: asyncio.Semaphore
    """A worker that takes over many runs begins a few at a time: all at once, none would begin before the last."""

    async def execute_run(self, run_id: RunId, ring: int) -> None:
        """Answers one ring. Does nothing when the run is not to be run now, or not by this ring.

        Raises `ShutdownRequested` when the run was handed over, `LeaseLost` when somebody else has it, `Unavailable`
        when it is to be tried again.
        """
        with bound_contextvars(run_id=run_id):
            async with AsyncExitStack() as beginning:
                await beginning.enter_async_context(self.beginning)
                run = await self.runs.claim(run_id, ring, self.preparation.clock.now())
                if run is None:
                    log.debug("ring_ignored", ring=ring)
                    return
                await self._execute(run, beginning)

    async def _execute(self, run: Run, beginning: AsyncExitStack) -> None:
        interruption = Interruption()
        publisher = self.preparation.publisher(run, interruption)
        async with self.cancellation.holding(run, interruption, publisher), publisher.publishing():
            try:
                work = await self.preparation.work(run, publisher, interruption)
            except NotFound as error:
                await self.settling.fail(publisher, failed_by_defect(error))
                return
            await beginning.aclose()
            await self.settling.conclude(work, await self._outcome_of(work))

    async def _outcome_of(self, work: RunWork) -> Outcome | Parked:
        """Runs the steps and says how they ended. Raises `ShutdownRequested` or `LeaseLost` when others go on."""
        try:
            if work.run.stalled_claims > self.max_stalled_claims:
                return stalled(work.run)
            async with work.interruption.interrupting(f"run {work.run.id}", timeout_s=self.run_timeout_s):
                await self.cancellation.raise_if_requested(work.run)
                self.preparation.announce(work)
                compaction = work.run.options.compaction
                return await (run_steps(work) if compaction is None else compact_thread(work, compaction))
        except CancelRequested as request:
            return cancelled(request)
        except RunTimeout:
            return failed_by_timeout(self.run_timeout_s)
        except BudgetExceeded as error:
            return failed_by_budget(error)
        except ModelError as error:
            return failed_by_model(error, work.run)
        except ShutdownRequested:
            await self.settling.hand_over(work)
            raise
        except (LeaseLost, LifecycleError) as error:
            await work.publisher.leave_behind()
            raise LeaseLost(str(error)) from error
        except Unavailable:
            # Not the run's fault, and nothing can be settled: it goes back into the queue when the database is back.
            log.warning("run_given_back", exc_info=True)
            await self.settling.hand_over_late(work)
            raise
        except Exception as error:
            # The job boundary: whatever a run does, it ends, and its worker goes on.
            log.exception("run_failed")
            return failed_by_defect(error)
