"""What the workers that live can do for tools, so that the API can say it: each shows it again and again in Redis."""

from contextlib import suppress
from typing import Any, cast

from shared.domain.errors import Unavailable
from shared.domain.tools import SandboxTier
from shared.redis import keys
from shared.redis.connection import Redis, redis_answers


class ToolPresence:
    """The walls around tools, and the languages of tools, of the workers that live."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def show(self, tier: SandboxTier, *, runs_javascript: bool, for_s: float) -> None:
        """Says for `for_s` seconds that a worker lives which runs tools behind walls of this tier, and whether it runs
        those in JavaScript. Silent when Redis does not answer."""
        redis = cast("Any", self._redis)
        with suppress(Unavailable):
            async with redis_answers():
                for key in (keys.sandbox_alive(tier), keys.javascript_alive(runs_javascript)):
                    await redis.set(key, b"", px=round(for_s * 1000))

    async def weakest_sandbox(self) -> SandboxTier | None:
        """The weakest walls that a tool may meet: any worker may get a run. None when no worker has shown its own."""
        alive = await self.sandboxes()
        return alive[-1] if alive else None

    async def sandboxes(self) -> list[SandboxTier]:
        """The walls that living workers have, the strongest first. Empty when Redis does not answer."""
        shown = await self._shown([keys.sandbox_alive(tier) for tier in SandboxTier])
        return [tier for tier, is_shown in zip(SandboxTier, shown, strict=True) if is_shown]

    async def runs_javascript(self) -> bool | None:
        """Whether any worker runs tools in JavaScript. None when no worker has said so."""
        yes, no = await self._shown([keys.javascript_alive(answer) for answer in (True, False)])
        return yes if yes or no else None

    async def _shown(self, names: list[str]) -> list[bool]:
        try:
            async with redis_answers():
                found: Any = await cast("Any", self._redis).mget(names)
        except Unavailable:
            return [False] * len(names)
        return [one is not None for one in found]
