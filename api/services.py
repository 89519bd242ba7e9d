"""What the routes work with. Made once in `main.py`, found in `app.state.services`."""

from collections.abc import Mapping
from dataclasses import dataclass

from api.access.accepted_keys import KeyIssuer
from api.access.authentication import Access
from api.approvals import ApprovalDecisions
from api.base_tools import BaseToolSeeder
from api.caller_quotas import CallerQuotas
from api.input_limits import InputLimits
from api.letta.answer_service import AnswerService
from api.letta.model_settings import OfferedModels
from api.openai.chat_service import ChatService
from api.operations import Operations
from api.runs.cancel import CancelService
from api.runs.single_runs import CompactionService, GenerationService, ToolRunService
from api.runs.streaming import StreamService
from api.runs.threads import AgentThreads
from shared.archival.archival_memory import ArchivalMemory
from shared.concurrency import Clock
from shared.domain.ids import IdMaker
from shared.network.server_models import ServerModels
from shared.packages.environments import PackageEnvironments
from shared.process.service_answers import ServiceAnswers
from shared.process.settings import Settings
from shared.secret_keys import SecretKeys
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageStore
from shared.sql.definitions.agent_changes import AgentEditor, BroughtAgentStore
from shared.sql.definitions.blocks import BlockStore, TagStore
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.definitions.tools import ToolStore
from shared.sql.history.message_lists import MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.steps import StepStore


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Two questions that must not be mixed up: a balancer takes the process out for the first, and monitors
    show the second."""

    itself: ServiceAnswers
    """What this process cannot answer any request without. While Redis or the workers are away it stores runs, shows
    histories and cancels, so neither of them is among it."""
    everything: ServiceAnswers
    """What the deployment needs to work whole."""


@dataclass(frozen=True, kw_only=True)
class Services:
    """The API's collaborators."""

    settings: Settings
    clock: Clock
    ids: IdMaker
    access: Access
    issuer: KeyIssuer
    quotas: CallerQuotas
    environment: Mapping[str, str]
    """The process's environment variables: which model providers are configured."""
    models: OfferedModels
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
    steps: StepStore
    approvals: ApprovalStore
    decisions: ApprovalDecisions
    inbox: InboxStore
    threads: AgentThreads
    sending: AnswerService
    chat: ChatService
    compacting: CompactionService
    tool_runs: ToolRunService
    generation: GenerationService
    streaming: StreamService
    cancels: CancelService
    readiness: Readiness
    operations: Operations
    """What living processes show of themselves, and figures."""

    @property
    def input_limits(self) -> InputLimits:
        """How long texts of requests may be."""
        return InputLimits.of(self.settings)
