"""Every event that the product logs stands in `docs/operations/logs.md`, with its level and its fields; and nothing
else stands there.

An event is a name: alerts and searches are made of names, and a sentence with values in it is found by neither.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.kit.project.source_tree import ROOT, Source, expect_none, product_sources

LEVELS = ("debug", "info", "warning", "error", "exception")
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<levels>[a-z, ]+) \|(?P<fields>[^|]*)\| [^|]+ \|$", re.MULTILINE)
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
ANY_FIELDS = "…"
"""In a row: an event whose further fields are names of tables and the like."""


class Event(NamedTuple):
    """One call of a logger. `name` is empty when it is no plain text."""

    place: str
    name: str
    level: str
    fields: frozenset[str]
    is_open: bool


def events(source: Source) -> Iterator[Event]:
    """What the module logs. A level that is chosen while it runs is written `log_as = log.debug if … else log.info`."""
    chosen = [
        node.attr
        for assign in source.nodes
        if isinstance(assign, ast.Assign) and ast.unparse(assign.targets[0]) == "log_as"
        for node in ast.walk(assign.value)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "log"
    ]
    for call in source.calls:
        match call.func:
            case ast.Attribute(value=ast.Name(id="log" | "logger"), attr=level) if level in LEVELS:
                levels = [level]
            case ast.Name(id="log_as"):
                levels = chosen
            case _:
                continue
        first = call.args[0] if len(call.args) == 1 else None
        name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
        fields = frozenset(keyword.arg for keyword in call.keywords if keyword.arg not in (None, "exc_info"))
        is_open = any(keyword.arg is None for keyword in call.keywords)
        for level in levels:
            said = "error" if level == "exception" else level
            yield Event(source.at(call, ""), name, said, frozenset(map(str, fields)), is_open)


def without_a_name(found: Iterable[Event]) -> Iterator[str]:
    return (f"{one.place} logs something else than an event's name" for one in found if not NAME.fullmatch(one.name))


def catalogue() -> dict[str, tuple[set[str], set[str]]]:
    """The rows of the document: levels and fields by name."""
    rows = list(ROW.finditer((ROOT / "docs/operations/logs.md").read_text(encoding="utf-8")))
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)), "an event stands there twice"
    return {row["name"]: (set(row["levels"].split(", ")), set(re.findall(r"\w+|…", row["fields"]))) for row in rows}


def logged() -> list[Event]:
    return [event for source in product_sources() for event in events(source)]


def test_every_line_is_an_event() -> None:
    """A name and fields, never a sentence."""
    expect_none(without_a_name(logged()))


def test_the_catalogue_has_every_event_and_no_other() -> None:
    """With the levels that it is logged at."""
    levels: dict[str, set[str]] = defaultdict(set)
    for event in logged():
        levels[event.name].add(event.level)
    assert {name: told for name, (told, _) in catalogue().items()} == dict(levels)


def test_the_catalogue_has_every_field() -> None:
    """Those that stand in the call; a row with … has more."""
    fields: dict[str, set[str]] = defaultdict(set)
    for event in logged():
        fields[event.name] |= event.fields | ({ANY_FIELDS} if event.is_open else set())
    told = {name: names for name, (_, names) in catalogue().items()}
    assert {name: told.get(name) for name in fields} == dict(fields)


def test_a_sentence_is_found() -> None:
    """The rule can fail."""
    wrong = "log.warning('lost %s', job)\nlog.info('job_lost', job=job)\nlog.info(f'lost {job}')\nlog.error('Lost')\n"
    assert len(list(without_a_name(events(Source("worker/x.py", wrong))))) == 3
