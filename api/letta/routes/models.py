"""The models for agents."""

from typing import Annotated, Any, TypeVar

import structlog
from fastapi import APIRouter, Response

from api.dependencies import EnvironmentDep, OfferedModelsDep, ProjectDep, Texts, served
from api.direct_route import LateRoute
from api.every_answer import warning_of
from api.letta.agents import AgentFields
from api.letta.conversations import ConversationFields
from api.letta.model_settings import wire_embeddings, wire_models
from api.offered_models import OfferedModels
from shared.network.server_models import ServerModels

ServerModelsDep = Annotated[ServerModels, served(ServerModels)]

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=LateRoute)


@router.get("")
async def list_models(
    server_models: ServerModelsDep,
    offered: OfferedModelsDep,
    _project_id: ProjectDep,
    response: Response,
    provider_name: str | None = None,
    provider_type: str | None = None,
    provider_category: Texts = None,
) -> list[dict[str, Any]]:
    """The models of the configured providers, and the built-in models if they are enabled; the default first.

    The server asks gateways, Ollama, vLLM and LM Studio for their lists. A `Warning` header names those that did not
    answer.
    """
    found = await server_models.found()
    if found.notes:
        response.headers.append("Warning", warning_of(found.notes))
    wanted = {"provider_name": provider_name, "provider_type": provider_type}
    return [
        model
        for model in wire_models(offered, found)
        if all(value is None or model[key] == value for key, value in wanted.items())
        and (not provider_category or model["provider_category"] in provider_category)
    ]


@router.get("/embedding")
async def list_embedding_models(environment: EnvironmentDep, _project_id: ProjectDep) -> list[dict[str, Any]]:
    """The embedding models of the configured providers."""
    return wire_embeddings(environment)


# Chooses the model of an agent or a conversation if its request leaves the choice to the server.


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


Body = TypeVar("Body", bound=AgentFields | ConversationFields)


def with_served_model(body: Body, models: OfferedModels, response: Response) -> Body:
    """The request with the model that its handle stands for on this server. If that is another model, the answer's
    `Warning` header and the log say so. Raises `InvalidRequest` as `OfferedModels.served` does."""
    asked = body.handle()
    served = models.served(asked)
    if served == asked:
        return body
    said = f"the model {asked} is {served} here"
    response.headers.append("Warning", warning_of([said]))
    log.warning("model_is_another", asked=asked, served=served)
    return body.model_copy(update={"model": served})
