"""The documentation says what is there: its links lead somewhere, and the tests that it names exist."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import SecretStr

from api.application import ROUTERS
from shared.process.settings import Settings
from tests.kit.project.documents import ROOT, anchors, documents, links
from tests.kit.project.source_tree import suite_sources

NAMED_TEST = re.compile(r"`(?P<file>tests/[\w/]+\.py)(?:::(?P<test>\w+))?`")
NAMED_FILE = re.compile(r"`(?P<file>(?:api|worker|shared)/[\w/]+\.(?:py|lua))`")
FOLDER_ROW = re.compile(r"^\| `(?P<folder>[\w/]+/)` \| (?P<text>.+) \|$", re.MULTILINE)
RELATIVE_FILE = re.compile(r"`(?P<file>[\w/]+\.(?:py|lua|toml))`")
SETTING = re.compile(r"^\| `HOLDFAST_(?P<name>[A-Z_]+)` \| (?P<default>.+?) \|", re.MULTILINE)
SERVED = re.compile(r"^\| (?P<methods>[A-Z, ]+) \| `(?P<path>/[^`]*)` \| works \|", re.MULTILINE)


@cache
def _tests() -> dict[str, set[str]]:
    return {source.path: {node.name for node in source.functions} for source in suite_sources()}


def _broken(document: Path) -> Iterator[str]:
    for target in links(document):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        place, _, fragment = target.partition("#")
        file = (document.parent / place).resolve() if place else document
        if not file.exists():
            yield f"{target}: there is no such file"
        elif fragment and fragment not in anchors(file):
            yield f"{target}: there is no such heading"


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(document: Path) -> None:
    """Relative links name a file, and a heading of it if they have a fragment."""
    assert list(_broken(document)) == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_and_test_that_is_named_exists(document: Path) -> None:
    """A file of the product, or a test of the suite, that a document names in backticks."""
    text = document.read_text(encoding="utf-8")
    missing = [named["file"] for named in NAMED_FILE.finditer(text) if not (ROOT / named["file"]).exists()]
    for named in NAMED_TEST.finditer(text):
        known = _tests().get(named["file"])
        if known is None or (named["test"] and named["test"] not in known):
            missing.append(named[0])
    assert missing == []


def test_the_table_of_folders_named_files_that_had_moved() -> None:
    """A row of CONTRIBUTING's table names files of its folder from there."""
    rows = FOLDER_ROW.finditer((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    named = [(row["folder"], file["file"]) for row in rows for file in RELATIVE_FILE.finditer(row["text"])]
    assert len(named) > 3
    assert [folder + file for folder, file in named if not (ROOT / folder / file).exists()] == []


PAGES = [page for page in documents() if page.is_relative_to(ROOT / "docs") and page.parent.name != "decisions"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_did_not_begin_with_what_it_is_for(page: Path) -> None:
    title, empty, first, *_ = page.read_text(encoding="utf-8").splitlines()
    assert (title[:2], empty, first[:10]) == ("# ", "", "This page ")


def test_each_guarantee_names_its_test() -> None:
    """No line of the tables in guarantees.md claims something that no test shows."""
    text = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    claims = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| holds today |", "| bound |"))
    ]
    assert claims
    assert [line for line in claims if NAMED_TEST.search(line) is None] == []


def test_settings_are_all_documented_with_their_defaults() -> None:
    """docs/settings.md has every field of `Settings`, and nothing else."""
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    documented = {row["name"].lower(): row["default"].strip("`") for row in SETTING.finditer(text)}
    declared = {name: _shown(field.default) for name, field in Settings.model_fields.items()}
    assert documented == declared, sorted(dict(documented.items() ^ declared.items()))


NOT_IN_CONTAINERS = {
    "HOLDFAST_CRASH_AT",  # of tests
    "HOLDFAST_DATA_DIR",  # of `holdfast dev`
}


def test_compose_passes_every_setting_on() -> None:
    """A setting in `.env` that docker-compose.yml does not name never reaches the containers."""
    named = set(re.findall(r"\bHOLDFAST_[A-Z0-9_]+", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    settings = {f"HOLDFAST_{name.upper()}" for name in Settings.model_fields}
    assert sorted(named ^ (settings - NOT_IN_CONTAINERS)) == []


def _shown(default: object) -> str:
    value = default.get_secret_value() if isinstance(default, SecretStr) else default
    return "(empty)" if value is None else str(value) or "(empty)"


def test_the_paths_that_work_are_all_documented() -> None:
    """docs/api.md lists as working what is routed, and nothing else."""
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    documented = {(method, row["path"]) for row in SERVED.finditer(text) for method in row["methods"].split(", ")}
    assert documented == set(_routed())


def _routed() -> Iterator[tuple[str, str]]:
    for router in ROUTERS:
        for route in router.routes:
            methods: set[str] = getattr(route, "methods", set())
            path: str = getattr(route, "path", "")
            yield from ((method, path) for method in methods)
