"""Rule 3: things are constructed in `main.py` and received everywhere else.

The settings are read where a process begins. At a module's top level stand constants, loggers, routers and tables: an
import never opens a connection, reads the environment or makes something that a test could not make differently.
"""

import ast
import re
from collections.abc import Iterator

from tests.kit.project.source_tree import Source, dotted_name, expect_none, product_sources

MAY_READ_SETTINGS = ("api/main.py", "worker/main.py", "cli/operator/start.py", "shared/sql/migrations/")
CONSTANT = re.compile(r"_?[A-Z][A-Za-z0-9]*|_{0,2}[A-Z][A-Z0-9_]*")
"""NAMES_LIKE_THIS and types."""
MAY_BE_LOWER_CASE = frozenset(
    {"get_logger", "getLogger", "APIRouter", "Typer", "MetaData", "Table", "Index", "NewType", "Encoder", "Decoder"}
)
"""Loggers, routers, groups of commands, descriptions of tables and of codecs: they hold no state and open nothing."""

LIVING = re.compile(
    r"(Client|Pool|Engine|Store|Session|Worker|Redis|Settings|FastAPI|App|Queue|Lock|Event|Semaphore|Database|Log"
    r"|Publisher|TaskGroup|create_engine|create_async_engine|from_url)$"
)


def settings_elsewhere(source: Source) -> Iterator[str]:
    if source.is_in(MAY_READ_SETTINGS):
        return
    for call in source.calls:
        if dotted_name(call.func).rpartition(".")[2] == "Settings":
            yield source.at(call, f"reads the settings; only {', '.join(MAY_READ_SETTINGS)} do")


def module_instances(source: Source) -> Iterator[str]:
    for node in source.tree.body:
        match node:
            case ast.Assign(targets=[target], value=ast.Call() as value):
                pass
            case ast.AnnAssign(target=target, value=ast.Call() as value):
                pass
            case _:
                continue
        maker = dotted_name(value.func).rpartition(".")[2]
        name = dotted_name(target)
        if LIVING.search(maker):
            yield source.at(node, f"{name} = {maker}(…) lives in the module; construct it in main.py and hand it in")
        elif maker not in MAY_BE_LOWER_CASE and not CONSTANT.fullmatch(name):
            yield source.at(node, f"{name} = {maker}(…) is an instance; a module holds constants, loggers and routers")


def environment_at_import(source: Source) -> Iterator[str]:
    within = source.within
    for node in source.nodes:
        if node not in within and dotted_name(node) in ("os.environ", "os.getenv"):
            yield source.at(node, "reads the environment when imported")


def test_settings_are_read_at_the_start() -> None:
    """`Settings()` is called by the entry points only."""
    expect_none(finding for source in product_sources() for finding in settings_elsewhere(source))


def test_modules_hold_no_instances() -> None:
    """A module's top level makes no client, store, lock or other living thing."""
    expect_none(finding for source in product_sources() for finding in module_instances(source))


def test_imports_read_no_environment() -> None:
    """Importing a module reads no environment variable."""
    expect_none(finding for source in product_sources() for finding in environment_at_import(source))
