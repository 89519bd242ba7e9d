"""What memory tools make of a block's text."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from shared.domain.agents import Block
from shared.domain.ids import BlockId, ProjectId
from shared.domain.memory import Memory, RefusedEdit, edit_memory
from shared.domain.tool_catalog import BASE_TOOLS, base_tool_rules, default_base_tools, needs_base_rules
from shared.tool_arguments import read_arguments

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def block(value: str, label: str = "human", **fields: Any) -> Block:
    return Block(
        id=BlockId(f"block-{label}"),
        project_id=ProjectId("p"),
        label=label,
        value=value,
        created_at=NOW,
        updated_at=NOW,
        **fields,
    )


def made(label: str, value: str, description: str) -> Block:
    return block(value, label, description=description, limit=10)


def edited(value: str, tool: str, seen: dict[BlockId, int] | None = None, /, **arguments: Any) -> str:
    """The text of the block `human` after the call, and what the model is told of it, which is the same."""
    result = edit_memory(Memory([block(value, version=3)], seen or {}, made), tool, {"label": "human", **arguments})
    [changed] = result.changed
    assert result.text == changed.value
    return result.text


@pytest.mark.parametrize(
    ("before", "line", "after"),
    [
        ("", -1, "new"),
        ("", 0, "new"),
        ("a\nb", -1, "a\nb\nnew"),
        ("a\nb", 0, "new\na\nb"),
        ("a\nb", 1, "a\nnew\nb"),
        ("a\nb", 2, "a\nb\nnew"),
    ],
)
def test_a_line_is_inserted_behind_the_line_of_its_number(before: str, line: int, after: str) -> None:
    assert edited(before, "memory_insert", new_string="new", insert_line=line) == after


@pytest.mark.parametrize("line", [-2, 3])
def test_there_is_no_such_line(line: int) -> None:
    with pytest.raises(RefusedEdit, match=r"\[0, 2\]"):
        edited("a\nb", "memory_insert", new_string="new", insert_line=line)


def test_appending_begins_a_line_and_an_empty_block_has_none() -> None:
    assert edited("a", "core_memory_append", content="b") == "a\nb"
    assert edited("", "core_memory_append", content="b") == "b"


def test_one_passage_is_replaced_or_all_of_them() -> None:
    assert edited("a-a", "core_memory_replace", old_content="a", new_content="b") == "b-b"
    assert edited("a-b", "memory_replace", old_string="a-", new_string="") == "b"
    for tool, arguments in (
        ("memory_replace", {"old_string": "", "new_string": "x"}),
        ("core_memory_replace", {"old_content": "", "new_content": "x"}),
        ("core_memory_replace", {"old_content": "z", "new_content": "x"}),
        ("memory_replace", {"old_string": "a", "new_string": "x"}),
    ):
        with pytest.raises(RefusedEdit):
            edited("a-a", tool, None, **arguments)


def test_tabs_and_blanks_are_kept_as_they_are() -> None:
    assert edited("a\t b", "memory_replace", old_string="\t ", new_string=" \t") == "a \tb"


def test_a_block_is_written_anew_only_by_who_has_seen_it() -> None:
    human = BlockId("block-human")
    assert edited("a", "memory_rethink", {human: 3}, new_memory="b") == "b"
    with pytest.raises(RefusedEdit, match="It now reads:\na"):
        edited("a", "memory_rethink", {human: 2}, new_memory="b")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"command": "create", "path": "/memories/x"}, "description is required"),
        ({"command": "create", "path": "/memories/", "description": "d"}, "names no memory block"),
        ({"command": "create", "path": "/memories/human", "description": "d"}, "already"),
        ({"command": "create", "path": "x", "description": "d", "file_text": "x" * 11}, "10 character limit"),
        ({"command": "insert", "path": "/memories/human"}, "insert_text is required"),
        ({"command": "delete"}, "path is required"),
        ({"command": "rename", "old_path": "/memories/human"}, "needs old_path and new_path"),
        ({"command": "rename", "old_path": "/memories/human", "new_path": "/memories/persona"}, "already"),
    ],
)
def test_a_command_that_lacks_something_says_what(arguments: dict[str, Any], why: str) -> None:
    memory = Memory([block("a"), block("b", "persona")], {}, made)
    with pytest.raises(RefusedEdit, match=why):
        edit_memory(memory, "memory", arguments)


def test_a_description_is_changed_by_path() -> None:
    arguments = {"command": "rename", "path": "/memories/human", "description": "Who they are."}
    result = edit_memory(Memory([block("a")], {}, made), "memory", arguments)
    [changed] = result.changed
    assert (changed.description, changed.label) == ("Who they are.", "human")


PATCHES: dict[str, tuple[str, str, str]] = {
    "one line": ("a\nb\nc", "@@\n a\n-b\n+B\n c", "a\nB\nc"),
    "two places": ("a\nb\nc\nd", "-a\n+A\n@@\n-d", "A\nb\nc"),
    "the second place is looked for in what the first has made": ("a", "-a\n+b\n@@\n-b\n+c", "c"),
    "no place means the end": ("a", "+b\n+c", "a\nb\nc"),
    "an empty block": ("", "+a", "a"),
    "file headers and a frame": ("a", "*** Begin Patch\n--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n*** End Patch", "b"),
    "an empty line without its space": ("a\n\nb", " a\n\n-b\n+c\n", "a\n\nc"),
    "lines that look like headers": ("- x\n-- y", " - x\n--- y\n+++ z", "- x\n++ z"),
    "tabs": ("\ta", "-\ta\n+\tb", "\tb"),
    "no end of line": ("a", "-a\n+b\n\\ No newline at end of file", "b"),
}


@pytest.mark.parametrize("case", PATCHES)
def test_a_patch_changes_the_lines_that_it_shows(case: str) -> None:
    before, patch, after = PATCHES[case]
    assert edited(before, "memory_apply_patch", patch=patch) == after


REFUSED_PATCHES: dict[str, str] = {
    "-b": "does not have exactly these lines:\nb",
    "-a": "2 times",
    " a": "changes nothing",
    "": "changes nothing",
    "+x\nb": "line 'b' is no part",
    f"+{'x' * 40}": "40 character limit",
    "*** Update Block: human": "changes nothing",
    "*** Update Block:": "names no memory block",
    "*** Move to: x": "stands behind the header",
    "x\n*** Delete Block: human": "'x' stands before the first header",
    "*** Delete Block: human\n-a": "has lines behind it",
    "*** Delete Block: humna": "Available: human, rules",
    "*** Add Block: human\n+a": "already",
    "*** Add Block: x\na": "begins with '\\+'",
    "*** Add Block: x\n+" + "x" * 11: "10 character limit",
    "*** Update Block: rules\n+a": "read-only",
    "*** Delete Block: rules": "read-only",
    "*** Delete Block: human\n*** Move to: x": "no memory block labelled 'human'",
}


@pytest.mark.parametrize("patch", REFUSED_PATCHES)
def test_a_patch_that_cannot_be_applied_says_why(patch: str) -> None:
    memory = Memory([block("a\na", limit=40), block("r", "rules", read_only=True)], {}, made)
    with pytest.raises(RefusedEdit, match=REFUSED_PATCHES[patch]):
        edit_memory(memory, "memory_apply_patch", {"label": "human", "patch": patch})


def test_a_patch_with_headers_changes_several_blocks() -> None:
    """Labels go round in it, and a block that it makes is changed again."""
    patch = """*** Begin Patch
*** Update Block: a
-one
+two
*** Move to: spare
*** Update Block: b
*** Move to: a
+more

*** Delete Block: c
*** Add Block: c
Description: The new one.
+one
+
+two

*** Update Block: c
-two
+2
*** Add Block: gone
*** Delete Block: gone
*** End Patch"""
    memory = Memory([block("one", "a"), block("b", "b"), block("c", "c"), block("d", "d")], {}, _numbered())

    result = edit_memory(memory, "memory_apply_patch", {"label": "", "patch": patch})

    assert {one.id: (one.label, one.value) for one in result.changed} == {
        "block-a": ("spare", "two"), "block-b": ("a", "b\nmore"),
    }  # fmt: skip
    assert [(one.label, one.value, one.description) for one in result.made] == [("c", "one\n\n2", "The new one.")]
    assert result.detached == ["block-c"]
    assert "- Delete Block: c\n- Add Block: c" in result.text


def _numbered() -> Callable[[str, str, str], Block]:
    numbers = count()
    return lambda label, value, description: replace(made(label, value, description), id=BlockId(str(next(numbers))))


def test_null_is_as_good_as_leaving_an_argument_out() -> None:
    for tool in BASE_TOOLS:
        needed: dict[str, Any] = {"command": "create", "limit": 5, "match_all": ["x"], "match_some": ["x"]}
        text = {name: needed.get(name, "python" if name == "language" else "x") for name in tool.required}
        nulls = {name: None for name in tool.properties if name not in tool.required}
        assert read_arguments(json.dumps(text | nulls), tool.arguments) == text | nulls


def test_every_default_is_a_tool_and_every_base_tool_has_a_rule() -> None:
    names = {tool.name for tool in BASE_TOOLS}
    for agent_type in ("letta_v1_agent", "memgpt_agent", "memgpt_v2_agent", "sleeptime_agent", "react_agent"):
        for sleeps in (False, True):
            assert names.issuperset(default_base_tools(agent_type, enable_sleeptime=sleeps))
    rules = {rule["tool_name"]: rule["type"] for rule in base_tool_rules(["send_message", "memory_insert", "run_code"])}
    assert rules == {"send_message": "exit_loop", "memory_insert": "continue_loop"}


def test_models_that_do_better_without_get_no_base_rules() -> None:
    """They had them, and so behaved otherwise than on Letta's server."""
    for handle in ("openai/gpt-5", "openai/gpt-5.2", "anthropic/claude-4-sonnet-20250514"):
        assert not needs_base_rules("memgpt_v2_agent", handle)
        assert needs_base_rules("sleeptime_agent", handle)
    for handle in ("openai/gpt-5-mini", "openai/gpt-4.1", "google_ai/gemini-2.5-pro", "gpt-5/x"):
        assert needs_base_rules("memgpt_v2_agent", handle)
