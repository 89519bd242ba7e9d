"""The part of the composition root that makes what the dialects need, each from the same runs."""

from typing import NamedTuple

from api.input_limits import InputLimits
from api.letta.conversations import AnswerService
from api.letta.model_settings import changed_by_settings
from api.offered_models import OfferedModels
from api.openai.chat_service import ChatService
from api.openai.conversation_service import ConversationService
from api.openai.response_threads import ResponseThreads
from api.openai.responses_service import ResponseService
from api.runs.cancel import CancelService
from api.runs.command import AgentThreads
from api.runs.reader import RunWaiter
from api.runs.run_changes import RunChanges
from api.runs.streaming import StreamService
from api.runs.submission import SubmissionService
from api.runs.thread_streams import ThreadStreams
from api.runs.thread_watches import ThreadWatches
from shared.process.context import ProcessContext
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_changes import RunChangeStore
from shared.sql.runs.turns import TurnStore


class DialectServices(NamedTuple):
    """What the routes of the dialects work with."""

    models: OfferedModels
    threads: AgentThreads
    sending: AnswerService
    chat: ChatService
    responses: ResponseService
    openai_conversations: ConversationService
    thread_streams: ThreadStreams
    run_changes: RunChanges


def dialect_services(
    process: ProcessContext,
    everybodys: ProcessContext,
    submissions: SubmissionService,
    streaming: StreamService,
    waiter: RunWaiter,
    cancels: CancelService,
) -> DialectServices:
    """The services of every dialect."""
    settings = process.settings
    models = OfferedModels(process.environment, settings.builtin_models, settings.default_model)
    threads = AgentThreads(
        agents=AgentStore(process.database),
        conversations=ConversationStore(process.database),
        changed_by=changed_by_settings,
    )
    response_threads = _response_threads(process, threads, models, submissions)
    return DialectServices(
        models,
        threads,
        answer_service(process, submissions, streaming, waiter),
        chat_service(process, submissions, streaming, waiter),
        response_service(process, submissions, streaming, waiter, response_threads, cancels),
        _conversations(process, response_threads),
        thread_streams(process, everybodys, streaming),
        RunChanges(RunChangeStore(everybodys.database), streaming.reader.feed, streaming),
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


def response_service(
    process: ProcessContext,
    submissions: SubmissionService,
    streaming: StreamService,
    waiter: RunWaiter,
    threads: ResponseThreads,
    cancels: CancelService,
) -> ResponseService:
    """Answers requests for responses."""
    return ResponseService(
        submissions=submissions,
        threads=threads,
        streaming=streaming,
        waiter=waiter,
        reader=streaming.reader,
        runs=submissions.runs,
        messages=MessageStore(process.database),
        listing=submissions.listing,
        cancels=cancels,
        input_limits=InputLimits.of(process.settings),
        clock=process.clock,
    )


def _response_threads(
    process: ProcessContext, threads: AgentThreads, models: OfferedModels, submissions: SubmissionService
) -> ResponseThreads:
    return ResponseThreads(
        agents=AgentEditor(process.database, process.secret_keys),
        threads=threads,
        models=models,
        runs=submissions.runs,
        messages=MessageStore(process.database),
        approvals=submissions.approvals,
        clock=process.clock,
        ids=process.ids,
    )


def _conversations(process: ProcessContext, threads: ResponseThreads) -> ConversationService:
    return ConversationService(
        conversations=ConversationStore(process.database),
        messages=MessageStore(process.database),
        approvals=ApprovalStore(process.database),
        threads=threads,
        input_limits=InputLimits.of(process.settings),
        clock=process.clock,
        ids=process.ids,
    )


def thread_streams(process: ProcessContext, everybodys: ProcessContext, streaming: StreamService) -> ThreadStreams:
    """Streams threads. `everybodys` is the process with a database that shows all projects."""
    return ThreadStreams(
        streaming=streaming,
        turns=TurnStore(process.database),
        listing=RunListing(process.database),
        approvals=ApprovalStore(process.database),
        watches=ThreadWatches(TurnStore(everybodys.database), streaming.reader.feed),
    )
