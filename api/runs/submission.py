"""Submissions: a command becomes a stored, dispatched run. Every route that sends a message ends here."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from api.admission import release_permit
from api.input_limits import InputLimits
from api.offered_models import CodeAgentNames
from api.request_log import bind_trace, incoming_trace
from api.runs.cancel import RunCanceller
from api.runs.command import Command
from shared.concurrency import Clock, unix_ms
from shared.domain.errors import AlreadyDecided, CancelMode, Conflict, InvalidRequest, PendingApproval
from shared.domain.events import StopReason
from shared.domain.ids import IdMaker, ProjectId, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.limits import LimitReached, ProjectLimits
from shared.domain.messages import ApprovalResponse, MessageBody, NewMessage, UserMessage
from shared.domain.models import code_agent_of
from shared.domain.runs import NO_KEYS, Run, RunError, SubmissionKeys
from shared.domain.settling import RunEnd
from shared.redis.event_log import EventLog
from shared.redis.queue import RunQueue
from shared.runs.orphans import ApprovalService
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import ANYWHERE, REOPENED_TURN, Place, RunStore
from shared.sql.runs.settlement import Settlement, SettlementStore
from shared.telemetry.tracer import Span, Tracer, of_run

# The limit of a project's queued runs. SQL has the count, but not every submission queries it.


FRESH_S = 1.0
"""Seconds for which a process uses a count."""

PART = 10
"""A process uses this fraction of the free places before it counts again, so that several processes together exceed
the limit only by little."""

RETRY_S = 5.0
"""Seconds in `Retry-After` if the queue is full: a guess, as the runs' durations are unknown."""


class _Room(NamedTuple):
    left: int
    until: float


class QueuedRuns:
    """Enforces the projects' limits of queued runs."""

    def __init__(self, runs: RunStore, limits: ProjectLimits, clock: Clock) -> None:
        self._runs = runs
        self._limits = limits
        self._clock = clock
        self._rooms: dict[ProjectId, _Room] = {}
        self._one_counts = asyncio.Lock()

    async def take_place(self, project_id: ProjectId) -> None:
        """Counts one submission. Raises `LimitReached` if the queue is full."""
        most = self._limits.of(project_id).queued_runs
        if not most:
            return
        async with self._one_counts:
            now = self._clock.monotonic()
            room = self._rooms.get(project_id)
            if room is None or room.left <= 0 or room.until <= now:
                room = _Room(await self._left(project_id, most) // PART, now + FRESH_S)
            self._rooms[project_id] = room._replace(left=room.left - 1)

    async def _left(self, project_id: ProjectId, most: int) -> int:
        queued = await self._runs.count_queued(project_id, most)
        if queued >= most:
            raise LimitReached(
                f"The project {project_id!r} has {most} queued runs, which is its limit",
                setting="HOLDFAST_QUEUED_RUNS",
                retry_after_s=RETRY_S,
            )
        return most - queued


# The first span of a run's trace is its submission. The run stores the trace context, and every process that works on
# the run continues it, so that one trace shows the run from submission to callback, across all workers.


@dataclass(frozen=True, kw_only=True)
class SubmissionTraces:
    """Begins the traces of runs."""

    tracer: Tracer
    clock: Clock

    @contextmanager
    def submitting(self, run: Run) -> Generator[tuple[Run, Span]]:
        """Wraps the block that stores the run. Yields the run to store, and its span. The trace is the request's, or a
        new one."""
        incoming = incoming_trace()
        with self.tracer.begin("submit", parent=incoming, kind="server", attributes=of_run(run)) as span:
            bind_trace(span.traceparent)
            yield replace(run, options=replace(run.options, traceparent=span.traceparent)), span

    def decided(self, continuation: Run, began_at: datetime) -> None:
        """Traces a decision that has started this run. The span continues the trace of the run that asked, which is
        known only after the store, and links the request's trace."""
        incoming = incoming_trace()
        traceparent = continuation.options.traceparent
        bind_trace(traceparent)
        self.tracer.begin(
            "decide",
            parent=traceparent,
            kind="server",
            attributes=of_run(continuation),
            links=[] if incoming is None else [incoming],
            at_ms=unix_ms(began_at),
        ).end()


KEEP_ALIVE = (
    "<system-alert>Automated keep-alive ping. Ignore this message and continue from where you stopped.</system-alert>"
)
"""The message to the model when a client sends a decision a second time. It is Letta's, word for word, because models
are known to obey it."""


@dataclass(frozen=True, kw_only=True)
class SubmissionService:
    """Stores submissions and dispatches them."""

    runs: RunStore
    listing: RunListing
    approvals: ApprovalStore
    inbox: InboxStore
    settlements: SettlementStore
    queue: RunQueue
    event_log: EventLog
    queued_runs: QueuedRuns
    max_steps: int
    """The highest `max_steps` of a submission."""
    input_limits: InputLimits
    canceller: RunCanceller
    code_agents: CodeAgentNames
    decisions: ApprovalService
    traces: SubmissionTraces
    clock: Clock
    ids: IdMaker
    on_submitted: Callable[[str], None] = lambda _: None
    """Called with the kind of each new run: `message`, `decision`, `compaction`, `tool` or `generation`."""

    async def submit(self, command: Command) -> Run:
        """Stores the run and dispatches it. A command with the keys of a stored run gets that run, even an ended one.

        Raises `PendingApproval`, `Busy`, `HistoryWentOn`, `NoPendingApproval`, `WrongToolCalls`, `NameTaken` or
        `InvalidRequest`.
        """
        if command.options.max_steps > self.max_steps:
            most = f"the most is {self.max_steps} (HOLDFAST_MAX_STEPS)"
            raise InvalidRequest(f"max_steps is {command.options.max_steps}: {most}", field="max_steps")
        if command.options.override_model is not None:
            self.code_agents.refuse_unknown(command.options.override_model, "override_model")
        return await (self._submit_messages(command) if command.decisions is None else self._submit_decision(command))

    async def submit_run(
        self,
        run: Run,
        given: Sequence[NewMessage] = (),
        keys: SubmissionKeys = NO_KEYS,
        *,
        refuse_if_busy: bool = False,
        place: Place = ANYWHERE,
    ) -> Run:
        """Stores a run with its input and dispatches it. Raises `PendingApproval`, `Busy`, `HistoryWentOn` or
        `LimitReached`."""
        with self.traces.submitting(run) as (traced, span):
            try:
                await self.queued_runs.take_place(run.project_id)
            except LimitReached:
                # A repeated submission gets its run, however long the queue is.
                if await self.runs.of_keys(run.project_id, run.keys_thread_id, keys) is None:
                    raise
            submit = self.runs.submit
            submitted = await submit(traced, given, keys=keys, refuse_if_busy=refuse_if_busy, place=place)
            span.set({"holdfast.run.id": submitted.run.id, "holdfast.sent_again": submitted.run.id != run.id})
            if submitted.is_new:
                self.on_submitted(submitted.run.kind)
            await self.queue.dispatch_stored(submitted.run)
        release_permit()
        if submitted.is_new:
            # Dashboards show the run while it is queued, perhaps long before a worker announces it.
            await self.event_log.announce(submitted.run)
        return submitted.run

    async def submit_or_fail(self, command: Command, failure: Callable[[PendingApproval], RunError]) -> Run:
        """As `submit`, but if the thread waits for an approval, it stores and returns a failed run. `failure` makes the
        run's error in the dialect's words."""
        try:
            return await self.submit(command)
        except PendingApproval as error:
            end = RunEnd(trigger=RunTrigger.FAIL, stop_reason=StopReason.FAILED, error=failure(error))
            given = self._stored(command.messages)
            with self.traces.submitting(self._run(command)) as (run, span):
                span.fail(type(error).__name__)
                return await self.settlements.store_refused(run, given, Settlement(end=end, now=run.created_at))

    def _stored(self, messages: Sequence[UserMessage]) -> list[NewMessage]:
        return list(map(self._new, messages))

    def _new(self, body: MessageBody) -> NewMessage:
        return NewMessage(id=self.ids.message(), created_at=self.clock.now(), body=body)

    async def _submit_messages(self, command: Command) -> Run:
        messages = self._stored(command.messages)
        if command.if_busy in ("interrupt", "rollback", "inject"):
            taken_in = await self._make_room(command, messages)
            if taken_in is not None:
                return taken_in
        refuse, place = command.if_busy == "reject", command.place
        if place.reopened is not None:
            decisions = list(place.reopened.decisions.values())
            messages.insert(0, self._new(ApprovalResponse(decisions=decisions)))
        return await self.submit_run(self._run(command), messages, command.keys, refuse_if_busy=refuse, place=place)

    async def _submit_decision(self, command: Command) -> Run:
        now = self.clock.now()
        waiting = await self.approvals.waiting_on_thread(command.agent.project_id, command.thread_id)
        decisions = [] if command.decisions is None else command.decisions(waiting)
        decision = self._new(ApprovalResponse(decisions=decisions))
        said = self._stored(command.messages)
        run = self._run(command)
        try:
            submitted = await self.decisions.decide_all(run, [decision, *said], keys=command.keys, by=command.actor)
        except AlreadyDecided:
            if not command.keeps_alive:
                raise
            # A disconnected client has sent its decision again. The tools have run, so the model is asked to go on.
            [alive] = self._stored([UserMessage(content=KEEP_ALIVE)])
            return await self.submit_run(run, [alive, *said], command.keys)
        release_permit()
        if submitted.is_new:
            self.on_submitted("decision")
        self.traces.decided(submitted.run, now)
        return submitted.run

    async def _make_room(self, command: Command, messages: list[NewMessage]) -> Run | None:
        """Applies the caller's policy to a busy thread. Returns the run that took the messages in, if one did."""
        agent, keys = command.agent, command.keys
        active = await self.listing.active_of_agent(agent.project_id, agent.id, command.thread_id)
        # A retry must neither cancel the run of the first try nor inject its messages twice. The keys are read after
        # the active runs, because a first try among the active runs has its keys stored.
        seen = await self.runs.of_keys(agent.project_id, command.thread_id, keys)
        if seen is not None:
            await self.queue.dispatch_stored(seen)
            return seen
        if command.if_busy == "inject":
            for run in active:
                answers = run.status is not RunStatus.AWAITING_APPROVAL and run.answers_messages
                if answers and await self._inject(run, messages, keys):
                    return run
            return None
        mode = CancelMode.ROLLBACK if command.if_busy == "rollback" else CancelMode.INTERRUPT
        release_permit()  # a cancel waits for the run to stop
        for run in active:
            reason = f"a new message came with {command.if_busy}"
            await self.canceller.cancel(run, actor=command.actor, reason=reason, mode=mode)
        return None

    async def _inject(self, run: Run, messages: list[NewMessage], keys: SubmissionKeys) -> bool:
        try:
            await self.inbox.inject(run, messages, "next", keys=keys)
        except Conflict:
            return False
        return True

    def _run(self, command: Command) -> Run:
        window, run_id, reopened = command.agent.window, command.run_id or self.ids.run(), command.place.reopened
        return Run(
            id=run_id,
            project_id=command.agent.project_id,
            agent_id=command.agent.id,
            thread_id=ThreadId(run_id) if command.place.begins else command.thread_id,
            conversation_id=command.conversation_id,
            continues=None if reopened is None else reopened.asked_by,
            turn=None if reopened is None else REOPENED_TURN,
            options=replace(
                command.options,
                clears_context=window.clears_context,
                when_full=window.when_full,
                code_agent=code_agent_of(command.options.override_model or command.agent.model),
            ),
            priority=command.priority,
            callback_url=command.callback_url,
            created_at=self.clock.now(),
        )
