"""Webhook endpoints of projects, and the outbox of deliveries to them. The transaction that ends a run writes a row for
each endpoint that subscribes to the event (see `settlement`), and the API delivers it."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.domain.errors import Conflict, InvalidRequest, NotFound
from shared.domain.ids import ProjectId, RunId, WebhookId
from shared.domain.operations import OpenDelivery
from shared.domain.settling import RunOutcome
from shared.secret_keys import StoredSecrets
from shared.sql.access.audit import record
from shared.sql.connection import Connection, Filled
from shared.sql.engine import Store
from shared.sql.paging import Page, count_rows, remember_place, rows_of_page
from shared.sql.portable import AdvisoryLock
from shared.sql.run_tables import webhook_deliveries
from shared.sql.runs.callbacks import any_due, claim_rows, is_open
from shared.sql.tables import fields_of, from_json, to_json, webhook_endpoints

MOST_ENDPOINTS = 20
"""The most endpoints of a project. The end of a run writes a row for each endpoint that receives it."""

SECRET_OVERLAP = timedelta(hours=24)
"""How long the former secret signs as well, if a rotation's caller wants that."""

SECRET, FORMER_SECRET = "signing_secret", "former_signing_secret"
"""The names of an endpoint's secrets: an encrypted secret is bound to its name."""


class WebhookEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An address, and the outcomes whose events it receives."""

    id: WebhookId
    project_id: ProjectId
    dialect: str
    """The dialect of the endpoint's creation. The endpoint receives events of runs submitted in the same dialect."""
    name: str
    url: str
    outcomes: Sequence[RunOutcome]
    secret: str
    """The stored secret, which signs deliveries, in the form that libraries of Standard Webhooks take. Encrypted if
    there is a key (`SecretKeys`)."""
    secret_hint: str
    """The last characters of the secret."""
    former_secret: str | None = None
    former_until: datetime | None = None
    """The time until which the former secret signs as well."""
    created_at: datetime
    updated_at: datetime

    def secrets_at(self, now: datetime) -> dict[str, str]:
        """The stored secrets that sign now, by the names to which they are bound, the newest first."""
        if self.former_secret is None or self.former_until is None or self.former_until <= now:
            return {SECRET: self.secret}
        return {SECRET: self.secret, FORMER_SECRET: self.former_secret}


class RunEvent(NamedTuple):
    """An event for an endpoint: a run, its outcome, and the time of its end."""

    run_id: RunId
    outcome: RunOutcome
    at: datetime


_ANY_DUE = any_due(webhook_deliveries)

IS_OPEN = is_open(webhook_deliveries)

_SHOWN = ("run_id", "endpoint_id", "outcome", "attempts", "next_attempt_at", "last_status_code", "last_error")
_OPEN = [webhook_deliveries.c[name] for name in (*_SHOWN, "created_at")]


class WebhookDelivery(NamedTuple):
    """A delivery that is due; `attempts` counts the attempts so far."""

    run_id: RunId
    endpoint_id: WebhookId
    project_id: ProjectId
    attempts: int
    event: RunEvent
    endpoint: WebhookEndpoint | None
    """The present state of the endpoint. None: it was deleted since."""

    @property
    def url(self) -> str:
        """The receiver; empty if the endpoint was deleted."""
        return "" if self.endpoint is None else self.endpoint.url


class WebhookDeliveryStore(Store):
    """Reads the outbox and records the outcomes."""

    async def claim_due(
        self, now: datetime, limit: int = 20, *, but_not_of: Collection[ProjectId] = ()
    ) -> list[WebhookDelivery]:
        """Claims deliveries whose attempt is due, as `CallbackStore.claim_due`."""
        table = webhook_deliveries
        async with self._database.read() as connection:
            if (await connection.execute(_ANY_DUE, {"now": now})).one_or_none() is None:
                return []
        async with self._database.write() as connection:
            columns = (table.c.run_id, table.c.endpoint_id, table.c.project_id, table.c.attempts)
            about = (table.c.outcome, table.c.created_at)
            rows = await claim_rows(connection, table, now, limit, [*columns, *about], but_not_of)
            ids = {row.endpoint_id for row in rows}
            found = await connection.execute(sa.select(webhook_endpoints).where(webhook_endpoints.c.id.in_(ids)))
            endpoints = {row["id"]: endpoint_of(row) for row in found.mappings()}
        return [
            WebhookDelivery(
                run_id=row.run_id,
                endpoint_id=row.endpoint_id,
                project_id=row.project_id,
                attempts=row.attempts,
                event=RunEvent(row.run_id, row.outcome, row.created_at),
                endpoint=endpoints.get(row.endpoint_id),
            )
            for row in rows
        ]

    async def postpone(self, due: WebhookDelivery, until: datetime) -> None:
        """Releases a delivery that was claimed and not attempted."""
        attempts = webhook_deliveries.c.attempts - 1
        await self._set(due, next_attempt_at=until, claimed_until=None, attempts=attempts)

    async def record_attempt(
        self,
        due: WebhookDelivery,
        *,
        now: datetime,
        status_code: int | None,
        error: str | None,
        next_at: datetime | None,
    ) -> None:
        """Records the outcome of an attempt. If `next_at` is None, the delivery has arrived, or is given up if there is
        an error. The outcome does not count if another process has claimed the delivery since."""
        await self._set(
            due,
            next_attempt_at=next_at,
            claimed_until=None,
            given_up_at=now if next_at is None and error is not None else None,
            last_status_code=status_code,
            last_error=error,
        )

    async def list_open(self, project_id: ProjectId, page: Page) -> list[OpenDelivery]:
        """A page of the project's deliveries that wait or were given up; its cursors are their ids."""
        table = webhook_deliveries
        async with self._database.read() as connection:
            owner = (table.c.project_id, project_id)
            rows = await rows_of_page(
                connection, table, project_id, page, IS_OPEN, owner=owner, is_cursor=_has_id, columns=_OPEN
            )
            return await _with_urls(connection, rows)

    async def retry(self, project_id: ProjectId, run_id: RunId, endpoint_id: WebhookId, now: datetime) -> OpenDelivery:
        """Makes a delivery due now. A delivery that was given up gets one more attempt.

        Raises `NotFound` if the project has no such delivery or no such endpoint any more, and `Conflict` if it was
        delivered."""
        table = webhook_deliveries
        is_it = (table.c.run_id == run_id, table.c.endpoint_id == endpoint_id, table.c.project_id == project_id)
        values = {"next_attempt_at": now, "given_up_at": None}
        async with self._database.write() as connection:
            moved = await connection.execute(sa.update(table).where(*is_it, IS_OPEN).values(values).returning(*_OPEN))
            rows = moved.mappings().all()
            if not rows:
                known = await connection.execute(sa.select(table.c.run_id).where(*is_it))
                if known.one_or_none() is None:
                    raise NotFound(f"No event of run {run_id} is for the webhook endpoint {endpoint_id}")
                raise Conflict(f"endpoint {endpoint_id} has the event of run {run_id}: there is nothing to try again")
            [delivery] = await _with_urls(connection, rows)
            if delivery.url is None:
                raise NotFound(f"Webhook endpoint {endpoint_id} was deleted: it receives no more events")
            await record(connection, project_id, "webhook.retried", run_id, endpoint_id)
            return delivery

    async def _set(self, delivery: WebhookDelivery, **values: object) -> None:
        columns = webhook_deliveries.c
        is_it = (columns.run_id == delivery.run_id, columns.endpoint_id == delivery.endpoint_id)
        is_newest = columns.attempts <= delivery.attempts
        async with self._database.write() as connection:
            await connection.execute(sa.update(webhook_deliveries).where(*is_it, is_newest).values(values))


def _has_id(named: str) -> sa.ColumnElement[bool]:
    """Whether a delivery has this id (`OpenDelivery.id`)."""
    run_id, _, endpoint_id = named.partition(".")
    return sa.and_(webhook_deliveries.c.run_id == run_id, webhook_deliveries.c.endpoint_id == endpoint_id)


async def _with_urls(connection: Connection, rows: Sequence[RowMapping]) -> list[OpenDelivery]:
    """Returns the deliveries of these rows, each with the present URL of its endpoint."""
    ids = {row["endpoint_id"] for row in rows}
    columns = (webhook_endpoints.c.id, webhook_endpoints.c.url)
    found = await connection.execute(sa.select(*columns).where(webhook_endpoints.c.id.in_(ids)))
    urls = {row.id: row.url for row in found}
    return [OpenDelivery(url=urls.get(row["endpoint_id"]), **row) for row in rows]


# Webhook endpoints of projects. The transaction of each change also records it in the audit log.


_SEED = 2
"""Separates this advisory lock from the locks of other nouns."""
_LOCK = sa.select(AdvisoryLock(sa.func.hashtextextended(sa.bindparam("of_project", type_=sa.Text), _SEED)))

Change = Callable[[WebhookEndpoint], WebhookEndpoint]


class WebhookEndpointStore(Store):
    """Reads and writes endpoints."""

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
    return WebhookEndpoint(**fields_of(row, WebhookEndpoint, beside="outcomes"), outcomes=outcomes)


def _values(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {**{name: getattr(endpoint, name) for name in _FIELDS}, "outcomes": to_json(endpoint.outcomes)}


# The stored secrets of endpoints, of all projects, for a change of the encryption key.


class EndpointSecretStore(Store):
    """Reads and replaces the stored secrets of endpoints."""

    async def some(self, after: int, limit: int) -> Sequence[StoredSecrets]:
        """Returns endpoints in the order of their creation, after the number `after`."""
        columns = webhook_endpoints.c
        wanted = sa.select(columns.number, columns.id, columns.secret, columns.former_secret)
        query = wanted.where(columns.number > after).order_by(columns.number).limit(limit)
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return [
                StoredSecrets(number, endpoint_id, {SECRET: secret, **({FORMER_SECRET: former} if former else {})})
                for number, endpoint_id, secret, former in found
            ]

    async def replace(self, before: StoredSecrets, secrets: dict[str, str]) -> bool:
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
