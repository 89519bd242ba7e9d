"""Cancelling runs: the fact first, the announcement second, and an answer that says what is true."""

from dataclasses import dataclass

import structlog

from shared.clock import Clock
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import CancelMode, LifecycleError, Unavailable
from shared.domain.ids import Seq
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.runs import CancelRequest, Run
from shared.redis.cancel_signal import CancelSignal
from shared.redis.event_feed import EventFeed, Subscription
from shared.redis.event_log import EventLog
from shared.redis.run_queue import RunQueue
from shared.sql.run_store import RunStore
from shared.unowned_run import UnownedRuns

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_S = 0.5
"""How long to trust the feed before SQL is asked whether the run has stopped, and Redis whether anybody holds it."""


@dataclass(frozen=True, kw_only=True)
class RunCancelling:
    """Cancels runs for those who ask."""

    runs: RunStore
    unowned: UnownedRuns
    cancel_signal: CancelSignal
    queue: RunQueue
    feed: EventFeed
    event_log: EventLog
    clock: Clock
    wait_s: float
    lease_s: float
    """A worker renews three times in it, and takes again what Redis forgot."""

    async def cancel(
        self,
        run: Run,
        *,
        actor: str,
        reason: str | None = None,
        mode: CancelMode = CancelMode.INTERRUPT,
        wait_s: float | None = None,
    ) -> Run:
        """Asks for a cancel and waits for the run to stop, at most `wait_s`; the run as it is then.

        A run that has ended is given back as it is. A run that nobody holds is settled here.
        """
        if run.status in TERMINAL:
            return run
        request = CancelRequest(requested_at=self.clock.now(), actor=actor, reason=reason, mode=mode)
        async with self.feed.subscribe(run.id) as subscription:
            run = await self.runs.request_cancel(run.id, request)
            if run.status in (RunStatus.CREATED, RunStatus.AWAITING_APPROVAL):
                run = await self._settle_unowned(run, mode)
            if run.status is RunStatus.RUNNING:
                run = await self._stop_running(run, mode, subscription, self.wait_s if wait_s is None else wait_s)
        return run

    async def _settle_unowned(self, run: Run, mode: CancelMode) -> Run:
        try:
            return await self.unowned.cancel(run, cause="user", mode=mode, denial_reason=DENIED_BY_CANCEL)
        except LifecycleError:
            # A worker claimed it, or somebody else settled it, at this very moment.
            return await self.runs.look_up(run.id)

    async def _stop_running(self, run: Run, mode: CancelMode, subscription: Subscription, wait_s: float) -> Run:
        deadline = self.clock.monotonic() + wait_s
        forgiven_until = self.clock.monotonic() + self.lease_s / 2
        announced = False
        while run.status is RunStatus.RUNNING:
            announced = announced or await self._announce(run, mode)
            if not await self._is_held(run, may_be_forgotten=self.clock.monotonic() < forgiven_until):
                run = await self._settle_unowned(run, mode)
                continue
            left = deadline - self.clock.monotonic()
            if left <= 0:
                return run
            await self._wait_for_end(run, subscription, min(left, LOOK_S))
            run = await self.runs.look_up(run.id)
        if run.status in (RunStatus.CREATED, RunStatus.AWAITING_APPROVAL):
            return await self._settle_unowned(run, mode)
        return run

    async def _announce(self, run: Run, mode: CancelMode) -> bool:
        try:
            await self.cancel_signal.announce(run.id, mode)
        except Unavailable as error:
            log.warning("cancel_not_announced", run_id=run.id, reason=str(error))
            return False
        return True

    async def _is_held(self, run: Run, *, may_be_forgotten: bool) -> bool:
        """Whether a worker holds the run. When Redis cannot say, we wait rather than take it from its worker; also when
        it knows nothing of the run at all, as one that lost its data: a living worker takes its lease again."""
        try:
            if await self.queue.held(run.id, run.ring):
                return True
            return may_be_forgotten and not await self.queue.is_rung([(run.id, run.ring)])
        except Unavailable:
            return True

    async def _wait_for_end(self, run: Run, subscription: Subscription, within_s: float) -> None:
        """Waits until the run's stream ends, at most `within_s`."""
        deadline = self.clock.monotonic() + within_s
        last = Seq(run.last_seq)
        while (left := deadline - self.clock.monotonic()) > 0:
            try:
                entries = await subscription.read(self.event_log, last)
            except Unavailable:
                entries = []
            if any(entry.startswith(b'{"type":"end"') for _, entry in entries):
                return
            if entries:
                last = entries[-1][0]
            elif not await subscription.wait(left):
                return
