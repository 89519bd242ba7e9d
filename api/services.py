"""The services that routes use. `main.py` constructs them once and stores them in `app.state.services`. This module
constructs the plain stores and the services for MCP servers among them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from secrets import token_hex
from typing import Any, NamedTuple, get_type_hints

from api.access.accepted_keys import KeyIssuer
from api.access.authentication import Access
from api.admission import CallerQuotas
from api.ag_ui.service import AgUiService
from api.agent_answers import AgentAnswers, MessageAnswers
from api.ai_sdk.chats import UiChats
from api.approvals import ApprovalDecisions
from api.callbacks.endpoints import WebhookEndpoints
from api.input_limits import InputLimits
from api.letta.conversations import AnswerService
from api.letta.groups import SleeperMaker
from api.mcp.service import McpService
from api.mcp_servers import McpServers
from api.mcp_sign_in import McpSignIns
from api.offered_models import CodeAgentNames, OfferedModels
from api.openai.chat_service import ChatService
from api.openai.conversation_service import ConversationService
from api.openai.responses_service import ResponseService
from api.operations import Operations
from api.pages.submission import PageService
from api.pages.threads import PageThreads
from api.runs.cancel import CancelService
from api.runs.command import AgentThreads
from api.runs.run_changes import RunChanges
from api.runs.single_runs import CompactionService, GenerationService, ToolRunService
from api.runs.streaming import StreamService
from api.runs.thread_streams import ThreadStreams
from shared.archival.archival_memory import ArchivalMemory
from shared.concurrency import Clock
from shared.domain.ids import IdMaker
from shared.mcp.client import McpClient
from shared.mcp.commands import AllowedCommands
from shared.mcp.signed_in import AuthorizationServers, SignedIn
from shared.network.checked_http import NetworkRules
from shared.network.server_models import ServerModels
from shared.packages.environments import PackageEnvironments
from shared.process.context import ProcessContext
from shared.process.service_answers import Readiness
from shared.process.settings import Settings
from shared.runs.started_runs import SleeptimeRuns
from shared.secret_keys import SecretKeys
from shared.sql.access.audit import AuditLog
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageStore
from shared.sql.definitions.agent_changes import AgentEditor, GroupEditor
from shared.sql.definitions.blocks import BlockStore, TagStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.definitions.imported_agents import ImportedAgentStore
from shared.sql.definitions.mcp_servers import McpServerStore, McpSignInStore
from shared.sql.definitions.tools import BaseToolSeeder, ToolStore
from shared.sql.engine import Database
from shared.sql.history.message_lists import MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.effects import EffectStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.journal import JournalStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.steps import StepStore


@dataclass(frozen=True, kw_only=True)
class Services:
    """The API's services."""

    settings: Settings
    clock: Clock
    ids: IdMaker
    access: Access
    issuer: KeyIssuer
    quotas: CallerQuotas
    environment: Mapping[str, str]
    """The process's environment variables: which model providers are configured."""
    models: OfferedModels
    code_agents: CodeAgentNames
    server_models: ServerModels
    secret_keys: SecretKeys
    agents: AgentEditor
    imported_agents: ImportedAgentStore
    tools: ToolStore
    packages: PackageEnvironments
    base_tools: BaseToolSeeder
    blocks: BlockStore
    tags: TagStore
    archives: ArchiveStore
    passages: PassageStore
    archival_memory: ArchivalMemory
    conversations: ConversationStore
    messages: MessageStore
    message_lists: MessageLists
    runs: RunStore
    listing: RunListing
    journals: JournalStore
    steps: StepStore
    approvals: ApprovalStore
    decisions: ApprovalDecisions
    inbox: InboxStore
    effects: EffectStore
    threads: AgentThreads
    sending: AnswerService
    chat: ChatService
    responses: ResponseService
    openai_conversations: ConversationService
    sleeptime: SleeptimeRuns
    group_turns: GroupTurnStore
    groups: GroupEditor
    sleepers: SleeperMaker
    webhooks: WebhookEndpoints
    mcp: McpService
    mcp_servers: McpServers
    mcp_sign_ins: McpSignIns
    compacting: CompactionService
    tool_runs: ToolRunService
    generation: GenerationService
    streaming: StreamService
    thread_streams: ThreadStreams
    run_changes: RunChanges
    page_threads: PageThreads
    pages: PageService
    ag_ui: AgUiService
    chats: UiChats
    cancels: CancelService
    readiness: Readiness
    agent_answers: AgentAnswers
    message_answers: MessageAnswers
    input_limits: InputLimits
    operations: Operations
    """Reads the entries and figures that live processes publish."""

    def by_type(self) -> dict[Any, object]:
        """Each service by the type of its field. A route names the types that it uses."""
        declared = get_type_hints(type(self))
        return {declared[field.name]: getattr(self, field.name) for field in fields(self)}


# The stores that routes use as they are, without a service around them.


class PlainStores(NamedTuple):
    """Stores by the names that they have among the services."""

    blocks: BlockStore
    tags: TagStore
    archives: ArchiveStore
    passages: PassageStore
    message_lists: MessageLists
    journals: JournalStore
    steps: StepStore
    inbox: InboxStore
    effects: EffectStore


def plain_stores(database: Database) -> PlainStores:
    """Returns the stores on this database."""
    return PlainStores(
        blocks=BlockStore(database),
        tags=TagStore(database),
        archives=ArchiveStore(database),
        passages=PassageStore(database),
        message_lists=MessageLists(database),
        journals=JournalStore(database),
        steps=StepStore(database),
        inbox=InboxStore(database),
        effects=EffectStore(database),
    )


# Constructs the MCP clients of an API process, and the services that use them.


class McpParts(NamedTuple):
    """Clients of MCP servers and of their authorization servers."""

    client: McpClient
    authorization: AuthorizationServers
    signed_in: SignedIn


class McpServices(NamedTuple):
    """Services for callers who use MCP servers."""

    mcp_servers: McpServers
    mcp_sign_ins: McpSignIns


@asynccontextmanager
async def mcp_parts(process: ProcessContext, network: NetworkRules) -> AsyncGenerator[McpParts]:
    """Opens the clients for the block. `process` acts for callers."""
    client = McpClient(network, AllowedCommands.parse(process.settings.mcp_commands))
    authorization = AuthorizationServers(network)
    methods = (McpServerStore.claim_renewal, McpServerStore.settle_renewal)
    store = process.patience().applied_to(McpServerStore(process.database), *methods)
    signed_in = SignedIn(store, authorization, process.secret_keys, process.clock, new_holder=lambda: token_hex(8))
    async with AsyncExitStack() as stack:
        for close in (client.aclose, authorization.aclose, signed_in.aclose):
            stack.push_async_callback(close)
        yield McpParts(client, authorization, signed_in)


def mcp_services(process: ProcessContext, unscoped: ProcessContext, parts: McpParts) -> McpServices:
    """Constructs the services. `process` acts for callers. `unscoped` is the same process for all projects: a browser
    that returns from a sign-in names none."""
    settings = process.settings
    servers = McpServers(
        store=McpServerStore(process.database),
        tools=ToolStore(process.database),
        client=parts.client,
        signed_in=parts.signed_in,
        secret_keys=process.secret_keys,
        audit=AuditLog(process.database),
        clock=process.clock,
        ids=process.ids,
        commands=AllowedCommands.parse(settings.mcp_commands),
        asks_always=settings.mcp_always_ask,
        call_s=settings.mcp_timeout,
    )
    sign_ins = McpSignIns(
        servers=servers,
        store=McpSignInStore(process.database),
        unscoped=McpSignInStore(unscoped.database),
        authorization=parts.authorization,
        public_url=settings.public_url.rstrip("/"),
    )
    return McpServices(servers, sign_ins)
