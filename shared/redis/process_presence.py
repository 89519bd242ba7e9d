"""Live processes, and each one's description of itself. Every process refreshes its entry from its event loop, and the
entry expires when it stops, so a hanging process is not shown. Only displays for people depend on these entries;
`VersionPresence` also decides about runs.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeVar, cast

import msgspec
import structlog
from redis.exceptions import ResponseError

from shared.concurrency import repeating, unix_ms
from shared.domain.errors import Unavailable
from shared.domain.operations import ApiState, ServerMemory, WorkerState
from shared.domain.tools import SandboxTier
from shared.redis import keys
from shared.redis.connection import ANSWER_S, LuaScript, Redis, netloc_of, redis_answers
from shared.redis.log_servers import LogServers

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SHOWN_EVERY_S = 2.0

SHOWN_FOR_S = 10.0
"""Seconds. A process that hangs for longer disappears from the list."""

MOST_SHOWN = 1000

State = TypeVar("State", WorkerState, ApiState)


class ProcessPresence:
    """Publishes this process's entry, and lists the processes."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._present = LuaScript(redis, "present")

    @asynccontextmanager
    async def showing(self, state: Callable[[], WorkerState | ApiState]) -> AsyncGenerator[None]:
        """Shows this process for as long as the block lasts; each refresh calls `state`."""
        shown = state()
        try:
            async with repeating(lambda: self.show(state()), every_s=SHOWN_EVERY_S, name="show the process"):
                yield
        finally:
            with suppress(Unavailable):
                await self._forget(shown)

    async def show(self, state: WorkerState | ApiState, *, for_s: float = SHOWN_FOR_S) -> None:
        """Shows a process for `for_s` seconds. Raises `Unavailable`."""
        kind = _kind_of(type(state))
        await self._present.answered(
            keys=[keys.processes(kind), keys.process(kind, state.name)],
            args=[state.name, msgspec.json.encode(state), round(for_s * 1000)],
        )

    async def workers(self) -> list[WorkerState]:
        """Returns the live workers, by name. Raises `Unavailable`."""
        return await self._shown(WorkerState)

    async def api_processes(self) -> list[ApiState]:
        """Returns the live API processes, by name. Raises `Unavailable`."""
        return await self._shown(ApiState)

    async def _shown(self, wanted: type[State]) -> list[State]:
        kind, redis = _kind_of(wanted), cast("Any", self._redis)
        async with redis_answers():
            members: list[bytes] = await redis.zrange(keys.processes(kind), 0, MOST_SHOWN - 1)
            names = sorted(member.decode(errors="replace") for member in members)
            texts: list[bytes | None] = await redis.mget([keys.process(kind, name) for name in names]) if names else []
        return [state for text in texts if text is not None and (state := _state_of(text, wanted)) is not None]

    async def _forget(self, state: WorkerState | ApiState) -> None:
        kind = _kind_of(type(state))
        async with redis_answers():
            await cast("Any", self._redis).zrem(keys.processes(kind), state.name)
            await self._redis.delete(keys.process(kind, state.name))


def _kind_of(state: type[WorkerState | ApiState]) -> Literal["worker", "api"]:
    return "worker" if state is WorkerState else "api"


def _state_of(text: bytes, wanted: type[State]) -> State | None:
    """Returns None if a newer release wrote a description that this release cannot read."""
    try:
        return msgspec.json.decode(text, type=wanted)
    except msgspec.DecodeError:
        log.warning("process_not_understood", kind=_kind_of(wanted))
        return None


# The abilities of live workers for tools, for the API's answers. Each worker refreshes its entries in Redis.


class ToolPresence:
    """The sandbox tiers, and the tool languages, of the live workers."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def show(self, tier: SandboxTier, *, runs_javascript: bool, for_s: float) -> None:
        """Records for `for_s` seconds that a live worker isolates tools with this tier, and whether it runs tools in
        JavaScript. Ignores an unavailable Redis."""
        redis = cast("Any", self._redis)
        with suppress(Unavailable):
            async with redis_answers():
                for key in (keys.sandbox_alive(tier), keys.javascript_alive(runs_javascript)):
                    await redis.set(key, b"", px=round(for_s * 1000))

    async def weakest_sandbox(self) -> SandboxTier | None:
        """The weakest isolation that a tool may get, since any worker may claim a run. None if no worker has an
        entry."""
        alive = await self.sandboxes()
        return alive[-1] if alive else None

    async def sandboxes(self) -> list[SandboxTier]:
        """Returns the isolation of live workers, the strongest first. Empty if Redis does not answer."""
        shown = await self._shown([keys.sandbox_alive(tier) for tier in SandboxTier])
        return [tier for tier, is_shown in zip(SandboxTier, shown, strict=True) if is_shown]

    async def runs_javascript(self) -> bool | None:
        """Whether any worker runs tools in JavaScript. None if no worker has an entry."""
        yes, no = await self._shown([keys.javascript_alive(answer) for answer in (True, False)])
        return yes if yes or no else None

    async def _shown(self, names: list[str]) -> list[bool]:
        try:
            async with redis_answers():
                found: Any = await cast("Any", self._redis).mget(names)
        except Unavailable:
            return [False] * len(names)
        return [one is not None for one in found]


class VersionPresence:
    """The versions of operators' own agents that live workers have. Decides which workers continue a run."""

    def __init__(self, redis: Redis) -> None:
        self._show = LuaScript(redis, "show_versions")
        self._taker = LuaScript(redis, "versions", "version_taker")

    async def show(self, agents: Iterable[tuple[str, str, datetime]], *, for_s: float) -> None:
        """Records for `for_s` seconds that a live worker has these agents, each with its version and the time at which
        a worker first had it. Ignores an unavailable Redis."""
        shown = [part for name, version, first in agents for part in (f"{name}\t{version}", unix_ms(first))]
        if shown:
            with suppress(Unavailable):
                await self._show.answered(keys=[keys.CODE_AGENTS], args=[round(for_s * 1000), *shown])

    async def taker_of(self, agent: str, version: str) -> str | None:
        """The version whose workers continue the runs that began in `version`: that version while a worker with it
        lives, else the newest. None if no live worker has the agent. Raises `Unavailable`."""
        taker: bytes | None = await self._taker.answered(keys=[keys.CODE_AGENTS], args=[agent, version])
        return None if taker is None else taker.decode()


# The memory that the Redis servers of a deployment use: the server that every process shares, and those of the logs.
#
# Each server gets its own request: if a server does not answer, the other servers are still shown.


async def memory_of(redis: Redis, *, within_s: float = ANSWER_S) -> ServerMemory:
    """The memory of one server. Raises `Unavailable`."""
    async with redis_answers(within_s):
        said = await _allowed(cast("Any", redis).info("memory"))
    return ServerMemory(server=netloc_of(redis), used=said.get("used_memory"), limit=said.get("maxmemory") or None)


@dataclass(frozen=True, kw_only=True)
class RedisServers:
    """The servers of a deployment."""

    shared: Redis
    logs: LogServers
    is_embedded: bool
    """There is only one server, in this process, and it uses the process's memory."""

    async def memory(self, *, within_s: float = ANSWER_S) -> list[ServerMemory]:
        """Returns the memory of each server, the shared one first. Two databases on one server count as one."""
        if self.is_embedded:
            return []
        servers = {netloc_of(self.shared): self.shared, **self.logs.by_netloc()}
        return await asyncio.gather(*(_memory_or_nothing(server, within_s) for server in servers.values()))


async def _memory_or_nothing(redis: Redis, within_s: float) -> ServerMemory:
    try:
        return await memory_of(redis, within_s=within_s)
    except Unavailable:
        return ServerMemory(server=netloc_of(redis))


# The configuration and the time of a Redis server, for checks of a deployment. These functions change nothing.


class ServerSettings(NamedTuple):
    """A server's settings. None if the server does not return them; some hosted servers refuse `CONFIG`."""

    version: str
    now: datetime
    eviction: str | None
    """`maxmemory-policy`."""
    appends: bool | None
    """Whether there is an append-only file."""
    snapshots: bool | None
    """Whether the server takes snapshots."""


async def settings_of(redis: Redis) -> ServerSettings:
    """The settings of a server. Raises `Unavailable`."""
    client = cast("Any", redis)
    async with redis_answers():
        info = await _allowed(client.info("server"))
        seconds, microseconds = await client.time()
        configured = await _configuration(client)
    return ServerSettings(
        version=str(info.get("redis_version", "unknown")),
        now=datetime.fromtimestamp(int(seconds) + int(microseconds) / 1e6, UTC),
        eviction=configured.get("maxmemory-policy"),
        appends=configured["appendonly"] == "yes" if "appendonly" in configured else None,
        snapshots=bool(configured["save"]) if "save" in configured else None,
    )


async def _allowed(asked: Awaitable[dict[Any, Any]]) -> dict[Any, Any]:
    try:
        return await asked
    except ResponseError:  # the server does not have the command, or refuses it to this user
        return {}


async def _configuration(client: Any) -> dict[str, str]:
    found = [await _allowed(client.config_get(name)) for name in ("maxmemory-policy", "appendonly", "save")]
    return {_text(name): _text(value) for one in found for name, value in one.items()}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
