"""The part of the composition root that makes what runs need: reading, submitting, deciding, cancelling."""

import asyncio
from functools import partial

from api.approvals import ApprovalDecisions
from api.caller_quotas import CallerQuotas
from api.input_limits import InputLimits
from api.letta.agents import window_rules_of
from api.letta.answer_service import AnswerService
from api.openai.chat_service import ChatService
from api.runs.cancel import RunCanceller
from api.runs.compaction import CompactionService
from api.runs.generation import GenerationService
from api.runs.log_ends import LogEnds
from api.runs.queued_runs import QueuedRuns
from api.runs.reader import RunReader
from api.runs.streaming import StreamService
from api.runs.submission import SubmissionService
from api.runs.submission_traces import SubmissionTraces
from api.runs.tool_runs import ToolRunService
from api.runs.waiting import RunWaiter
from shared.process.context import ProcessContext
from shared.redis.channel_listener import CancelSignal
from shared.redis.event_feed import EventFeed
from shared.redis.event_log import EventLog
from shared.redis.queue import RunQueue
from shared.runs.unowned import ApprovalService, UnownedRuns
from shared.sql.access.audit import AuditLog
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.tools import ToolStore
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.checkpoints import CheckpointStore, ToolRunStore
from shared.sql.runs.decisions import DecisionStore
from shared.sql.runs.event_blocks import EventStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore


def run_reader(
    runs: RunStore, events: EventStore, event_log: EventLog, feed: EventFeed, everybodys: ProcessContext
) -> RunReader:
    """Reads logs. `everybodys` is the process with a database that shows all projects."""
    # Silent readers of all projects ask one question together.
    log_ends = LogEnds(RunStore(everybodys.database))
    on_gap = everybodys.metrics.api.reader_gaps.inc
    return RunReader(runs=runs, events=events, event_log=event_log, feed=feed, log_ends=log_ends, on_gap=on_gap)


def stream_service(
    process: ProcessContext, reader: RunReader, quotas: CallerQuotas, ending: asyncio.Event
) -> StreamService:
    """Streams runs."""
    return StreamService(
        reader=reader,
        clock=process.clock,
        keepalive_s=process.settings.keepalive_s,
        quotas=quotas,
        ending=ending,
    )


def chat_service(
    process: ProcessContext, submissions: SubmissionService, streaming: StreamService, waiter: RunWaiter
) -> ChatService:
    """Answers chat completions."""
    return ChatService(
        submissions=submissions,
        streaming=streaming,
        waiter=waiter,
        input_limits=InputLimits.of(process.settings),
        clock=process.clock,
    )


def answer_service(
    process: ProcessContext, submissions: SubmissionService, streaming: StreamService, waiter: RunWaiter
) -> AnswerService:
    """Answers senders on Letta's wire."""
    return AnswerService(
        submissions=submissions,
        streaming=streaming,
        waiter=waiter,
        messages=MessageStore(process.database),
        input_limits=InputLimits.of(process.settings),
        clock=process.clock,
    )


def compaction_service(process: ProcessContext, submissions: SubmissionService, waiter: RunWaiter) -> CompactionService:
    """Compacts histories."""
    return CompactionService(
        submissions=submissions,
        waiter=waiter,
        messages=MessageStore(process.database),
        clock=process.clock,
        ids=process.ids,
    )


def submission_service(
    process: ProcessContext, canceller: RunCanceller, decisions: ApprovalService
) -> SubmissionService:
    """Takes submissions."""
    listing = RunListing(process.database)
    return SubmissionService(
        runs=canceller.runs,
        listing=listing,
        queued_runs=QueuedRuns(listing, process.settings.limits, process.clock),
        max_steps=process.settings.max_steps,
        input_limits=InputLimits.of(process.settings),
        approvals=decisions.approvals,
        decisions=decisions,
        inbox=InboxStore(process.database),
        settlements=canceller.unowned.settlements,
        queue=canceller.queue,
        canceller=canceller,
        traces=SubmissionTraces(tracer=process.tracer, clock=process.clock),
        window_rules=window_rules_of,
        clock=process.clock,
        ids=process.ids,
        on_submitted=process.metrics.api.run_submitted,
    )


def tool_run_service(
    process: ProcessContext, submissions: SubmissionService, waiter: RunWaiter, agents: AgentEditor
) -> ToolRunService:
    """Calls single tools."""
    return ToolRunService(
        submissions=submissions,
        waiter=waiter,
        agents=agents,
        tool_runs=ToolRunStore(process.database),
        audit=AuditLog(process.database),
        clock=process.clock,
        ids=process.ids,
    )


def generation_service(process: ProcessContext, submissions: SubmissionService, waiter: RunWaiter) -> GenerationService:
    """Asks models single questions."""
    return GenerationService(submissions=submissions, waiter=waiter, clock=process.clock, ids=process.ids)


def run_canceller(process: ProcessContext, unowned: UnownedRuns, feed: EventFeed) -> RunCanceller:
    """Cancels runs."""
    return RunCanceller(
        runs=unowned.runs,
        unowned=unowned,
        cancel_signal=CancelSignal(process.redis),
        queue=unowned.queue,
        feed=feed,
        event_log=unowned.event_log,
        clock=process.clock,
        wait_s=process.settings.cancel_wait_s,
        lease_s=process.settings.lease_s,
        on_cancel=process.metrics.api.cancel_asked,
    )


def approval_service(process: ProcessContext, unowned: UnownedRuns, approvals: ApprovalStore) -> ApprovalService:
    """Decides what waits for a person."""
    return ApprovalService(
        approvals=approvals,
        decisions=DecisionStore(process.database, process.ids),
        runs=unowned.runs,
        unowned=unowned,
        queue=unowned.queue,
        clock=process.clock,
    )


def approval_decisions(
    process: ProcessContext, decisions: ApprovalService, tools: ToolStore, traces: SubmissionTraces
) -> ApprovalDecisions:
    """Checks what a person decides, and decides."""
    return ApprovalDecisions(
        approvals=decisions.approvals,
        tools=tools,
        approval_service=decisions,
        traces=traces,
        clock=decisions.clock,
        on_continued=partial(process.metrics.api.run_submitted, "decision"),
    )


def unowned_runs(process: ProcessContext, run_store: RunStore, event_log: EventLog, queue: RunQueue) -> UnownedRuns:
    """Ends runs that no worker has."""
    return UnownedRuns(
        runs=run_store,
        agents=AgentStore(process.database),
        messages=MessageStore(process.database),
        checkpoints=CheckpointStore(process.database),
        settlements=SettlementStore(process.database, process.ids),
        events=EventStore(process.database),
        event_log=event_log,
        queue=queue,
        clock=process.clock,
        ids=process.ids,
        tracer=process.tracer,
    )
