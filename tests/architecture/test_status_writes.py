"""Rule 4: a run's status changes in one place. `shared/sql/runs/rows.py` compiles the table of
`shared/domain/lifecycle.py` into guarded updates; nobody else writes the column or makes a run with another status.
"""

import ast
import re
from collections.abc import Iterator

from tests.kit.project.source_tree import Source, calls, dotted_name, expect_none, product_sources

RUN_TRANSITIONS = "shared/sql/runs/rows.py"
MAY_BUILD_RUNS = ("shared/sql/", "shared/domain/")
MAKES_A_COPY = re.compile(r"(^|\.)(replace|evolve|Run)$")
UPDATE_IN_SQL = re.compile(r"\bupdate\s+runs\b((?!\bwhere\b).)*\bstatus\s*=", re.IGNORECASE | re.DOTALL)
RUNS_TABLE = re.compile(r"(^|\.)_?runs?(_table)?$", re.IGNORECASE)


def assigned_statuses(source: Source) -> Iterator[str]:
    """`run.status = …`: nothing here is mutable, so this is a second truth beside the store's."""
    for node in source.nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr == "status" and dotted_name(target) != "self.status":
                yield source.at(node, f"assigns {dotted_name(target)}; a status changes through rows.apply")


def copied_statuses(source: Source) -> Iterator[str]:
    """`replace(run, status=RunStatus.…)`: a run that claims what no transition has granted."""
    if source.is_in(MAY_BUILD_RUNS):
        return
    for call in source.calls:
        given = [keyword.value for keyword in call.keywords if keyword.arg == "status"]
        if MAKES_A_COPY.search(dotted_name(call.func)) and any("RunStatus" in ast.unparse(value) for value in given):
            yield source.at(call, "makes a run with a status of its own; a status changes through rows.apply")


def updated_statuses(source: Source) -> Iterator[str]:
    """An UPDATE of the runs table that sets its status, built by SQLAlchemy or written as text."""
    if source.path == RUN_TRANSITIONS:
        return
    documentation = source.docstrings
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="values", value=statement)) if _updates_runs(statement):
                if _names_status(node):
                    yield source.at(node, f"writes runs.status; only {RUN_TRANSITIONS} may")
            case ast.Constant(value=str(text)) if node not in documentation and UPDATE_IN_SQL.search(text):
                yield source.at(node, f"writes runs.status; only {RUN_TRANSITIONS} may")
            case _:
                pass


def _updates_runs(statement: ast.expr) -> bool:
    for call in calls(statement):
        name = dotted_name(call.func)
        if name.rpartition(".")[2] != "update":
            continue
        table = dotted_name(call.args[0]) if call.args else name.removesuffix(".update")
        if RUNS_TABLE.search(table):
            return True
    return False


def _names_status(values: ast.Call) -> bool:
    if any(keyword.arg == "status" for keyword in values.keywords):
        return True
    keys = [key for argument in values.args if isinstance(argument, ast.Dict) for key in argument.keys if key]
    return any(
        (isinstance(key, ast.Constant) and key.value == "status") or dotted_name(key).endswith(".status")
        for key in keys
    )


def test_nobody_assigns_a_status() -> None:
    """No attribute called `status` is assigned from outside its object."""
    expect_none(finding for source in product_sources() for finding in assigned_statuses(source))


def test_nobody_makes_a_run_with_another_status() -> None:
    """Outside the store and the domain no run is copied or built with a status."""
    expect_none(finding for source in product_sources() for finding in copied_statuses(source))


def test_one_file_updates_the_column() -> None:
    """Only `shared/sql/runs/rows.py` updates `runs.status`."""
    expect_none(finding for source in product_sources() for finding in updated_statuses(source))
