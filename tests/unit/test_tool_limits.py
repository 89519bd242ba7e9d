"""A tool may say that one call of it needs less than a worker gives. It never gets more."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from shared.domain.tools import ToolLimits
from tests.kit.sandboxes import EVERY_SANDBOX, LIMITS, sandbox_of
from tests.kit.tools import tool_call
from worker.tools.outcomes import ToolSandbox

ENDLESS = "def tool():\n    while True:\n        pass"
HUNGRY = "def tool():\n    return len(bytes(300 << 20)) >> 20"


@pytest.fixture(params=EVERY_SANDBOX)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ToolSandbox]:
    async with sandbox_of(request.param) as made:
        yield made


async def said_by(sandbox: ToolSandbox, source: str, limits: ToolLimits, timeout_s: float = 60.0) -> str:
    call = msgspec.structs.replace(tool_call(source), limits=limits, timeout_s=timeout_s)
    return (await sandbox.call(call)).text


async def test_a_tool_that_says_so_is_stopped_sooner(sandbox: ToolSandbox) -> None:
    said = await said_by(sandbox, ENDLESS, ToolLimits(timeout_s=0.2))
    assert said == "Error: tool timed out after 0.2 s (limits.timeout_s of the tool)"


async def test_a_tool_gets_no_more_time_than_the_worker_gives(sandbox: ToolSandbox) -> None:
    said = await said_by(sandbox, ENDLESS, ToolLimits(timeout_s=600), timeout_s=0.2)
    assert said == "Error: tool timed out after 0.2 s (HOLDFAST_TOOL_TIMEOUT)", "not: 600 s were allowed"


async def test_a_tool_with_less_memory_runs_out_of_it(sandbox: ToolSandbox) -> None:
    assert await said_by(sandbox, HUNGRY, ToolLimits()) == "300"
    assert "MemoryError" in await said_by(sandbox, HUNGRY, ToolLimits(memory_mb=256))


async def test_a_tool_with_less_processor_time_is_ended_by_the_kernel(sandbox: ToolSandbox) -> None:
    """Its time would last for a minute."""
    assert "Error executing function tool" in await said_by(sandbox, ENDLESS, ToolLimits(cpu_s=1))


def test_what_is_asked_for_beyond_the_workers_limits_is_not_given() -> None:
    assert LIMITS.narrowed(ToolLimits(memory_mb=100_000, cpu_s=100_000)) == LIMITS
