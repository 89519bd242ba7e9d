"""The services that routes use. `main.py` constructs them once and stores them in `app.state.services`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from api.access.accepted_keys import KeyIssuer
from api.access.authentication import Access
from api.admission import CallerQuotas
from api.ag_ui.service import AgUiService
from api.agent_answers import AgentAnswers, MessageAnswers
from api.ai_sdk.chats import UiChats
from api.approvals import ApprovalDecisions
from api.base_tools import BaseToolSeeder
from api.callbacks.endpoints import WebhookEndpoints
from api.code_agents import CodeAgentNames
from api.input_limits import InputLimits
from api.letta.conversations import AnswerService
from api.letta.groups import SleeperMaker
from api.mcp.service import McpService
from api.mcp_servers import McpServers
from api.mcp_sign_in import McpSignIns
from api.offered_models import OfferedModels
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
from shared.network.server_models import ServerModels
from shared.packages.environments import PackageEnvironments
from shared.process.service_answers import Readiness
from shared.process.settings import Settings
from shared.runs.started_runs import SleeptimeRuns
from shared.secret_keys import SecretKeys
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageStore
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.blocks import BlockStore, TagStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.definitions.group_changes import GroupEditor
from shared.sql.definitions.imported_agents import BroughtAgentStore
from shared.sql.definitions.tools import ToolStore
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
    imported_agents: BroughtAgentStore
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
    """The entries that live processes publish, and their figures."""

    def by_type(self) -> dict[Any, object]:
        """Each service by the type of its field. A route names the types that it uses."""
        declared = get_type_hints(type(self))
        return {declared[field.name]: getattr(self, field.name) for field in fields(self)}
