"""What `holdfast status` shows: whether the settings' deployment works, and which walls its workers give to tools."""

from dataclasses import dataclass

import msgspec
import typer

from cli.exit_statuses import FAILURE
from cli.operator.processes import production_database, production_redis
from shared.domain.tools import SandboxTier
from shared.process.settings import Settings
from shared.process.version import VERSION
from shared.redis.connection import Redis, is_reachable
from shared.redis.process_presence import ProcessPresence
from shared.redis.queue import WorkerPresence
from shared.redis.tool_presence import ToolPresence

_NODE = {
    True: "there, for tools in TypeScript",
    False: "not there: tools in TypeScript are refused",
    None: "unknown: no worker has said",
}


@dataclass(frozen=True)
class _Status:
    """What was found. The database is not among it: what is wrong with it ends the command in one line."""

    version: str
    redis: bool
    workers: bool | None
    """Whether one lives. None: Redis is away, and only it knows."""
    worker_count: int | None
    """How many show themselves. One that has only just begun, or hangs, may live and not be among them."""
    sandboxes: list[SandboxTier]
    node: bool | None


async def run_status(settings: Settings, *, as_json: bool) -> None:
    """Prints what answers. Raises `typer.Exit` when no worker lives."""
    redis = await production_redis(settings)
    try:
        database = await production_database(settings)
        await database.aclose()
        found = await _ask(redis)
    finally:
        await redis.aclose(close_connection_pool=True)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(_lines(found)))
    if not found.workers:
        raise typer.Exit(FAILURE)


async def _ask(redis: Redis) -> _Status:
    if not await is_reachable(redis):
        return _Status(VERSION, redis=False, workers=None, worker_count=None, sandboxes=[], node=None)
    tools = ToolPresence(redis)
    lives, sandboxes = await WorkerPresence(redis).is_any_alive(), await tools.sandboxes()
    shown = await ProcessPresence(redis).workers()
    return _Status(
        VERSION,
        redis=True,
        workers=lives,
        worker_count=len(shown),
        sandboxes=sandboxes,
        node=await tools.runs_javascript(),
    )


def _lines(found: _Status) -> list[str]:
    shown = [f"holdfast   {found.version}", "database   answers, and has the shape of this version"]
    if not found.redis:
        return [*shown, "redis      does not answer"]
    return [
        *shown,
        "redis      answers",
        f"workers    {_workers(found)}",
        f"walls      {_walls(found.sandboxes)}",
        f"node       {_NODE[found.node]}",
    ]


def _workers(found: _Status) -> str:
    if not found.workers:
        return "none has shown itself"
    return f"{found.worker_count} live" if found.worker_count else "at least one lives"


def _walls(sandboxes: list[SandboxTier]) -> str:
    if not sandboxes:
        return "unknown: no worker has shown its own"
    if sandboxes[-1] is SandboxTier.PROCESS:
        return "NONE for some tools: a worker runs them as plain processes (HOLDFAST_SANDBOX=process)"
    return f"{sandboxes[-1]}, the weakest that a worker has" if len(sandboxes) > 1 else str(sandboxes[-1])
