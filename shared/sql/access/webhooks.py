"""Webhook endpoints of projects. The transaction of each change also records it in the audit log."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import ProjectId, WebhookId
from shared.domain.settling import RunOutcome
from shared.domain.webhooks import FORMER_SECRET, MOST_ENDPOINTS, SECRET, WebhookEndpoint
from shared.sql.access.audit import record
from shared.sql.connection import Connection, Filled
from shared.sql.engine import Database
from shared.sql.paging import Page, count_rows, remember_place, rows_of_page
from shared.sql.portable import AdvisoryLock
from shared.sql.tables import from_json, to_json, webhook_endpoints

_SEED = 2
"""Keeps this advisory lock apart from those of other nouns."""
_LOCK = sa.select(AdvisoryLock(sa.func.hashtextextended(sa.bindparam("of_project", type_=sa.Text), _SEED)))

Change = Callable[[WebhookEndpoint], WebhookEndpoint]


class WebhookEndpointStore:
    """Reads and writes endpoints."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, endpoint: WebhookEndpoint) -> WebhookEndpoint:
        """Stores an endpoint. Raises `InvalidRequest` if its project has reached the limit."""
        lock = Filled(_LOCK, {"of_project": endpoint.project_id})
        async with self._database.write(None, lock) as connection:
            if await count_rows(connection, webhook_endpoints, endpoint.project_id) >= MOST_ENDPOINTS:
                raise InvalidRequest(f"The project has {MOST_ENDPOINTS} webhook endpoints, and may not have more")
            await connection.execute(sa.insert(webhook_endpoints).values(_values(endpoint)))
            await record(connection, endpoint.project_id, "webhook.created", endpoint.id)
        return endpoint

    async def get(self, project_id: ProjectId, endpoint_id: WebhookId) -> WebhookEndpoint:
        """One endpoint of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await _load(connection, project_id, endpoint_id)

    async def list(self, project_id: ProjectId, page: Page) -> list[WebhookEndpoint]:
        """A page of the project's endpoints."""
        async with self._database.read() as connection:
            owner = (webhook_endpoints.c.project_id, project_id)
            rows = await rows_of_page(connection, webhook_endpoints, project_id, page, owner=owner)
            return [endpoint_of(row) for row in rows]

    async def update(
        self, project_id: ProjectId, endpoint_id: WebhookId, change: Change, *, act: str, now: datetime
    ) -> WebhookEndpoint:
        """Changes the stored endpoint. Does nothing if `change` does nothing. `act` is the act in the audit log.

        `change` must be quick and pure. Raises `NotFound`.
        """
        async with self._database.write() as connection:
            before = await _load(connection, project_id, endpoint_id, lock=True)
            after = change(before)
            if after == before:
                return before
            after = replace(after, updated_at=now)
            is_it = webhook_endpoints.c.id == endpoint_id
            await connection.execute(sa.update(webhook_endpoints).where(is_it).values(_values(after)))
            await record(connection, project_id, act, endpoint_id)
            return after

    async def delete(self, project_id: ProjectId, endpoint_id: WebhookId) -> None:
        """Deletes an endpoint. Its undelivered events are not sent any more. Raises `NotFound`."""
        async with self._database.write() as connection:
            await _load(connection, project_id, endpoint_id, lock=True)
            await remember_place(connection, webhook_endpoints, endpoint_id)
            await connection.execute(sa.delete(webhook_endpoints).where(webhook_endpoints.c.id == endpoint_id))
            await record(connection, project_id, "webhook.deleted", endpoint_id)


async def _load(
    connection: Connection, project_id: ProjectId, endpoint_id: WebhookId, *, lock: bool = False
) -> WebhookEndpoint:
    is_it = (webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.project_id == project_id)
    query = sa.select(webhook_endpoints).where(*is_it)
    row = (await connection.execute(query.with_for_update() if lock else query)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"Webhook endpoint {endpoint_id} not found")
    return endpoint_of(row)


_FIELDS = WebhookEndpoint.__struct_fields__


def endpoint_of(row: RowMapping) -> WebhookEndpoint:
    """The endpoint of a row."""
    outcomes = from_json(row["outcomes"], list[RunOutcome])
    return WebhookEndpoint(**{name: row[name] for name in _FIELDS if name != "outcomes"}, outcomes=outcomes)


def _values(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {**{name: getattr(endpoint, name) for name in _FIELDS}, "outcomes": to_json(endpoint.outcomes)}


# The stored secrets of endpoints, of all projects, for a change of the encryption key.


class EndpointSecrets(msgspec.Struct, frozen=True):
    """The secrets of one endpoint."""

    number: int
    owner_id: WebhookId
    secrets: dict[str, str]


class EndpointSecretStore:
    """Reads and replaces the stored secrets of endpoints."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def some(self, after: int, limit: int) -> Sequence[EndpointSecrets]:
        """Returns endpoints in the order of their creation, after the number `after`."""
        columns = webhook_endpoints.c
        wanted = sa.select(columns.number, columns.id, columns.secret, columns.former_secret)
        query = wanted.where(columns.number > after).order_by(columns.number).limit(limit)
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return [
                EndpointSecrets(number, endpoint_id, {SECRET: secret, **({FORMER_SECRET: former} if former else {})})
                for number, endpoint_id, secret, former in found
            ]

    async def replace(self, before: EndpointSecrets, secrets: dict[str, str]) -> bool:
        """Stores other texts for the same secrets. Returns False and stores nothing if the secrets were changed since,
        or the endpoint was deleted."""
        columns = webhook_endpoints.c
        is_as_before = (
            columns.secret == before.secrets[SECRET],
            columns.former_secret == before.secrets.get(FORMER_SECRET),
        )
        async with self._database.write() as connection:
            done = await connection.execute(
                sa.update(webhook_endpoints)
                .where(columns.id == before.owner_id, *is_as_before)
                .values(secret=secrets[SECRET], former_secret=secrets.get(FORMER_SECRET))
            )
            return done.rowcount == 1
