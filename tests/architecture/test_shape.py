"""The figures of the product's shape may fall, and not rise: `shape.toml` has their limits, and is lowered with them.

What a run passes through is not counted here, because it has to be run: `tests/contract/test_files_per_run.py`.
"""

import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kit.project.private_names import Listed, listed_names, named_in, used_private_names
from tests.kit.project.shape import beyond, closure, dialect_questions, middlewares, product_figures, shape
from tests.kit.project.source_tree import ROOT, Source, expect_none, product_sources

UPPER_BOUNDS = ("<", "<=", "==", "~=")


def unlisted_names(listed: Listed, source: Source, modules: dict[str, Source]) -> Iterator[str]:
    """Private names that the file uses and that the list does not have."""
    names = {name for files in listed.values() for name in files.get(source.path, ())}
    for node, name in used_private_names(source, modules):
        if name not in names:
            yield source.at(node, f"{name} is private to a library: do without it, or list it in shape.toml")


def outdated_entries(listed: Listed, sources: dict[str, Source]) -> Iterator[str]:
    """Entries of the list that their file does not use any more."""
    for library, files in listed.items():
        for path, names in files.items():
            gone = set(names) - named_in(sources[path]) if path in sources else set(names)
            yield from (f"{path} does not use {library}'s {name}: take it out of shape.toml" for name in sorted(gone))


def open_ranges(listed: Listed, requirements: list[str]) -> Iterator[str]:
    """Libraries of the list that an installation of the wheel may take in a release that nobody has tried."""
    wanted = {canonicalize_name(one.name): one for one in map(Requirement, requirements)}
    for library in listed:
        requirement = wanted.get(canonicalize_name(library))
        if requirement is None:
            yield f"pyproject.toml: {library}, of which private names are used, is no dependency"
        elif not any(bound.operator in UPPER_BOUNDS for bound in requirement.specifier):
            yield f"pyproject.toml: {requirement} needs an upper bound, because private names of it are used"


def test_the_figures_are_as_good_as_their_limits() -> None:
    """None is above its limit, and none is so far below that the limit should fall with it."""
    expect_none(beyond(product_figures(), shape()["source"], "source"))


def test_each_private_name_of_a_library_is_listed() -> None:
    """The list is whole, as far as a rule can tell."""
    modules = {source.module: source for source in product_sources()}
    expect_none(line for source in product_sources() for line in unlisted_names(shape()["private"], source, modules))


def test_each_private_name_that_is_listed_is_used() -> None:
    """What the product stopped using has left the list."""
    expect_none(outdated_entries(shape()["private"], {source.path: source for source in product_sources()}))


def test_a_library_whose_private_names_are_used_has_an_upper_bound() -> None:
    """constraints.txt saves a checkout; who installs the wheel gets the newest release that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    expect_none(open_ranges(shape()["private"], project["dependencies"]))


PRIVATE_USES = {
    "_conn": "def f(driver):\n    return driver._conn",
    "_run": "from foreign import Base\nclass A(Base):\n    def f(self):\n        self._run()",
    "_start": "class A(B):\n    def _start(self):\n        super()._start()",
    "_hidden": "from foreign import _hidden",
    "shown": "from foreign._inner import shown",
    "_named": "getattr(thing, '_named', None)",
    "Dependant": "from fastapi.dependencies.models import Dependant",
    "flow": (
        "from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol\n"
        "class A(HttpToolsProtocol):\n"
        "    def f(self):\n"
        "        self.flow.pause_reading()"
    ),
}
PUBLIC_USES = (
    "class A:\n    def __init__(self):\n        self._mine = 1\n    def f(self):\n        return self._mine",
    "class A:\n    def _mine(self): ...\n    def f(self):\n        return self._mine()",
    "named = point._replace(x=1)",
    "import os\nos._exit(1)",
    "getattr(thing, '__code__', None)",
    "from foreign import shown",
)


@pytest.mark.parametrize("name", PRIVATE_USES)
def test_a_private_name_is_found(name: str) -> None:
    source = Source("api/x.py", PRIVATE_USES[name])
    found = [line for line in unlisted_names({}, source, {}) if f": {name} is private" in line]
    assert found
    assert not [line for line in unlisted_names({"foreign": {"api/x.py": [name]}}, source, {}) if f": {name} " in line]


@pytest.mark.parametrize("text", PUBLIC_USES)
def test_a_name_of_ours_or_of_python_is_not_private(text: str) -> None:
    assert list(unlisted_names({}, Source("api/x.py", text), {})) == []


def test_the_private_names_of_a_base_in_another_file_of_ours_are_ours() -> None:
    base = Source("shared/base.py", "class Base:\n    def __init__(self):\n        self._mine = 1")
    heir = Source(
        "shared/heir.py", "from shared.base import Base\nclass A(Base):\n    def f(self):\n        return self._mine"
    )
    assert list(unlisted_names({}, heir, {"shared.base": base})) == []


def test_an_entry_that_no_file_uses_is_found() -> None:
    source = Source("api/x.py", "thing._used")
    listed = {"foreign": {"api/x.py": ["_used", "_left"], "api/gone.py": ["_all"]}}
    found = list(outdated_entries(listed, {source.path: source}))
    assert [line.split(":")[0] for line in found] == [
        "api/x.py does not use foreign's _left",
        "api/gone.py does not use foreign's _all",
    ]


@pytest.mark.parametrize(
    ("requirement", "is_open"),
    [("uvicorn>=0.40", True), ("uvicorn", True), ("uvicorn>=0.40,!=0.41", True), ("other<1", True)]
    + [(f"uvicorn{bound}", False) for bound in (">=0.40,<0.55", "~=0.54.0", "==0.54.*")],
)
def test_an_open_range_is_found(requirement: str, is_open: bool) -> None:
    assert bool(list(open_ranges({"uvicorn": {}}, [requirement]))) is is_open


@pytest.mark.parametrize(
    ("figure", "says"),
    [(101, "its limit is 100"), (100, ""), (98, ""), (97, "write `files = 97`")],
)
def test_a_figure_beside_its_limit_is_told(figure: int, says: str) -> None:
    found = "\n".join(beyond({"files": figure}, {"files": 100}, "source"))
    assert says in found
    assert bool(found) is bool(says)


def test_a_figure_without_a_limit_and_a_limit_without_a_figure_are_told() -> None:
    assert len(list(beyond({"new": 1}, {"old": 1}, "source"))) == 2


def test_a_closure_has_late_imports_and_none_for_types_alone() -> None:
    texts = {
        "api/a.py": "from typing import TYPE_CHECKING\nimport api.b\nif TYPE_CHECKING:\n    import api.d",
        "api/b.py": "def f():\n    from api.c import thing",
        "api/c.py": "",
        "api/d.py": "",
        "api/e.py": "import api.a",
    }
    assert closure("api.a", [Source(*one) for one in texts.items()]) == {"api.b", "api.c"}


def test_middlewares_of_a_library_are_not_counted() -> None:
    text = (
        "from starlette.middleware.cors import CORSMiddleware\nfrom api.ours import Ours\n"
        "app.add_middleware(CORSMiddleware)\napp.add_middleware(Ours, a=1)"
    )
    assert middlewares(Source("api/application.py", text)) == 1


@pytest.mark.parametrize(
    ("line", "questions"),
    [
        ("if database.is_sqlite: ...", 1),
        ("query = find(is_sqlite=connection.dialect.name == 'sqlite')", 1),
        ("insert = BY_DIALECT[connection.dialect.name]", 1),
        ("def f(*, is_sqlite: bool) -> int:\n    return 1 if is_sqlite else 2", 1),
        ("field.name == 'dialect'", 0),
    ],
)
def test_dialect_questions_are_counted(line: str, questions: int) -> None:
    assert dialect_questions(Source("shared/sql/x.py", line)) == questions


def test_a_name_in_two_files_is_one_name() -> None:
    assert len(listed_names({"foreign": {"a.py": ["_x", "_y"], "b.py": ["_x"]}, "other": {"a.py": ["_x"]}})) == 3
