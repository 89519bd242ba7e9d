"""Which processes live, and what each says of itself. Every process shows itself again and again from its event loop,
and is forgotten when it does so no more: one that hangs is not shown. Nothing depends on it but what people look at.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeVar, cast

import msgspec
import structlog

from shared.concurrency import repeating
from shared.domain.errors import Unavailable
from shared.domain.operations import ApiState, WorkerState
from shared.redis import keys
from shared.redis.connection import LuaScript, Redis, redis_answers

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SHOWN_EVERY_S = 2.0

SHOWN_FOR_S = 10.0
"""A process that stands still for longer is not shown."""

MOST_SHOWN = 1000

State = TypeVar("State", WorkerState, ApiState)


class ProcessPresence:
    """Shows this process to the others, and the others to who asks."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._present = LuaScript(redis, "present")

    @asynccontextmanager
    async def showing(self, state: Callable[[], WorkerState | ApiState]) -> AsyncGenerator[None]:
        """Shows this process for as long as the block lasts; `state` is asked each time."""
        shown = state()
        try:
            async with repeating(lambda: self.show(state()), every_s=SHOWN_EVERY_S, name="show the process"):
                yield
        finally:
            with suppress(Unavailable):
                await self._forget(shown)

    async def show(self, state: WorkerState | ApiState, *, for_s: float = SHOWN_FOR_S) -> None:
        """Shows a process for so many seconds. Raises `Unavailable`."""
        kind = _kind_of(type(state))
        async with redis_answers():
            await self._present(
                keys=[keys.processes(kind), keys.process(kind, state.name)],
                args=[state.name, msgspec.json.encode(state), round(for_s * 1000)],
            )

    async def workers(self) -> list[WorkerState]:
        """The workers that live, by name. Raises `Unavailable`."""
        return await self._shown(WorkerState)

    async def api_processes(self) -> list[ApiState]:
        """The API processes that live, by name. Raises `Unavailable`."""
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
    """None for what a newer release says in words that this one does not know."""
    try:
        return msgspec.json.decode(text, type=wanted)
    except msgspec.DecodeError:
        log.warning("process_not_understood", kind=_kind_of(wanted))
        return None
