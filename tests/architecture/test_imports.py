"""Rule 2: imports point down. `api` and `worker` import `shared`, never each other; `shared` neither; `cli` all.

No cycle of any size, also not through an import inside a function; and no import inside a function at all, but for the
model SDKs, which cost seconds and hundreds of megabytes and of which a deployment uses one or two, and for what
`LATE_MODULES` names: what most processes never need. What reaches a
database, Redis, a web framework or the network is imported in one place each.
"""

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from tests.kit.project.source_tree import (
    PRODUCT_PACKAGES,
    Source,
    dotted_name,
    expect_none,
    imported_modules,
    imports,
    product_sources,
)

ALLOWED_PACKAGES = {
    "api": {"api", "shared"},
    "worker": {"worker", "shared"},
    "shared": {"shared"},
    # The console script: its `dev` command runs the API and a worker in one process. Nothing imports it.
    "cli": {"api", "cli", "shared", "worker"},
}

LAZY_IMPORTERS = ("worker/models/",)
LAZY_PACKAGES = ("pydantic_ai", "openai", "google", "genai_prices", "tiktoken")
"""Model SDKs. `worker/models` imports each when the first call needs it."""

LATE_MODULES = {
    # OpenTelemetry's SDK is an extra, and the settings ask for it.
    "shared/process/context.py": ("shared.telemetry.otlp",),
    # A wrong setting is said before a server is imported, and each server is imported without the others.
    "cli/operator/servers.py": ("cli.operator.dev_server", "cli.operator.api_server", "cli.operator.worker_server"),
    # A wrong setting is said before anything that opens a database.
    "cli/operator/maintenance.py": ("cli.operator.database_maintenance", "cli.operator.doctor"),
    "cli/operator/keys.py": ("cli.operator.issued_keys",),
    # Alembic: for a database that lacks a migration.
    "shared/sql/migrate.py": ("alembic.command", "alembic.config"),
    # jsonschema: for the first arguments of a tool, in the thread that checks them.
    "shared/tool_arguments.py": ("shared.schema_validation",),
    # The package of the Model Context Protocol: for the first MCP server that is asked.
    "shared/mcp/client.py": ("shared.mcp.connection",),
    "shared/mcp/signed_in.py": ("shared.mcp.authorization",),
    # The same package: for the first client that speaks the protocol.
    "api/mcp/service.py": ("api.mcp.official_rules",),
    # griffe: for the first source of a tool.
    "api/tool_source/reader.py": ("api.tool_source.docstrings",),
}
"""A file, and the modules of ours that it imports when they are used, with the library that is the reason. What each
command has imported when it is ready is in `tests/e2e/test_imported_packages.py`."""

CHOOSES_BY_NAME = (
    *("cli/command_table.py", "worker/models/registry.py", "api/openapi_document.py"),
    "worker/tools/guest/child_zygote.py",
)
"""One loads the module of the command that was given, one that of a provider's wire, each from its own table; the third
loads the types of answers when a client asks for the document; the last loads, before it forks, what tools import."""

TOOL_PROCESS = tuple(
    f"worker/tools/guest/child_{part}.py"
    for part in ("call", "node", "objects", "seccomp", "isolation", "watcher", "zygote")
)
TOOL_PROCESS_LATE = (
    *("asyncio", "json", "linecache", "traceback", "typing"),
    *("child_call", "child_network", "child_node", "child_objects", "child_seccomp", "child_isolation"),
)
"""The program inside a tool's process. Every call starts one, in a few milliseconds: it loads what is slow, and what
runs foreign code, when a call needs it."""

HOMES: dict[str, tuple[str, ...]] = {
    "sqlalchemy": ("shared/sql/",),
    "alembic": ("shared/sql/",),
    "aiosqlite": ("shared/sql/",),
    "asyncpg": ("shared/sql/",),
    "sqlite3": ("shared/sql/",),
    "redis": ("shared/redis/", "worker/queue/queue_worker.py"),
    "fakeredis": ("shared/redis/",),
    # The engine's names stand in four files: its client, its keys, its description of a job, and its worker.
    "arq": (
        "shared/redis/connection.py",
        "shared/redis/keys.py",
        "shared/redis/queue.py",
        "worker/queue/queue_worker.py",
    ),
    "prometheus_client": ("shared/telemetry/",),
    "fastapi": ("api/", "cli/operator/api_server.py"),
    "starlette": ("api/",),
    "uvicorn": ("api/",),
    # Chat models are the worker's; embedding models are asked by both, so their client is where both can import it.
    "httpx2": ("cli/client/", "worker/models/", "shared/mcp/", "shared/network/", "shared/archival/archival_memory.py"),
    "httptools": ("worker/models/", "api/http_connection.py"),
    "pydantic_ai": ("worker/models/",),
    "openai": ("worker/models/",),
    "google": ("worker/models/",),
    "mcp": ("shared/mcp/", "api/mcp/official_rules.py"),
    "mcp_types": ("shared/mcp/", "api/mcp/official_rules.py"),
    "opentelemetry": ("shared/telemetry/otlp.py",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    # Nowhere: bytes from outside must never become objects, and one HTTP client is enough.
    "pickle": (),
    "marshal": (),
    "shelve": (),
    "httpx": (),
    "requests": (),
    "aiohttp": (),
}


def wrong_directions(source: Source) -> Iterator[str]:
    for node, name in imports(source):
        package = name.split(".")[0]
        if package == "tests" or (package in PRODUCT_PACKAGES and package not in ALLOWED_PACKAGES[source.package]):
            yield source.at(node, f"{source.package} must not import {package}")


def strangers(source: Source) -> Iterator[str]:
    for node, name in imports(source):
        package = name.split(".")[0]
        if package in HOMES and not source.is_in(HOMES[package]):
            homes = " and ".join(HOMES[package]) or "nowhere"
            yield source.at(node, f"{package} is imported in {homes}, not here")


def late_imports(source: Source) -> Iterator[str]:
    within = source.within
    for node, name in imports(source):
        if node in within and not _may_be_late(source, name):
            yield source.at(node, f"{within[node]} imports {name}; imports belong at the top of the file")
    for call in source.calls:
        if dotted_name(call.func) in ("__import__", "import_module", "importlib.import_module"):
            first = call.args[0] if call.args else None
            name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
            if not _may_be_late(source, name) and source.path not in CHOOSES_BY_NAME:
                yield source.at(call, "imports a module by its name; imports belong at the top of the file")


def _may_be_late(source: Source, name: str) -> bool:
    package = name.split(".")[0]
    if source.is_in(TOOL_PROCESS):
        return package in TOOL_PROCESS_LATE
    if name.rpartition(".")[0] in LATE_MODULES.get(source.path, ()):
        return True
    return source.is_in(LAZY_IMPORTERS) and (package in LAZY_PACKAGES or name.startswith("worker.models."))


def cycles(sources: Iterable[Source]) -> Iterator[str]:
    """The first import cycle among the sources, if there is one."""
    modules = {source.module: source for source in sources}
    graph = {name: set(imported_modules(source, modules)) for name, source in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "import cycle: " + " imports ".join(reversed(error.args[1]))


def test_packages_import_in_one_direction() -> None:
    """`api` and `worker` import `shared` and themselves; `shared` imports itself; the console script runs both."""
    expect_none(finding for source in product_sources() for finding in wrong_directions(source))


def test_no_cycle() -> None:
    """No module imports itself by way of others, counting imports inside functions and for type checking."""
    expect_none(cycles(product_sources()))


def test_no_import_inside_a_function() -> None:
    """Imports are at the top of a file, but for a model SDK, at its first use, and for what `LATE_MODULES` names."""
    expect_none(finding for source in product_sources() for finding in late_imports(source))


def test_each_late_module_is_imported_late_and_nowhere_else() -> None:
    """The list cannot go stale; and what another file imports at its top is not late."""
    sources = {source.path: source for source in product_sources()}
    for path, late in LATE_MODULES.items():
        within = sources[path].within
        found = {name.rpartition(".")[0] for node, name in imports(sources[path]) if node in within}
        assert found >= set(late), path
    everywhere = {module for late in LATE_MODULES.values() for module in late}
    expect_none(
        source.at(node, f"imports {name} at its top, which others import late")
        for source in sources.values()
        for node, name in imports(source)
        if node not in source.within and name.rpartition(".")[0] in everywhere - _shared_by_servers()
    )


def _shared_by_servers() -> set[str]:
    # `dev` is an API, and more.
    return {"cli.operator.api_server"}


def test_each_library_has_its_home() -> None:
    """SQL is in `shared/sql`, Redis in `shared/redis`, HTTP serving in `api`, model SDKs in `worker/models`."""
    expect_none(finding for source in product_sources() for finding in strangers(source))
