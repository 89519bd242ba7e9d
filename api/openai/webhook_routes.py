"""Webhook endpoints of a project, for OpenAI's clients."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from api.callbacks.endpoints import WebhookEndpoints
from api.dependencies import ProjectDep, served
from api.direct_route import LateRoute
from api.openai.response_object import DIALECT
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
from shared.domain.ids import UUID4_PATTERN, WebhookId
from shared.sql.paging import Page

WebhooksDep = Annotated[WebhookEndpoints, served(WebhookEndpoints)]
WebhookIdPath = Annotated[WebhookId, Path(pattern=f"^webhook-{UUID4_PATTERN}$")]

router = APIRouter(prefix="/openai/v1", tags=["webhooks"], route_class=LateRoute)


@router.post("/webhook_endpoints")
async def create_webhook_endpoint(body: WebhookCreate, webhooks: WebhooksDep, project_id: ProjectDep) -> dict[str, Any]:
    """Creates an endpoint of the project. Only this answer contains its `signing_secret`."""
    outcomes = outcomes_of(body.event_types)
    return shown_with_secret(
        await webhooks.create(project_id, DIALECT, name=body.name, url=body.url, outcomes=outcomes)
    )


@router.get("/webhook_endpoints")
async def list_webhook_endpoints(
    webhooks: WebhooksDep,
    project_id: ProjectDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """The project's endpoints, newest first."""
    page = Page(limit=limit + 1, after=after or None)
    return shown_page(await webhooks.store.list(project_id, page), limit)


@router.get("/webhook_endpoints/{webhook_id}")
async def retrieve_webhook_endpoint(
    webhook_id: WebhookIdPath, webhooks: WebhooksDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One endpoint."""
    return shown_endpoint(await webhooks.store.get(project_id, webhook_id))


@router.post("/webhook_endpoints/{webhook_id}")
async def update_webhook_endpoint(
    webhook_id: WebhookIdPath, body: WebhookUpdate, webhooks: WebhooksDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes an endpoint. Pending deliveries go to the new URL."""
    return shown_endpoint(await webhooks.change(project_id, webhook_id, body.change()))


@router.delete("/webhook_endpoints/{webhook_id}")
async def delete_webhook_endpoint(
    webhook_id: WebhookIdPath, webhooks: WebhooksDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Deletes an endpoint. It receives no more events."""
    await webhooks.store.delete(project_id, webhook_id)
    return shown_deletion(webhook_id)


@router.post("/webhook_endpoints/{webhook_id}/rotate_secret")
async def rotate_webhook_secret(
    webhook_id: WebhookIdPath, webhooks: WebhooksDep, project_id: ProjectDep, body: WebhookRotate | None = None
) -> dict[str, Any]:
    """Gives an endpoint a new secret. Only this answer contains it. If the body asks for it, deliveries are signed with
    the old secret as well for a day."""
    overlaps = body is not None and body.keep_old_secret_active_for_24_hours
    return shown_with_secret(await webhooks.rotate_secret(project_id, webhook_id, overlaps=overlaps))


@router.post("/webhook_endpoints/{webhook_id}/test")
async def test_webhook_endpoint(
    webhook_id: WebhookIdPath, body: WebhookTest, webhooks: WebhooksDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Sends a sample event once, immediately, about a response that does not exist, and returns the receiver's
    status."""
    [outcome] = outcomes_of([body.event_type])
    return shown_test(webhook_id, body.event_type, await webhooks.test(project_id, webhook_id, outcome))


@router.get("/webhook_event_types")
async def list_webhook_event_types() -> dict[str, Any]:
    """The events that endpoints can receive."""
    return {"object": "list", "data": list(EVENT_TYPES)}
