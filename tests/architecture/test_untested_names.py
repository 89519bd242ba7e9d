"""What somebody adds asks for a test and a word in the documents: a setting, an error code, an event of the log, a
field of a request. (Query parameters have `tests/contract/test_list_parameters.py`, log lines `test_log_catalogue.py`,
metrics `tests/unit/test_metrics.py`.)

A name is documented when a document of users has it, and tested when a test has it. Whether the test is a good one its
reader decides; that there is none is found here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import letta_client

from shared.domain import events
from shared.domain.errors import ErrorCode
from shared.process.settings import Settings
from tests.kit.project.documents import ROOT, documents, written_openapi
from tests.kit.project.source_tree import expect_none

WITHOUT_A_TEST = {
    "settings": {
        *("package_disk_mb", "package_keep_days", "retain_budget_days"),
        *("spare_tool_processes", "tool_cpu_s", "tool_memory_mb", "tool_processes"),
    },
    "fields": {
        *("embedding_endpoint_type", "override_embedding_handle", "override_model_handle"),
        *("per_file_view_window_char_limit",),
    },
    "codes": {"RUN_TIMEOUT"},
    "events": set[str](),
}
"""Names that are older than this test, and that no test has. A set may shrink: a name that has a test must go."""

LETTAS_FIELDS = {"source_url"}
"""Fields that Letta's wire has and its client's types have not."""

_WORD = re.compile(r"\b\w+\b")
_FIELD = re.compile(r"^    (\w+): ", re.MULTILINE)


@cache
def _words_of_documents() -> frozenset[str]:
    return frozenset(word for document in documents() for word in _WORD.findall(document.read_text(encoding="utf-8")))


@cache
def _words_of_tests() -> frozenset[str]:
    tests = (path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    return frozenset(word for test in tests for word in _WORD.findall(test.read_text(encoding="utf-8")))


def _untested(kind: str, spellings: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """A finding for each name of which no test has a spelling, and for each that is listed though one has."""
    untested = {name for name, spelled in spellings.items() if _words_of_tests().isdisjoint(spelled)}
    known = WITHOUT_A_TEST[kind]
    yield from (f"no test names {name}: write one ({kind})" for name in sorted(untested - known))
    yield from (f"{name} has a test by now: take it out of WITHOUT_A_TEST" for name in sorted(known - untested))


def _fields_of_requests() -> set[str]:
    """Every field that a body may have, as the OpenAPI document lists them."""
    document = written_openapi()
    found, seen = set[str](), set[str]()

    def walk(schema: dict[str, Any]) -> None:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name not in seen:
                seen.add(name)
                walk(document["components"]["schemas"][name])
            return
        found.update(schema.get("properties", {}))
        inside = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
        inside += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
        for one in inside:
            walk(one)

    for methods in document["paths"].values():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                walk(content["schema"])
    return found


def test_every_setting_has_a_test() -> None:
    """`docs/settings.md` has them all: `test_documentation_links.py`."""
    expect_none(_untested("settings", {name: (name, f"HOLDFAST_{name.upper()}") for name in Settings.model_fields}))


def test_every_error_code_has_a_test() -> None:
    """`docs/errors.md` has them all: `tests/contract/test_error_codes.py`."""
    expect_none(_untested("codes", {code.name: (code.name, code.value) for code in ErrorCode}))


def test_every_event_of_the_log_has_a_test() -> None:
    expect_none(_untested("events", {event.__name__: (event.__name__,) for event in get_args(events.Event)}))


def test_every_field_of_a_request_has_a_test_and_a_word_in_the_documents() -> None:
    """Fields that Letta's client has too are Letta's to explain."""
    sources = Path(letta_client.__file__).parent.rglob("types/**/*.py")
    theirs = {name for source in sources for name in _FIELD.findall(source.read_text(encoding="utf-8"))}
    declared = _fields_of_requests()
    assert {"if_busy", "starting_after", "callback_url"} <= declared
    expect_none(_untested("fields", {name: (name,) for name in declared}))
    undocumented = declared - theirs - LETTAS_FIELDS - _words_of_documents()
    expect_none(f"no document names the field {name}" for name in sorted(undocumented))


def test_a_name_without_a_test_is_found() -> None:
    missing, tested = "no_test_" + "says_this", "if_busy"
    assert list(_untested("codes", {missing: [missing], "RUN_TIMEOUT": [missing]})) == [
        f"no test names {missing}: write one (codes)"
    ]
    assert list(_untested("codes", {"RUN_TIMEOUT": [tested]})) == [
        "RUN_TIMEOUT has a test by now: take it out of WITHOUT_A_TEST"
    ]
