"""OpenAI's dialect: chat completions, responses, and webhook endpoints."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from api.callbacks.endpoints import WebhookEndpoints
from api.dependencies import ProjectDep, RunStoreDep, ShowsInstructionsDep, SubmissionHeadersDep, served
from api.direct_route import DirectRoute, LateRoute
from api.event_stream import json_answer
from api.openai.chat_request import ChatRequest
from api.openai.chat_service import ChatService
from api.openai.response_items import ItemsPage, input_items, wire_items
from api.openai.response_items import without_instructions as without_instructing
from api.openai.response_object import DIALECT, run_id_of, without_instructions
from api.openai.responses_request import ResponseCompactRequest, ResponseRequest
from api.openai.responses_service import ResponseService
from api.openai.webhook_endpoints import (
    EVENT_TYPES,
    WebhookCreate,
    WebhookRotate,
    WebhookTest,
    WebhookUpdate,
    outcomes_of,
    shown_deletion,
    shown_endpoint,
    shown_page,
    shown_test,
    shown_with_secret,
)
from api.runs.command import AgentThread, AgentThreads
from shared.domain.errors import InvalidRequest, NotFound, UnknownModel
from shared.domain.ids import UUID4_PATTERN, ProjectId, WebhookId, is_id
from shared.domain.runs import Run
from shared.sql.paging import Page
from shared.sql.runs.run_store import RunStore

AgentThreadsDep = Annotated[AgentThreads, served(AgentThreads)]
ChatServiceDep = Annotated[ChatService, served(ChatService)]

router = APIRouter(tags=["chat"], route_class=LateRoute)


@router.post("/v1/chat/completions", response_model=None)
@router.post("/v1/chat/completions/chat/completions", response_model=None)
@router.post("/openai/v1/chat/completions", response_model=None)
async def create_chat_completion(
    request: ChatRequest,
    chat: ChatServiceDep,
    threads: AgentThreadsDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends the new messages to the agent that `model` names. Answers with the agent's text, whole or streamed.

    A request to a busy history waits in the queue, unless a header sets another policy.
    """
    return await chat.send(await _thread(threads, project_id, request.model), request, headers)


async def _thread(threads: AgentThreads, project_id: ProjectId, model: str) -> AgentThread:
    if not is_id(model, "agent") and not is_id(model, "conv"):
        raise UnknownModel(model)
    try:
        return await threads.find(project_id, model)
    except NotFound as error:
        raise UnknownModel(model) from error


# Responses: OpenAI's API for agents, under its own prefix and under Holdfast's.


ResponseServiceDep = Annotated[ResponseService, served(ResponseService)]

responses_router = APIRouter(tags=["responses"], route_class=LateRoute)
create_responses_router = APIRouter(tags=["responses"], route_class=DirectRoute)


@create_responses_router.post("/openai/v1/responses", response_model=None)
@create_responses_router.post("/v1/responses", response_model=None)
async def create_response(
    request: ResponseRequest,
    responses: ResponseServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
    http: Request,
) -> Response:
    """Creates a response of an agent, or of a model. Answers with the final response, with a stream, or immediately if
    `background` is true.

    A background response goes on when its client disconnects. A foreground response is cancelled then.
    """
    return await responses.create(project_id, request, headers, http)


@create_responses_router.post("/openai/v1/responses/compact", response_model=None)
@create_responses_router.post("/v1/responses/compact", response_model=None)
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


@responses_router.post("/openai/v1/responses/input_tokens")
@responses_router.post("/v1/responses/input_tokens")
async def count_input_tokens(
    request: ResponseRequest, responses: ResponseServiceDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Estimates the number of tokens that the model would receive for this request. The server asks no provider."""
    return {"object": "response.input_tokens", "input_tokens": await responses.count_input(project_id, request)}


@responses_router.get("/openai/v1/responses/{response_id}", response_model=None)
@responses_router.get("/v1/responses/{response_id}", response_model=None)
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


@responses_router.post("/openai/v1/responses/{response_id}/cancel", response_model=None)
@responses_router.post("/v1/responses/{response_id}/cancel", response_model=None)
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


@responses_router.delete("/openai/v1/responses/{response_id}")
@responses_router.delete("/v1/responses/{response_id}")
async def delete_response(
    response_id: str, responses: ResponseServiceDep, run_store: RunStoreDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Deletes a response that has ended. Responses that continued from it keep its messages."""
    run = await _run(run_store, project_id, response_id)
    await responses.delete(project_id, run.id)
    return {"id": response_id, "object": "response", "deleted": True}


@responses_router.get("/openai/v1/responses/{response_id}/input_items")
@responses_router.get("/v1/responses/{response_id}/input_items")
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
    return wire_items(shown, ItemsPage(limit, order == "asc", after or None))


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


# Webhook endpoints of a project, for OpenAI's clients.


WebhooksDep = Annotated[WebhookEndpoints, served(WebhookEndpoints)]
WebhookIdPath = Annotated[WebhookId, Path(pattern=f"^webhook-{UUID4_PATTERN}$")]

webhook_router = APIRouter(prefix="/openai/v1", tags=["webhooks"], route_class=LateRoute)


@webhook_router.post("/webhook_endpoints")
async def create_webhook_endpoint(body: WebhookCreate, webhooks: WebhooksDep, project_id: ProjectDep) -> dict[str, Any]:
    """Creates an endpoint of the project. Only this answer contains its `signing_secret`."""
    outcomes = outcomes_of(body.event_types)
    return shown_with_secret(
        await webhooks.create(project_id, DIALECT, name=body.name, url=body.url, outcomes=outcomes)
    )


@webhook_router.get("/webhook_endpoints")
async def list_webhook_endpoints(
    webhooks: WebhooksDep,
    project_id: ProjectDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """The project's endpoints, newest first."""
    page = Page(limit=limit + 1, after=after or None)
    return shown_page(await webhooks.store.list(project_id, page), limit)


@webhook_router.get("/webhook_endpoints/{webhook_id}")
async def retrieve_webhook_endpoint(
    webhook_id: WebhookIdPath, webhooks: WebhooksDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One endpoint."""
    return shown_endpoint(await webhooks.store.get(project_id, webhook_id))


@webhook_router.post("/webhook_endpoints/{webhook_id}")
async def update_webhook_endpoint(
    webhook_id: WebhookIdPath, body: WebhookUpdate, webhooks: WebhooksDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes an endpoint. Pending deliveries go to the new URL."""
    return shown_endpoint(await webhooks.change(project_id, webhook_id, body.change()))


@webhook_router.delete("/webhook_endpoints/{webhook_id}")
async def delete_webhook_endpoint(
    webhook_id: WebhookIdPath, webhooks: WebhooksDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Deletes an endpoint. It receives no more events."""
    await webhooks.store.delete(project_id, webhook_id)
    return shown_deletion(webhook_id)


@webhook_router.post("/webhook_endpoints/{webhook_id}/rotate_secret")
async def rotate_webhook_secret(
    webhook_id: WebhookIdPath, webhooks: WebhooksDep, project_id: ProjectDep, body: WebhookRotate | None = None
) -> dict[str, Any]:
    """Gives an endpoint a new secret. Only this answer contains it. On request, deliveries are also signed with the old
    secret for a day."""
    overlaps = body is not None and body.keep_old_secret_active_for_24_hours
    return shown_with_secret(await webhooks.rotate_secret(project_id, webhook_id, overlaps=overlaps))


@webhook_router.post("/webhook_endpoints/{webhook_id}/test")
async def test_webhook_endpoint(
    webhook_id: WebhookIdPath, body: WebhookTest, webhooks: WebhooksDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Sends a sample event once, immediately, about a response that does not exist, and returns the receiver's
    status."""
    [outcome] = outcomes_of([body.event_type])
    return shown_test(webhook_id, body.event_type, await webhooks.test(project_id, webhook_id, outcome))


@webhook_router.get("/webhook_event_types")
async def list_webhook_event_types() -> dict[str, Any]:
    """The events that endpoints can receive."""
    return {"object": "list", "data": list(EVENT_TYPES)}
