"""The part of the composition root that constructs the services of each dialect, all on the same runs."""

from typing import NamedTuple

from api.ag_ui.service import AgUiService
from api.ai_sdk.chats import UiChats
from api.letta.conversations import AnswerService
from api.letta.groups import SleeperMaker
from api.letta.model_settings import changed_by_settings
from api.mcp.agent_tools import AgentTools
from api.mcp.service import LateRules, McpService
from api.mcp.tasks import TaskService
from api.offered_models import CodeAgentNames, OfferedModels
from api.openai.chat_service import ChatService
from api.openai.conversation_service import ConversationService
from api.openai.response_threads import ResponseThreads
from api.openai.responses_service import ResponseService
from api.pages.decisions import PageDecisions
from api.pages.submission import PageService
from api.pages.threads import PageThreads
from api.runs.cancel import CancelService
from api.runs.command import AgentThreads
from api.runs.reader import RunWaiter
from api.runs.run_changes import RunChanges
from api.runs.streaming import StreamService
from api.runs.submission import SubmissionService
from api.runs.thread_streams import ThreadStreams
from api.runs.thread_watches import ThreadWatches
from shared.process.context import ProcessContext
from shared.runs.started_runs import SleeptimeRuns, StartedRuns
from shared.sql.definitions.agent_changes import AgentEditor, GroupEditor
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.definitions.tools import BaseToolSeeder, ToolStore
from shared.sql.history.message_lists import MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.turns import RunChangeStore, TurnStore


class DialectServices(NamedTuple):
    """The services that the dialects' routes use."""

    models: OfferedModels
    code_agents: CodeAgentNames
    threads: AgentThreads
    sending: AnswerService
    chat: ChatService
    responses: ResponseService
    openai_conversations: ConversationService
    sleeptime: SleeptimeRuns
    group_turns: GroupTurnStore
    groups: GroupEditor
    sleepers: SleeperMaker
    mcp: McpService
    thread_streams: ThreadStreams
    run_changes: RunChanges
    page_threads: PageThreads
    pages: PageService
    ag_ui: AgUiService
    chats: UiChats


class Kernel(NamedTuple):
    """The services that every dialect needs."""

    process: ProcessContext
    unscoped: ProcessContext
    """The same process with a database that shows all projects."""
    submissions: SubmissionService
    streaming: StreamService
    waiter: RunWaiter
    cancels: CancelService


def dialect_services(kernel: Kernel) -> DialectServices:
    """The services of every dialect."""
    process, submissions, streaming = kernel.process, kernel.submissions, kernel.streaming
    settings, code_agents = process.settings, submissions.code_agents
    models = OfferedModels(process.environment, settings.builtin_models, code_agents, settings.default_model)
    threads = AgentThreads(
        agents=AgentStore(process.database),
        conversations=ConversationStore(process.database),
        changed_by=changed_by_settings,
    )
    response_threads = _response_threads(process, threads, models, submissions)
    sleeptime = _sleeptime(process, submissions)
    page_threads = PageThreads(
        threads=threads, conversations=threads.conversations, clock=process.clock, ids=process.ids
    )
    streams = _thread_streams(kernel)
    pages = _pages(kernel, page_threads)
    return DialectServices(
        models,
        code_agents,
        threads,
        _answers(kernel, sleeptime),
        _chat(kernel),
        _responses(kernel, response_threads),
        _conversations(kernel, response_threads),
        sleeptime,
        sleeptime.turns,
        GroupEditor(process.database, process.secret_keys),
        _sleepers(process),
        _mcp(kernel, threads),
        streams,
        RunChanges(RunChangeStore(kernel.unscoped.database), streaming.reader.feed, streaming),
        page_threads,
        pages,
        AgUiService(threads=page_threads, pages=pages, streams=streams),
        _ui_chats(process, page_threads, pages, streams),
    )


def _ui_chats(process: ProcessContext, threads: PageThreads, pages: PageService, streams: ThreadStreams) -> UiChats:
    """Answers the AI SDK's chats."""
    return UiChats(
        threads=threads,
        pages=pages,
        streams=streams,
        turns=streams.turns,
        listing=streams.listing,
        approvals=streams.approvals,
        history=MessageLists(process.database),
    )


def _pages(kernel: Kernel, threads: PageThreads) -> PageService:
    """Submits the messages and decisions of pages."""
    process, submissions = kernel.process, kernel.submissions
    return PageService(
        threads=threads,
        decisions=PageDecisions(
            approvals=submissions.approvals, tools=ToolStore(process.database), clock=process.clock
        ),
        submissions=submissions,
        messages=MessageLists(process.database),
        canceller=kernel.cancels.canceller,
        input_limits=kernel.submissions.input_limits,
    )


def _sleepers(process: ProcessContext) -> SleeperMaker:
    tools = ToolStore(process.database)
    base_tools = BaseToolSeeder(tools=tools, clock=process.clock, ids=process.ids)
    return SleeperMaker(base_tools=base_tools, tools=tools, clock=process.clock, ids=process.ids)


def _sleeptime(process: ProcessContext, submissions: SubmissionService) -> SleeptimeRuns:
    return SleeptimeRuns(
        turns=GroupTurnStore(process.database),
        agents=AgentStore(process.database),
        runs=submissions.runs,
        started=StartedRuns(runs=submissions.runs, queue=submissions.queue),
        clock=process.clock,
        ids=process.ids,
    )


def _mcp(kernel: Kernel, threads: AgentThreads) -> McpService:
    """Answers clients of the Model Context Protocol."""
    process, submissions, streaming = kernel.process, kernel.submissions, kernel.streaming
    clock, ids = process.clock, process.ids
    tasks = TaskService(
        runs=submissions.runs,
        reader=streaming.reader,
        decisions=submissions.decisions,
        traces=submissions.traces,
        cancels=kernel.cancels,
        retain_days=process.settings.retain_days,
        clock=clock,
    )
    return McpService(
        rules=LateRules(),
        tools=AgentTools(threads=threads, clock=clock, ids=ids),
        tasks=tasks,
        submissions=submissions,
        streaming=streaming,
        waiter=kernel.waiter,
        input_limits=kernel.submissions.input_limits,
        clock=clock,
        ids=ids,
    )


def _chat(kernel: Kernel) -> ChatService:
    """Answers chat completions."""
    return ChatService(
        submissions=kernel.submissions,
        streaming=kernel.streaming,
        waiter=kernel.waiter,
        input_limits=kernel.submissions.input_limits,
        clock=kernel.process.clock,
    )


def _answers(kernel: Kernel, sleeptime: SleeptimeRuns) -> AnswerService:
    """Answers messages on Letta's wire."""
    return AnswerService(
        submissions=kernel.submissions,
        streaming=kernel.streaming,
        waiter=kernel.waiter,
        messages=MessageStore(kernel.process.database),
        runs_of_turn=sleeptime.of_turn,
        input_limits=kernel.submissions.input_limits,
        clock=kernel.process.clock,
    )


def _responses(kernel: Kernel, threads: ResponseThreads) -> ResponseService:
    """Answers requests for responses."""
    return ResponseService(
        submissions=kernel.submissions,
        threads=threads,
        streaming=kernel.streaming,
        waiter=kernel.waiter,
        reader=kernel.streaming.reader,
        runs=kernel.submissions.runs,
        messages=MessageStore(kernel.process.database),
        listing=kernel.submissions.listing,
        cancels=kernel.cancels,
        input_limits=kernel.submissions.input_limits,
        clock=kernel.process.clock,
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


def _conversations(kernel: Kernel, threads: ResponseThreads) -> ConversationService:
    process = kernel.process
    return ConversationService(
        conversations=ConversationStore(process.database),
        messages=MessageStore(process.database),
        approvals=ApprovalStore(process.database),
        threads=threads,
        cancels=kernel.cancels,
        input_limits=kernel.submissions.input_limits,
        clock=process.clock,
        ids=process.ids,
    )


def _thread_streams(kernel: Kernel) -> ThreadStreams:
    process, streaming = kernel.process, kernel.streaming
    return ThreadStreams(
        streaming=streaming,
        turns=TurnStore(process.database),
        listing=RunListing(process.database),
        approvals=ApprovalStore(process.database),
        messages=MessageStore(process.database),
        watches=ThreadWatches(TurnStore(kernel.unscoped.database), streaming.reader.feed),
    )
