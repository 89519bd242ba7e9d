"""The table from tools to what makes their calls: nothing but a row has to know a new kind of tool."""

from datetime import UTC, datetime
from typing import Any

from shared.domain.ids import ProjectId, ToolId
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.tools import CUSTOM, Tool
from worker.runners.tool_runner import CallingRun, ForeignOutcome, RunnerRow, RunnerTraits, ToolRunner, ToolRunners

NOW = datetime(2026, 11, 1, tzinfo=UTC)


class Moon:
    """A kind of tool that nobody else knows: it asks the moon."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.traits = RunnerTraits()

    def arguments(self, tool: Tool) -> dict[str, Any]:
        return tool.parameters

    async def call(
        self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]
    ) -> ToolReturn | ForeignOutcome:
        return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="success", text=self.name)


def tool(name: str, tool_type: str = CUSTOM) -> Tool:
    return Tool(
        id=ToolId(f"tool-{name}"),
        project_id=ProjectId("default"),
        name=name,
        description="",
        source_code="",
        json_schema={},
        return_char_limit=100,
        created_at=NOW,
        updated_at=NOW,
        tool_type=tool_type,
    )


FUNCTIONS, PROGRAMS, OURS, OTHERS = Moon("functions"), Moon("programs"), Moon("ours"), Moon("others")
RUNNERS = ToolRunners(
    RunnerRow(OTHERS, "external_moon"),
    RunnerRow(PROGRAMS, "letta_", frozenset({"run_code"})),
    RunnerRow(OURS, "letta_"),
    RunnerRow(FUNCTIONS),
)


def runner_of(name: str, tool_type: str = CUSTOM) -> ToolRunner:
    return RUNNERS.of(tool(name, tool_type))


def test_a_tool_has_the_runner_of_the_first_row_that_fits() -> None:
    assert runner_of("roll") is FUNCTIONS
    assert runner_of("memory_insert", "letta_sleeptime_core") is OURS
    assert runner_of("run_code", "letta_builtin") is PROGRAMS
    assert runner_of("web_search", "letta_builtin") is OURS
    assert runner_of("phase", "external_moon") is OTHERS


def test_a_function_that_has_the_name_of_a_base_tool_is_a_function() -> None:
    assert runner_of("run_code") is FUNCTIONS


def test_a_type_that_a_newer_release_has_stored_has_a_runner() -> None:
    assert runner_of("later", "of_tomorrow") is FUNCTIONS
