"""The runners of a worker, and the tools of each."""

from shared.archival.archival_memory import ArchivalMemory, EmbeddingClient
from shared.domain.mcp_servers import MCP_TYPE
from shared.domain.tool_catalog import RUNS_CODE, RUNS_CODE_WITH_TOOLS
from shared.domain.tools import BASE_TYPES
from shared.mcp.client import McpClient
from shared.packages.environments import PackageEnvironments
from shared.process.context import ProcessContext
from shared.sql.archival.passages import PassageSearchStore, PassageStore, VectorStore
from shared.sql.definitions.blocks import MemoryStore
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.history.message_lists import MessageLists
from worker.runners.base_tools import BaseToolRunner
from worker.runners.mcp_tools import ALWAYS_ASKING, OF_A_SERVER, McpToolRunner
from worker.runners.sandbox_tools import ProgramRunner, SandboxRunner
from worker.runners.tool_runner import RunnerRow, ToolRunners
from worker.tools.outcomes import ToolSandbox


def tool_runners(
    process: ProcessContext,
    sandbox: ToolSandbox,
    packages: PackageEnvironments,
    embeddings: EmbeddingClient,
    mcp: McpClient,
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
        servers=patience.applied_to(McpServerStore(database), McpServerStore.get),
        secret_keys=process.secret_keys,
        timeout_s=settings.mcp_timeout,
        traits=ALWAYS_ASKING if settings.mcp_always_ask else OF_A_SERVER,
    )
    return ToolRunners(
        RunnerRow(of_servers, MCP_TYPE),
        RunnerRow(programs, BASE_TYPES, frozenset({RUNS_CODE, RUNS_CODE_WITH_TOOLS})),
        RunnerRow(base_tools, BASE_TYPES),
        RunnerRow(functions),
    )
