"""Runs as a dialect submits them that asks for the events of items, and the logs of runs."""

from typing import Any

from shared.domain.events import FIRST_SEQ, Ended, Event, Unknown, decode
from shared.domain.ids import AgentId, MessageId, RunId, ThreadId
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import Run, RunOptions
from shared.redis.queue import RunQueue
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.steps import EventStore
from tests.kit.product import Product
from tests.kit.wait_until import wait_until


async def submit_run(product: Product, agent_id: str, **options: Any) -> str:
    """Sends "Go." to an agent with these options of a run; gives the run's id."""
    context = product.context
    now = context.clock.now()
    run = Run(
        id=RunId(context.ids.run()),
        project_id=product.project_id,
        agent_id=AgentId(agent_id),
        thread_id=ThreadId(agent_id),
        options=RunOptions(background=True, **options),
        created_at=now,
    )
    said = NewMessage(id=MessageId(context.ids.message()), created_at=now, body=UserMessage("Go."))
    submitted = await RunStore(context.database).submit(run, [said])
    await RunQueue(context.redis).dispatch_stored(submitted.run)
    return submitted.run.id


async def log_of(product: Product, run_id: str) -> list[Event | Unknown]:
    """The run's whole log, once its end is stored."""

    async def look() -> list[Event | Unknown] | None:
        entries = await EventStore(product.context.database).read(RunId(run_id), FIRST_SEQ, None)
        log = [decode(entry) for _, entry in entries]
        return log if log and isinstance(log[-1], Ended) else None

    return await wait_until(look, description=f"the log of {run_id} to end")
