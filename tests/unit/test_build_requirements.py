"""What builds a wheel is pinned like what is installed: an isolated build reads no constraints file."""

import tomllib

from packaging.requirements import Requirement

from tests.kit.project.source_tree import ROOT


def test_what_builds_the_wheel_was_any_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line for line in constraints if line and not line.startswith("#")}
    required = [Requirement(text) for text in project["build-system"]["requires"]]
    assert required
    assert [str(one) for one in required if str(one) not in pinned] == []
