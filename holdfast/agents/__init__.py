"""The names for programs with agents: `@agent` makes an async function the body of runs, and `Run` is its handle.

This package needs only the standard library of Python 3.10 or newer. `holdfast worker --agents MODULE` puts it on the
path of the Python that runs the agents, so both sides always have the same version.
"""

from holdfast.agents.errors import Denied, NestedApproval, OutcomeUnknown, StepFailed
from holdfast.agents.info import AgentInfo, BlockInfo, ToolInfo
from holdfast.agents.models import Usage
from holdfast.agents.probes import Verdict, cannot_tell, did_not_happen, happened
from holdfast.agents.registry import agent, register
from holdfast.agents.run import Approved, Call, Run, call

__all__ = [
    "agent",
    "register",
    "Run",
    "AgentInfo",
    "BlockInfo",
    "ToolInfo",
    "Approved",
    "Denied",
    "OutcomeUnknown",
    "NestedApproval",
    "StepFailed",
    "Usage",
    "Call",
    "call",
    "Verdict",
    "happened",
    "did_not_happen",
    "cannot_tell",
]
