"""Rule 16a: files lie in rooms by what happens to a run, and the corridors between the rooms are drawn here.

A folder imports itself and what its line names. Where two rooms do not meet, whoever makes both (`main`) hands one to
the other. Rooms are few: a small module that one other imports belongs into that one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from tests.kit.project.source_tree import (
    PRODUCT_PACKAGES,
    Source,
    expect_none,
    imported_modules,
    imports,
    product_sources,
)

_STATE = (
    "shared",
    "shared/archival",
    "shared/domain",
    "shared/mcp",
    "shared/network",
    "shared/packages",
    "shared/redis",
    "shared/runs",
    "shared/sql",
    "shared/sql/*",
    "shared/telemetry",
)

CORRIDORS: dict[str, tuple[str, ...]] = {
    # What both sides share. SQL and Redis do not know each other: SQL has the truth, Redis may lose all it has.
    "shared/domain": (),
    "shared": ("shared/domain",),
    # Other servers: what may be asked for, and which models the operator's own servers have.
    "shared/network": ("shared", "shared/domain"),
    "shared/redis": ("shared", "shared/domain"),
    "shared/sql": ("shared", "shared/domain"),
    "shared/sql/migrations": ("shared/sql",),
    "shared/sql/migrations/versions": ("shared/sql/migrations",),
    # Keys and the audit log. Every other room of SQL records what a caller did there, in its own transaction.
    "shared/sql/access": ("shared", "shared/domain", "shared/sql"),
    "shared/sql/history": ("shared", "shared/domain", "shared/sql", "shared/sql/access"),
    "shared/sql/runs": ("shared", "shared/domain", "shared/sql", "shared/sql/access", "shared/sql/history"),
    "shared/sql/archival": ("shared", "shared/domain", "shared/sql", "shared/sql/access"),
    "shared/sql/definitions": (
        "shared",
        "shared/domain",
        "shared/sql",
        "shared/sql/access",
        "shared/sql/archival",
        "shared/sql/history",
        "shared/sql/runs",
    ),
    # A run that no worker owns: the only room where SQL and Redis meet outside of the API and the worker. The clock
    # decides here, and says so to the audit log.
    "shared/runs": (
        "shared",
        "shared/domain",
        "shared/redis",
        "shared/sql/access",
        "shared/sql/definitions",
        "shared/sql/history",
        "shared/sql/runs",
        "shared/telemetry",
    ),
    # The client of MCP servers: the API reads their lists of tools, and a worker has the tools called.
    "shared/mcp": ("shared", "shared/domain", "shared/network", "shared/process"),
    # Archival memory, and the only HTTP client that the API and the worker share: both embed what they store and seek.
    "shared/archival": ("shared", "shared/domain", "shared/network", "shared/sql/archival"),
    # Environments for tools: the API chooses their versions when a tool is made, a worker needs them when it runs.
    "shared/packages": ("shared", "shared/domain", "shared/process"),
    # Counts, durations and traces of a process. It knows no part of the product but its words.
    "shared/telemetry": ("shared", "shared/domain"),
    "shared/process": (
        *("shared", "shared/domain", "shared/mcp", "shared/network", "shared/redis", "shared/sql", "shared/telemetry"),
    ),
    # The worker. The queue finds jobs and holds them, and never learns what a run does; models and tools are asked by a
    # run, and know nothing of it.
    "worker/models": ("shared", "shared/domain", "shared/network"),
    # How a call with a network reaches the allowed hosts. It knows nothing of tools, only of a socket that they have.
    "worker/proxy": ("shared", "shared/network"),
    "worker/tools": ("shared", "shared/domain", "worker/proxy", "worker/tools/guest"),
    "worker/tools/guest": (),
    "worker/queue": ("shared", "shared/domain", "shared/redis"),
    # What is the same for every run, whatever it does: it knows no body, no kind of tool, and of models the words alone
    # in which they are asked (see `test_the_kernel_knows_no_model`).
    "worker/run": (
        *("shared", "shared/domain", "shared/redis", "shared/runs", "shared/telemetry", "worker/models"),
        *("shared/sql/history", "shared/sql/runs"),
    ),
    # What makes the calls of tools: it knows the run whose calls these are by a protocol of its own.
    "worker/runners": (*_STATE, "worker/tools"),
    # Agents of an operator's own code, in processes of their own: they have a run by its handle, too.
    "worker/agents": ("shared", "shared/domain", "worker/agents/models", "worker/bodies", "worker/run"),
    # The worker's models, as their processes reach them.
    "worker/agents/models": ("shared", "shared/domain", "worker/models", "worker/run"),
    # What runs do: bodies have a run by its handle.
    "worker/bodies": (
        *("shared", "shared/domain", "shared/sql/definitions", "shared/sql/history", "shared/sql/runs"),
        *("worker/models", "worker/run", "worker/runners", "worker/tools"),
    ),
    "worker": (*_STATE, "shared/process", "shared/telemetry", "worker/*", "worker/agents/models"),
    # The API. Routes are read by `application` alone; what happens to a run does not know the routes that ask for it.
    "api/tool_source": ("shared", "shared/domain"),
    "api/letta": (
        "shared",
        "shared/domain",
        "shared/network",
        "shared/sql/access",
        "shared/sql/definitions",
        "shared/sql/history",
        "api",
        "api/runs",
        "api/tool_source",
    ),
    # The dialects: each reads its requests into a command, and shows a run's log by a fold of its own. What happens to
    # a run knows none of them, and none of them knows another.
    "api/openai": (
        *("shared", "shared/domain", "shared/network", "shared/sql", "shared/sql/definitions", "shared/sql/history"),
        *("shared/sql/runs", "api", "api/callbacks", "api/runs"),
    ),
    # The browsers' dialects import what they share, and neither knows the other.
    "api/ag_ui": (*_STATE, "shared/process", "api", "api/pages", "api/runs"),
    "api/ai_sdk": (*_STATE, "api", "api/pages", "api/runs"),
    # It knows none of them.
    "api/pages": (*_STATE, "api", "api/access", "api/runs"),
    # It knows whose key asks: one path has methods for which keys need different scopes.
    "api/mcp": (*_STATE, "shared/process", "api", "api/access", "api/runs"),
    "api/runs": (*_STATE, "api"),
    "api/callbacks": (*_STATE, "shared/process"),
    # Types of answers. Only the OpenAPI document is made of them.
    "api/answers": (),
    # The console's files. They ask the API over the wire, as any other caller.
    "api/console": (),
    # Who is let in, before any route.
    "api/access": (*_STATE, "api"),
    "api/routes": (
        *_STATE,
        "shared/process",
        "shared/telemetry",
        "api",
        "api/access",
        "api/letta",
        "api/runs",
    ),
    "api/letta/routes": (*_STATE, "shared/process", "shared/telemetry", "api", "api/access", "api/letta", "api/runs"),
    "api": (*_STATE, "shared/process", "shared/telemetry", "api/*", "api/letta/routes"),
    # The command line. What a caller of the API may do is done over HTTP: no server's module can be reached from there.
    "cli": ("shared/domain", "shared/process"),
    "cli/client": ("cli", "shared/domain"),
    "cli/operator": (
        *(*_STATE, "shared/process", "cli", "api", "api/access", "api/callbacks", "api/letta"),
        # Modules of agents are checked as a worker would import them.
        *("worker", "worker/agents", "worker/models", "worker/tools"),
    ),
}
"""A folder, and the folders that it may import. `x/*` stands for every folder in `x`."""

MAY_IMPORT_ROUTES = ("api/application.py",)
ROUTES = (
    "api/routes",
    "api/letta/routes",
    "api/openai/routes",
    "api/mcp/routes",
    "api/ag_ui/routes",
    "api/ai_sdk/routes",
    "api/pages/routes",
)

SMALL = 40
SMALL_WITH_A_REASON = {
    "shared/sql/migrations/": "Alembic finds and runs these files itself",
    "cli/operator/worker_server.py": "it is imported late, for all that a worker is made of",
}

A_CLIENTS_WIRE = re.compile(r"letta|\bthe wire\b", re.IGNORECASE)
MODELS_WIRES = ("worker/models/",)
"""There a wire is what a server of models speaks."""

MAY_NAME_A_WIRE = {
    "agents.py": "the stored type of agents, `agent_type`",
    "errors.py": "a hint for clients of Letta's API, whose bytes stay",
    "models.py": "handles of Letta's cloud, which agents have and which cannot be asked here",
    "runs.py": "the stored name of the first dialect",
    "sandbox_tools.py": "the environment variables of tools",
    "tools.py": "the stored types of the product's own tools",
}
"""Files, by their names, and the stored words and variables that they have. May shrink."""


def walls_broken(source: Source) -> Iterator[str]:
    """Imports that no corridor leads to."""
    room = _room(source.path)
    for node, name in imports(source):
        target = _room_of(name)
        if target and target != room and not _is_open(room, target):
            yield source.at(node, f"{room} must not import {target}")
        elif room != target and _are_routes(name) and not source.is_in(MAY_IMPORT_ROUTES):
            yield source.at(node, f"only {', '.join(MAY_IMPORT_ROUTES)} reads the routes")


def _is_open(room: str, target: str) -> bool:
    return target in CORRIDORS.get(room, ()) or f"{target.rpartition('/')[0]}/*" in CORRIDORS.get(room, ())


def _are_routes(name: str) -> bool:
    path = name.replace(".", "/")
    return any(path == routes or path.startswith(f"{routes}/") for routes in ROUTES)


def _room(path: str) -> str:
    return path.rpartition("/")[0]


def _room_of(name: str) -> str:
    """The folder of a dotted name of ours, as far as `CORRIDORS` knows it; "" for a name that is not ours."""
    parts = name.split(".")
    if parts[0] not in PRODUCT_PACKAGES:
        return ""
    rooms = ("/".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((room for room in rooms if room in CORRIDORS), parts[0])


def lonely_modules(sources: Iterable[Source], reasons: Mapping[str, str]) -> Iterator[str]:
    """Small modules that one other module imports, or none."""
    modules = {source.module: source for source in sources}
    importers: dict[str, set[str]] = {name: set() for name in modules}
    for name, source in modules.items():
        for target in imported_modules(source, modules):
            importers[target].add(name)
    for name, source in modules.items():
        lines = len(source.text.splitlines())
        if source.path.endswith("__init__.py") or source.is_in(tuple(reasons)) or lines >= SMALL:
            continue
        if len(importers[name]) <= 1:
            yield f"{source.path}:1: {lines} lines, for {', '.join(importers[name]) or 'nobody'} alone: move it there"


def wire_names(source: Source) -> Iterator[str]:
    """Lines of the worker and of what both sides share that name a client's wire."""
    if not source.path.startswith(("worker/", "shared/")) or source.is_in(MODELS_WIRES):
        return
    for number, line in enumerate(source.text.splitlines(), start=1):
        if A_CLIENTS_WIRE.search(line):
            yield f"{source.path}:{number}: the kernel names no client's wire: say it in the domain's words"


def test_rooms_are_left_by_their_corridors() -> None:
    """Every import between two folders is drawn in `CORRIDORS`."""
    expect_none(finding for source in product_sources() for finding in walls_broken(source))


def test_every_room_is_drawn() -> None:
    """Each folder of the product has its line, and each line its folder."""
    assert {_room(source.path) for source in product_sources()} == set(CORRIDORS)


def test_the_kernel_knows_no_model() -> None:
    """What is the same for every run takes of models the words alone in which they are asked, and no client of one."""
    modules = {source.module: source for source in product_sources()}
    expect_none(
        f"{source.path}:1: imports {target}"
        for source in product_sources()
        if source.path.startswith("worker/run/")
        for target in imported_modules(source, modules)
        if target.startswith("worker.models.") and target != "worker.models.provider"
    )


def test_no_small_module_serves_one_other() -> None:
    """A module under 40 lines has two importers, or a reason to be a file."""
    expect_none(lonely_modules(product_sources(), SMALL_WITH_A_REASON))


def test_every_reason_has_its_module() -> None:
    """The list of small modules cannot go stale."""
    found = list(lonely_modules(product_sources(), {}))
    expect_none(
        f"{place}: no small module is there any more"
        for place in SMALL_WITH_A_REASON
        if not any(finding.startswith(place) for finding in found)
    )


def test_the_kernel_names_no_clients_wire() -> None:
    """Neither the worker nor what both sides share speaks of a dialect, but for what is listed."""
    found = [(source.path.rpartition("/")[2], list(wire_names(source))) for source in product_sources()]
    named = {name: findings for name, findings in found if findings}
    expect_none(finding for name, findings in named.items() if name not in MAY_NAME_A_WIRE for finding in findings)
    assert set(named) == set(MAY_NAME_A_WIRE), "take out of the list what names none any more"
    assert len(MAY_NAME_A_WIRE) <= 6
