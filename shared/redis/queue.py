"""The queue through which workers find runs: a set of jobs, each of which one worker leases for a while. Projects take
turns (`fair_queue.lua`), and within a project, the job that has waited longest comes first, after jobs that a worker
has had and with the head starts of priorities.

A job is one dispatch of a run. It holds the run's id and the number of the dispatch, because everything else that a
worker needs is in SQL. A job that Redis has lost does no harm: the sweeper dispatches orphaned runs again.

This module also counts callers' use of their quotas, so that all processes share one count.
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
from shared.redis.connection import LuaScript, Redis, redis_answers, try_writing

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EXECUTE_RUN = "execute_run"
"""The name of the only function that workers offer to arq."""


def encode_job(job: dict[str, Any]) -> bytes:
    """arq's job as JSON. Never pickle: a process that can write to Redis must not be able to run code in a worker."""
    return msgspec.json.encode(job, enc_hook=repr)


def decode_job(data: bytes) -> dict[str, Any]:
    """The job that `encode_job` wrote."""
    return msgspec.json.decode(data, type=dict[str, Any])


AGENT_FOLLOWS = "\n"
"""Separates the project and the agent in the name of a queue of a project's runs that only workers with that agent may
claim. A project's name has no line end."""

VERSION_FOLLOWS = "\t"
"""Separates the agent and a version there, in the queue of runs that began in this version of the agent's code."""

_QUEUE = [keys.QUEUE, keys.TURNS, keys.TURN]
_PREFIXES = [keys.WAITING_PREFIX, keys.IN_FLIGHT_PREFIX, keys.JOB_PREFIX]
"""The keys and the first arguments of every script that uses `fair_queue.lua`."""


class RunQueue:
    """Dispatches runs to the workers. Raises `Unavailable` if Redis does not answer; the run may be dispatched even
    so."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._dispatch = LuaScript(redis, "fair_queue", "dispatch")
        self._recount = LuaScript(redis, "fair_queue", "recount")
        self._state = LuaScript(redis, "fair_queue", "queue_state")

    async def dispatch(self, *dispatches: Dispatch) -> None:
        """Queues runs, and wakes the workers. A dispatch that is already queued or leased stays unchanged."""
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
            code = (run.options.code_agent, run.code_version)
            await self.dispatch(Dispatch(run.id, run.dispatch, run.project_id, run.priority, *code))
        except Unavailable as error:
            log.warning("dispatch_left_to_sweeper", run_id=run.id, reason=str(error))

    async def queued_among(self, dispatches: Collection[tuple[RunId, int]]) -> set[tuple[RunId, int]]:
        """Returns the dispatches among these that are still in the queue, waiting or leased."""
        if not dispatches:
            return set()
        async with redis_answers():
            scores: Any = await cast("Any", self._redis).zmscore(
                keys.QUEUE, [keys.job_id(run_id, number) for run_id, number in dispatches]
            )
        return {one for one, score in zip(dispatches, scores, strict=True) if score is not None}

    async def recount(self) -> None:
        """Repairs inconsistencies between the keys of the queue after a loss of data."""
        mended = await self._recount.answered(keys=_QUEUE, args=[*_PREFIXES, keys.LEASE_PREFIX])
        if mended:
            log.info("queue_put_right", jobs=mended)

    async def state(self) -> QueueState:
        """Returns how many jobs wait and how many are leased, of all projects together."""
        waiting, oldest_ms, leased = await self._state.answered(keys=_QUEUE, args=[*_PREFIXES, keys.SCORE_SLACK_MS])
        oldest_wait_s = oldest_ms / 1000 if waiting else None
        return QueueState(waiting=waiting, oldest_wait_s=oldest_wait_s, in_flight=leased)

    async def is_leased(self, run_id: RunId, number: int) -> bool:
        """Whether a worker has a lease on the run by its newest dispatch, which has this number, or by the one before:
        the worker may have taken that lease again while the sweeper stored the newest."""
        leases = [keys.lease(keys.job_id(run_id, one)) for one in (number, number - 1)]
        async with redis_answers():
            return bool(await self._redis.exists(*leases))


def _job_of(dispatch: Dispatch) -> tuple[str, bytes, str, int]:
    """The job in the form that `dispatch.lua` takes."""
    job_id = keys.job_id(dispatch.run_id, dispatch.number)
    queue: str = dispatch.project_id
    if dispatch.code_agent is not None:
        version = f"{VERSION_FOLLOWS}{dispatch.code_version}" if dispatch.code_version else ""
        queue = f"{queue}{AGENT_FOLLOWS}{dispatch.code_agent}{version}"
    described = _described(job_id, project=queue, priority=dispatch.priority)
    return job_id, described, queue, dispatch.priority


def _described(job_id: str, **also: str | int) -> bytes:
    """arq's description of the job, with fields of ours that arq ignores."""
    call = keys.parse_job_id(job_id)
    return serialize_job(
        EXECUTE_RUN, call, {}, None, timestamp_ms(), serializer=lambda job: encode_job({**job, **also})
    )


class Renewal(Enum):
    """The outcome of renewing a lease."""

    RENEWED = 1
    TAKEN = 0
    """Another worker holds the job."""
    FORGOTTEN = -1
    """No worker holds the job: the lease expired unnoticed, or Redis lost it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The outcome of a claim."""

    job_ids: list[str]
    next_in_s: float | None
    """Seconds until the next lease in the queue ends, or the workers with the version of a waiting run may be gone; 0
    if more jobs wait that this worker could claim; None without either."""


@dataclass(frozen=True, slots=True)
class InFlightLimits:
    """How many runs a project may have in flight, in the whole fleet; 0: no limit."""

    each: int = 0
    of_project: Mapping[str, int] = field(default_factory=dict[str, int])
    """The limits of projects with a limit of their own."""


NO_LIMITS = InFlightLimits()
NO_AGENTS: Mapping[str, str] = {}


class JobLeases:
    """The leases of one worker: while a lease lasts, only this worker should run the job.

    A lease is a key that names its worker and expires; the job's score in the queue has the time of the expiry. All
    times are Redis' own, so the clocks of machines need not agree. The lease decides who *should* run a job; the fence
    in SQL decides whose writes count.

    Every method raises `Unavailable` when Redis does not answer.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        worker: str,
        lease_s: float,
        in_flight: InFlightLimits = NO_LIMITS,
        code_agents: Mapping[str, str] = NO_AGENTS,
    ) -> None:
        """`code_agents`: the versions of the worker's agents of operators' own code, by their names."""
        limits = [part for project, limit in in_flight.of_project.items() for part in (project, limit)]
        self._limits = [in_flight.each, *limits]
        self._code_agents = "".join(f"{name}{VERSION_FOLLOWS}{version}\n" for name, version in code_agents.items())
        self._worker = worker
        self._lease_ms = round(lease_s * 1000)
        self._claim = LuaScript(redis, "fair_queue", "versions", "claim")
        self._renew = LuaScript(redis, "renew")
        self._retake = LuaScript(redis, "fair_queue", "retake")
        self._release = LuaScript(redis, "fair_queue", "release")
        self._finish = LuaScript(redis, "fair_queue", "finish")

    async def claim(self, most: int, *, spare: int = 0) -> Claimed:
        """Leases up to `most` waiting jobs, and up to `spare` more of projects that have none in flight. Skips a job
        whose id is not a text."""
        lease = [keys.LEASE_PREFIX, self._worker, self._lease_ms]
        wait_ms, *job_ids = await self._claim.answered(
            keys=[*_QUEUE, keys.CODE_AGENTS],
            args=[*_PREFIXES, *lease, most, spare, keys.SCORE_SLACK_MS, self._code_agents, *self._limits],
        )
        texts = [_text(job_id) for job_id in job_ids]
        return Claimed([text for text in texts if text], wait_ms / 1000 if wait_ms >= 0 else None)

    async def renew(self, job_ids: Sequence[str]) -> dict[str, Renewal]:
        """Renews the leases that are still this worker's."""
        states = await self._renew.answered(
            keys=[keys.QUEUE], args=[keys.LEASE_PREFIX, self._worker, self._lease_ms, keys.SCORE_SLACK_MS, *job_ids]
        )
        return {job_id: Renewal(state) for job_id, state in zip(job_ids, states, strict=True)}

    async def retake(self, job_id: str) -> bool:
        """Takes a forgotten lease again. Returns False if another worker was first."""
        lease = [self._worker, self._lease_ms, keys.SCORE_SLACK_MS]
        taken = await self._retake.answered(
            keys=[*_QUEUE, keys.lease(job_id), keys.job(job_id)],
            args=[*_PREFIXES, job_id, *lease, _described(job_id), keys.JOB_TTL_S * 1000],
        )
        return bool(taken)

    async def release(self, job_id: str) -> bool:
        """Releases the job and wakes the workers. Returns False if it was no longer this worker's."""
        released = await self._release.answered(
            keys=[*_QUEUE, keys.lease(job_id)], args=[*_PREFIXES, job_id, self._worker, keys.WAKE_CHANNEL]
        )
        return bool(released)

    async def finish(self, job_id: str) -> bool:
        """Removes a finished job. Returns False if another worker has it by now."""
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
        # A partly decoded id would name another job: the worker would find no lease, take the job again and execute it.
        log.warning("job_not_understood", job_id=repr(job_id))
        return ""


class WorkerPresence:
    """Whether any worker lives; the readiness check needs this to report that runs will be executed. Every living
    worker refreshes one key, which expires a lease after the last worker has died."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def show(self, worker: str, *, for_s: float) -> None:
        """Records that `worker` lives for the next `for_s` seconds. Raises `Unavailable` if Redis does not answer."""
        async with redis_answers():
            await cast("Any", self._redis).set(keys.WORKER_ALIVE, worker, px=round(for_s * 1000))

    async def is_any_alive(self) -> bool | None:
        """Whether a worker has refreshed the key within a lease. None if Redis does not answer, or refuses writes."""
        try:
            async with redis_answers():
                if await self._redis.exists(keys.WORKER_ALIVE):
                    return True
            await try_writing(self._redis)
        except Unavailable:
            return None
        return False


class IntervalLock:
    """Lets one process of the fleet, the first that asks, do work that is needed once per interval. The work must do no
    harm if two processes do it at once."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def repeating(
        self, work: Callable[[], Awaitable[object]], *, every_s: float, name: str
    ) -> AbstractAsyncContextManager[None]:
        """Repeats the work like `concurrency.repeating`, in the intervals in which this process is first."""

        async def work_if_first() -> None:
            if await self._is_first(name, every_s):
                await work()

        return repeating(work_if_first, every_s=every_s, name=name)

    async def _is_first(self, name: str, every_s: float) -> bool:
        # No process releases the lock: it expires shortly before its owner's next try.
        lock_ms = round(every_s * 900)
        try:
            async with redis_answers():
                return bool(await cast("Any", self._redis).set(keys.interval(name), b"", nx=True, px=lock_ms))
        except Unavailable:
            return True


ANSWER_S = 0.5
"""A limit is not worth a longer wait: if Redis does not answer, the request is admitted."""

READER_S = 60.0
"""How long a reader still counts after its process stopped refreshing it."""


class Bucket(NamedTuple):
    """Requests of one owner: `per_s` are added per second, up to `burst`."""

    owner: str
    per_s: float
    burst: float


class Empty(NamedTuple):
    """A bucket with too few requests left, and the seconds until it has enough."""

    position: int
    wait_s: float


class Group(NamedTuple):
    """Readers that are counted together, and their limit."""

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
        """Takes requests out of each bucket. If a bucket has too few, takes nothing and returns that bucket."""
        async with redis_answers(ANSWER_S):
            position, wait_ms = await self._take(
                keys=[keys.bucket(bucket.owner) for bucket in buckets],
                args=[str(part) for part in (count, *(part for one in buckets for part in (one.per_s, one.burst)))],
            )
        return Empty(position - 1, wait_ms / 1000) if position else None

    async def enter(self, reader: str, groups: Sequence[Group]) -> int | None:
        """Counts a reader for the next `READER_S`, or extends its time. If a group is full, counts the reader nowhere
        and returns that group's number."""
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
        """Stops counting a reader."""
        async with redis_answers(ANSWER_S), cast("Any", self._redis).pipeline(transaction=False) as at_once:
            for group in groups:
                at_once.zrem(keys.readers(group.owner), reader)
            await at_once.execute()
