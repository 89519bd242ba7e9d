"""Whether the server lives, and whether it can work."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.dependencies import ServicesDep
from shared.process.version import VERSION

router = APIRouter(tags=["health"])


@router.get("/v1/health")
async def health() -> dict[str, str]:
    """Letta's health check: the process answers."""
    return {"version": VERSION, "status": "ok"}


@router.get("/healthz")
async def live() -> dict[str, str]:
    """Liveness. It does not look at the database or Redis, because a restart of this process would not mend them."""
    return {"status": "ok"}


@router.get("/readyz", response_model=None)
async def ready(services: ServicesDep) -> JSONResponse:
    """Readiness: 503 while a service that the API needs is away; the body names it."""
    answers = await services.readiness()
    is_ready = all(answers.values())
    body: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "services": dict(answers)}
    return JSONResponse(body, 200 if is_ready else 503)
