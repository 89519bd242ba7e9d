"""Responses: OpenAI's API for agents, under its own prefix and under Holdfast's."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api.dependencies import ProjectDep, ShowsInstructionsDep, SubmissionHeadersDep, served
from api.direct_route import DirectRoute, LateRoute
from api.event_stream import json_answer
from api.openai.response_items_list import ItemsPage, input_items, wire_items
from api.openai.response_items_list import without_instructions as without_instructing
from api.openai.response_object import run_id_of, without_instructions
from api.openai.responses_request import ResponseCompactRequest, ResponseRequest
from api.openai.responses_service import ResponseService
from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import ProjectId
from shared.domain.runs import Run
from shared.sql.runs.run_store import RunStore

ResponseServiceDep = Annotated[ResponseService, served(ResponseService)]
RunStoreDep = Annotated[RunStore, served(RunStore)]

router = APIRouter(tags=["responses"], route_class=LateRoute)
create_router = APIRouter(tags=["responses"], route_class=DirectRoute)


@create_router.post("/openai/v1/responses", response_model=None)
@create_router.post("/v1/responses", response_model=None)
async def create_response(
    request: ResponseRequest,
    responses: ResponseServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
    http: Request,
) -> Response:
    """Creates a response of an agent, or of a model. Answers with the final response, with a stream, or immediately if
    `background` is true.

    A background response goes on when its client disconnects. A foreground response is then cancelled.
    """
    return await responses.create(project_id, request, headers, http)


@create_router.post("/openai/v1/responses/compact", response_model=None)
@create_router.post("/v1/responses/compact", response_model=None)
async def compact(
    request: ResponseCompactRequest,
    responses: ResponseServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
    http: Request,
) -> Response:
    """Summarises the items that the client sends, or the history of a response, which stays unchanged. The client may
    send the output in place of that history."""
    return await responses.compact(project_id, request, headers, http)


@router.post("/openai/v1/responses/input_tokens")
@router.post("/v1/responses/input_tokens")
async def count_input_tokens(
    request: ResponseRequest, responses: ResponseServiceDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Estimates how many tokens the model would receive for this request. The server asks no provider."""
    return {"object": "response.input_tokens", "input_tokens": await responses.count_input(project_id, request)}


@router.get("/openai/v1/responses/{response_id}", response_model=None)
@router.get("/v1/responses/{response_id}", response_model=None)
async def retrieve_response(
    response_id: str,
    responses: ResponseServiceDep,
    run_store: RunStoreDep,
    project_id: ProjectDep,
    shows_instructions: ShowsInstructionsDep,
    stream: bool = False,
    starting_after: str | None = None,
) -> Response:
    """The response in its current state; with `stream`, its stream after the event `starting_after`."""
    run = _seen(await _run(run_store, project_id, response_id), shows_instructions)
    if stream:
        return await responses.stream(run, _cursor(starting_after))
    return await json_answer(await responses.shown(run))


@router.post("/openai/v1/responses/{response_id}/cancel", response_model=None)
@router.post("/v1/responses/{response_id}/cancel", response_model=None)
async def cancel_response(
    response_id: str,
    responses: ResponseServiceDep,
    run_store: RunStoreDep,
    project_id: ProjectDep,
    shows_instructions: ShowsInstructionsDep,
) -> Response:
    """Cancels a background response. A response that has ended is returned unchanged."""
    known = await _run(run_store, project_id, response_id)
    run = _seen(await responses.cancel(project_id, known.id), shows_instructions)
    return await json_answer(await responses.shown(run))


@router.delete("/openai/v1/responses/{response_id}")
@router.delete("/v1/responses/{response_id}")
async def delete_response(
    response_id: str, responses: ResponseServiceDep, run_store: RunStoreDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Deletes a response that has ended. Responses that continued from it keep its messages."""
    run = await _run(run_store, project_id, response_id)
    await responses.delete(project_id, run.id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get("/openai/v1/responses/{response_id}/input_items")
@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    responses: ResponseServiceDep,
    run_store: RunStoreDep,
    project_id: ProjectDep,
    shows_instructions: ShowsInstructionsDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """The input items of the response, newest first unless `order` says otherwise."""
    run = await _run(run_store, project_id, response_id)
    items = input_items(run, await responses.given_to(run))
    shown = items if shows_instructions else without_instructing(items)
    return wire_items(shown, ItemsPage(limit, order == "asc", after))


def _seen(run: Run, shows_instructions: bool) -> Run:
    return run if shows_instructions else without_instructions(run)


async def _run(run_store: RunStore, project_id: ProjectId, response_id: str) -> Run:
    run_id = run_id_of(response_id)
    try:
        if run_id is not None:
            return await run_store.get(project_id, run_id)
    except NotFound:
        pass
    raise NotFound(f"Response with id '{response_id[:100]}' not found.")


def _cursor(starting_after: str | None) -> int | None:
    if starting_after is None:
        return None
    digits = starting_after.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 15:
        raise InvalidRequest("starting_after must be the sequence_number of an event", field="starting_after")
    return int(starting_after)
