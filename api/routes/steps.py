"""Steps: find them, look into them, say what one thinks of them."""

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from api.agent_answers import message_answers, types_for
from api.dependencies import (
    CallerDep,
    HundredOldestFirst,
    Moment,
    NewestFirst,
    ProjectDep,
    ServicesDep,
    StepIdPath,
    Texts,
)
from api.direct_route import LateRoute
from api.every_answer import warn_if_pruned
from api.letta.runs import FeedbackRequest, wire_step
from api.letta.traces import wire_step_metrics
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, RunId
from shared.domain.runs import Feedback
from shared.sql.history.message_lists import MessageFilter
from shared.sql.runs.steps import StepFilter

router = APIRouter(prefix="/v1/steps", tags=["steps"], route_class=LateRoute)


async def _step_filter(
    agent_id: str | None = None,
    run_id: str | None = None,
    model: str | None = None,
    start_date: Moment | None = None,
    end_date: Moment | None = None,
    feedback: Feedback | None = None,
    has_feedback: bool | None = None,
    tags: Texts = None,
) -> StepFilter:
    return StepFilter(
        run_id=None if run_id is None else RunId(run_id),
        agent_id=None if agent_id is None else AgentId(agent_id),
        model=model,
        since=start_date,
        until=end_date,
        feedback=feedback,
        has_feedback=has_feedback,
        tags=tags,
    )


@router.get("")
async def list_steps(
    response: Response,
    services: ServicesDep,
    project_id: ProjectDep,
    page: NewestFirst,
    wanted: Annotated[StepFilter, Depends(_step_filter)],
) -> list[dict[str, Any]]:
    """The project's steps; those of one agent or one run if it is named. One of `tags` is enough. Of a pruned run there
    are none, and a `Warning` header says so."""
    found = await services.steps.list(project_id, page, wanted)
    if wanted.run_id is not None and not found:
        with suppress(NotFound):  # a filter that nothing matches is an empty list
            warn_if_pruned(response, await services.runs.get(project_id, wanted.run_id))
    return [wire_step(step) for step in found]


@router.get("/{step_id}")
async def retrieve_step(step_id: StepIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """One step."""
    return wire_step(await services.steps.get(project_id, step_id))


@router.get("/{step_id}/messages")
async def list_step_messages(
    step_id: StepIdPath, services: ServicesDep, caller: CallerDep, page: HundredOldestFirst
) -> list[dict[str, Any]]:
    """The messages that the step added."""
    await services.steps.get(caller.project_id, step_id)
    of = MessageFilter(caller.project_id, step_id=step_id)
    shown = await message_answers(services, of, page, types_for(caller, None))
    return shown if page.ascending else shown[::-1]


@router.get("/{step_id}/metrics")
async def retrieve_step_metrics(step_id: StepIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """How long the step took, its model and its tools. What nobody measured is null."""
    return wire_step_metrics(await services.steps.get(project_id, step_id), project_id)


@router.get("/{step_id}/trace")
async def retrieve_step_trace(step_id: StepIdPath, services: ServicesDep, project_id: ProjectDep) -> None:
    """What was sent to the provider and what it answered: null, because neither is kept. The messages of the step are
    what the model said."""
    await services.steps.get(project_id, step_id)


@router.patch("/{step_id}/feedback")
async def give_feedback(
    step_id: StepIdPath, services: ServicesDep, project_id: ProjectDep, request: FeedbackRequest
) -> dict[str, Any]:
    """Stores what a person thinks of the step; the step. What is left out stays as it is."""
    step = await services.steps.get(project_id, step_id)
    given = request.model_fields_set
    feedback = request.feedback if "feedback" in given else step.feedback
    tags = request.tags or [] if "tags" in given else step.tags
    return wire_step(await services.steps.give_feedback(project_id, step_id, feedback=feedback, tags=tags))
