"""Waiting for the end of a run, for clients that want a whole answer."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from api.errors import RETRY_AFTER_S, SHOULD_RETRY, refused
from api.event_stream import finishes
from api.runs.reader import NEVER_QUIET_S, RunReader
from shared.domain.errors import ErrorCode
from shared.domain.events import Event, Unknown, decode
from shared.domain.ids import Seq
from shared.domain.runs import Run
from shared.sql.runs.run_store import RunStore

TakeEvent = Callable[[Seq, Event | Unknown], None]
"""Takes the next event of a log, with its number."""


@dataclass(frozen=True, kw_only=True)
class RunWaiter:
    """Waits for runs. A run goes on when its client leaves, and when this process ends."""

    reader: RunReader
    runs: RunStore
    server_ends: asyncio.Event
    """Set when this process ends."""

    async def ended(self, run: Run) -> Run | None:
        """The run when its stream has ended; None when this process ends before. Raises `NotFound` when it is gone."""
        return await self._after(run, self.reader.wait_for_end(run))

    async def followed(self, run: Run, take: TakeEvent) -> Run | None:
        """The same for who wants to know what the run's log shows: `take` is called with each event."""
        return await self._after(run, self._follow(run, take))

    async def reads(self, run: Run, take: TakeEvent) -> bool:
        """Calls `take` with each event of the run's log until its end. False when this process ends before."""
        return await finishes(self._follow(run, take), self.server_ends)

    async def _follow(self, run: Run, take: TakeEvent) -> None:
        async for entries in self.reader.follow(run, Seq(0), quiet_s=NEVER_QUIET_S):
            for seq, entry in entries:
                take(seq, decode(entry))

    async def _after(self, run: Run, reading: Coroutine[Any, Any, None]) -> Run | None:
        has_ended = await finishes(reading, self.server_ends)
        return await self.runs.get(run.project_id, run.id) if has_ended else None


def elsewhere(run: Run) -> Response:
    """The answer of a process that ends: the run goes on, and the caller has to ask another process for it. A client
    that sent the same again would begin another run."""
    shown_by = "stream" if run.has_own_thread else "messages"
    said = f"SERVICE_UNAVAILABLE: this server is ending. The run goes on: see GET /v1/runs/{run.id} and its {shown_by}"
    headers = {"Retry-After": str(RETRY_AFTER_S), SHOULD_RETRY: "false"}
    return refused(503, ErrorCode.SERVER_ENDING, said, headers=headers, run_id=run.id)
