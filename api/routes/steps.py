"""Steps."""

from typing import Any

from fastapi import APIRouter

from api.dependencies import HundredOldestFirst, NewestFirst, ProjectDep, ServicesDep, StepIdPath
from api.letta.runs import wire_step
from api.message_answers import message_answers
from shared.domain.ids import AgentId, RunId
from shared.sql.history.message_lists import MessageFilter

router = APIRouter(prefix="/v1/steps", tags=["steps"])


@router.get("")
async def list_steps(
    services: ServicesDep,
    project_id: ProjectDep,
    page: NewestFirst,
    agent_id: str | None = None,
    run_id: str | None = None,
) -> list[dict[str, Any]]:
    """The project's steps; those of one agent or one run if it is named."""
    steps = await services.steps.list(
        project_id,
        page,
        run_id=None if run_id is None else RunId(run_id),
        agent_id=None if agent_id is None else AgentId(agent_id),
    )
    return [wire_step(step) for step in steps]


@router.get("/{step_id}")
async def retrieve_step(step_id: StepIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """One step."""
    return wire_step(await services.steps.get(project_id, step_id))


@router.get("/{step_id}/messages")
async def list_step_messages(
    step_id: StepIdPath, services: ServicesDep, project_id: ProjectDep, page: HundredOldestFirst
) -> list[dict[str, Any]]:
    """The messages that the step added."""
    await services.steps.get(project_id, step_id)
    shown = await message_answers(services, MessageFilter(project_id, step_id=step_id), page, None)
    return shown if page.ascending else shown[::-1]
