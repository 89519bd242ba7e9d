"""Counts the product files that one run passes through: plain, cancelled, with an approval, and after a lost worker.

A file counts if one of its functions is called between the request and the end of its answer, in the API, the worker
or shared code, which run in this process. A server that speaks OpenAI's API over HTTP plays the model. Work beside the
run does not count: pollers are left out, and so is a file that only some of several equal runs pass through. So a
figure is the number of files that a reader has to follow. `python -m bench.shape` shows the figures.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

from arq.connections import ArqRedis
from httpx import Response

from shared.domain.events import StatusChanged, encode
from shared.domain.ids import RunId, Seq
from shared.domain.log_writer import LogTail
from shared.redis import keys
from shared.redis.event_log import EventLog
from shared.redis.log_servers import OneLogServer
from shared.redis.queue import JobLeases
from shared.sql.engine import Database
from shared.sql.runs.run_store import RunStore
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.services.redis_losses import end_leases
from tests.kit.tools import LAUNCH
from worker.main import working

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = tuple(f"{ROOT / package}/" for package in ("api", "worker", "shared"))
POLLERS = ("_repeat", "_measure_lag")
SETTINGS = {"sweep_s": 3600.0, "lease_s": 3600.0, "queued_runs": 5}
"""A worker sweeps once an hour. With a limit of so few queued runs, the API counts them at every submission, and not
only at one a second after the last."""

EQUAL_RUNS = 3
"""Runs of a scenario. The files that all of them pass through count."""

TIDIED_S = 0.3
"""Seconds in which a worker cleans up after the end of a stream, or reads its queue after its start."""


class StillClock:
    """A clock without progress, so that no cache of a process expires between two equal runs."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return 1000.0


class Entered:
    """The called functions of the product, by file."""

    def __init__(self) -> None:
        self.functions: defaultdict[str, set[CodeType]] = defaultdict(set)

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Records a call, for `sys.setprofile`."""
        code = frame.f_code
        # The code of modules and classes runs at the import and does not count.
        is_function = event == "call" and code.co_filename.startswith(PRODUCT) and code.co_flags & 0x2
        if is_function and code not in self.functions[code.co_filename] and not _is_poller():
            self.functions[code.co_filename].add(code)

    @contextmanager
    def noting(self) -> Generator[None]:
        """Records calls during the block, on this thread, which is the event loop's."""
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def files(self) -> dict[str, int]:
        """Returns how many functions of each file were called."""
        entered = ((file, found) for file, found in sorted(self.functions.items()) if found)
        return {str(Path(file).relative_to(ROOT)): len(found) for file, found in entered}


def _is_poller() -> bool:
    """Returns whether this is the task of a loop that polls independently of runs."""
    task = asyncio.current_task()
    return task is not None and getattr(task.get_coro(), "__name__", "") in POLLERS


Scenario = Callable[[Product, Entered], Awaitable[None]]
Passed = Mapping[str, Mapping[str, int]]
"""For each figure in `[files.…]` of `shape.toml`: its files, with the number of their called functions."""


async def files_per_run(database: Database, redis: ArqRedis, *, on_scenario: Callable[[str], None]) -> Passed:
    """Measures all figures on an empty database and an empty Redis. Calls `on_scenario` with the name of each figure
    before it is measured."""
    passed: dict[str, Mapping[str, int]] = {}
    async with ModelServer() as models:
        for with_worker, scenarios in ((True, _WITH_WORKER), (False, _WITHOUT_WORKER)):
            given = running_product(
                database, redis, models, settings=SETTINGS, clock=StillClock(), with_worker=with_worker
            )
            async with given as product:
                for name, scenario in scenarios.items():
                    on_scenario(name)
                    passed[name] = await _files(product, scenario)
    # Such a run is also a plain one; the figure is the number of further files.
    beyond_plain = {file: count for file, count in passed["approval"].items() if file not in passed["plain_run"]}
    return passed | {"approval": beyond_plain}


async def _files(product: Product, scenario: Scenario) -> Mapping[str, int]:
    await scenario(product, Entered())  # a first run, so that lazy imports and caches are done
    runs = [Entered() for _ in range(EQUAL_RUNS)]
    for entered in runs:
        await scenario(product, entered)
    several = [entered.files() for entered in runs]
    return {file: count for file, count in several[0].items() if all(file in files for files in several)}


@asynccontextmanager
async def _streaming(product: Product, agent_id: str, **fields: Any) -> AsyncGenerator[Response]:
    """Reads the stream of a background run in token mode."""
    body = {"streaming": True, "background": True, "stream_tokens": True, **fields}
    async with product.http.stream("POST", f"/v1/agents/{agent_id}/messages", json=body) as response:
        yield response


async def _to_its_end(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass
    await asyncio.sleep(TIDIED_S)


async def _plain_run(product: Product, entered: Entered) -> None:
    """Submits a run and reads its stream to the end: one step, no tool."""
    agent = await product.agent()
    product.models.say("Good morning to you.")
    with entered.noting():
        async with _streaming(product, agent.id, input="Hello") as response:
            await _to_its_end(response.aiter_raw())


async def _cancel(product: Product, entered: Entered) -> None:
    """Cancels a streaming run, and reads its stream to the end."""
    agent = await product.agent()
    product.models.play(Turn(text="one " * 10, silent_after=5))
    async with _streaming(product, agent.id, input="Count.") as response:
        chunks, seen = response.aiter_raw(), 0
        while seen < 3:
            seen += (await anext(chunks)).count(b"assistant_message")
        run_id = (await product.http.get("/v1/runs", params={"agent_id": agent.id})).json()[0]["id"]
        with entered.noting():
            await product.http.post(f"/v1/runs/{run_id}/cancel")
            await _to_its_end(chunks)


async def _approval(product: Product, entered: Entered) -> None:
    """Runs an approval: the model requests a call, which is approved and executed, and answers."""
    tool = await product.tool(LAUNCH, default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    product.models.play(Turn(calls=[Call("launch", {"target": "Moon"}, id="call_0")]), Turn(text="It flies."))
    decision = {"type": "approval", "approvals": [{"type": "approval", "tool_call_id": "call_0", "approve": True}]}
    with entered.noting():
        async with _streaming(product, agent.id, input="Launch.") as response:
            await _to_its_end(response.aiter_raw())
        async with _streaming(product, agent.id, messages=[decision]) as response:
            await _to_its_end(response.aiter_raw())


async def _recovery(product: Product, entered: Entered) -> None:
    """Recovers a run: the lease of a dead worker expires during an answer, and another worker finds the run and
    executes it to its end, for a reader."""
    agent = await product.agent()
    submitted = await product.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello"})
    run_id = await _lose_worker(product)
    assert run_id == submitted.json()["id"]
    product.models.say("Good morning to you.")
    async with (
        working(product.context),
        product.http.stream("POST", f"/v1/runs/{run_id}/stream", json={}) as response,
    ):
        await asyncio.sleep(TIDIED_S)
        with entered.noting():
            await end_leases(product.context.redis)
            await cast("Any", product.context.redis).publish(keys.WAKE_CHANNEL, "")
            await _to_its_end(response.aiter_raw())


async def _lose_worker(product: Product) -> RunId:
    """Claims the only waiting run, and leaves the state of a worker that died during an answer: a job with a lease, a
    claim, and events in Redis."""
    database, redis = product.context.database, product.context.redis
    [job_id] = (await JobLeases(redis, worker="lost", lease_s=3600).claim(1)).job_ids
    run_id, dispatch = keys.parse_job_id(job_id)
    run = await RunStore(database).claim(run_id, dispatch, "lost/1", product.context.clock.now())
    assert run is not None
    event_log = EventLog(redis, ttl_s=3600, servers=OneLogServer(redis))
    await event_log.open(run.id, run.fence)
    shown = LogTail(Seq(2), [encode(StatusChanged(0, "running"))])
    await event_log.append(run.id, run.fence, shown, needs=Seq(0))
    return run.id


_WITH_WORKER: Mapping[str, Scenario] = {"plain_run": _plain_run, "cancel": _cancel, "approval": _approval}
_WITHOUT_WORKER: Mapping[str, Scenario] = {"recovery": _recovery}
