"""`holdfast agents check` and `holdfast agents replay`: they import a module of agents as a worker would.

The log is silent meanwhile, and the module's own prints are no part of the command's output.
"""

import asyncio
import logging
from typing import Any

import structlog

from shared.domain.errors import InvalidRequest
from worker.agents.dry_replay import DryReplay, ReplayReport, entry_of
from worker.agents.hosts import AgentHost, HostPlan, UnfitModule, plans

Record = dict[str, Any]


def checked(module: str, python: str, env_file: str) -> Record:
    """Imports the module in a host. Returns its agents, its faults, and the parts of its framework that work
    differently here. Raises `InvalidRequest` if the host cannot be started."""
    _silence()
    [plan] = plans([module], python, env_file)
    return asyncio.run(_checked(plan))


def replayed(recorded: Record, module: str, python: str, env_file: str) -> ReplayReport:
    """Executes the code of a run against its journal, an answer of the API. Raises `InvalidRequest` if the module
    cannot be used, or has no such agent."""
    _silence()
    [plan] = plans([module], python, env_file)
    return asyncio.run(_replayed(recorded, plan))


def _silence() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


async def _checked(plan: HostPlan) -> Record:
    try:
        async with AgentHost.running(plan) as host:
            return _record(plan, host, [], "")
    except UnfitModule as unfit:
        return _record(plan, unfit, unfit.reasons, unfit.trace)


def _record(plan: HostPlan, found: AgentHost | UnfitModule, reasons: list[str], trace: str) -> Record:
    return {
        "module": plan.module,
        "python": plan.python,
        "fit": not reasons,
        "reasons": reasons,
        "warnings": found.warnings,
        "agents": [{**one._asdict(), "version": one.version or None} for one in found.agents],
        "traceback": trace or None,
    }


async def _replayed(recorded: Record, plan: HostPlan) -> ReplayReport:
    name = recorded["code_agent"]["name"]
    replay = DryReplay(recorded["hello"], [entry_of(one) for one in recorded["entries"]])
    async with AgentHost.running(plan) as host:
        if name not in [one.name for one in host.agents]:
            raise InvalidRequest(f"{plan.module} has no agent {name!r}, which the run is of")
        process = await host.fork(name)
        try:
            return await replay.execute(process)
        finally:
            await process.kill()
