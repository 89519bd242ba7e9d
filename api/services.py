"""What the routes work with. Made once in `main.py`, found in `app.state.services`."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.agent_threads import AgentThreads
from api.approval_decisions import ApprovalDecisions
from api.auth import ApiKeys
from api.cancel_requests import CancelRequests
from api.compacting import Compacting
from api.sending import Sending
from api.streaming import RunStreaming
from shared.clock import Clock
from shared.domain.ids import AgentId, IdMaker, ProjectId
from shared.settings import Settings
from shared.sql.agent_store import AgentStore
from shared.sql.approval_store import ApprovalStore
from shared.sql.block_store import BlockStore
from shared.sql.conversation_store import ConversationStore
from shared.sql.inbox_store import InboxStore
from shared.sql.message_store import MessageStore
from shared.sql.run_listing import RunListing
from shared.sql.run_store import RunStore
from shared.sql.step_rows import StepStore
from shared.sql.tool_store import ToolStore


@dataclass(frozen=True, kw_only=True)
class Services:
    """The API's collaborators."""

    settings: Settings
    clock: Clock
    ids: IdMaker
    keys: ApiKeys
    environment: Mapping[str, str]
    """The process's environment variables: which model providers are configured."""
    agents: AgentStore
    tools: ToolStore
    blocks: BlockStore
    conversations: ConversationStore
    messages: MessageStore
    runs: RunStore
    listing: RunListing
    steps: StepStore
    approvals: ApprovalStore
    decisions: ApprovalDecisions
    inbox: InboxStore
    threads: AgentThreads
    sending: Sending
    compacting: Compacting
    streaming: RunStreaming
    cancels: CancelRequests
    pending_approval: Callable[[ProjectId, AgentId], Awaitable[dict[str, Any] | None]]
    """The wire's approval request message that waits in an agent's default history."""
    readiness: Callable[[], Awaitable[Mapping[str, bool]]]
    """Which of the services that we need answer, by name."""
