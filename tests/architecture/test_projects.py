"""No route can forget for whom it asks: what the stores offer by an id asks for the project beside it, or for a noun
that was loaded by it. What workers and maintenance ask by an id alone is listed here, and the API does not ask it.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.kit.project.source_tree import Source, expect_none, product_sources

STORES = re.compile(r"(Store|Lists|Listing|Editor)$")
NAMES_A_ROW = re.compile(r"\b(Agent|Approval|Archive|Block|Conversation|Message|Passage|Run|Step|Thread|Tool)Id\b")
HAS_A_PROJECT = re.compile(
    r"\b(ProjectId|Run|Agent|Approval|Archive|Block|Conversation|Tool|MessageFilter|ImportedAgents|QuietRun|RunScope)\b"
)
"""The project itself, or a noun that carries it."""

OF_WORKERS = {
    "CheckpointStore.intents": "by the owner of the run",
    "EventStore.read": "of a run that was loaded: by its owner, and by readers, who have asked for it",
    "InboxStore.has_waiting": "by the owner of the run",
    "InboxStore.waiting": "by the owner of the run",
    "RunStore.acknowledge_cancel": "by the owner of the run, with its fence",
    "RunStore.cancels_among": "of the runs that a worker executes, of all projects",
    "RunStore.claim": "by a worker, which executes runs of all projects",
    "RunStore.ends_of_logs": "for the readers of all projects together",
    "RunStore.look_up": "by a worker, which was told of a run of any project",
    "RunStore.owns": "by the owner of the run, with its fence",
    "TurnStore.states": "for the readers of all projects together",
    "VectorStore.give_up": "maintenance embeds passages of all projects together",
    "VectorStore.record": "of passages that maintenance has claimed, or that were stored just now",
}

THE_API_MAY = {
    ("api/callbacks/delivery.py", "runs.look_up"),
    ("api/runs/reader.py", "_runs.ends_of_logs"),
    ("api/runs/reader.py", "events.read"),
    ("api/runs/thread_watches.py", "_turns.states"),
}
"""Callbacks, the ends of logs and the states of threads are work for all projects; the events are those of the reader's
run."""


def _stores() -> Iterator[type]:
    for path in sorted(Path("shared/sql").rglob("*.py")):
        if "migrations" in path.parts:
            continue
        module = import_module(".".join(path.with_suffix("").parts))
        for name, found in inspect.getmembers(module, inspect.isclass):
            if found.__module__ == module.__name__ and STORES.search(name):
                yield found


def _methods(store: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, method in inspect.getmembers(store, inspect.isfunction):
        if not name.startswith("_"):
            yield f"{method.__qualname__.partition('.')[0]}.{name}", method


def _annotations(method: Callable[..., Any]) -> str:
    given = inspect.signature(method).parameters.values()
    return " ".join(str(getattr(one.annotation, "__name__", one.annotation)) + f" {one.annotation}" for one in given)


def _by_an_id_alone() -> set[str]:
    return {
        name
        for store in _stores()
        for name, method in _methods(store)
        if NAMES_A_ROW.search(_annotations(method)) and not HAS_A_PROJECT.search(_annotations(method))
    }


def test_what_stores_offer_by_an_id_asks_for_the_project_too() -> None:
    found = _by_an_id_alone()
    assert found - set(OF_WORKERS) == set(), "give it the project, or the noun that the id belongs to"
    assert set(OF_WORKERS) - found == set(), "these ask for a project now: take them from the list"


def test_a_project_that_is_asked_for_is_used() -> None:
    unused = [
        f"{source.path}: {function.name}"
        for source in product_sources()
        if source.is_in(("shared/sql/",))
        for function in source.functions
        if any(one.arg == "project_id" for one in [*function.args.args, *function.args.kwonlyargs])
        and not any(isinstance(node, ast.Name) and node.id == "project_id" for node in ast.walk(function))
    ]
    assert unused == []


def unscoped_questions(source: Source) -> Iterator[str]:
    """What a module of the API asks of the stores by an id alone."""
    if not source.is_in(("api/",)):
        return
    methods = {name.partition(".")[2] for name in OF_WORKERS}
    stores = re.compile(r"_?(runs|run_store|events|inbox|checkpoints|memory|vectors|outbox|callbacks)$")
    for node in source.nodes:
        if not isinstance(node, ast.Attribute) or node.attr not in methods:
            continue
        asked = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        if stores.search(asked) and (source.path, f"{asked}.{node.attr}") not in THE_API_MAY:
            yield source.at(node, f"{asked}.{node.attr} asks by an id alone, whoever's it is")


def test_the_api_asks_nothing_by_an_id_alone() -> None:
    expect_none(finding for source in product_sources() for finding in unscoped_questions(source))
