"""The queue through which workers find runs: a set of jobs, each of which one worker leases for a while. Projects take
turns (`turns.lua`), and inside a project what has waited longest comes first.

A job is one dispatch of a run. It holds the run's id and the number of the dispatch, because everything else that a
worker needs is in SQL. A job that Redis has lost does no harm: the sweeper dispatches orphaned runs again.

What callers have used of their quotas is counted here as well: one answer for all processes.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, cast

import msgspec
import structlog
from arq.jobs import serialize_job
from arq.utils import timestamp_ms

from shared.concurrency import repeating
from shared.crash_points import CrashPoint, crash_point
from shared.domain.errors import Unavailable
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.operations import QueueState
from shared.domain.runs import Dispatch, Run
from shared.redis import keys
from shared.redis.connection import LuaScript, Redis, redis_answers

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EXECUTE_RUN = "execute_run"
"""The name of the one function that workers offer to arq."""


def encode_job(job: dict[str, Any]) -> bytes:
    """arq's job as JSON. Never pickle: a process that can write to Redis must not be able to run code in a worker."""
    return msgspec.json.encode(job, enc_hook=repr)


def decode_job(data: bytes) -> dict[str, Any]:
    """The job that `encode_job` wrote."""
    return msgspec.json.decode(data, type=dict[str, Any])


_QUEUE = [keys.QUEUE, keys.TURNS, keys.TURN]
_PREFIXES = [keys.WAITING_PREFIX, keys.IN_FLIGHT_PREFIX, keys.JOB_PREFIX]
"""The keys and the first arguments of every script that stands on `turns.lua`."""


class RunQueue:
    """Dispatches runs to the workers. Raises `Unavailable` when Redis does not answer: the run may or may not have been
    dispatched then."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._dispatch = LuaScript(redis, "turns", "dispatch")
        self._recount = LuaScript(redis, "turns", "recount")
        self._state = LuaScript(redis, "turns", "queue_state")

    async def dispatch(self, *dispatches: Dispatch) -> None:
        """Puts runs into the queue, and wakes the workers. A dispatch that is in the queue already, or at work, is left
        as it is."""
        described = [part for dispatch in dispatches for part in _job_of(dispatch)]
        async with redis_answers():
            with crash_point(CrashPoint.DISPATCH):
                await self._dispatch(
                    keys=_QUEUE, args=[*_PREFIXES, keys.JOB_TTL_S * 1000, keys.WAKE_CHANNEL, *described]
                )

    async def dispatch_stored(self, run: Run) -> None:
        """Dispatches a run that was stored, unless a worker has it or it has ended. When Redis does not answer, the
        sweeper dispatches it later: the API promised that the run is stored, not that it has begun."""
        if run.status is not RunStatus.CREATED:
            return
        try:
            await self.dispatch(Dispatch(run.id, run.dispatch, run.project_id, run.priority))
        except Unavailable as error:
            log.warning("dispatch_left_to_sweeper", run_id=run.id, reason=str(error))

    async def queued_among(self, dispatches: Collection[tuple[RunId, int]]) -> set[tuple[RunId, int]]:
        """Those of `dispatches` that are still in the queue, waiting or at work."""
        if not dispatches:
            return set()
        async with redis_answers():
            scores: Any = await cast("Any", self._redis).zmscore(
                keys.QUEUE, [keys.job_id(run_id, number) for run_id, number in dispatches]
            )
        return {one for one, score in zip(dispatches, scores, strict=True) if score is not None}

    async def recount(self) -> None:
        """Puts right what a loss of data may have left between the keys of the queue."""
        async with redis_answers():
            mended = await self._recount(keys=_QUEUE, args=[*_PREFIXES, keys.LEASE_PREFIX])
        if mended:
            log.info("queue_put_right", jobs=mended)

    async def state(self) -> QueueState:
        """How much waits and is at work, of all projects together."""
        async with redis_answers():
            waiting, oldest_ms, leased = await self._state(keys=_QUEUE, args=[*_PREFIXES, keys.SCORE_SLACK_MS])
        oldest_wait_s = oldest_ms / 1000 if waiting else None
        return QueueState(waiting=waiting, oldest_wait_s=oldest_wait_s, in_flight=leased)

    async def is_leased(self, run_id: RunId, number: int) -> bool:
        """Whether a worker has a lease on this dispatch of the run."""
        async with redis_answers():
            return bool(await self._redis.exists(keys.lease(keys.job_id(run_id, number))))


def _job_of(dispatch: Dispatch) -> tuple[str, bytes, str, int]:
    """The job as `dispatch.lua` takes it."""
    job_id = keys.job_id(dispatch.run_id, dispatch.number)
    described = _described(job_id, project=dispatch.project_id, priority=dispatch.priority)
    return job_id, described, dispatch.project_id, dispatch.priority


def _described(job_id: str, **also: str | int) -> bytes:
    """arq's description of the job, with fields of ours that arq passes over."""
    call = keys.parse_job_id(job_id)
    return serialize_job(
        EXECUTE_RUN, call, {}, None, timestamp_ms(), serializer=lambda job: encode_job({**job, **also})
    )


class Renewal(Enum):
    """What became of a lease that was to be renewed."""

    RENEWED = 1
    TAKEN = 0
    """Another worker has the job."""
    FORGOTTEN = -1
    """No worker has it: the lease ended unnoticed, or Redis lost it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The outcome of a claim."""

    job_ids: list[str]
    next_in_s: float | None
    """Seconds until the next lease in the queue ends; 0 when more jobs wait that this worker could claim; None when no
    job is leased."""


@dataclass(frozen=True, slots=True)
class InFlightLimits:
    """How many runs a project may have in flight, in the whole fleet; 0: no limit."""

    each: int = 0
    of_project: Mapping[str, int] = field(default_factory=dict[str, int])
    """The limits of those projects that have one of their own."""


NO_LIMITS = InFlightLimits()


class JobLeases:
    """The leases of one worker: while a lease lasts, this worker alone is to run the job.

    A lease is a key that names its worker and expires; the job's score in the queue says when. All times are Redis'
    own, so that no two machines have to agree. The lease decides who *should* run a job; the fence in SQL decides whose
    writes count.

    Every method raises `Unavailable` when Redis does not answer.
    """

    def __init__(self, redis: Redis, *, worker: str, lease_s: float, in_flight: InFlightLimits = NO_LIMITS) -> None:
        limits = [part for project, limit in in_flight.of_project.items() for part in (project, limit)]
        self._limits = [in_flight.each, *limits]
        self._worker = worker
        self._lease_ms = round(lease_s * 1000)
        self._claim = LuaScript(redis, "turns", "claim")
        self._renew = LuaScript(redis, "renew")
        self._retake = LuaScript(redis, "turns", "retake")
        self._release = LuaScript(redis, "turns", "release")
        self._finish = LuaScript(redis, "turns", "finish")

    async def claim(self, most: int, *, spare: int = 0) -> Claimed:
        """Leases up to `most` jobs that wait, and up to `spare` beyond them of projects that have none in flight. A job
        whose id is no text is nobody's, and is passed over."""
        lease = [keys.LEASE_PREFIX, self._worker, self._lease_ms]
        async with redis_answers():
            wait_ms, *job_ids = await self._claim(
                keys=_QUEUE, args=[*_PREFIXES, *lease, most, spare, keys.SCORE_SLACK_MS, *self._limits]
            )
        texts = [_text(job_id) for job_id in job_ids]
        return Claimed([text for text in texts if text], wait_ms / 1000 if wait_ms >= 0 else None)

    async def renew(self, job_ids: Sequence[str]) -> dict[str, Renewal]:
        """Renews the leases that are still this worker's."""
        async with redis_answers():
            states = await self._renew(
                keys=[keys.QUEUE],
                args=[keys.LEASE_PREFIX, self._worker, self._lease_ms, keys.SCORE_SLACK_MS, *job_ids],
            )
        return {job_id: Renewal(state) for job_id, state in zip(job_ids, states, strict=True)}

    async def retake(self, job_id: str) -> bool:
        """Takes a forgotten lease again; False when another worker was quicker."""
        async with redis_answers():
            taken = await self._retake(
                keys=[*_QUEUE, keys.lease(job_id), keys.job(job_id)],
                args=[
                    *_PREFIXES,
                    job_id,
                    self._worker,
                    self._lease_ms,
                    keys.SCORE_SLACK_MS,
                    _described(job_id),
                    keys.JOB_TTL_S * 1000,
                ],
            )
        return bool(taken)

    async def release(self, job_id: str) -> bool:
        """Releases the job and wakes the workers. False when it was no longer this worker's."""
        async with redis_answers():
            released = await self._release(
                keys=[*_QUEUE, keys.lease(job_id)], args=[*_PREFIXES, job_id, self._worker, keys.WAKE_CHANNEL]
            )
        return bool(released)

    async def finish(self, job_id: str) -> bool:
        """Removes the job that is done; False when another worker has it by now."""
        async with redis_answers():
            with crash_point(CrashPoint.FINISH_JOB):
                finished = await self._finish(
                    keys=[*_QUEUE, keys.lease(job_id), keys.job(job_id), keys.attempts(job_id)],
                    args=[*_PREFIXES, job_id, self._worker],
                )
        return bool(finished)


def _text(job_id: bytes) -> str:
    try:
        return job_id.decode()
    except UnicodeDecodeError:
        # Half understood it would be another job: its lease would be missed, taken again, and executed.
        log.warning("job_not_understood", job_id=repr(job_id))
        return ""


class WorkerPresence:
    """Whether any worker lives; readiness asks it before it says that runs will be executed. Every living worker
    refreshes one key, which expires a lease after the last worker has died."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def show(self, worker: str, *, for_s: float) -> None:
        """Says that `worker` lives, for the next `for_s` seconds. Raises `Unavailable` when Redis does not answer."""
        async with redis_answers():
            await cast("Any", self._redis).set(keys.WORKER_ALIVE, worker, px=round(for_s * 1000))

    async def is_any_alive(self) -> bool | None:
        """Whether some worker has shown itself within a lease. None when Redis does not answer: workers may live."""
        try:
            async with redis_answers():
                return bool(await self._redis.exists(keys.WORKER_ALIVE))
        except Unavailable:
            return None


class IntervalLock:
    """Lets one process of the fleet, the first that comes, do what has to be done once per interval. Two that do it at
    once must do no harm."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def repeating(
        self, work: Callable[[], Awaitable[object]], *, every_s: float, name: str
    ) -> AbstractAsyncContextManager[None]:
        """Repeats the work, as `concurrency.repeating`, in those intervals in which this process comes first."""

        async def work_if_first() -> None:
            if await self._is_first(name, every_s):
                await work()

        return repeating(work_if_first, every_s=every_s, name=name)

    async def _is_first(self, name: str, every_s: float) -> bool:
        # No process releases the lock: it expires a little before its owner comes again.
        lock_ms = round(every_s * 900)
        try:
            async with redis_answers():
                return bool(await cast("Any", self._redis).set(keys.interval(name), b"", nx=True, px=lock_ms))
        except Unavailable:
            return True


ANSWER_S = 0.5
"""A limit is not worth a longer wait: a request that Redis does not answer for is let through."""

READER_S = 60.0
"""For how long a reader is taken for there when its process says no more."""


class Bucket(NamedTuple):
    """Requests of one owner: `per_s` flow in, up to `burst`."""

    owner: str
    per_s: float
    burst: float


class Empty(NamedTuple):
    """A bucket that has not the requests that were asked for, and the seconds until it has them."""

    position: int
    wait_s: float


class Group(NamedTuple):
    """Readers that count together, and how many of them there may be."""

    owner: str
    most: int


class Quotas:
    """Counts. Every method raises `Unavailable` when Redis does not answer soon."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._take = LuaScript(redis, "take")
        self._enter = LuaScript(redis, "enter")
        self._stay = LuaScript(redis, "stay")

    async def take(self, buckets: Sequence[Bucket], count: int = 1) -> Empty | None:
        """Takes requests out of each bucket. When one of them has not so many, that one; then nothing was taken."""
        async with redis_answers(ANSWER_S):
            position, wait_ms = await self._take(
                keys=[keys.bucket(bucket.owner) for bucket in buckets],
                args=[str(part) for part in (count, *(part for one in buckets for part in (one.per_s, one.burst)))],
            )
        return Empty(position - 1, wait_ms / 1000) if position else None

    async def enter(self, reader: str, groups: Sequence[Group]) -> int | None:
        """Counts a reader for the next `READER_S`, or counts it longer. The number of the group that is full, when one
        is; then it counts nowhere."""
        async with redis_answers(ANSWER_S):
            full = await self._enter(
                keys=[keys.readers(group.owner) for group in groups],
                args=[reader, round(READER_S * 1000), *(group.most for group in groups)],
            )
        return full - 1 if full else None

    async def stay(self, owner: str, readers: Sequence[str]) -> None:
        """Counts readers of one group for the next `READER_S`."""
        async with redis_answers(ANSWER_S):
            await self._stay(keys=[keys.readers(owner)], args=[round(READER_S * 1000), *readers])

    async def leave(self, reader: str, groups: Sequence[Group]) -> None:
        """Counts a reader no more."""
        async with redis_answers(ANSWER_S), cast("Any", self._redis).pipeline(transaction=False) as at_once:
            for group in groups:
                at_once.zrem(keys.readers(group.owner), reader)
            await at_once.execute()
