"""Sandboxes configured as in workers, for tests that call tools without a worker."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from shared.domain.errors import InvalidRequest
from worker.tools.interpreter import NodeProgram
from worker.tools.isolated_sandbox import IsolatedSandbox
from worker.tools.outcomes import CallLimits, ToolSandbox
from worker.tools.sandbox_choice import ProcessSandbox, SandboxChoice
from worker.tools.zygote import ZygotePlan

LIMITS = CallLimits(memory_bytes=512 << 20, processor_s=60, file_bytes=8 << 20)
SCRATCH_MB = 8
WALLED = ("tier1", "tier2")
EVERY_SANDBOX = (*WALLED, "process")
"""The values of HOLDFAST_SANDBOX that name a sandbox."""


async def walls(name: str) -> ZygotePlan:
    """The walls of this name on this machine. Skips the test if the machine lacks them."""
    try:
        plan = await SandboxChoice(name, "nobody", "", SCRATCH_MB).best_isolation()
    except InvalidRequest as error:
        pytest.skip(error.message)
    assert plan is not None
    return plan


@asynccontextmanager
async def sandbox_of(
    name: str, *, grace_s: float = 2.0, limits: CallLimits = LIMITS, node: NodeProgram | None = None
) -> AsyncGenerator[ToolSandbox]:
    """A sandbox for the block. `node`: the program for its calls in JavaScript."""
    made: ToolSandbox
    if name == "process":
        made = ProcessSandbox(limits, grace_s=grace_s, node=node)
    else:
        made = IsolatedSandbox(msgspec.structs.replace(await walls(name), node=node), limits, grace_s=grace_s)
    try:
        yield made
    finally:
        await made.aclose()
