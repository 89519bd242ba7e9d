"""Chooses the model of an agent or a conversation if its request leaves the choice to the server."""

from typing import TypeVar

import structlog
from fastapi import Response

from api.every_answer import warning_of
from api.letta.agents import AgentFields
from api.letta.conversations import ConversationFields
from api.offered_models import OfferedModels

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
