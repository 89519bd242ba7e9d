"""Approvals: the tool calls of a project that wait for a person, across all its agents, and the decisions on them."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from api.dependencies import HundredOldestFirst, OptionalAgentIdQuery, ProjectDep, ServicesDep
from api.letta.approvals import DecisionIn, wire_approval, wire_decided
from shared.domain.ids import UUID4_PATTERN, ApprovalId, ThreadId

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])

ApprovalIdPath = Annotated[ApprovalId, Path(pattern=f"^approval-{UUID4_PATTERN}$")]


@router.get("")
async def list_approvals(
    services: ServicesDep,
    project_id: ProjectDep,
    page: HundredOldestFirst,
    agent_id: OptionalAgentIdQuery = None,
    conversation_id: str | None = None,
) -> list[dict[str, Any]]:
    """The tool calls that wait for a person or for the client, oldest first."""
    thread_id = None if conversation_id is None else ThreadId(conversation_id)
    waiting = await services.approvals.waiting(project_id, page, agent_id=agent_id, thread_id=thread_id)
    return [wire_approval(approval) for approval in waiting]


@router.get("/{approval_id}")
async def retrieve_approval(
    approval_id: ApprovalIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One tool call that waits, or was decided."""
    return wire_approval(await services.approvals.get(project_id, approval_id))


@router.post("/{approval_id}")
async def decide_approval(
    approval_id: ApprovalIdPath, request: DecisionIn, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Decides one tool call. The decision on the last call of an answer starts the continuation of the run."""
    decided = await services.decisions.decide(project_id, approval_id, request)
    return wire_decided(decided.approval, decided.run)
