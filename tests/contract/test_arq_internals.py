"""arq is pinned and frozen; still, each of its internals that our worker relies on has its test here."""

import inspect
import json
from typing import Any, cast

from arq import constants
from arq.connections import ArqRedis
from arq.jobs import serialize_job
from arq.worker import RetryJob, Worker, func

from shared.redis import keys
from shared.redis.connection import decode_job, encode_job


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
    await redis.enqueue_job("execute_run", "run-1", 7, _job_id="run-1:7", _queue_name=keys.QUEUE)


async def test_run_job_calls_the_function_with_the_jobs_arguments_and_finishes_it(redis: ArqRedis) -> None:
    await dispatch(redis)
    worker = RecordingWorker(redis)
    await worker.run_job("run-1:7", 0)
    assert worker.called == [("run-1:7", "run-1", 7), ("finish", "run-1:7", True)]


async def test_an_error_finishes_the_job_and_does_not_leave_run_job(redis: ArqRedis) -> None:
    await dispatch(redis)
    worker = RecordingWorker(redis, ValueError("boom"))
    await worker.run_job("run-1:7", 0)
    assert worker.called[-1] == ("finish", "run-1:7", True)


async def test_retry_job_gives_the_job_back(redis: ArqRedis) -> None:
    await dispatch(redis)
    worker = RecordingWorker(redis, RetryJob())
    await worker.run_job("run-1:7", 0)
    assert worker.called[-1] == ("finish", "run-1:7", False)


async def test_a_job_without_description_is_a_failed_job(redis: ArqRedis) -> None:
    worker = RecordingWorker(redis)
    await worker.run_job("run-1:7", 0)
    assert worker.called == [("failed", "run-1:7")]


async def test_enqueue_job_writes_the_job_key_and_the_score(redis: ArqRedis) -> None:
    await dispatch(redis)
    assert await redis.zscore(keys.QUEUE, "run-1:7")
    job = json.loads(cast("bytes", await redis.get("arq:job:run-1:7")))
    assert job == {"t": None, "f": "execute_run", "a": ["run-1", 7], "k": {}, "et": job["et"]}


async def test_enqueue_job_twice_is_one_job(redis: ArqRedis) -> None:
    await dispatch(redis)
    assert await redis.enqueue_job("execute_run", _job_id="run-1:7", _queue_name=keys.QUEUE) is None


async def test_run_job_counts_starts_under_the_retry_prefix(redis: ArqRedis) -> None:
    await dispatch(redis)
    await RecordingWorker(redis).run_job("run-1:7", 0)
    assert await redis.get(keys.attempts("run-1:7")) == b"1"


async def test_serialize_job_makes_what_enqueue_job_writes(redis: ArqRedis) -> None:
    await dispatch(redis)
    written = json.loads(cast("bytes", await redis.get("arq:job:run-1:7")))
    made = json.loads(serialize_job("execute_run", ("run-1", 7), {}, None, written["et"], serializer=encode_job))
    assert made == written


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
    assert list(inspect.signature(Worker.main).parameters) == ["self"]


async def test_a_worker_has_a_loop_and_a_limit(redis: ArqRedis) -> None:
    worker = RecordingWorker(redis)
    assert worker.loop.time() > 0
    assert worker.max_jobs == 10
