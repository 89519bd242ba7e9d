"""Compaction of a history: the request becomes a run, which a worker executes when the thread's queue comes to it."""

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from api.errors import model_error_answer
from api.letta.context import SETTINGS, CompactionSettings, CompactRequest, wire_compaction
from api.long_answers import json_answer
from api.runs.submission import SubmissionService
from api.runs.threads import AgentThread
from api.runs.waiting import RunWaiter, elsewhere
from shared.concurrency import Clock
from shared.domain.errors import Conflict
from shared.domain.ids import IdMaker
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Summary
from shared.domain.runs import Run, RunOptions
from shared.sql.history.messages import MessageStore


@dataclass(frozen=True, kw_only=True)
class CompactionService:
    """Has workers compact histories, and answers with the result."""

    submissions: SubmissionService
    waiter: RunWaiter
    messages: MessageStore
    clock: Clock
    ids: IdMaker

    async def compact(
        self, thread: AgentThread, request: CompactRequest, key_id: str, *, refuse_if_busy: bool
    ) -> Response:
        """Compacts, and answers when it is done. It waits for the thread's active run, unless the request refuses that.

        Raises `PendingApproval`, `Busy`, or `Conflict` when the compaction was cancelled.
        """
        settings = request.settings(thread.agent.extra.get(SETTINGS))
        run = await self.submissions.submit_run(self._run(thread, settings, key_id), refuse_if_busy=refuse_if_busy)
        ended = await self.waiter.ended(run)
        if ended is None:
            return elsewhere(run)
        if ended.status is RunStatus.FAILED and ended.error is not None:
            return model_error_answer(ended.error.error_type, ended.error.detail, ended.error.message)
        if ended.status is not RunStatus.COMPLETED:
            raise Conflict(f"the compaction (run {ended.id}) was cancelled; the messages are as they were")
        return await json_answer(await self._result(ended))

    async def _result(self, run: Run) -> dict[str, Any]:
        for message in await self.messages.list_of_run(run):
            body = message.body
            if isinstance(body, Summary) and body.stats is not None:
                return wire_compaction(body.text, body.stats.messages_before, body.stats.messages_after)
        # The history had nothing but the instructions.
        return wire_compaction("", 1, 1)

    def _run(self, thread: AgentThread, settings: CompactionSettings, key_id: str) -> Run:
        agent = thread.agent
        return Run(
            id=self.ids.run(),
            project_id=agent.project_id,
            agent_id=agent.id,
            thread_id=thread.id,
            conversation_id=thread.conversation_id,
            options=RunOptions(
                run_type="compaction",
                override_model=thread.model,
                model_options=thread.model_options,
                compaction=settings.options(),
                submitted_by=key_id,
            ),
            created_at=self.clock.now(),
        )
