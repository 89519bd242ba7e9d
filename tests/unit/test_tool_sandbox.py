"""What a tool call gets, what it gives back, and what it cannot see."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.kit.sandboxes import EVERY_SANDBOX, LIMITS, sandbox_of
from tests.kit.tools import tool_call
from worker.tools.outcomes import ToolSandbox
from worker.tools.sandbox_choice import ProcessSandbox
from worker.tools.tool_process import OUTPUT_BYTES


@pytest.fixture(params=EVERY_SANDBOX)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ToolSandbox]:
    async with sandbox_of(request.param) as made:
        yield made


def exists(path: str) -> bool:
    return Path(path).exists()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'plain'", "plain"),
        ("'größe \\u2603'", "größe \u2603"),
        ("''", ""),
        ("None", "None"),
        ("5", "5"),
        ("True", "True"),
        ("1.5", "1.5"),
        ("{'a': [1, None]}", '{"a": [1, null]}'),
        ("{'when': __import__('datetime').date(2026, 1, 2)}", '{"when": "datetime.date(2026, 1, 2)"}'),
        ("{(1, 2): 3}", "{(1, 2): 3}"),
        ("type('Name', (str,), {})('still text')", "still text"),
        ("'nul\\0'", "nul\N{REPLACEMENT CHARACTER}"),
        ("'half \\ud800'", "half ?"),
    ],
)
async def test_results_become_text(sandbox: ToolSandbox, expression: str, text: str) -> None:
    outcome = await sandbox.call(tool_call(f"def tool():\n    return {expression}"))
    assert (outcome.status, outcome.text) == ("success", text)


async def test_an_async_tool_is_awaited(sandbox: ToolSandbox) -> None:
    outcome = await sandbox.call(
        tool_call("async def tool(n: int):\n    import asyncio\n    await asyncio.sleep(0)\n    return n + 1", n=4)
    )
    assert (outcome.status, outcome.text) == ("success", "5")


async def test_helpers_classes_and_module_imports_of_the_source_work(sandbox: ToolSandbox) -> None:
    source = """
        from __future__ import annotations
        import math
        from dataclasses import dataclass
        from datetime import date
        from enum import Enum

        class Colour(Enum):
            RED = "red"

        @dataclass
        class Point:
            x: float
            y: float = 0.0

        def _length(point: Point) -> float:
            return math.hypot(point.x, point.y)

        def tool(points: list[Point], colour: Colour, day: date | None = None) -> str:
            return f"{[_length(p) for p in points]} {colour.name} {day.year}"
    """
    outcome = await sandbox.call(tool_call(source, points=[{"x": 3, "y": 4}], colour="red", day="2026-11-20"))
    assert (outcome.status, outcome.text) == ("success", "[5.0] RED 2026")


async def test_reserved_and_positional_only_parameters_are_filled(sandbox: ToolSandbox) -> None:
    source = "def tool(agent_state, first, /, second=2, *, client):\n    return [agent_state, first, second, client]"
    outcome = await sandbox.call(tool_call(source, first=1))
    assert outcome.text == "[null, 1, 2, null]"


async def test_an_indented_source_runs(sandbox: ToolSandbox) -> None:
    call = msgspec.structs.replace(tool_call(""), source_code="    def tool():\n        return 'ran'\n")
    assert (await sandbox.call(call)).text == "ran"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def tool():\n    raise ValueError('no good')", "ValueError: no good"),
        ("def tool():\n    raise KeyError", "KeyError"),
        ("def tool():\n    import sys\n    sys.exit(3)", "SystemExit: 3"),
        ("def tool(wanted):\n    return 1", "TypeError: tool() missing 1 required positional argument: 'wanted'"),
        ("def other():\n    return 1", "NameError: the source defines no function 'tool'"),
        ("def tool(:", "SyntaxError: invalid syntax (<tool>, line 1)"),
        ("import requests_of_nobody\ndef tool(): ...", "ModuleNotFoundError: No module named 'requests_of_nobody'"),
        (
            "class Bad(Exception):\n    def __str__(self):\n        return 1 / 0\ndef tool():\n    raise Bad",
            "Bad",
        ),
        (
            "class Bad:\n    def __repr__(self):\n        raise ValueError('no text')\ndef tool():\n    return Bad()",
            "ValueError: no text",
        ),
        ("def tool():\n    import os\n    os._exit(3)", "the tool's process ended with status 3 without a result"),
        (
            "def tool():\n    import ctypes\n    ctypes.string_at(0)",
            "the tool's process was killed by SIGSEGV without a result",
        ),
        (
            "def tool():\n    import os\n    os.closerange(0, 64)",
            "the tool's process ended with status 1 without a result",
        ),
        ("def tool():\n    return len(bytearray(1 << 30))", "MemoryError"),
    ],
)
async def test_a_failing_tool_is_an_outcome(sandbox: ToolSandbox, source: str, text: str) -> None:
    outcome = await sandbox.call(tool_call(source))
    assert (outcome.status, outcome.text) == ("error", f"Error executing function tool: {text}")


async def test_a_traceback_was_as_many_texts_as_it_has_lines_and_shows_the_tools_only(sandbox: ToolSandbox) -> None:
    outcome = await sandbox.call(tool_call("def tool():\n    raise ValueError('no good')"))
    assert [text.splitlines() for text in outcome.stderr] == [
        [
            "Traceback (most recent call last):",
            '  File "<tool>", line 2, in tool',
            "    raise ValueError('no good')",
            "ValueError: no good",
        ]
    ]


async def test_closed_output_does_not_cost_the_result(sandbox: ToolSandbox) -> None:
    outcome = await sandbox.call(
        tool_call("def tool():\n    import os\n    print('x')\n    os.close(1)\n    return 'kept'")
    )
    assert (outcome.status, outcome.text) == ("success", "kept")


async def test_the_environment_is_clean(sandbox: ToolSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEYS", "a=b")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    outcome = await sandbox.call(tool_call("import os\ndef tool():\n    return dict(os.environ)"))
    assert set(json.loads(outcome.text)) == {"PATH", "HOME", "LANG", "TMPDIR"}


async def test_a_tool_sees_its_own_secrets_and_nobody_reads_them_from_proc(sandbox: ToolSandbox) -> None:
    source = """
        import os
        def tool():
            return [os.environ["TOKEN"], "hush" in read("environ"), "hush" in read("cmdline")]
        def read(name):
            try:
                with open(f"/proc/self/{name}") as file:
                    return file.read()
            except OSError:
                return ""
    """
    outcome = await sandbox.call(tool_call(source, environment={"TOKEN": "hush"}))
    assert outcome.text == '["hush", false, false]'


async def test_a_tool_cannot_import_the_workers_packages(sandbox: ToolSandbox) -> None:
    source = """
        import importlib.util
        def tool():
            return [importlib.util.find_spec(name) is None for name in ("worker", "msgspec", "child")]
    """
    found = await sandbox.call(tool_call(source))
    assert found.text == "[true, true, true]"


async def test_the_working_directory_is_new_and_goes_away(sandbox: ToolSandbox) -> None:
    source = """
        import os, tempfile
        def tool():
            found = os.listdir(".")
            open("left-by-a-call", "w").close()
            tempfile.mkdtemp()
            return [os.getcwd(), tempfile.gettempdir(), found]
    """
    first, second = [json.loads((await sandbox.call(tool_call(source))).text) for _ in range(2)]
    assert first[0] == first[1]
    assert first[2] == second[2] == []
    assert not exists(f"{first[0]}/left-by-a-call")


async def test_output_is_captured_apart(sandbox: ToolSandbox) -> None:
    source = """
        import os, sys
        def tool():
            print("one\\ntwo")
            print("warned", file=sys.stderr)
            os.write(1, b"straight to the descriptor\\n")
            sys.stdin.read()
    """
    outcome = await sandbox.call(tool_call(source))
    assert sorted(outcome.stdout) == ["one", "straight to the descriptor", "two"]
    assert outcome.stderr == ["warned"]


async def test_a_flood_of_output_is_read_and_dropped(sandbox: ToolSandbox) -> None:
    source = """
        import sys
        def tool():
            for _ in range(50):
                sys.stdout.write("x" * (1 << 20))
            return "done"
    """
    outcome = await sandbox.call(tool_call(source))
    assert outcome.text == "done"
    assert outcome.stdout == ["x" * OUTPUT_BYTES, f"... [{(50 << 20) - OUTPUT_BYTES} more bytes dropped]"]


async def test_a_long_result_is_truncated_with_a_notice(sandbox: ToolSandbox) -> None:
    call = msgspec.structs.replace(tool_call("def tool():\n    return '\\x01' * 30_000_000"), return_char_limit=10)
    outcome = await sandbox.call(call)
    notice = "... [NOTE: function output was truncated since it exceeded the character limit of 10]"
    assert outcome.text == "\x01" * 10 + notice
    whole = msgspec.structs.replace(call, source_code="def tool():\n    return '\\x01' * 10")
    assert (await sandbox.call(whole)).text == "\x01" * 10


@pytest.mark.parametrize("junk", ["b'\\xff' * 200_000", "b'\\0\\0\\0\\5[1,2]'", "b'\\0\\0'"])
async def test_a_forged_frame_is_an_error_at_most(sandbox: ToolSandbox, junk: str) -> None:
    source = f"""
        import os
        def tool():
            for descriptor in range(3, 64):
                try:
                    os.set_blocking(descriptor, True)
                    os.write(descriptor, {junk})
                except OSError:
                    pass
            os._exit(0)
    """
    call = msgspec.structs.replace(tool_call(source), return_char_limit=100)
    outcome = await sandbox.call(call)
    assert outcome.text == "Error executing function tool: the tool's process ended with status 0 without a result"


async def test_a_fork_that_comes_back_does_not_answer_twice() -> None:
    async with sandbox_of("process") as sandbox:
        outcome = await sandbox.call(tool_call("import os\ndef tool():\n    return 'parent' if os.fork() else 'child'"))
    assert (outcome.status, outcome.text) == ("success", "parent")


async def test_a_large_payload_arrives_whole(sandbox: ToolSandbox) -> None:
    outcome = await sandbox.call(tool_call("def tool(text):\n    return len(text)", text="ä" * 1_000_000))
    assert outcome.text == "1000000"


async def test_an_interpreter_that_does_not_exist_is_an_outcome() -> None:
    sandbox = ProcessSandbox(LIMITS, grace_s=1.0, python="/nowhere/python")
    outcome = await sandbox.call(tool_call("def tool(): ..."))
    assert (outcome.status, outcome.text) == ("error", "Error: the tool was not started: No such file or directory")


async def test_calls_leave_no_descriptor_open(sandbox: ToolSandbox) -> None:
    await sandbox.call(tool_call("def tool(): ..."))
    before = open_descriptors()
    for _ in range(3):
        await sandbox.call(tool_call("def tool(): ..."))
    assert open_descriptors() == before
