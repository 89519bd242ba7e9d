"""The server's description, its liveness and its readiness."""

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator

from api.dependencies import served
from api.direct_route import LateRoute
from api.operations import Operations
from shared.process.importing import VERSION
from shared.process.service_answers import RETRY_AFTER_S, Readiness, not_ready, what_is_missing
from shared.telemetry.metrics import CONTENT_TYPE

OperationsDep = Annotated[Operations, served(Operations)]
ReadinessDep = Annotated[Readiness, served(Readiness)]

router = APIRouter(tags=["health"], route_class=LateRoute)

LETTA_VERSION = "0.16.8"
"""The release of Letta's server whose API this is. Letta Code asks its users to update a server with an older release
than Letta Code knows."""


def _said(value: object) -> object:
    """`?full` means `?full=true`."""
    return True if value == "" else value


FullQuery = Annotated[bool, BeforeValidator(_said), Query()]


@router.get("/")
async def index(request: Request) -> dict[str, str]:
    """Links for a person who opens the address in a browser."""
    app: FastAPI = request.app
    return {
        "name": "Holdfast",
        "version": VERSION,
        "console": "/console",
        "paths": "/docs" if app.openapi_url else "docs/api.md; HOLDFAST_DOCS=on serves them at /docs",
        "health": "/v1/health",
        "readiness": "/readyz",
        "documentation": "README.md and docs/ of Holdfast's source; begin with docs/concepts.md",
    }


@router.get("/v1/health")
async def health() -> dict[str, str]:
    """Letta's health check: the process answers. Clients read from `version` which API to expect."""
    return {"version": LETTA_VERSION, "status": "ok", "holdfast_version": VERSION}


@router.get("/metrics", include_in_schema=False)
async def metrics(operations: OperationsDep) -> Response:
    """The metrics of this process, for Prometheus. Needs the scope `admin` if the server has keys."""
    return Response(await operations.deployment_stats.exposition(), media_type=CONTENT_TYPE)


@router.get("/healthz")
async def live() -> dict[str, str]:
    """Liveness. It checks neither the database nor Redis, because a restart of this process would not repair them."""
    return {"status": "ok"}


@router.get("/readyz", response_model=None)
async def ready(readiness: ReadinessDep, operations: OperationsDep, full: FullQuery = False) -> JSONResponse:
    """Readiness: 503 while this process cannot answer, because the database does not. Redis and the workers may be
    away: the API then answers requests, and stores runs that begin later.

    `?full` checks the whole deployment: 503 while the database, its schema, Redis or the last worker is missing. The
    body names the missing part, with null for unknown states. `sandbox` is the weakest tool isolation among the live
    workers; `javascript`: whether a worker runs tools in JavaScript.
    """
    answers = await (readiness.everything if full else readiness.itself).look()
    is_ready = all(answers.values())
    body: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "services": dict(answers)}
    if full:
        shown = operations.tool_presence
        body |= {
            "sandbox": await shown.weakest_sandbox() if answers["redis"] else None,
            "javascript": await shown.runs_javascript() if answers["redis"] else None,
        }
    if is_ready:
        return JSONResponse(body)
    return JSONResponse(body | not_ready(what_is_missing(answers)), 503, {"Retry-After": str(RETRY_AFTER_S)})
