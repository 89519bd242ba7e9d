"""Compaction of a history: it becomes a run, which a worker executes when the thread's queue comes to it."""

from dataclasses import dataclass

from api.runs.submission import SubmissionService
from api.runs.threads import AgentThread
from api.runs.waiting import RunWaiter
from shared.concurrency import Clock
from shared.domain.errors import Conflict
from shared.domain.ids import IdMaker
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Summary
from shared.domain.runs import CompactionOptions, Run, RunOptions
from shared.sql.history.messages import MessageStore


@dataclass(frozen=True, kw_only=True)
class CompactionService:
    """Has workers compact histories."""

    submissions: SubmissionService
    waiter: RunWaiter
    messages: MessageStore
    clock: Clock
    ids: IdMaker

    async def compact(
        self, thread: AgentThread, options: CompactionOptions, key_id: str, *, refuse_if_busy: bool
    ) -> tuple[Run, Run | None]:
        """Compacts: the run as it was submitted, and as it ended; None when this process ends before it. It waits for
        the thread's active run, unless that is refused.

        Raises `PendingApproval` or `Busy`.
        """
        run = await self.submissions.submit_run(self._run(thread, options, key_id), refuse_if_busy=refuse_if_busy)
        return run, await self.waiter.ended(run)

    async def summary(self, run: Run) -> Summary | None:
        """What a compaction that has ended and not failed put in the place of messages. None: the history had nothing
        but the instructions. Raises `Conflict` when the compaction was cancelled."""
        if run.status is not RunStatus.COMPLETED:
            raise Conflict(f"the compaction (run {run.id}) was cancelled; the messages are as they were")
        bodies = [message.body for message in await self.messages.list_of_run(run)]
        return next((body for body in bodies if isinstance(body, Summary) and body.stats is not None), None)

    def _run(self, thread: AgentThread, options: CompactionOptions, key_id: str) -> Run:
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
                compaction=options,
                submitted_by=key_id,
            ),
            created_at=self.clock.now(),
        )
