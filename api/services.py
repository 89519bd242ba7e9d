"""What the routes work with. Made once in `main.py`, found in `app.state.services`.

A project's base tools are rows like those of any other tool; `BaseToolSeeder` makes them when the project first asks
for tools.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from api.access.accepted_keys import KeyIssuer
from api.access.authentication import Access
from api.admission import CallerQuotas
from api.approvals import ApprovalDecisions
from api.input_limits import InputLimits
from api.letta.conversations import AnswerService
from api.letta.model_settings import OfferedModels
from api.openai.chat_service import ChatService
from api.operations import Operations
from api.runs.cancel import CancelService
from api.runs.command import AgentThreads
from api.runs.single_runs import CompactionService, GenerationService, ToolRunService
from api.runs.streaming import StreamService
from shared.archival.archival_memory import ArchivalMemory
from shared.concurrency import Clock
from shared.domain.ids import IdMaker, ProjectId
from shared.domain.tool_catalog import BASE_TOOLS, BaseTool
from shared.domain.tools import Tool
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


class BaseToolSeeder:
    """Puts the base tools of this release into projects. A tool of a project's own under such a name stays."""

    def __init__(self, *, tools: ToolStore, clock: Clock, ids: IdMaker) -> None:
        self._tools = tools
        self._clock = clock
        self._ids = ids
        self._filled: set[ProjectId] = set()

    async def fill(self, project_id: ProjectId) -> None:
        """Makes sure that the project has them. Asks the database once per project and process."""
        if project_id not in self._filled:
            await self.add(project_id)

    async def add(self, project_id: ProjectId) -> list[Tool]:
        """Makes those that the project lacks, and brings the others to what this release says; all of them."""
        stored = await self._tools.add_base_tools(project_id, [self._row(project_id, tool) for tool in BASE_TOOLS])
        self._filled.add(project_id)
        return stored

    def _row(self, project_id: ProjectId, tool: BaseTool) -> Tool:
        now = self._clock.now()
        return Tool(
            id=self._ids.tool(),
            project_id=project_id,
            name=tool.name,
            description=tool.description,
            source_code="",
            json_schema=tool.json_schema,
            tags=[tool.kind],
            enable_parallel_execution=tool.enable_parallel_execution,
            idempotent=not tool.starts_once,
            tool_type=tool.kind,
            created_at=now,
            updated_at=now,
        )


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
