"""Rule 12: cancellation is typed and never swallowed; a task belongs to a group, and it has a name.

A bare task loses its exception and outlives what it works for. A swallowed `CancelledError` turns a stop into a hang.
"""

import ast
import re
from collections.abc import Iterator

from tests.kit.project.source_tree import (
    Source,
    dotted_name,
    expect_none,
    product_sources,
)

MAY_START_TASKS: dict[str, str] = {
    "api/http_connection.py": "a request outlives its connection; the server waits for it, and cancels it at its end",
    "api/runs/reader.py": "one question serves many readers; the one that came first may leave before the answer",
    "shared/concurrency.py": "`whole` waits for the end of its work, whoever cancels it",
    "shared/mcp/signed_in.py": "a renewal that was asked for must be stored; the call that it was for may be given up",
    "shared/mcp/client.py": "a connection serves many calls; the one that it was made for may leave before that",
    "worker/tools/isolated_sandbox.py": "a zygote serves many calls; the one it was started for may leave before that",
}
MAY_CATCH_CANCELLATION: dict[str, str] = {
    "worker/run/interruption.py": "it turns its own cancel into the typed reason, and passes any other on",
    "worker/tools/tool_process.py": "it waits for the process's death first, and raises the cancellation then",
    "shared/concurrency.py": "`whole` waits for the end of its work first, and raises the cancellation then",
}

STARTERS = frozenset({"create_task", "ensure_future", "run_coroutine_threadsafe"})
GROUP = re.compile(r"(^|_)(group|tasks)$")


def bare_tasks(source: Source) -> Iterator[str]:
    if source.path in MAY_START_TASKS:
        return
    for call in source.calls:
        owner, _, name = dotted_name(call.func).rpartition(".")
        if name not in STARTERS:
            continue
        if name != "create_task" or not GROUP.search(owner.rpartition(".")[2]):
            yield source.at(call, f"{owner or name} starts a task that no group owns; use a TaskGroup")
        elif not any(keyword.arg == "name" for keyword in call.keywords):
            yield source.at(call, "starts a task without a name=")


def swallowed_cancellations(source: Source) -> Iterator[str]:
    if source.path in MAY_CATCH_CANCELLATION:
        return
    within = source.within
    for node in source.nodes:
        match node:
            case ast.ExceptHandler(type=caught, body=body) if caught and "CancelledError" in ast.unparse(caught):
                if not any(isinstance(line, ast.Raise) for statement in body for line in ast.walk(statement)):
                    yield source.at(node, f"{within.get(node, 'the module')} swallows CancelledError")
            case ast.Call(args=caught) if dotted_name(node.func).endswith("suppress"):
                if any("CancelledError" in ast.unparse(kind) for kind in caught):
                    yield source.at(node, f"{within.get(node, 'the module')} swallows CancelledError")
            case _:
                pass


def test_tasks_belong_to_a_group() -> None:
    """Tasks are started by a TaskGroup, named; the exceptions are listed with their reasons."""
    expect_none(finding for source in product_sources() for finding in bare_tasks(source))


def test_cancellation_is_never_swallowed() -> None:
    """Who catches CancelledError raises again; nobody suppresses it."""
    expect_none(finding for source in product_sources() for finding in swallowed_cancellations(source))
