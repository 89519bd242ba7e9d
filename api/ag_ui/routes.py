"""AG-UI under `/ag-ui`: for AG-UI's own clients, and for CopilotKit without its runtime."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from api.ag_ui.leg_fold import Client
from api.ag_ui.run_input import RunAgentInput, StopIn, StopRunIn, speaks_current
from api.ag_ui.service import AgUiService, Asker, runtime_info
from api.dependencies import (
    AgentEditorDep,
    AgentIdPath,
    AgentsOfKeyDep,
    LastEventIdDep,
    OnlyThreadDep,
    ProjectDep,
    StreamProjectDep,
    SubmissionHeadersDep,
    served,
)
from api.direct_route import DirectRoute, LateRoute
from api.pages.threads import LONGEST_NAME
from api.runs.thread_projection import page_cursor_of
from shared.sql.definitions.agents import EVERY_SHOWN, AgentFilter
from shared.sql.paging import Page

AgUiDep = Annotated[AgUiService, served(AgUiService)]

ThreadQuery = Annotated[str, Query(alias="threadId", min_length=1, max_length=LONGEST_NAME)]
ThreadPath = Annotated[str, Path(min_length=1, max_length=LONGEST_NAME)]

MOST_AGENTS = 1000
"""The most agents in the answer to CopilotKit's `info`."""

router = APIRouter(tags=["ag-ui"], route_class=LateRoute)
run_router = APIRouter(tags=["ag-ui"], route_class=DirectRoute)


@run_router.post("/ag-ui/{agent_id}", response_model=None)
@run_router.post("/ag-ui/agent/{agent_id}/run", response_model=None)
async def run_agent(
    agent_id: AgentIdPath,
    body: RunAgentInput,
    service: AgUiDep,
    project_id: ProjectDep,
    only: OnlyThreadDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Runs an agent on new messages, or on answers to its interrupts, and streams the run. The run goes on when the
    client disconnects."""
    return await service.run(Asker(project_id, only), agent_id, body, headers)


@router.get("/ag-ui/{agent_id}/connect", response_model=None)
async def connect(
    agent_id: AgentIdPath,
    thread_id: ThreadQuery,
    service: AgUiDep,
    project_id: StreamProjectDep,
    only: OnlyThreadDep,
    last_event_id: LastEventIdDep,
    after: str | None = None,
    follow: bool = False,
    protocol_version: Annotated[str | None, Query(alias="protocolVersion", max_length=50)] = None,
) -> Response:
    """Streams a conversation: from its newest run on, or after a cursor. With `follow` it also streams future runs."""
    client = Client(thread_id, speaks_current(protocol_version))
    cursor = page_cursor_of(after, last_event_id)
    return await service.connect(Asker(project_id, only), agent_id, client, cursor, follow=follow)


@router.post("/ag-ui/agent/{agent_id}/connect", response_model=None)
async def connect_as_copilot(
    agent_id: AgentIdPath,
    body: RunAgentInput,
    service: AgUiDep,
    project_id: ProjectDep,
    only: OnlyThreadDep,
    last_event_id: LastEventIdDep,
) -> Response:
    """As `GET /ag-ui/{agent_id}/connect`, in CopilotKit's form."""
    client = Client(body.thread_id, body.is_current)
    cursor = page_cursor_of(None, last_event_id)
    return await service.connect(Asker(project_id, only), agent_id, client, cursor, follow=False)


@router.post("/ag-ui/{agent_id}/stop")
async def stop(
    agent_id: AgentIdPath, body: StopIn, service: AgUiDep, project_id: ProjectDep, only: OnlyThreadDep
) -> dict[str, Any]:
    """Cancels the conversation's run, or the named run, and answers when the run has stopped."""
    return await service.stop(Asker(project_id, only), agent_id, body.thread_id, body.run_id)


@router.post("/ag-ui/agent/{agent_id}/stop/{thread_id:path}")
async def stop_as_copilot(
    agent_id: AgentIdPath,
    thread_id: ThreadPath,
    service: AgUiDep,
    project_id: ProjectDep,
    only: OnlyThreadDep,
    body: StopRunIn | None = None,
) -> dict[str, Any]:
    """As `POST /ag-ui/{agent_id}/stop`, in CopilotKit's form."""
    return await service.stop(Asker(project_id, only), agent_id, thread_id, None if body is None else body.run_id)


@router.get("/ag-ui/info")
async def info(agents: AgentEditorDep, project_id: ProjectDep, of_key: AgentsOfKeyDep) -> dict[str, Any]:
    """The agents, in the form of CopilotKit's runtime, which names agents by their ids."""
    wanted = AgentFilter(ids=of_key) if of_key else EVERY_SHOWN
    found = await agents.list(project_id, wanted, Page(limit=MOST_AGENTS))
    return runtime_info(found)
