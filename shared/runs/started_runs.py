"""Starts runs without a client's request: runs that another run's tool call starts, or the server itself, such as those
of sleep-time agents. Also keeps the trees of such runs consistent."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from shared.concurrency import Clock
from shared.domain.agents import Agent
from shared.domain.errors import CancelMode, HoldfastError, NotFound, PendingApproval, Unavailable
from shared.domain.groups import RUN_TYPE, DueTurns, start_key, transcript
from shared.domain.ids import AgentId, GroupId, IdMaker, MessageId, ProjectId, RunId, ThreadId, is_id
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.models import code_agent_of
from shared.domain.runs import CancelRequest, Run, RunOptions, SubmissionKeys
from shared.redis.connection import CancelSignal
from shared.redis.queue import RunQueue
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.runs.children import ChildStore
from shared.sql.runs.run_store import ANYWHERE, Place, RunStore, Submitted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

STARTED = "started:"
"""The prefix of submission keys that the server makes."""

ACTOR = "parent"
"""The actor of a cancel that follows the end of a run's parent."""


def started_run(
    agent: Agent,
    options: RunOptions,
    *,
    run_id: RunId,
    thread_id: ThreadId,
    now: datetime,
) -> Run:
    """Returns a background run of this agent, with the agent's own rules for its context."""
    options = msgspec.structs.replace(
        options,
        background=True,
        code_agent=code_agent_of(options.override_model or agent.model),
        clears_context=agent.window.clears_context,
        when_full=agent.window.when_full,
    )
    return Run(
        id=run_id,
        project_id=agent.project_id,
        agent_id=agent.id,
        thread_id=thread_id,
        options=options,
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
# A worker starts them once a second, for all groups. An API process starts those of one agent before it sends that
# agent's answer, which can so name the runs. Both may start a run at once, because each run has a key.


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
                # Holdfast has a bug. The next rounds must skip this group for a while, to reach the other groups.
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


# Trees of runs: the end of a run wakes the parent that waits for it. If the run was cancelled or has failed, its end
# also ends its children.


@dataclass(frozen=True, kw_only=True)
class RunTrees:
    """Passes a run's change on to its parent and its children."""

    children: ChildStore
    runs: RunStore
    queue: RunQueue
    signal: CancelSignal
    clock: Clock

    async def changed(self, run: Run) -> None:
        """The caller calls this after a run has ended, or was parked; a parked run still has the status of its claim.
        Raises nothing: the sweeper repeats what fails here."""
        try:
            if run.options.parent is not None:
                await self._wake_parent(run)
            if run.status in (RunStatus.CANCELLED, RunStatus.FAILED):
                mode = CancelMode.INTERRUPT if run.cancel is None else run.cancel.mode
                for child in await self.children.active_of(run):
                    await self.end_child(child, mode)
        except Unavailable as error:
            log.warning("run_tree_left_to_sweeper", run_id=run.id, reason=str(error))

    async def _wake_parent(self, run: Run) -> None:
        is_parked = run.status not in TERMINAL
        dispatch = await self.children.wake(run, self.clock.now(), is_parked=is_parked)
        if dispatch is not None:
            await self.queue.dispatch(dispatch)

    async def end_child(self, child: Run, mode: CancelMode) -> None:
        """Records a cancel of a child, in the mode of its parent's, and announces it to the child's worker. The sweeper
        settles a child that no worker has. Raises `Unavailable`."""
        reason = "the run that started it has ended"
        request = CancelRequest(requested_at=self.clock.now(), actor=ACTOR, reason=reason, mode=mode)
        try:
            await self.runs.request_cancel(child, request)
        except NotFound:
            return  # it was deleted meanwhile, with its agent
        await self.signal.announce(child.id, mode)
        log.info("child_run_cancelled", child_run_id=child.id)

    async def repair(self) -> None:
        """Wakes the parents and ends the children that a dead process has not. Raises `Unavailable`."""
        woken = await self.children.wake_forgotten(self.clock.now())
        if woken:
            await self.queue.dispatch(*woken)
        for child, mode in await self.children.left_behind():
            await self.end_child(child, mode)
