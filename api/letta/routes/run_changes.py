"""Streams for dashboards: the status of all runs of a project or an agent."""

from typing import Annotated

from fastapi import APIRouter, Response

from api.dependencies import AgentIdPath, ProjectDep, served
from api.direct_route import LateRoute
from api.letta.conversation_events import RunChangeFrames
from api.runs.run_changes import RunChanges
from shared.concurrency import Clock
from shared.domain.threads import RunScope
from shared.sql.definitions.agent_changes import AgentEditor

AgentEditorDep = Annotated[AgentEditor, served(AgentEditor)]
ClockDep = Annotated[Clock, served(Clock)]
RunChangesDep = Annotated[RunChanges, served(RunChanges)]

router = APIRouter(prefix="/v1", tags=["runs"], route_class=LateRoute)


@router.get("/events", response_model=None)
async def stream_project(
    run_changes: RunChangesDep, clock: ClockDep, project_id: ProjectDep, follow: bool = True
) -> Response:
    """The project's runs that have not ended, and then each change of a run's status. It has the ids of runs, and no
    texts. `follow=false` ends the stream with the present."""
    return run_changes.stream(RunScope(project_id), RunChangeFrames(clock), follow=follow)


@router.get("/agents/{agent_id}/events", response_model=None)
async def stream_agent(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    run_changes: RunChangesDep,
    clock: ClockDep,
    project_id: ProjectDep,
    follow: bool = True,
) -> Response:
    """The same of one agent, over all its conversations."""
    await editor.get(project_id, agent_id)
    return run_changes.stream(RunScope(project_id, agent_id), RunChangeFrames(clock), follow=follow)
