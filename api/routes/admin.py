"""Administration of a project: its keys, and its audit log. For keys with the scope `admin`."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from api.access.accepted_keys import KeyIssuer
from api.access.authentication import Access
from api.dependencies import CallerDep, ClockDep, NewestFirst, ProjectDep, RunIdPath, served
from api.direct_route import LateRoute
from api.letta.admin import (
    KeyCreate,
    KeyRotate,
    wire_audit_event,
    wire_key,
    wire_open_callback,
    wire_open_delivery,
    wire_operations,
    wire_status,
)
from api.letta.messages import AwareMoment
from api.operations import Operations
from shared.domain.api_keys import DEFAULT_GRACE_S
from shared.domain.ids import UUID4_PATTERN, KeyId, WebhookId
from shared.process.importing import VERSION
from shared.process.service_answers import Readiness
from shared.sql.access.audit import AuditFilter

AccessDep = Annotated[Access, served(Access)]
KeyIssuerDep = Annotated[KeyIssuer, served(KeyIssuer)]
OperationsDep = Annotated[Operations, served(Operations)]
ReadinessDep = Annotated[Readiness, served(Readiness)]

router = APIRouter(prefix="/v1/admin", tags=["admin"], route_class=LateRoute)

KeyIdPath = Annotated[KeyId, Path(pattern=f"^key-{UUID4_PATTERN}$")]
WebhookIdPath = Annotated[WebhookId, Path(pattern=f"^webhook-{UUID4_PATTERN}$")]
Word = Annotated[str | None, Query(max_length=200)]


@router.post("/keys")
async def create_key(
    body: KeyCreate, issuer: KeyIssuerDep, access: AccessDep, clock: ClockDep, caller: CallerDep
) -> dict[str, Any]:
    """Creates a key of the project. Only this answer contains its secret, `key`."""
    issued = await issuer.create(
        caller.project_id, body.name, body.scopes, expires_at=body.expires_at, by=caller.key_id
    )
    access.keys.forget()
    return {**wire_key(issued.key, clock.now()), "key": issued.secret}


@router.get("/keys")
async def list_keys(
    clock: ClockDep, issuer: KeyIssuerDep, project_id: ProjectDep, page: NewestFirst
) -> list[dict[str, Any]]:
    """The project's keys, including those that have ended."""
    now = clock.now()
    return [wire_key(key, now) for key in await issuer.keys.list(project_id, page)]


@router.get("/keys/{key_id}")
async def retrieve_key(
    key_id: KeyIdPath, issuer: KeyIssuerDep, clock: ClockDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One key."""
    return wire_key(await issuer.keys.get(project_id, key_id), clock.now())


@router.delete("/keys/{key_id}")
async def revoke_key(
    key_id: KeyIdPath, clock: ClockDep, issuer: KeyIssuerDep, access: AccessDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Revokes a key for ever, and the stream tokens that were created with it. This process refuses the key at once,
    all other processes within five seconds."""
    now = clock.now()
    key = await issuer.keys.revoke(project_id, key_id, now)
    access.keys.forget()
    return wire_key(key, now)


@router.post("/keys/{key_id}/rotate")
async def rotate_key(
    key_id: KeyIdPath,
    issuer: KeyIssuerDep,
    access: AccessDep,
    clock: ClockDep,
    project_id: ProjectDep,
    body: KeyRotate | None = None,
) -> dict[str, Any]:
    """Gives a key a new secret. Only this answer contains it. The old secret stays valid for `grace_s` seconds, a day
    by default."""
    grace_s = DEFAULT_GRACE_S if body is None or body.grace_s is None else body.grace_s
    issued = await issuer.rotate(project_id, key_id, grace_s)
    access.keys.forget()
    return {**wire_key(issued.key, clock.now()), "key": issued.secret}


@router.get("/status")
async def show_status(operations: OperationsDep, readiness: ReadinessDep) -> dict[str, Any]:
    """This deployment's version, the state of the services that it needs, and the tool isolation of its live workers.
    `sandbox` is the weakest isolation, `javascript` whether any worker runs tools in JavaScript; null if no worker has
    reported it."""
    shown = operations.tool_presence
    answers = await readiness.everything.look()
    return wire_status(VERSION, answers, await shown.sandboxes(), await shown.runs_javascript())


@router.get("/audit")
async def list_audit_events(
    access: AccessDep,
    project_id: ProjectDep,
    page: NewestFirst,
    action: Word = None,
    key_id: Word = None,
    object_id: Word = None,
    since: AwareMoment | None = None,
    until: AwareMoment | None = None,
) -> list[dict[str, Any]]:
    """The actions of callers in the project: administration, and decisions."""
    wanted = AuditFilter(action=action, key_id=key_id, object_id=object_id, since=since, until=until)
    return [wire_audit_event(event) for event in await access.audit.list(project_id, wanted, page)]


operations_router = APIRouter(prefix="/v1/admin", tags=["admin"], route_class=LateRoute)


@operations_router.get("/operations")
async def show_operations(operations: OperationsDep, readiness: ReadinessDep, project_id: ProjectDep) -> dict[str, Any]:
    """The activity of this deployment now and within the last hour. Values of a service that is away are null, and the
    answer is still a 200."""
    return wire_operations(await operations.look(project_id, await readiness.everything.look()))


@operations_router.get("/callbacks")
async def list_callbacks(operations: OperationsDep, project_id: ProjectDep, page: NewestFirst) -> list[dict[str, Any]]:
    """The project's callbacks that wait or were given up. Cursors are ids of runs."""
    callbacks = await operations.callbacks.list_open(project_id, page)
    return [wire_open_callback(callback) for callback in callbacks]


@operations_router.post("/callbacks/{run_id}/retry")
async def retry_callback(
    run_id: RunIdPath, clock: ClockDep, operations: OperationsDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Makes a callback due now. A callback that was given up gets one more attempt."""
    now = clock.now()
    return wire_open_callback(await operations.callbacks.retry(project_id, run_id, now))


@operations_router.get("/webhooks")
async def list_webhook_deliveries(
    operations: OperationsDep, project_id: ProjectDep, page: NewestFirst
) -> list[dict[str, Any]]:
    """Events that the project's webhook endpoints have not received: deliveries that wait or were given up. Cursors are
    ids of deliveries."""
    return [wire_open_delivery(one) for one in await operations.webhooks.list_open(project_id, page)]


@operations_router.post("/webhooks/{run_id}/{webhook_id}/retry")
async def retry_webhook_delivery(
    run_id: RunIdPath, webhook_id: WebhookIdPath, clock: ClockDep, operations: OperationsDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Makes a delivery due now. A delivery that was given up gets one more attempt."""
    return wire_open_delivery(await operations.webhooks.retry(project_id, run_id, webhook_id, clock.now()))
