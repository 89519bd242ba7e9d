"""The services that routes use. `main.py` constructs them once and stores them in `app.state.services`. This module
constructs the plain stores and the services for MCP servers among them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple, get_type_hints

from api.access.accepted_keys import KeyIssuer
from api.access.authentication import Access
from api.admission import CallerQuotas
from api.agent_answers import AgentAnswers, MessageAnswers
from api.approvals import ApprovalDecisions
from api.callbacks.endpoints import WebhookEndpoints
from api.dialects import DialectServices
from api.input_limits import InputLimits
from api.mcp_servers import McpServers
from api.mcp_sign_in import McpSignIns
from api.operations import Operations
from api.runs.cancel import CancelService
from api.runs.single_runs import CompactionService, GenerationService, ToolRunService
from api.runs.streaming import StreamService
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
from shared.secret_keys import SecretKeys
from shared.sql.access.audit import AuditLog
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageStore
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.blocks import BlockStore, TagStore
from shared.sql.definitions.conversations import ConversationStore
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
    return PlainStores(*[kind(database) for kind in get_type_hints(PlainStores).values()])


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


@dataclass(frozen=True, kw_only=True)
class Services:
    """The API's services."""

    dialects: DialectServices
    stores: PlainStores
    mcp_servers: McpServices
    settings: Settings
    clock: Clock
    ids: IdMaker
    access: Access
    issuer: KeyIssuer
    quotas: CallerQuotas
    environment: Mapping[str, str]
    """The process's environment variables: which model providers are configured."""
    server_models: ServerModels
    secret_keys: SecretKeys
    agents: AgentEditor
    imported_agents: ImportedAgentStore
    tools: ToolStore
    packages: PackageEnvironments
    base_tools: BaseToolSeeder
    archival_memory: ArchivalMemory
    conversations: ConversationStore
    messages: MessageStore
    runs: RunStore
    listing: RunListing
    approvals: ApprovalStore
    decisions: ApprovalDecisions
    webhooks: WebhookEndpoints
    compacting: CompactionService
    tool_runs: ToolRunService
    generation: GenerationService
    streaming: StreamService
    cancels: CancelService
    readiness: Readiness
    agent_answers: AgentAnswers
    message_answers: MessageAnswers
    input_limits: InputLimits
    operations: Operations
    """Reads the entries and figures that live processes publish."""

    def by_type(self) -> dict[Any, object]:
        """Each service by its declared type, those of the first three groups too. A route names the types that it
        uses."""
        found = dict[Any, object]()
        for group in (self, self.dialects, self.stores, self.mcp_servers):
            found |= {kind: getattr(group, name) for name, kind in get_type_hints(type(group)).items()}
        return found
