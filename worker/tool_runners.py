"""The runners of a worker, and the tools of each."""

from secrets import token_hex

from shared.archival.archival_memory import ArchivalMemory, EmbeddingClient
from shared.domain.mcp_servers import MCP_TYPE
from shared.domain.tool_catalog import CALLS_AGENTS, RUNS_CODE, RUNS_CODE_WITH_TOOLS
from shared.domain.tools import BASE_TYPES
from shared.mcp.client import McpClient
from shared.mcp.signed_in import AuthorizationServers, SignedIn
from shared.packages.environments import PackageEnvironments
from shared.process.context import ProcessContext
from shared.runs.orphans import OrphanedRuns
from shared.runs.started_runs import StartedRuns
from shared.sql.archival.passages import PassageSearchStore, PassageStore, VectorStore
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.blocks import MemoryStore
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.history.message_lists import MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.children import ChildStore
from worker.runners.agent_tools import AgentToolRunner
from worker.runners.base_tools import BaseToolRunner
from worker.runners.mcp_tools import ALWAYS_ASKING, OF_A_SERVER, McpToolRunner
from worker.runners.sandbox_tools import ProgramRunner, SandboxRunner
from worker.runners.tool_runner import RunnerRow, ToolRunners
from worker.tools.outcomes import ToolSandbox


def servers_signed_in(process: ProcessContext, authorization: AuthorizationServers) -> SignedIn:
    """Returns the tokens of people's sign-ins at MCP servers, for this worker."""
    patience, methods = process.patience(), (McpServerStore.claim_renewal, McpServerStore.settle_renewal)
    store = patience.applied_to(McpServerStore(process.database), *methods)
    return SignedIn(store, authorization, process.secret_keys, process.clock, new_holder=lambda: token_hex(8))


def tool_runners(
    process: ProcessContext,
    sandbox: ToolSandbox,
    packages: PackageEnvironments,
    embeddings: EmbeddingClient,
    mcp: McpClient,
    orphans: OrphanedRuns,
    signed_in: SignedIn,
) -> ToolRunners:
    """Returns the runners with the tools of each. The last row matches every tool."""
    settings, database = process.settings, process.database
    patience = process.patience(settings.database_patience)
    archival = ArchivalMemory(
        passages=PassageStore(database),
        vectors=VectorStore(database),
        finder=PassageSearchStore(database),
        client=embeddings,
        clock=process.clock,
        ids=process.ids,
    )
    base_tools = BaseToolRunner(
        memory=MemoryStore(database),
        archival=patience.applied_to(archival, ArchivalMemory.search),
        message_lists=patience.applied_to(MessageLists(database), MessageLists.search),
        clock=process.clock,
        ids=process.ids,
    )
    programs = ProgramRunner(sandbox=sandbox, timeout_s=settings.tool_timeout)
    functions = SandboxRunner(sandbox=sandbox, packages=packages, timeout_s=settings.tool_timeout)
    of_servers = McpToolRunner(
        client=mcp,
        signed_in=signed_in,
        servers=patience.applied_to(McpServerStore(database), McpServerStore.get),
        timeout_s=settings.mcp_timeout,
        traits=ALWAYS_ASKING if settings.mcp_always_ask else OF_A_SERVER,
    )
    of_agents = AgentToolRunner(
        agents=AgentStore(database),
        started=StartedRuns(runs=orphans.runs, queue=orphans.queue),
        children=ChildStore(database),
        approvals=ApprovalStore(database),
        messages=MessageStore(database),
        orphans=orphans,
        limits=settings.tree_limits,
        clock=process.clock,
        ids=process.ids,
    )
    return ToolRunners(
        RunnerRow(of_servers, MCP_TYPE),
        RunnerRow(of_agents, BASE_TYPES, CALLS_AGENTS),
        RunnerRow(programs, BASE_TYPES, frozenset({RUNS_CODE, RUNS_CODE_WITH_TOOLS})),
        RunnerRow(base_tools, BASE_TYPES),
        RunnerRow(functions),
    )
