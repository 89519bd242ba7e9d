"""The services that code bodies need for tools attached to their agents."""

from typing import Any, cast

from shared.secret_keys import NO_KEYS
from tests.kit.runs.guest_bodies import NoFolders
from tests.kit.runs.stored_runs import Stores
from worker.agents.models.endpoint import ModelEndpoint
from worker.bodies.agent_context import AgentServices
from worker.models.registry import Models
from worker.runners.tool_runner import RunnerRow, ToolRunners

UNSERVED = ModelEndpoint(Models({}, first_event_timeout=0, idle_timeout=0, retries=0), "")
"""For agents that call no models of their worker."""


def services_of_code(stores: Stores, *rows: RunnerRow) -> AgentServices:
    """The services of a worker with these runners."""
    return AgentServices(
        models=Models({}, first_event_timeout=0, idle_timeout=0, retries=0),
        sandbox=cast("Any", NoFolders()),
        runners=ToolRunners(*rows),
        agents=stores.agents,
        secret_keys=NO_KEYS,
        approvals=stores.approvals,
        steps=stores.steps,
    )
