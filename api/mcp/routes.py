"""The route of the protocol: one path, to which clients post each message."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response

from api.dependencies import CallerDep, SubmissionHeadersDep, served
from api.direct_route import LateRoute
from api.mcp.service import McpService, Posted

McpServiceDep = Annotated[McpService, served(McpService)]

router = APIRouter(tags=["mcp"], route_class=LateRoute)


BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "title": "McpRequest",
                    "description": "A request or a notification of JSON-RPC, by the protocol's specification.",
                    "type": "object",
                    "required": ["jsonrpc", "method"],
                    "properties": {
                        "jsonrpc": {"const": "2.0", "type": "string"},
                        "id": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                        "method": {"type": "string"},
                        "params": {"type": "object", "additionalProperties": True},
                    },
                }
            }
        },
    }
}
"""The request body in OpenAPI. The official package's rules read the body itself."""


TAKEN: dict[int | str, dict[str, Any]] = {202: {"description": "A notification was taken."}}


@router.post("/mcp", response_model=None, openapi_extra=BODY, responses=TAKEN)
async def answer_mcp(
    request: Request,
    mcp: McpServiceDep,
    caller: CallerDep,
    headers: SubmissionHeadersDep,
    hang_up: Literal["continue", "cancel"] = "continue",
) -> Response:
    """Answers one message of the Model Context Protocol: the project's agents are its tools.

    `hang_up` decides what happens to a call's run when its client closes the connection (from 2026-07-28 on)."""
    posted = Posted(request.headers.items(), await request.body(), hang_up == "cancel")
    return await mcp.answer(caller, headers, posted)
