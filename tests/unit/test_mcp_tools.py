"""How what an MCP server lists becomes a project's tools."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from shared.domain.ids import IdMaker
from shared.domain.mcp_servers import MCP_TYPE, RemoteProbe, RemoteTool, kept_source, tool_source
from shared.domain.tools import LONGEST_TOOL_NAME, Tool
from shared.mcp_tools import LONGEST_DESCRIPTION, TakeOver, ToolChanges, renamed
from tests.kit.runs.definitions import NOW, some_server

SERVER = some_server("weather")
LATER = NOW + timedelta(minutes=1)


def listed(name: str, **fields: Any) -> RemoteTool:
    return RemoteTool(name=name, **fields)


def taken(
    *remote: RemoteTool,
    own: list[Tool] | None = None,
    taken: set[str] | None = None,
    now: datetime = NOW,
    **fields: Any,
) -> ToolChanges:
    own = own or []
    taking = TakeOver(remote=remote, new_id=IdMaker().tool, now=now, **fields)
    names = {tool.name for tool in own} | (taken or set())
    return taking.changes(SERVER, own, names & set(taking.names(SERVER)) | (taken or set()))


def test_a_tool_is_taken_over_as_its_server_describes_it() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

    changes = taken(listed("forecast", description="Tells.", input_schema=schema))

    [tool] = changes.added
    assert (tool.name, tool.tool_type, tool.description, tool.source_code) == ("forecast", MCP_TYPE, "Tells.", "")
    assert tool.json_schema == {"name": "forecast", "description": "Tells.", "parameters": schema}
    assert tool.accepted_arguments == schema
    source = tool_source(tool)
    assert source is not None
    assert (source.server_id, source.server_name, source.tool_name) == (SERVER.id, "weather", "forecast")
    assert tool.tags == ["mcp:weather"]
    assert (changes.updated, changes.deleted, changes.skipped) == ([], [], [])


@pytest.mark.parametrize(
    ("hints", "approval", "idempotent"),
    [
        ({}, None, False),
        ({"destructive": True}, True, False),
        ({"destructive": False}, None, False),
        ({"read_only": True}, None, True),
        ({"idempotent": True}, None, False),
        ({"read_only": True, "destructive": True}, True, True),
    ],
)
def test_hints_set_the_approval_and_whether_a_call_may_be_started_again(
    hints: dict[str, bool], approval: bool | None, idempotent: bool
) -> None:
    [tool] = taken(listed("act", **hints)).added
    assert (tool.default_requires_approval, tool.idempotent) == (approval, idempotent)


def test_a_tool_has_the_probe_that_its_server_names_now() -> None:
    """Also when a client has written the metadata anew."""
    probe = RemoteProbe(tool_name="was_paid", parameters=["idempotency_key"])
    [tool] = taken(listed("pay", probe=probe)).added
    assert tool.metadata["mcp"]["probe"] == {"tool_name": "was_paid", "parameters": ["idempotency_key"]}
    own = [kept_source(tool, replace(tool, metadata={}))]
    assert taken(listed("pay", probe=probe), own=own).updated == []
    [after] = taken(listed("pay"), own=own).updated
    assert "probe" not in after.metadata["mcp"]


def test_an_operator_can_demand_that_a_person_decides_on_every_call() -> None:
    [tool] = taken(listed("look", read_only=True), asks_always=True).added
    assert tool.default_requires_approval is True

    free = replace(tool, default_requires_approval=None)
    [after] = taken(listed("look", read_only=True), own=[free], asks_always=True).updated
    assert after.default_requires_approval is True


@pytest.mark.parametrize(
    ("there", "name"),
    [
        ("get-forecast", "get-forecast"),
        ("get forecast", "get_forecast"),
        ("wetter.für/heute", "wetter_f_r_heute"),
        ("2days", "_2days"),
        ("x" * 100, "x" * LONGEST_TOOL_NAME),
    ],
)
def test_a_name_is_made_legal(there: str, name: str) -> None:
    [tool] = taken(listed(there)).added
    source = tool_source(tool)
    assert source is not None
    assert (tool.name, source.tool_name) == (name, there)


def test_a_name_that_another_tool_has_gets_the_servers_name_before_it() -> None:
    first = taken(listed("search"), taken={"search"}).added
    second = taken(listed("search"), taken={"search", "weather_search"}).added
    assert [tool.name for tool in first] == ["weather_search"]
    assert second[0].name.startswith("weather_search_")
    assert len(second[0].name) == len("weather_search_") + 6
    assert [tool.name for tool in taken(listed("search"), taken={"search", "weather_search"}).added] == [second[0].name]
    [third] = taken(listed("search"), taken={"search", "weather_search", second[0].name}).skipped
    assert "other tools" in third.reason


def test_a_tool_of_a_server_took_the_name_of_a_base_tool() -> None:
    """The project would never have got its own one."""
    assert [tool.name for tool in taken(listed("memory_insert")).added] == ["weather_memory_insert"]


def test_two_tools_with_one_legal_name_get_two_whatever_their_order() -> None:
    pair = [listed("a b"), listed("a.b")]
    names = {source.tool_name: tool.name for tool in taken(*pair).added if (source := tool_source(tool))}
    assert names == {"a b": "a_b", "a.b": "weather_a_b"}
    again = {source.tool_name: tool.name for tool in taken(*pair[::-1]).added if (source := tool_source(tool))}
    assert again == names


def test_a_refresh_adds_changes_and_deletes_and_keeps_names_and_ids() -> None:
    own = list(taken(listed("stays"), listed("changes"), listed("goes")).added)
    here = [f"my_{tool.name}" for tool in own]
    renamed_here = [
        replace(tool, name=name, json_schema=tool.json_schema | {"name": name})
        for tool, name in zip(own, here, strict=True)
    ]

    changes = taken(
        listed("stays"), listed("changes", description="New."), listed("comes"), own=renamed_here, now=LATER
    )

    assert [tool.name for tool in changes.added] == ["comes"]
    assert [(tool.name, tool.description) for tool in changes.updated] == [("my_changes", "New.")]
    assert [tool.name for tool in changes.deleted] == ["my_goes"]
    assert changes.updated[0].id == next(tool.id for tool in own if tool.name == "changes")
    assert changes.updated[0].updated_at == LATER


def test_one_tool_that_is_taken_over_deletes_no_other() -> None:
    own = list(taken(listed("first")).added)
    changes = taken(listed("second"), own=own, deletes=False)
    assert ([tool.name for tool in changes.added], changes.deleted) == (["second"], [])


def test_what_the_owner_has_set_stays_and_a_server_makes_its_tools_more_careful_only() -> None:
    [tool] = taken(listed("act", destructive=True)).added
    freed = replace(tool, default_requires_approval=False, tags=[*tool.tags, "mine"], idempotent=True)
    assert taken(listed("act", destructive=True), own=[freed]).updated == []
    [milder] = taken(listed("act", destructive=False), own=[replace(freed, default_requires_approval=True)]).updated
    assert (milder.default_requires_approval, milder.tags) == (True, ["mcp:weather", "mine"])

    [calm] = taken(listed("look", read_only=True)).added
    [warned] = taken(listed("look", destructive=True), own=[calm]).updated
    assert (warned.default_requires_approval, warned.idempotent) == (True, False)


FLAWS: list[tuple[RemoteTool, str]] = [
    (listed("deep", input_schema={"type": "object", "properties": {str(n): {} for n in range(5000)}}), "more than"),
    (listed("list", input_schema={"type": "array"}), "'array'"),
    (listed("", description="nameless"), "no name"),
    (listed("nul", description="a\0b"), "NUL"),
    (listed("half", description="\ud800"), "surrogate"),
]


@pytest.mark.parametrize(("tool", "said"), FLAWS)
def test_a_tool_that_cannot_be_kept_is_left_out_with_its_reason(tool: RemoteTool, said: str) -> None:
    changes = taken(tool, listed("good"))
    assert [one.name for one in changes.added] == ["good"]
    [skipped] = changes.skipped
    assert said in skipped.reason


def test_a_tool_that_becomes_unusable_stays_as_it_was() -> None:
    own = list(taken(listed("list")).added)
    changes = taken(listed("list", input_schema={"type": "array"}), own=own)
    assert (changes.updated, changes.deleted, len(changes.skipped)) == ([], [], 1)


def test_a_tool_that_is_listed_twice_is_taken_over_once() -> None:
    changes = taken(listed("twice", description="First."), listed("twice", description="Second."))
    assert [tool.description for tool in changes.added] == ["First."]
    assert changes.skipped[0].reason == "the server lists it twice"


def test_a_long_description_is_cut() -> None:
    [tool] = taken(listed("talks", description="x" * (LONGEST_DESCRIPTION + 1))).added
    assert len(tool.description) == LONGEST_DESCRIPTION
    assert tool.json_schema["description"] == tool.description


def test_the_tools_hear_of_their_servers_new_name() -> None:
    own = list(taken(listed("forecast")).added)
    [after] = renamed(own, replace(SERVER, name="climate"), LATER)
    source = tool_source(after)
    assert source is not None
    assert (after.name, after.tags, source.server_name) == ("forecast", ["mcp:climate"], "climate")


def test_a_client_that_writes_metadata_anew_cannot_move_the_tool() -> None:
    [tool] = taken(listed("forecast", destructive=True)).added
    theirs = {"mcp": {"server_id": "mcp_server-other", "server_name": "x", "tool_name": "y"}, "note": "mine"}
    after = kept_source(tool, replace(tool, metadata=theirs, tags=["mine"]))
    assert tool_source(after) == tool_source(tool)
    assert (after.metadata["note"], after.tags) == ("mine", ["mcp:weather", "mine"])
    assert taken(listed("forecast", destructive=True), own=[after]).updated == []
