"""The application: its routes and the middlewares around them."""

from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from api.access.authentication import Authentication
from api.admission import Admission
from api.ag_ui import routes as ag_ui
from api.ai_sdk import routes as ai_sdk
from api.ai_sdk.chats import ai_sdk_error
from api.console import static_files
from api.direct_route import RouteIndex
from api.errors import SHOULD_RETRY, ErrorShapes, add_error_answers
from api.every_answer import EveryAnswer, UnusedInputWarnings
from api.gate import BrowserGuard, Gate, LettaPaths
from api.letta.refusals import letta_error
from api.letta.routes import (
    agent_files,
    agents,
    conversations,
    groups,
    mcp_servers,
    memory,
    messages,
    models,
    run_effects,
    runs,
    tools,
    unsupported_resources,
)
from api.mcp import routes as mcp
from api.mcp.messages import SESSION_HEADER, mcp_error
from api.openai import conversation_routes
from api.openai import routes as openai
from api.openai.chat_request import openai_error
from api.openai.response_object import responses_error
from api.openapi_document import describe_truly
from api.pages import routes as pages
from api.pages.decisions import PAGE_ERROR, UI_MESSAGE_STREAM
from api.request_input import BodyReader, RequestInput, StrictRequests
from api.request_log import HEADER as REQUEST_ID
from api.request_log import RequestRecord
from api.routes import admin, approvals, code_agents, health
from api.runs.streaming import CONTINUED_BY
from api.services import Services
from shared.process.importing import VERSION
from shared.process.settings import listed

ROUTERS = (
    health.router, agents.router, agent_files.router, agents.tools_router, agents.blocks_router, memory.archival_router,
    tools.router, memory.blocks_router, memory.router, memory.passages_router, memory.tags_router, models.router,
    conversations.router, conversations.messages_router, conversations.contexts_router,
    messages.router, messages.project_router,
    openai.create_responses_router, openai.responses_router, conversation_routes.router, openai.router,
    runs.router, runs.steps_router, code_agents.router, runs.events_router, run_effects.router,
    approvals.router, groups.router, groups.agent_router,
    unsupported_resources.router,
    mcp_servers.router, mcp_servers.agent_router, mcp_servers.named_router, mcp_servers.oauth_router,
    mcp.router, pages.router, ag_ui.run_router, ag_ui.router, ai_sdk.create_router, ai_sdk.router,
    openai.webhook_router, admin.router, admin.operations_router, static_files.router,
)  # fmt: skip

PREFLIGHT_S = 7200
"""Seconds for which a browser may cache the answer to a preflight. Chrome caches none longer."""

EXPOSED = (
    *("Retry-After", "Warning", SHOULD_RETRY, REQUEST_ID, CONTINUED_BY, SESSION_HEADER),
    *(UI_MESSAGE_STREAM, PAGE_ERROR),
)
"""The headers of answers that a page of another origin may read."""

ERROR_SHAPES: ErrorShapes = {
    "/": letta_error,
    "/v1/chat/": openai_error,
    "/openai/": responses_error,
    "/openai/v1/chat/": openai_error,
    "/openai/v1/models": openai_error,
    "/v1/responses": responses_error,
    "/mcp": mcp_error,
    "/ai-sdk/": ai_sdk_error,
}


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of a server with API keys. It needs no running server."""
    app = _with_routes(openapi_url=None)
    describe_truly(app, keys_are_required=True)
    return app.openapi()


def _with_routes(*, openapi_url: str | None) -> FastAPI:
    app = FastAPI(
        title="Holdfast",
        version=VERSION,
        redirect_slashes=False,
        openapi_url=openapi_url,
        docs_url=None,
        redoc_url=None,
    )
    for router in ROUTERS:
        # The routes are added as they are. `include_router` would analyse every route again for this app, which takes a
        # tenth of a second.
        app.router.routes.extend(router.routes)
    return app


def create_app(services: Services, *, admission: Admission, has_keys: bool) -> FastAPI:
    """The API over these services. The caller that constructed the services closes them. `has_keys`: the server
    requires API keys when it starts."""
    settings, access = services.settings, services.access
    has_docs = settings.docs == "on" or (settings.docs == "auto" and not has_keys)
    app = _with_routes(openapi_url="/openapi.json" if has_docs else None)
    app.state.services, app.state.served = services, services.by_type()
    if has_docs:
        app.router.routes.extend(static_files.documentation.routes)
    app.router.routes.insert(0, RouteIndex(app.router.routes))
    add_error_answers(app, ERROR_SHAPES)
    describe_truly(app, keys_are_required=has_keys)
    origins = listed(settings.cors_origins)
    installs_packages = services.packages.are_built
    # The middleware that is added last sees a request first.
    app.add_middleware(
        RequestInput,
        bodies=BodyReader(max_bytes=settings.max_body_bytes, timeout_s=settings.request_timeout),
        admission=admission,
        reach=access.reach,
        strict=StrictRequests(
            routes=app.router.routes, by_default=settings.strict_requests, installs_packages=installs_packages
        ),
        warnings=UnusedInputWarnings(installs_packages=installs_packages),
    )
    app.add_middleware(
        Gate,
        guard=BrowserGuard(keys=access.keys, names=listed(settings.allowed_hosts), origins=origins),
        paths=LettaPaths(
            lists=[*unsupported_resources.router.routes, *groups.router.routes, *groups.agent_router.routes]
        ),
        authentication=Authentication(access=access, routes=app.router.routes),
        quotas=services.quotas,
    )
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
            max_age=PREFLIGHT_S,
        )
    app.add_middleware(EveryAnswer)
    app.add_middleware(
        RequestRecord,
        clock=services.clock,
        metrics=services.operations.deployment_stats.metrics.api,
        proxies=access.proxies,
        routes=app.router.routes,
        is_on=settings.access_log,
    )
    return app
