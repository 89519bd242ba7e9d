"""Webhook endpoints: creates, changes and tests them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from api.callbacks.delivery import ATTEMPT_S, PLAIN_HEADERS
from api.callbacks.outboxes import EventShape, Letter, keys_of_endpoint, written, written_secret
from shared.concurrency import Clock
from shared.domain.errors import InvalidRequest, UnreadableSecret
from shared.domain.ids import IdMaker, ProjectId, WebhookId
from shared.domain.settling import RunOutcome
from shared.network.addresses import ForbiddenAddress
from shared.network.checked_http import CallersHttp, Unreachable
from shared.secret_keys import SecretKeys
from shared.sql.runs.webhooks import (
    FORMER_SECRET,
    SECRET,
    SECRET_OVERLAP,
    RunEvent,
    WebhookEndpoint,
    WebhookEndpointStore,
)

SECRET_BYTES = 32
HINT_CHARACTERS = 4


@dataclass(frozen=True)
class IssuedSecret:
    """An endpoint with its secret, which no later answer contains."""

    endpoint: WebhookEndpoint
    secret: str


@dataclass(frozen=True)
class EndpointChange:
    """The changes of a request. None: the field stays."""

    name: str | None = None
    url: str | None = None
    outcomes: Sequence[RunOutcome] | None = None


@dataclass(frozen=True, kw_only=True)
class WebhookEndpoints:
    """Operations on a project's endpoints for its callers."""

    store: WebhookEndpointStore
    shapes: Mapping[str, EventShape]
    """Renderers of events, by the names of the dialects that have endpoints."""
    secret_keys: SecretKeys
    http: CallersHttp
    clock: Clock
    ids: IdMaker
    random: Callable[[int], bytes]

    async def create(
        self, project_id: ProjectId, dialect: str, *, name: str, url: str, outcomes: Sequence[RunOutcome]
    ) -> IssuedSecret:
        """Creates an endpoint. Raises as `WebhookEndpointStore.create`."""
        endpoint_id, now, secret = self.ids.webhook(), self.clock.now(), self._new_secret()
        endpoint = WebhookEndpoint(
            id=endpoint_id,
            project_id=project_id,
            dialect=dialect,
            name=name,
            url=url,
            outcomes=outcomes,
            secret=self.secret_keys.seal(endpoint_id, SECRET, secret),
            secret_hint=secret[-HINT_CHARACTERS:],
            created_at=now,
            updated_at=now,
        )
        return IssuedSecret(await self.store.create(endpoint), secret)

    async def change(self, project_id: ProjectId, endpoint_id: WebhookId, wanted: EndpointChange) -> WebhookEndpoint:
        """Changes the given fields. Raises `NotFound`."""

        def changed(before: WebhookEndpoint) -> WebhookEndpoint:
            return replace(
                before,
                name=before.name if wanted.name is None else wanted.name,
                url=before.url if wanted.url is None else wanted.url,
                outcomes=before.outcomes if wanted.outcomes is None else list(wanted.outcomes),
            )

        return await self.store.update(project_id, endpoint_id, changed, act="webhook.changed", now=self.clock.now())

    async def rotate_secret(self, project_id: ProjectId, endpoint_id: WebhookId, *, overlaps: bool) -> IssuedSecret:
        """Gives the endpoint a new secret. With an overlap, both secrets sign deliveries for `SECRET_OVERLAP`;
        otherwise only the new secret signs. Raises `NotFound`."""
        now, secret = self.clock.now(), self._new_secret()

        def rotated(before: WebhookEndpoint) -> WebhookEndpoint:
            former = self._as_former(before) if overlaps else None
            return replace(
                before,
                secret=self.secret_keys.seal(before.id, SECRET, secret),
                secret_hint=secret[-HINT_CHARACTERS:],
                former_secret=former,
                former_until=None if former is None else now + SECRET_OVERLAP,
            )

        endpoint = await self.store.update(project_id, endpoint_id, rotated, act="webhook.rotated", now=now)
        return IssuedSecret(endpoint, secret)

    async def test(self, project_id: ProjectId, endpoint_id: WebhookId, outcome: RunOutcome) -> int:
        """Sends a sample of this event and returns the answer's status. Raises `NotFound`, and `InvalidRequest` if the
        receiver does not answer, or if callers must not send requests to its address."""
        endpoint, now = await self.store.get(project_id, endpoint_id), self.clock.now()
        try:
            keys = keys_of_endpoint(endpoint, self.secret_keys, now)
        except UnreadableSecret as error:
            raise InvalidRequest(f"{error.message}: rotate the endpoint's secret") from error
        sample = RunEvent(self.ids.run(), outcome, now)
        letter = Letter(self.ids.webhook(), written(self.shapes[endpoint.dialect](sample)), keys)
        try:
            async with asyncio.timeout(ATTEMPT_S):
                return await self.http.post(endpoint.url, letter.body, {**PLAIN_HEADERS, **letter.headers(now)})
        except TimeoutError as error:
            raise InvalidRequest(f"The endpoint has not answered within {ATTEMPT_S:.0f} s") from error
        except (ForbiddenAddress, Unreachable) as error:
            raise InvalidRequest(f"The endpoint cannot be reached: {error}") from error

    def _new_secret(self) -> str:
        return written_secret(self.random(SECRET_BYTES))

    def _as_former(self, endpoint: WebhookEndpoint) -> str | None:
        """The current secret in the form in which it is stored beside its successor. None if it cannot be decrypted and
        so could not sign."""
        try:
            secret = self.secret_keys.open(endpoint.id, SECRET, endpoint.secret)
        except UnreadableSecret:
            return None
        return self.secret_keys.seal(endpoint.id, FORMER_SECRET, secret)
