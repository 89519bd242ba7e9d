"""What workers show of their tools in Redis, and how long it is believed."""

from arq.connections import ArqRedis

from shared.domain.tools import SandboxTier
from shared.redis import keys
from shared.redis.process_presence import ToolPresence


async def test_the_weakest_walls_of_the_living_workers_are_shown(redis: ArqRedis) -> None:
    presence = ToolPresence(redis)
    assert await presence.weakest_sandbox() is None
    await presence.show(SandboxTier.ONE, runs_javascript=False, for_s=600)
    assert await presence.weakest_sandbox() is SandboxTier.ONE
    await presence.show(SandboxTier.PROCESS, runs_javascript=False, for_s=600)
    await presence.show(SandboxTier.TWO, runs_javascript=True, for_s=600)
    assert await presence.weakest_sandbox() is SandboxTier.PROCESS
    await redis.delete(keys.sandbox_alive(SandboxTier.PROCESS))
    assert await presence.weakest_sandbox() is SandboxTier.TWO


async def test_javascript_is_there_when_one_living_worker_runs_it(redis: ArqRedis) -> None:
    presence = ToolPresence(redis)
    assert await presence.runs_javascript() is None
    await presence.show(SandboxTier.ONE, runs_javascript=False, for_s=600)
    assert await presence.runs_javascript() is False
    await presence.show(SandboxTier.ONE, runs_javascript=True, for_s=600)
    assert await presence.runs_javascript() is True
    assert 500_000 < await redis.pttl(keys.javascript_alive(True)) <= 600_000
