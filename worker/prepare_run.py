"""Gathering what a claimed run needs before its first step."""

from dataclasses import dataclass

from shared.clock import Clock
from shared.domain.closing import shown_text
from shared.domain.events import ReasoningChunk, StatusChanged, StepRestarted, TextChunk, ToolCallChunk, ToolCalls
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.redis.event_log import EventLog
from shared.sql.agent_store import AgentStore
from shared.sql.checkpoint_store import CheckpointStore
from shared.sql.event_rows import EventStore
from worker.interruption import Interruption
from worker.publisher import Publisher
from worker.run_work import RunServices, RunWork

ANSWER_EVENTS = (TextChunk, ReasoningChunk, ToolCallChunk, ToolCalls)


@dataclass(frozen=True, kw_only=True)
class RunPreparation:
    """Loads a run's agent and opens its log."""

    agents: AgentStore
    checkpoints: CheckpointStore
    events: EventStore
    event_log: EventLog
    services: RunServices
    clock: Clock
    stores_first: bool
    """Whether events go to SQL before they are shown (see `Publisher`)."""

    def publisher(self, run: Run, interruption: Interruption) -> Publisher:
        """The publisher of a run that was just claimed; it stops the run when the log has a newer owner."""
        return Publisher(
            run,
            event_log=self.event_log,
            events=self.events,
            checkpoints=self.checkpoints,
            clock=self.clock,
            interruption=interruption,
            stores_first=self.stores_first,
        )

    async def work(self, run: Run, publisher: Publisher, interruption: Interruption) -> RunWork:
        """The run with everything that its steps need. Raises `NotFound` when its agent is gone."""
        agent, tools, blocks = await self.agents.equipped(run.project_id, run.agent_id)
        return RunWork(
            run=run,
            agent=agent,
            blocks=blocks,
            tools={tool.name: tool for tool in tools},
            services=self.services,
            publisher=publisher,
            interruption=interruption,
            usage=run.usage,
            step_count=run.step_count,
        )

    def announce(self, work: RunWork) -> None:
        """Says in the stream that the run begins, or that its unfinished step begins again."""
        run = work.run
        if not work.publisher.resumes:
            if run.options.status_events:
                work.emit(StatusChanged(work.at, RunStatus.RUNNING))
            return
        lost = shown_text(work.publisher.since_checkpoint)
        if lost:
            earlier = sum(isinstance(event, StepRestarted) for event in work.publisher.since_checkpoint)
            work.lost_calls, work.lost_text = 1 + earlier, lost
        shown = [e.message_id for e in work.publisher.since_checkpoint if isinstance(e, ANSWER_EVENTS)]
        void = list(dict.fromkeys(shown))
        work.emit(StepRestarted(work.at, attempt=int(run.fence), void_message_ids=void))
