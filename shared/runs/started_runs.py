"""Starts runs without a client's request: a run that another run's tool call starts, or one that the server starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from shared.domain.agents import Agent
from shared.domain.ids import ConversationId, RunId, ThreadId
from shared.domain.messages import NewMessage
from shared.domain.models import code_agent_of
from shared.domain.runs import Run, RunOptions, SubmissionKeys
from shared.redis.queue import RunQueue
from shared.sql.runs.run_store import ANYWHERE, Place, RunStore, Submitted

STARTED = "started:"
"""The prefix of submission keys that the server makes."""


def started_run(
    agent: Agent,
    options: RunOptions,
    *,
    run_id: RunId,
    thread_id: ThreadId,
    now: datetime,
    conversation_id: ConversationId | None = None,
) -> Run:
    """Returns a background run of this agent, with the agent's own rules for its context."""
    window = agent.window
    code_agent = code_agent_of(options.override_model or agent.model)
    changes = {
        "background": True,
        "code_agent": code_agent,
        "clears_context": window.clears_context,
        "when_full": window.when_full,
    }
    return Run(
        id=run_id,
        project_id=agent.project_id,
        agent_id=agent.id,
        thread_id=thread_id,
        conversation_id=conversation_id,
        options=msgspec.structs.replace(options, **changes),
        created_at=now,
    )


@dataclass(frozen=True, kw_only=True)
class StartedRuns:
    """Stores and dispatches runs without a client's request."""

    runs: RunStore
    queue: RunQueue

    async def start(self, run: Run, given: Sequence[NewMessage], *, key: str, place: Place = ANYWHERE) -> Submitted:
        """Stores the run with its input and dispatches it. A second start with the same key, among the runs of
        `run.keys_thread_id`, returns the first run.

        Raises `PendingApproval` if the run's thread waits for a person, and `Unavailable`.
        """
        keys = SubmissionKeys(names=[STARTED + key])
        submitted = await self.runs.submit(run, given, keys=keys, place=place)
        await self.queue.dispatch_stored(submitted.run)
        return submitted
