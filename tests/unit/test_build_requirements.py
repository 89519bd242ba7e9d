"""What builds a wheel is pinned like what is installed: an isolated build reads no constraints file."""

import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.kit.project.source_tree import ROOT

OF_AGENTS = "packages/holdfast-agents/pyproject.toml"


def _project(file: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", ["pyproject.toml", OF_AGENTS])
def test_what_builds_the_wheel_was_any_version(file: str) -> None:
    project = _project(file)
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line for line in constraints if line and not line.startswith("#")}
    required = [Requirement(text) for text in project["build-system"]["requires"]]
    assert required
    assert [str(one) for one in required if str(one) not in pinned] == []


def test_the_package_of_agents_is_that_of_the_server() -> None:
    """A worker gives agents its own copy, so another version beside an editor would show what there is not."""
    server, agents = _project("pyproject.toml"), _project(OF_AGENTS)
    assert agents["project"]["version"] == server["project"]["version"]
    packages = {
        ".".join(folder.parent.relative_to(ROOT).parts) for folder in (ROOT / "holdfast/agents").rglob("__init__.py")
    }
    assert set(agents["tool"]["setuptools"]["packages"]) == packages
    assert agents["project"]["requires-python"] == ">=3.10"
    assert "dependencies" not in agents["project"]
