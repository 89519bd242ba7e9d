"""The stores of definitions as guests of the conformance suite."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Any

from msgspec.structs import replace

from shared.domain.agents import ModelOptions
from shared.domain.api_keys import SECRET_BYTES, ApiKey, new_secret
from shared.domain.groups import Group
from shared.domain.ids import ProjectId
from shared.domain.searches import Archive
from shared.domain.threads import Conversation
from shared.domain.tools import ToolLimits, ToolPackages
from shared.mcp_tools import MOST_SERVERS
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.archival.archives import ArchiveFilter, ArchiveStore
from shared.sql.definitions.agent_changes import AgentEditor, GroupEditor
from shared.sql.definitions.agents import AgentFilter
from shared.sql.definitions.blocks import BlockFilter, BlockStore
from shared.sql.definitions.conversations import ConversationFilter, ConversationStore
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.definitions.tools import ToolFilter, ToolStore
from shared.sql.paging import Page
from shared.sql.run_tables import runs
from shared.sql.runs.webhooks import MOST_ENDPOINTS, WebhookEndpointStore
from shared.sql.tables import (
    agent_groups,
    agents,
    api_keys,
    archives,
    blocks,
    conversations,
    mcp_servers,
    tools,
    webhook_endpoints,
)
from tests.kit.runs.definitions import NOW, PROJECT, some_agent, some_block, some_server, some_tool
from tests.kit.runs.stored_runs import some_endpoint
from tests.kit.stores.guest import (
    BY_CREATION,
    EVERYTHING,
    LATER,
    Change,
    ChangingGuest,
    Order,
    StoreGuest,
    order_by_runs,
)


class Agents(ChangingGuest):
    store, table = AgentEditor, agents
    sorts = (BY_CREATION, "updated_at", "last_run_completion")

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        tool = await ToolStore(self.database).upsert(some_tool(project_id=project_id))
        block = await BlockStore(self.database).create(some_block(project_id=project_id))
        return some_agent(
            project_id=project_id,
            tool_ids=[tool.id],
            block_ids=[block.id],
            tags=["a", f"number {number}"],
            options=ModelOptions(temperature=0.5, parallel_tool_calls=False),
            tool_environment={"TOKEN": "x"},
            metadata={"deep": {"er": [number]}},
            extra={"template_id": "some"},
        )

    async def create(self, noun: Any) -> Any:
        return (await self.rows.create(noun, system_message_id=self.ids.message())).agent

    async def list(self, project_id: ProjectId, page: Page = EVERYTHING, order: str = BY_CREATION) -> Sequence[Any]:
        return await self.rows.list(project_id, AgentFilter(), page, order)

    async def arrange(self, order: str, nouns: Sequence[Any]) -> Order:
        if order == "last_run_completion":
            return await order_by_runs(self, runs.c.agent_id, nouns)
        first, second, third, *others = nouns
        for minutes, noun in enumerate([third, first], start=1):
            await self.update(PROJECT, noun.id, lambda agent: agent, NOW + timedelta(minutes=minutes))
        ids = [noun.id for noun in (second, *others, third, first)]
        return Order(ids, ids[::-1])


class Tools(ChangingGuest):
    store, table = ToolStore, tools
    text_field, unique_field = "description", "name"

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        return some_tool(
            f"tool_{number}",
            project_id=project_id,
            tags=["x"],
            approval_expires_s=60.0,
            on_approval_expiry="deny",
            network="host",
            scratch="run",
            limits=ToolLimits(timeout_s=2.0),
            packages=ToolPackages(["numpy==2.4.6"], ["numpy"]),
        )

    async def create(self, noun: Any) -> Any:
        return await self.rows.upsert(noun)

    async def list(self, project_id: ProjectId, page: Page = EVERYTHING, order: str = BY_CREATION) -> Sequence[Any]:
        return await self.rows.list(project_id, ToolFilter(), page)

    async def count(self, project_id: ProjectId) -> int:
        return await self.rows.count(project_id, ToolFilter())


class Blocks(ChangingGuest):
    store, table = BlockStore, blocks
    text_field, counts_changes = "value", True

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        return some_block(f"label {number}", project_id=project_id, description="Tastes", tags=["b"], limit=500)

    async def list(self, project_id: ProjectId, page: Page = EVERYTHING, order: str = BY_CREATION) -> Sequence[Any]:
        return await self.rows.list(project_id, BlockFilter(), page)


class Conversations(ChangingGuest):
    store, table = ConversationStore, conversations
    text_field = "summary"
    sorts = (BY_CREATION, "last_run_completion", "last_message_at")

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        agent = some_agent(project_id=project_id)
        await AgentEditor(self.database).create(agent, system_message_id=self.ids.message())
        return Conversation(
            id=self.ids.conversation(),
            project_id=project_id,
            agent_id=agent.id,
            summary=f"All about {number}",
            metadata={"key": "value"},
            created_at=NOW,
            updated_at=NOW,
        )

    async def create(self, noun: Any) -> Any:
        return await self.rows.create(noun, system_message_id=self.ids.message())

    async def list(self, project_id: ProjectId, page: Page = EVERYTHING, order: str = BY_CREATION) -> Sequence[Any]:
        return await self.rows.list(project_id, ConversationFilter(), page, order)

    async def arrange(self, order: str, nouns: Sequence[Any]) -> Order:
        return await order_by_runs(self, runs.c.thread_id, nouns)


class McpServers(ChangingGuest):
    store, table = McpServerStore, mcp_servers
    text_field, unique_field = "problem", "name"
    is_paged, sees_no_change, most = False, True, MOST_SERVERS

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        secrets = {"token": "t", "header:X": "y"}
        return some_server(
            f"server {number}", project_id=project_id, secrets=secrets, auth_header="X-Key", refreshed_at=LATER
        )

    async def list(self, project_id: ProjectId, page: Page = EVERYTHING, order: str = BY_CREATION) -> Sequence[Any]:
        return await self.rows.list(project_id)

    async def update(self, project_id: ProjectId, noun_id: str, change: Change, now: datetime) -> Any:
        return await self.rows.update(project_id, noun_id, change, now=now)


class Groups(ChangingGuest):
    store, table = GroupEditor, agent_groups
    text_field, unique_field = "description", "manager_agent_id"
    has_document, sees_no_change = False, True

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        manager, sleeper = [some_agent(name=name, project_id=project_id) for name in ("manager", "sleeper")]
        for agent in (manager, sleeper):
            await AgentEditor(self.database).create(agent, system_message_id=self.ids.message())
        return Group(
            id=self.ids.group(),
            project_id=project_id,
            manager_agent_id=manager.id,
            agent_ids=[sleeper.id],
            description=f"number {number}",
            created_at=NOW,
            updated_at=NOW,
        )


class WebhookEndpoints(ChangingGuest):
    store, table = WebhookEndpointStore, webhook_endpoints
    has_document, sees_no_change, most = False, True, MOST_ENDPOINTS

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        return some_endpoint(name=f"number {number}", project_id=project_id)

    async def update(self, project_id: ProjectId, noun_id: str, change: Change, now: datetime) -> Any:
        return await self.rows.update(project_id, noun_id, change, act="webhook.changed", now=now)


class Archives(ChangingGuest):
    store, table = ArchiveStore, archives
    text_field, takes_fields = "description", True

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        return Archive(
            id=self.ids.archive(),
            project_id=project_id,
            name=f"number {number}",
            description="Notes",
            embedding="builtin/words",
            created_at=NOW,
            updated_at=NOW,
        )

    async def list(self, project_id: ProjectId, page: Page = EVERYTHING, order: str = BY_CREATION) -> Sequence[Any]:
        return await self.rows.list(project_id, ArchiveFilter(), page)

    async def update(self, project_id: ProjectId, noun_id: str, change: Change, now: datetime) -> Any:
        wanted = change(await self.make(0))
        return await self.rows.update(project_id, noun_id, name=None, description=wanted.description, now=now)


class ApiKeys(StoreGuest):
    """Keys are rotated and revoked, which `test_api_key_store.py` tests, and never deleted."""

    store, table = ApiKeyStore, api_keys
    has_document = False

    async def make(self, number: int, project_id: ProjectId = PROJECT) -> Any:
        return ApiKey(
            id=self.ids.key(),
            project_id=project_id,
            name=f"number {number}",
            scopes=["read", "write"],
            prefix="",
            created_at=NOW,
            created_by="a test",
            expires_at=LATER,
        )

    async def create(self, noun: Any) -> Any:
        secret = new_secret(token_bytes(SECRET_BYTES))
        return await self.rows.create(replace(noun, prefix=secret.prefix), secret, token_secret=b"secret")


GUESTS: Sequence[type[StoreGuest]] = (
    Agents, ApiKeys, Archives, Blocks, Conversations, Groups, McpServers, Tools, WebhookEndpoints,
)  # fmt: skip
