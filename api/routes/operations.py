"""What the deployment does and how it is, and the callbacks that were not delivered. For keys with the scope `admin`.

Workers, API processes and the queue are those of the whole deployment, with no name of another project. Runs and
callbacks are the caller's project's.
"""

from typing import Any

from fastapi import APIRouter

from api.dependencies import NewestFirst, ProjectDep, RunIdPath, ServicesDep
from api.direct_route import LateRoute
from api.letta.admin import wire_open_callback, wire_operations

router = APIRouter(prefix="/v1/admin", tags=["admin"], route_class=LateRoute)


@router.get("/operations")
async def show_operations(services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """What this deployment does now and did in the last hour. What a service that is away would know is null, and the
    answer is a 200 all the same."""
    return wire_operations(await services.operations.look(project_id, await services.readiness.everything.look()))


@router.get("/callbacks")
async def list_callbacks(services: ServicesDep, project_id: ProjectDep, page: NewestFirst) -> list[dict[str, Any]]:
    """The project's callbacks that wait or were given up. Cursors are ids of runs."""
    callbacks = await services.operations.callbacks.list_open(project_id, page)
    return [wire_open_callback(callback) for callback in callbacks]


@router.post("/callbacks/{run_id}/retry")
async def retry_callback(run_id: RunIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """Makes a callback due now, also one that was given up: that one gets one more attempt."""
    now = services.clock.now()
    return wire_open_callback(await services.operations.callbacks.retry(project_id, run_id, now))
