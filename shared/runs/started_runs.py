"""Starts runs without a client's request: a run that another run's tool call starts, or one that the server starts, as
those of sleep-time agents."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from shared.concurrency import Clock
from shared.domain.agents import Agent
from shared.domain.errors import HoldfastError, NotFound, PendingApproval, Unavailable
from shared.domain.groups import RUN_TYPE, DueTurns, start_key, transcript
from shared.domain.ids import AgentId, ConversationId, GroupId, IdMaker, MessageId, ProjectId, RunId, ThreadId, is_id
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.models import code_agent_of
from shared.domain.runs import Run, RunOptions, SubmissionKeys
from shared.redis.queue import RunQueue
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.runs.run_store import ANYWHERE, Place, RunStore, Submitted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

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


# Starts the due runs of sleep-time agents.
#
# A worker does so once a second, for all groups. An API process does so for one agent before it sends that agent's
# answer, so that the answer can name the runs. Both may do so at once, because each run has a key.


LOOK_EVERY_S = 1.0
GROUPS_AT_ONCE = 100
"""The limit for one round. The next round takes other groups."""
LATER = timedelta(seconds=30)
"""The pause of a group whose agents could not start, for example because one of them waits for a person."""


@dataclass(frozen=True, kw_only=True)
class SleeptimeRuns:
    """Starts the due runs."""

    turns: GroupTurnStore
    agents: AgentStore
    runs: RunStore
    started: StartedRuns
    clock: Clock
    ids: IdMaker

    async def start_all_due(self) -> None:
        """Starts the due runs of all projects. Raises `Unavailable`."""
        for group_id in await self.turns.to_look_at(self.clock.now(), GROUPS_AT_ONCE):
            try:
                await self._start_of_group(group_id)
            except Unavailable:
                raise
            except Exception:
                # Holdfast has a bug. The next rounds must skip this group for a while, so that they reach the others.
                await self.turns.postpone(group_id, self.clock.now() + LATER)
                raise

    async def of_turn(self, project_id: ProjectId, agent_id: AgentId, cause_id: RunId | MessageId) -> list[RunId]:
        """Starts the due runs of the agent's group, and returns those that this turn has started."""
        group = await self.turns.managed_by(project_id, agent_id)
        if group is None:
            return []
        await self._start_of_group(group.id)
        names = {sleeper: STARTED + start_key(group.id, cause_id, sleeper) for sleeper in group.agent_ids}
        found = [
            await self.runs.of_keys(project_id, ThreadId(sleeper), SubmissionKeys(names=[name]))
            for sleeper, name in names.items()
        ]
        return [run.id for run in found if run is not None]

    async def _start_of_group(self, group_id: GroupId) -> None:
        """Starts the due runs of one group. Runs that cannot start now stay due."""
        try:
            while (due := await self.turns.due(group_id, self.clock.now())) is not None:
                await self._start(due)
        except Unavailable:
            raise
        except HoldfastError as error:
            waits = isinstance(error, PendingApproval)
            log_as = log.info if waits else log.warning
            log_as("sleeptime_left_for_later", group_id=group_id, reason=type(error).__name__)
            await self.turns.postpone(group_id, self.clock.now() + LATER)

    async def _start(self, due: DueTurns) -> None:
        said = await self.turns.said_in(due)
        if said:
            options = await self._options(due)
            for agent_id in due.group.agent_ids:
                try:
                    agent = await self.agents.without_links(due.group.project_id, agent_id)
                except NotFound:
                    continue  # a client has just deleted it
                await self._start_one(agent, due, options, transcript(said))
        await self.turns.delivered(due, said[-1] if said else None)

    async def _start_one(self, agent: Agent, due: DueTurns, options: RunOptions, text: str) -> None:
        now = self.clock.now()
        run = started_run(agent, options, run_id=self.ids.run(), thread_id=ThreadId(agent.id), now=now)
        heard = NewMessage(id=self.ids.message(), created_at=now, body=UserMessage(content=text))
        submitted = await self.started.start(run, [heard], key=due.key(agent.id))
        if submitted.is_new:
            log.info("sleeptime_run_started", run_id=submitted.run.id, agent_id=agent.id, cause=due.cause_id)

    async def _options(self, due: DueTurns) -> RunOptions:
        """The key that sent the turn pays for the run, and the run continues the turn's trace."""
        return RunOptions(
            run_type=RUN_TYPE, submitted_by=due.submitted_by, traceparent=await self._trace_of(due.cause_id)
        )

    async def _trace_of(self, cause_id: RunId | MessageId) -> str | None:
        if not is_id(cause_id, "run"):
            return None
        try:
            return (await self.runs.look_up(RunId(cause_id))).options.traceparent
        except NotFound:
            return None
