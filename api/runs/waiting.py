"""Waiting for the end of a run, for clients that want a whole answer."""

import asyncio
from dataclasses import dataclass

from starlette.responses import Response

from api.errors import RETRY_AFTER_S, SHOULD_RETRY, refused
from api.event_stream import finishes
from api.runs.reader import RunReader
from shared.domain.error_codes import ErrorCode
from shared.domain.runs import Run
from shared.sql.runs.run_store import RunStore


@dataclass(frozen=True, kw_only=True)
class RunWaiter:
    """Waits for runs. A run goes on when its client leaves, and when this process ends."""

    reader: RunReader
    runs: RunStore
    server_ends: asyncio.Event
    """Set when this process ends."""

    async def ended(self, run: Run) -> Run | None:
        """The run when its stream has ended; None when this process ends before. Raises `NotFound` when it is gone."""
        has_ended = await finishes(self.reader.wait_for_end(run), self.server_ends)
        return await self.runs.get(run.project_id, run.id) if has_ended else None


def elsewhere(run: Run) -> Response:
    """The answer of a process that ends: the run goes on, and the caller has to ask another process for it. A client
    that sent the same again would begin another run."""
    shown_by = "stream" if run.options.tool_name else "messages"
    said = f"SERVICE_UNAVAILABLE: this server is ending. The run goes on: see GET /v1/runs/{run.id} and its {shown_by}"
    headers = {"Retry-After": str(RETRY_AFTER_S), SHOULD_RETRY: "false"}
    return refused(503, ErrorCode.SERVER_ENDING, said, headers=headers, run_id=run.id)
