"""Rules 18 and 19: tests never sleep, and they fake the wire, never a class of ours. Their servers leave nothing open,
and they empty no database but their own.

A sleep is too short on a busy machine and too long on any other: `wait_until` says what is waited for. A test that
replaces one of our classes tests the replacement.
"""

import ast
from collections.abc import Iterator

from tests.kit.project.source_tree import (
    PRODUCT_PACKAGES,
    Source,
    dotted_name,
    expect_none,
    imported_names,
    suite_sources,
)

MAY_SLEEP = ("tests/kit/wait_until.py", "tests/kit/model_server/server.py")
"""One waits between two looks; the other plays a model that takes its time."""
MAY_LISTEN = ("tests/kit/stream_server.py", "tests/kit/jail/plants.py")
"""One closes its connections; the other belongs to a process that is killed."""
SLEEPS = frozenset({"asyncio.sleep", "time.sleep", "anyio.sleep", "trio.sleep"})


def sleeps(source: Source) -> Iterator[str]:
    if source.path in MAY_SLEEP:
        return
    imported = imported_names(source, ("asyncio", "time", "anyio"))
    for call in source.calls:
        name = dotted_name(call.func)
        if name in SLEEPS or (name == "sleep" and "sleep" in imported):
            yield source.at(call, "sleeps; use wait_until(predicate, description=…)")


def unclosed_servers(source: Source) -> Iterator[str]:
    if source.path in MAY_LISTEN:
        return
    for call in source.calls:
        if dotted_name(call.func).rpartition(".")[2] in ("start_server", "start_unix_server"):
            yield source.at(call, "does not close its connections; use stream_server(serve)")


def emptied_servers(source: Source) -> Iterator[str]:
    for call in source.calls:
        if dotted_name(call.func).rpartition(".")[2] == "flushall":
            yield source.at(call, "empties the databases of other test processes; use flushdb")


def replaced_classes(source: Source) -> Iterator[str]:
    ours = imported_names(source, PRODUCT_PACKAGES)
    for node in source.nodes:
        match node:
            case ast.Import(names=aliases) if any(alias.name.startswith("unittest.mock") for alias in aliases):
                yield source.at(node, "imports unittest.mock; fake the wire instead")
            case ast.ImportFrom(module="unittest" | "unittest.mock"):
                yield source.at(node, "imports unittest.mock; fake the wire instead")
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[target, *_]) if _is_ours(target, ours):
                yield source.at(node, "replaces a part of ours; fake the wire instead")
            case ast.Assign(targets=targets) if any(_is_member(target, ours) for target in targets):
                yield source.at(node, "replaces a part of ours; fake the wire instead")
            case _:
                pass


def _is_ours(target: ast.expr, ours: set[str]) -> bool:
    if isinstance(target, ast.Constant):
        return str(target.value).split(".")[0] in PRODUCT_PACKAGES
    return dotted_name(target).split(".")[0] in ours


def _is_member(target: ast.expr, ours: set[str]) -> bool:
    return isinstance(target, ast.Attribute) and dotted_name(target).split(".")[0] in ours


def test_tests_never_sleep() -> None:
    """Only `wait_until` sleeps, between two looks at what it waits for."""
    expect_none(finding for source in suite_sources() for finding in sleeps(source))


def test_servers_of_tests_close_their_connections() -> None:
    """What a test leaves open fails another one."""
    expect_none(finding for source in suite_sources() for finding in unclosed_servers(source))


def test_a_test_emptied_the_databases_of_the_tests_beside_it() -> None:
    """Test processes share one Redis server, with a database each."""
    expect_none(finding for source in suite_sources() for finding in emptied_servers(source))


def test_tests_replace_nothing_of_ours() -> None:
    """No mock library, no patching of our modules and classes."""
    expect_none(finding for source in suite_sources() for finding in replaced_classes(source))
