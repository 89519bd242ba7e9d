"""Webhook endpoints on OpenAI's wire."""

from typing import Literal

from typing_extensions import TypedDict


class WebhookEndpoint(TypedDict):
    """An endpoint. `signing_secret_hint` has the last characters of its secret; times are in Unix seconds."""

    id: str
    object: Literal["webhook_endpoint"]
    created_at: int
    updated_at: int
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str


class WebhookEndpointWithSecret(WebhookEndpoint):
    """An endpoint that was just created, or has a new secret."""

    signing_secret: str


class WebhookEndpointList(TypedDict):
    """A page of endpoints."""

    object: Literal["list"]
    data: list[WebhookEndpoint]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedWebhookEndpoint(TypedDict):
    """The deleted endpoint."""

    id: str
    object: Literal["webhook_endpoint.deleted"]
    deleted: bool


class TestedWebhookEndpoint(TypedDict):
    """The endpoint has answered a sample, with this status."""

    object: Literal["webhook_endpoint.test"]
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: bool


class WebhookEventTypes(TypedDict):
    """The events that an endpoint can receive."""

    object: Literal["list"]
    data: list[str]
