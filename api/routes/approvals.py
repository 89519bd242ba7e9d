"""Approvals: the waiting tool calls of a project, across all its agents, and the decisions on them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path

from api.approvals import ApprovalDecisions
from api.dependencies import Limit, OptionalAgentIdQuery, Order, ProjectDep, served
from api.direct_route import LateRoute
from api.letta.runs import DecisionIn, wire_approval, wire_decided
from api.runs.command import DEFAULT
from shared.concurrency import beside
from shared.domain.errors import InvalidRequest
from shared.domain.ids import UUID4_PATTERN, ApprovalId, RunId, ThreadId
from shared.sql.paging import Page
from shared.sql.runs.approvals import ApprovalStore

ApprovalDecisionsDep = Annotated[ApprovalDecisions, served(ApprovalDecisions)]
ApprovalStoreDep = Annotated[ApprovalStore, served(ApprovalStore)]

router = APIRouter(prefix="/v1/approvals", tags=["approvals"], route_class=LateRoute)

ApprovalIdPath = Annotated[ApprovalId, Path(pattern=f"^approval-{UUID4_PATTERN}$")]


async def _page(
    decided: bool = False,
    limit: Limit = 100,
    after: str | None = None,
    before: str | None = None,
    order: Order | None = None,
    ascending: bool | None = None,
) -> Page:
    """Waiting calls are listed oldest first and decided calls newest first, unless `order` or `ascending` says
    otherwise."""
    upwards = (order == "asc" if order else not decided) if ascending is None else ascending
    return Page(limit=limit, after=after or None, before=before or None, ascending=upwards)


@router.get("")
async def list_approvals(
    approval_store: ApprovalStoreDep,
    project_id: ProjectDep,
    page: Annotated[Page, Depends(_page)],
    decided: bool = False,
    agent_id: OptionalAgentIdQuery = None,
    conversation_id: str | None = None,
    run_id: RunId | None = None,
) -> list[dict[str, Any]]:
    """The tool calls that wait for a person or for the client, oldest first; with `decided`, the decided calls, newest
    decision first. `conversation_id=default` means the default history of the named agent; `run_id` is the run of the
    calls. Cursors are ids of approvals."""
    if conversation_id == DEFAULT and agent_id is None:
        raise InvalidRequest(
            "agent_id is missing: conversation_id 'default' is the own history of the agent named",
            field="query.agent_id",
        )
    named = agent_id if conversation_id == DEFAULT else conversation_id
    thread_id = None if named is None else ThreadId(named)
    found = await approval_store.of_project(
        project_id, page, is_decided=decided, agent_id=agent_id, thread_id=thread_id, run_id=run_id
    )
    size = sum(len(approval.arguments) for approval in found)
    return await beside(lambda: [wire_approval(approval) for approval in found], size)


@router.get("/{approval_id}")
async def retrieve_approval(
    approval_id: ApprovalIdPath, approval_store: ApprovalStoreDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One tool call that waits, or that was decided."""
    return wire_approval(await approval_store.get(project_id, approval_id))


@router.post("/{approval_id}")
async def decide_approval(
    approval_id: ApprovalIdPath, request: DecisionIn, decisions: ApprovalDecisionsDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Decides one tool call. The decision on the last call of an answer starts the continuation of the run."""
    decided = await decisions.decide(project_id, approval_id, request)
    return wire_decided(decided.approval, decided.run)
