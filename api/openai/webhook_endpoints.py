"""Webhook endpoints on OpenAI's wire, and the events that they receive: the ends of responses."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool

from api.callbacks.endpoints import EndpointChange, IssuedSecret
from api.openai.response_items import wire_list
from api.openai.response_object import response_id
from shared.domain.settling import RunOutcome
from shared.network.addresses import flaw_of_url
from shared.sql.runs.webhooks import RunEvent, WebhookEndpoint

EventType = Literal["response.completed", "response.failed", "response.cancelled", "response.incomplete"]
EVENT_TYPES: Sequence[EventType] = get_args(EventType)

_OBJECT = "webhook_endpoint"
_OF_RESPONSES = "response."


def _checked_url(url: str) -> str:
    flaw = flaw_of_url(url)
    if flaw is not None:
        raise ValueError(flaw)
    return url


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("has a character that cannot be shown")
    return name


def _each_once(types: list[EventType]) -> list[EventType]:
    return list(dict.fromkeys(types))


EndpointUrl = Annotated[str, Field(max_length=2000), AfterValidator(_checked_url)]
"""An http(s) URL with a host."""
EndpointName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=100), AfterValidator(_each_once)]


class WebhookCreate(BaseModel):
    """The body of `POST /openai/v1/webhook_endpoints`."""

    model_config = ConfigDict(extra="ignore")

    event_types: EventTypes
    name: EndpointName
    url: EndpointUrl


class WebhookUpdate(BaseModel):
    """The body of a change. Omitted fields stay unchanged."""

    model_config = ConfigDict(extra="ignore")

    event_types: EventTypes | None = None
    name: EndpointName | None = None
    url: EndpointUrl | None = None

    def change(self) -> EndpointChange:
        """The change in the domain's terms."""
        outcomes = None if self.event_types is None else outcomes_of(self.event_types)
        return EndpointChange(name=self.name, url=self.url, outcomes=outcomes)


class WebhookRotate(BaseModel):
    """The body of `POST …/rotate_secret`."""

    model_config = ConfigDict(extra="ignore")

    keep_old_secret_active_for_24_hours: StrictBool = False


class WebhookTest(BaseModel):
    """The body of `POST …/test`."""

    model_config = ConfigDict(extra="ignore")

    event_type: EventType


def outcomes_of(types: Sequence[EventType]) -> list[RunOutcome]:
    """The outcomes of runs that trigger these events."""
    return [cast("RunOutcome", one.removeprefix(_OF_RESPONSES)) for one in types]


def response_event(event: RunEvent) -> dict[str, Any]:
    """The body of an event."""
    return {
        "id": response_id(event.run_id).replace("resp_", "evt_"),
        "object": "event",
        "created_at": _seconds(event.at),
        "type": f"{_OF_RESPONSES}{event.outcome}",
        "data": {"id": response_id(event.run_id)},
    }


def shown_endpoint(endpoint: WebhookEndpoint) -> dict[str, Any]:
    """An endpoint, without its secret."""
    return {
        "id": endpoint.id,
        "object": _OBJECT,
        "created_at": _seconds(endpoint.created_at),
        "updated_at": _seconds(endpoint.updated_at),
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": [f"{_OF_RESPONSES}{outcome}" for outcome in endpoint.outcomes],
        "signing_secret_hint": f"whsec_…{endpoint.secret_hint}",
    }


def shown_with_secret(issued: IssuedSecret) -> dict[str, Any]:
    """An endpoint with its new secret."""
    return {**shown_endpoint(issued.endpoint), "signing_secret": issued.secret}


def shown_page(found: Sequence[WebhookEndpoint], limit: int) -> dict[str, Any]:
    """A page of a list. `found` has one entry more than the page if the list goes on."""
    return wire_list([shown_endpoint(endpoint) for endpoint in found], limit)


def shown_deletion(endpoint_id: str) -> dict[str, Any]:
    """The answer to a deletion."""
    return {"id": endpoint_id, "object": f"{_OBJECT}.deleted", "deleted": True}


def shown_test(endpoint_id: str, event_type: EventType, status_code: int) -> dict[str, Any]:
    """The result of a sample: `success` means that the receiver answered, with any status."""
    return {
        "object": f"{_OBJECT}.test",
        "webhook_endpoint_id": endpoint_id,
        "event_type": event_type,
        "status_code": status_code,
        "success": True,
    }


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())
