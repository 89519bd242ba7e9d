"""arq is pinned and frozen; still, each of its internals that our worker relies on has its test here, and what we make
of them."""

import asyncio
import inspect
from typing import Any, cast

import pytest
from arq import constants
from arq.connections import ArqRedis
from arq.worker import RetryJob, Worker, func

from shared.domain.ids import RunId
from shared.domain.runs import Dispatch
from shared.redis import keys
from shared.redis.queue import RunQueue, decode_job, encode_job
from worker.queue.queue_worker import ArqJobs

JOB = "run-1:7"


class RecordingWorker(Worker):
    """Notes what arq calls, instead of doing it."""

    def __init__(self, redis: ArqRedis, outcome: BaseException | None = None) -> None:
        super().__init__(
            functions=[func(self.job, name="execute_run")],
            queue_name=keys.QUEUE,
            redis_pool=redis,
            handle_signals=False,
            keep_result=0,
            log_results=False,
            job_serializer=encode_job,
            job_deserializer=decode_job,
        )
        self.outcome = outcome
        self.called: list[Any] = []

    async def job(self, ctx: dict[Any, Any], *args: Any) -> None:
        self.called.append((ctx["job_id"], *args))
        if self.outcome is not None:
            raise self.outcome

    async def finish_job(
        self,
        job_id: str,
        finish: bool,
        result_data: bytes | None,
        result_timeout_s: float | None,
        keep_result_forever: bool,
        incr_score: int | None,
        keep_in_progress: float | None,
    ) -> None:
        self.called.append(("finish", job_id, finish))

    async def finish_failed_job(self, job_id: str, result_data: bytes | None) -> None:
        self.called.append(("failed", job_id))


async def dispatch(redis: ArqRedis) -> None:
    await RunQueue(redis).dispatch(Dispatch(RunId("run-1"), 7))


async def test_run_job_calls_the_function_with_the_jobs_arguments_and_finishes_it(redis: ArqRedis) -> None:
    await dispatch(redis)
    worker = RecordingWorker(redis)
    await worker.run_job(JOB, 0)
    assert worker.called == [(JOB, "run-1", 7), ("finish", JOB, True)]


async def test_an_error_finishes_the_job_and_does_not_leave_run_job(redis: ArqRedis) -> None:
    await dispatch(redis)
    worker = RecordingWorker(redis, ValueError("boom"))
    await worker.run_job(JOB, 0)
    assert worker.called[-1] == ("finish", JOB, True)


async def test_retry_job_gives_the_job_back(redis: ArqRedis) -> None:
    await dispatch(redis)
    worker = RecordingWorker(redis, RetryJob())
    await worker.run_job(JOB, 0)
    assert worker.called[-1] == ("finish", JOB, False)


@pytest.mark.parametrize(
    "description", [None, b"\x80\x04pickle", b"[]", b'{"t":null,"f":"of_a_newer_release","a":[],"k":{},"et":0}']
)
async def test_a_job_that_cannot_be_run_is_a_failed_job(redis: ArqRedis, description: bytes | None) -> None:
    if description is not None:
        await redis.set(keys.job(JOB), description)
    worker = RecordingWorker(redis)
    await worker.run_job(JOB, 0)
    assert worker.called == [("failed", JOB)]


async def test_run_job_counts_starts_under_the_retry_prefix(redis: ArqRedis) -> None:
    await dispatch(redis)
    await RecordingWorker(redis).run_job(JOB, 0)
    assert await redis.get(keys.attempts(JOB)) == b"1"


def test_the_prefixes_are_those_that_the_scripts_name() -> None:
    assert constants.in_progress_key_prefix == "arq:in-progress:"
    assert constants.job_key_prefix == "arq:job:"
    assert constants.retry_key_prefix == "arq:retry:"


def test_the_overridden_methods_have_the_expected_parameters() -> None:
    assert list(inspect.signature(Worker.finish_job).parameters)[1:] == [
        "job_id",
        "finish",
        "result_data",
        "result_timeout_s",
        "keep_result_forever",
        "incr_score",
        "keep_in_progress",
    ]
    assert list(inspect.signature(Worker.finish_failed_job).parameters)[1:] == ["job_id", "result_data"]


class RecordedJobs:
    """What becomes of the jobs that run here."""

    def __init__(self, redis: ArqRedis, outcome: BaseException | None = None) -> None:
        self.jobs = ArqJobs(redis, execute=self._execute, finish=self._finish)
        self.outcome = outcome
        self.happened: list[Any] = []

    async def _execute(self, job_id: str, run_id: RunId, number: int) -> None:
        self.happened.append((job_id, run_id, number))
        if self.outcome is not None:
            raise self.outcome

    async def _finish(self, job_id: str, is_done: bool) -> None:
        self.happened.append((job_id, is_done))


@pytest.mark.parametrize(("outcome", "is_done"), [(None, True), (ValueError("boom"), True), (RetryJob(), False)])
async def test_a_job_is_done_unless_it_is_released(
    redis: ArqRedis, outcome: BaseException | None, is_done: bool
) -> None:
    await dispatch(redis)
    recorded = RecordedJobs(redis, outcome)
    await recorded.jobs.run(JOB)
    assert recorded.happened == [(JOB, "run-1", 7), (JOB, is_done)]


async def test_a_job_that_is_cancelled_is_released(redis: ArqRedis) -> None:
    await dispatch(redis)
    recorded = RecordedJobs(redis, asyncio.CancelledError())
    running = asyncio.ensure_future(recorded.jobs.run(JOB))
    await asyncio.wait([running])
    assert recorded.happened == [(JOB, "run-1", 7), (JOB, False)]


async def test_a_job_that_cannot_be_run_is_done(redis: ArqRedis) -> None:
    """The sweeper dispatches its run again."""
    recorded = RecordedJobs(redis)
    await recorded.jobs.run(JOB)
    assert recorded.happened == [(JOB, True)]


async def test_a_job_may_be_started_more_often_than_arq_would_try(redis: ArqRedis) -> None:
    """How often a run is tried is decided in SQL."""
    await dispatch(redis)
    await cast("Any", redis).set(keys.attempts(JOB), 1000)
    recorded = RecordedJobs(redis)
    await recorded.jobs.run(JOB)
    assert recorded.happened == [(JOB, "run-1", 7), (JOB, True)]
