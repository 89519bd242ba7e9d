"""The outboxes as guests of their conformance suite."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from api.openai.response_object import DIALECT
from shared.domain.ids import ProjectId, RunId
from shared.domain.runs import RunOptions
from shared.sql.paging import Page
from shared.sql.runs.callbacks import CallbackStore
from shared.sql.runs.webhooks import WebhookDelivery, WebhookDeliveryStore, WebhookEndpointStore
from tests.kit.runs.stored_runs import Stores, some_endpoint

URL = "http://127.0.0.1/called"


class OutboxGuest(ABC):
    """An outbox to which the end of a run adds a row."""

    store: ClassVar[type]
    """The class of `shared.sql` that the cases test."""

    def __init__(self, stores: Stores) -> None:
        self.rows: Any = self.store(stores.database)

    @abstractmethod
    async def fill(self, stores: Stores, how_many: int) -> Sequence[RunId]:
        """Ends runs, each of which adds a row. Returns their ids, the oldest first."""

    async def claim(self, now: datetime, limit: int = 20) -> Sequence[Any]:
        """Claims rows that are due. Each has `run_id` and `attempts`."""
        return await self.rows.claim_due(now, limit)

    async def postpone(self, claimed: Any, until: datetime) -> None:
        """Releases a claimed row without an attempt."""
        await self.rows.postpone(claimed, until)

    async def record(
        self, claimed: Any, *, now: datetime, status_code: int | None, error: str | None, next_at: datetime | None
    ) -> None:
        """Records the outcome of an attempt."""
        await self.rows.record_attempt(claimed, now=now, status_code=status_code, error=error, next_at=next_at)

    async def list_open(self, project_id: ProjectId, page: Page) -> Sequence[Any]:
        """Lists rows that wait or were given up."""
        return await self.rows.list_open(project_id, page)

    @abstractmethod
    async def retry(self, project_id: ProjectId, claimed: Any, now: datetime) -> Any:
        """Makes a row due now. Returns it as listed."""

    def cursor(self, listed: Any) -> str:
        """Returns the id of a listed row."""
        return listed.run_id


class Callbacks(OutboxGuest):
    store = CallbackStore

    async def fill(self, stores: Stores, how_many: int) -> Sequence[RunId]:
        return [(await stores.ended(callback_url=URL)).id for _ in range(how_many)]

    async def retry(self, project_id: ProjectId, claimed: Any, now: datetime) -> Any:
        return await self.rows.retry(project_id, claimed.run_id, now)


class WebhookDeliveries(OutboxGuest):
    store = WebhookDeliveryStore

    async def fill(self, stores: Stores, how_many: int) -> Sequence[RunId]:
        await WebhookEndpointStore(stores.database).create(some_endpoint())
        options = RunOptions(dialect=DIALECT, background=True)
        return [(await stores.ended(options=options)).id for _ in range(how_many)]

    async def retry(self, project_id: ProjectId, claimed: WebhookDelivery, now: datetime) -> Any:
        return await self.rows.retry(project_id, claimed.run_id, claimed.endpoint_id, now)

    def cursor(self, listed: Any) -> str:
        return listed.id


OUTBOXES: Sequence[type[OutboxGuest]] = (Callbacks, WebhookDeliveries)
