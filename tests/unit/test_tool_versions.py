"""The version of a tool: another one for whatever changes what a call of it does, and the same for anything else."""

from datetime import timedelta
from typing import Any

import pytest

from shared.domain.tools import TYPESCRIPT, ToolLimits, ToolPackages
from tests.kit.runs.definitions import NOW, some_tool

DOES: list[dict[str, Any]] = [
    {"source_code": "def roll_dice(): return 6"},
    {"source_type": TYPESCRIPT},
    {"json_schema": {"name": "roll_dice", "parameters": {"type": "object", "properties": {"sides": {}}}}},
    {"args_json_schema": {"type": "object"}},
    {"network": "host"},
    {"scratch": "run"},
    {"packages": ToolPackages(pins=["numpy==2.4.6"], modules=["numpy"])},
]
DOES_NOT: list[dict[str, Any]] = [
    {"tags": ["games"]},
    {"updated_at": NOW + timedelta(days=1)},
    {"limits": ToolLimits(timeout_s=10)},
    {"return_char_limit": 10},
    {"default_requires_approval": True},
    {"json_schema": {"parameters": {"properties": {}, "type": "object"}, "name": "roll_dice"}},
]


@pytest.mark.parametrize("change", DOES, ids=str)
def test_another_version_for_what_changes_a_call(change: dict[str, Any]) -> None:
    assert some_tool(**change).version != some_tool().version


@pytest.mark.parametrize("change", DOES_NOT, ids=str)
def test_the_same_version_for_anything_else(change: dict[str, Any]) -> None:
    assert some_tool(**change).version == some_tool().version


def test_a_tool_of_ours_has_none() -> None:
    """Its source belongs to the release, and an approval may wait through an upgrade."""
    assert some_tool(tool_type="letta_core").version is None
