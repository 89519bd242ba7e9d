"""`holdfast status`: whether the deployment that the settings name works, and which walls its workers give to tools."""

import argparse
import sys

from api.commands.processes import FAILURE, AddCommand, production_database, production_redis
from shared.domain.tools import SandboxTier
from shared.process.settings import Settings
from shared.process.version import VERSION
from shared.redis.connection import Redis, is_reachable
from shared.redis.queue import WorkerPresence
from shared.redis.tool_presence import ToolPresence

_NODE = {
    True: "there, for tools in TypeScript",
    False: "not there: tools in TypeScript are refused",
    None: "unknown: no worker has said",
}


def add_status_command(add: AddCommand) -> None:
    """Adds it to the parser, through its `add_parser`."""
    showing = add("status", help="say whether database, Redis and workers answer, and which walls tools have")
    showing.set_defaults(run=_run_status)


async def _run_status(settings: Settings, _options: argparse.Namespace) -> None:
    redis = await production_redis(settings)
    try:
        # What is wrong with the database ends the command in one line.
        database = await production_database(settings)
        await database.aclose()
        print(f"holdfast   {VERSION}")
        print("database   answers, and has the shape of this version")
        is_well = await _show_redis(redis)
    finally:
        await redis.aclose(close_connection_pool=True)
    if not is_well:
        sys.exit(FAILURE)


async def _show_redis(redis: Redis) -> bool:
    """Prints what Redis says; whether runs would be executed."""
    if not await is_reachable(redis):
        print("redis      does not answer")
        return False
    tools = ToolPresence(redis)
    lives, sandboxes = await WorkerPresence(redis).is_any_alive(), await tools.sandboxes()
    print("redis      answers")
    print(f"workers    {'at least one lives' if lives else 'none has shown itself'}")
    print(f"walls      {_walls(sandboxes)}")
    print(f"node       {_NODE[await tools.runs_javascript()]}")
    return lives


def _walls(sandboxes: list[SandboxTier]) -> str:
    if not sandboxes:
        return "unknown: no worker has shown its own"
    if sandboxes[-1] is SandboxTier.PROCESS:
        return "NONE for some tools: a worker runs them as plain processes (HOLDFAST_SANDBOX=process)"
    return f"{sandboxes[-1]}, the weakest that a worker has" if len(sandboxes) > 1 else str(sandboxes[-1])
