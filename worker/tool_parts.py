"""The part of the composition root that makes what tools need: walls, packages, folders, and for some a way out."""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from shared.concurrency import repeating
from shared.domain.tools import SandboxTier
from shared.network.addresses import AllowedHosts
from shared.network.checked_http import NetworkRules
from shared.packages.environments import PackageEnvironments
from shared.packages.setup import package_environments
from shared.process.context import ProcessContext
from shared.process.settings import Settings
from worker.proxy.exchange import Reach
from worker.tools.invocation import CallLimits, ToolSandbox
from worker.tools.node_choice import find_node, sandbox_of
from worker.tools.sandbox_choice import BoundedSandbox, PlainProcess, SandboxChoice, plain_process
from worker.tools.scratch import ToolFolders, remove_left_folders, worker_folder
from worker.tools.zygote import ZygotePlan

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LEAST_CALLS = 8
"""Tool calls that run at once on a small machine."""

LOOK_FOR_LEFT_FOLDERS_S = 3600.0


class ToolParts(NamedTuple):
    """What the tools of one worker run in."""

    tier: SandboxTier
    runs_javascript: bool
    sandbox: ToolSandbox
    packages: PackageEnvironments


@asynccontextmanager
async def tool_parts(process: ProcessContext, network: NetworkRules) -> AsyncGenerator[ToolParts]:
    """The walls that were found to work here, for the block, and the packages for the Python behind them.

    Raises `InvalidRequest` when there are no walls and nobody chose that, or packages cannot be kept where the settings
    say.
    """
    settings = process.settings
    choice = SandboxChoice(settings.sandbox, settings.tool_user, settings.tool_python, settings.tool_scratch_mb)
    walls = await choice.best_walls() or await plain_process(choice)
    tier, python = _described(walls)
    limits = CallLimits(
        memory_bytes=settings.tool_memory_mb << 20,
        processor_s=settings.tool_cpu_s,
        file_bytes=settings.tool_scratch_mb << 20,
    )
    node = await find_node(settings.tool_node, walls, limits)
    # In tier 1 the folder is shown to the tools' user by another way.
    other_user = walls.user is not None and tier is not SandboxTier.ONE
    packages = await package_environments(process, python, for_other_user=other_user)
    calls_at_once = settings.tool_processes or max(LEAST_CALLS, 2 * (os.cpu_count() or 1))
    async with AsyncExitStack() as stack:
        above = stack.enter_context(worker_folder())
        reach = _reach(settings, network, tier, stack)
        if reach is not None and isinstance(walls, ZygotePlan):
            walls = with_certificates(walls, above, network)
        folders = ToolFolders(above, walls.user)
        sandbox = sandbox_of(walls, limits, node, grace_s=settings.tool_grace, folders=folders, reach=reach)
        bounded = BoundedSandbox(sandbox, calls_at_once=calls_at_once, spare_calls=settings.spare_tool_processes)
        stack.push_async_callback(bounded.aclose)
        await stack.enter_async_context(
            repeating(
                lambda: asyncio.to_thread(remove_left_folders),
                every_s=LOOK_FOR_LEFT_FOLDERS_S,
                name="remove folders of dead workers",
            )
        )
        yield ToolParts(tier, node is not None, bounded, packages)


def with_certificates(plan: ZygotePlan, above: Path, network: NetworkRules) -> ZygotePlan:
    """The plan, with a file of those whom this worker trusts itself: the system's authorities and the operator's."""
    trusted = network.tls().get_ca_certs(binary_form=True)
    path = above / "certificates.pem"
    path.write_text("".join(map(ssl.DER_cert_to_PEM_cert, trusted)))
    path.chmod(0o444)
    return msgspec.structs.replace(plan, certificates=str(path))


def _described(walls: ZygotePlan | PlainProcess) -> tuple[SandboxTier, str]:
    """The walls by their name, and the Python behind them. The log says it."""
    if isinstance(walls, PlainProcess):
        tier, danger = SandboxTier.PROCESS, f"tool code can do whatever {walls.whose_power} can"
        log.warning("tools_run_without_walls", sandbox=tier.value, danger=danger, user=walls.user)
        return tier, walls.python
    python = walls.interpreter.executable
    log.info("tools_run_behind_walls", sandbox=walls.tier.value, python=python, user=walls.user)
    return walls.tier, python


def _reach(settings: Settings, network: NetworkRules, tier: SandboxTier, stack: AsyncExitStack) -> Reach | None:
    """The hosts that tools with a network may connect to, if there are any."""
    allowed = AllowedHosts.parse(settings.tool_network)
    if not allowed or tier is SandboxTier.PROCESS:
        return None
    if tier is SandboxTier.ONE:
        log.info("tools_may_connect", hosts=str(allowed))
    else:
        log.warning("tools_have_no_network", sandbox=tier.value, reason="HOLDFAST_TOOL_NETWORK needs tier 1")
    reach = Reach(allowed, network.policy)
    stack.callback(reach.close)
    return reach
