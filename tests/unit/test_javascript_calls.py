"""What a call in JavaScript gets and gives back: as a call in Python, behind the same walls."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId
from tests.kit.log_events import log_events
from tests.kit.node import need_node
from tests.kit.sandboxes import EVERY_SANDBOX, LIMITS, WALLED, sandbox_of, walls
from tests.kit.wait_until import wait_until
from worker.tools.node_choice import find_node
from worker.tools.outcomes import CallLimits, ToolInvocation, ToolSandbox
from worker.tools.sandbox_choice import PlainProcess

PLAIN = PlainProcess(sys.executable, None)
SEVEN = "export function tool() { return 7; }"


@pytest.fixture(params=EVERY_SANDBOX)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ToolSandbox]:
    async with sandbox_of(request.param, node=need_node()) as made:
        yield made


def call_of(source: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> ToolInvocation:
    """A call of the exported function `tool`, with its arguments in this order."""
    return ToolInvocation(
        ProjectId("default"),
        source,
        "tool",
        arguments,
        language="javascript",
        parameters=tuple(arguments),
        environment=environment or {},
        timeout_s=180,
    )


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'größe ☃'", "größe ☃"),
        ("''", ""),
        ("null", "null"),
        ("undefined", "undefined"),
        ("1.5", "1.5"),
        ("({a: [1, null], b: true})", '{"a":[1,null],"b":true}'),
        ("({big: 5n, map: new Map([[1, 2]])})", '{"big":"5n","map":"Map(1) { 1 => 2 }"}'),
        ("new Date(0)", '"1970-01-01T00:00:00.000Z"'),
        ("Promise.resolve('later')", "later"),
        ("'nul\\0'", "nul\N{REPLACEMENT CHARACTER}"),
        ("'half \\ud800'", "half \N{REPLACEMENT CHARACTER}"),
    ],
)
async def test_results_become_text(sandbox: ToolSandbox, expression: str, text: str) -> None:
    outcome = await sandbox.call(call_of(f"export function tool() {{ return {expression}; }}"))
    assert (outcome.status, outcome.text) == ("success", text)


async def test_what_cannot_be_json_is_printed(sandbox: ToolSandbox) -> None:
    outcome = await sandbox.call(call_of("export function tool() { const a = {}; a.a = a; return a; }"))
    assert (outcome.status, outcome.text) == ("success", "<ref *1> { a: [Circular *1] }")


async def test_arguments_come_in_order_and_missing_ones_take_their_defaults(sandbox: ToolSandbox) -> None:
    source = "export function tool(a, b = 'default', constructor) { return [a, b, constructor ?? 'nothing']; }"
    call = msgspec.structs.replace(call_of(source, a=1), parameters=("a", "b", "constructor"))
    assert json.loads((await sandbox.call(call)).text) == [1, "default", "nothing"]


async def test_its_environment_is_its_own_and_cannot_steer_the_program(sandbox: ToolSandbox) -> None:
    """Were NODE_OPTIONS given to the program itself, an agent's secret could load code before the tool."""
    source = "export function tool() { return [process.env.SECRET, process.execArgv.length < 9, process.env]; }"
    call = call_of(source, environment={"SECRET": "s", "NODE_OPTIONS": "--require=/nowhere"})
    secret, _, environment = json.loads((await sandbox.call(call)).text)
    assert secret == "s"
    assert set(environment) - {"SECRET", "NODE_OPTIONS"} == {"PATH", "LANG", "HOME", "TMPDIR", "UV_USE_IO_URING"}


async def test_an_error_is_named_and_its_trace_shows_the_tools_lines_only(sandbox: ToolSandbox) -> None:
    outcome = await sandbox.call(call_of("export async function tool() {\n  null.x;\n}"))
    assert outcome.status == "error"
    assert outcome.text.startswith("Error executing function tool: TypeError: Cannot read properties of null")
    [trace] = outcome.stderr
    assert "tool.ts:2:" in trace
    assert "[eval]" not in trace
    assert "data:" not in trace


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("export function tool() { return new Promise(() => 0); }", "nothing is left that its promise could wait for"),
        ("export function tool() { process.exit(3); }", "the tool's process ended with status 3 without a result"),
        ("export function other() {}", "the source exports no function 'tool'"),
        ("export function tool( {", "SyntaxError"),
        ("export async function tool() { setImmediate(() => { throw 'x'; }); await new Promise(() => 0); }", "'x'"),
        ("export async function tool() { throw { get name() { throw 1; } }; }", "Error"),
        ("export function tool() { JSON.stringify = null; Promise.prototype.then = null; throw new Error('x'); }", "x"),
        ("export function tool() { const a = []; for (;;) a.push(new Array(1 << 16).fill({})); }", "used up its mem"),
        ("import 'lodash'; export function tool() {}", "lodash"),
    ],
)  # fmt: skip
async def test_a_call_that_fails_says_why(sandbox: ToolSandbox, source: str, said: str) -> None:
    outcome = await sandbox.call(call_of(source))
    assert outcome.status == "error"
    assert said in outcome.text


async def test_a_long_result_is_cut(sandbox: ToolSandbox) -> None:
    call = call_of("export function tool() { return '☃'.repeat(50); }")
    outcome = await sandbox.call(msgspec.structs.replace(call, return_char_limit=10))
    assert outcome.text.startswith("☃" * 10 + "... [NOTE: function output was truncated")


async def test_output_is_kept_apart_from_the_result(sandbox: ToolSandbox) -> None:
    outcome = await sandbox.call(call_of("export function tool() { console.log('out'); console.error('err'); }"))
    assert (outcome.stdout, outcome.stderr) == (["out"], ["err"])


async def test_a_program_gives_what_it_exports_when_nothing_is_left_to_wait_for(sandbox: ToolSandbox) -> None:
    source = "setTimeout(() => console.log('later'), 30);\nexport default ({ a: [1] });"
    outcome = await sandbox.call(msgspec.structs.replace(call_of(source), function=""))
    assert (json.loads(outcome.text), outcome.stdout) == ({"results": ["{ a: [ 1 ] }"]}, ["later"])


async def test_a_cancelled_call_may_clean_up_if_it_listens(sandbox: ToolSandbox, tmp_path: Path) -> None:
    """What it writes at the end is seen in its output."""
    source = """
        export async function tool() {
          console.log("started");
          await new Promise((resolve) => {
            const timer = setInterval(() => 0, 100);
            toolCancelled.addEventListener("abort", () => { clearInterval(timer); resolve(); });
          });
          console.log("cleaned up");
        }
    """
    call = msgspec.structs.replace(call_of(source), timeout_s=5)
    outcome = await sandbox.call(call)
    assert outcome.text == "Error: tool timed out after 5 s (HOLDFAST_TOOL_TIMEOUT)"
    assert outcome.stdout == ["started", "cleaned up"]


@pytest.mark.parametrize("name", EVERY_SANDBOX)
async def test_a_cancelled_call_that_does_not_listen_ends_without_its_grace(name: str) -> None:
    async with sandbox_of(name, node=need_node(), grace_s=60) as sandbox:
        call = msgspec.structs.replace(
            call_of("setInterval(() => 0, 100); export function tool() { return new Promise(() => 0); }"), timeout_s=5
        )
        outcome = await asyncio.wait_for(sandbox.call(call), 120)
    assert outcome.text == "Error: tool timed out after 5 s (HOLDFAST_TOOL_TIMEOUT)"


@pytest.mark.parametrize("name", EVERY_SANDBOX)
async def test_without_node_a_call_says_so(name: str) -> None:
    async with sandbox_of(name) as sandbox:
        outcome = await sandbox.call(call_of(SEVEN))
    assert (outcome.status, "no Node.js" in outcome.text) == ("error", True)


async def test_python_calls_beside_it_go_on_in_the_same_zygote() -> None:
    async with sandbox_of("tier2", node=need_node()) as sandbox:
        python = ToolInvocation(ProjectId("default"), "def tool():\n    return 7\n", "tool", {})
        calls = [sandbox.call(call) for _ in range(4) for call in (python, call_of(SEVEN))]
        assert [outcome.text for outcome in await asyncio.gather(*calls)] == ["7"] * 8


@pytest.mark.parametrize("name", WALLED)
async def test_a_call_in_python_may_execute_nothing_although_one_in_javascript_may(name: str) -> None:
    node = need_node()
    source = f"import os\ndef tool():\n    os.execv({node.executable!r}, ['node', '-v'])\n"
    async with sandbox_of(name, node=node) as sandbox:
        outcome = await sandbox.call(ToolInvocation(ProjectId("default"), source, "tool", {}))
    assert "PermissionError" in outcome.text


async def test_a_node_that_does_not_work_is_off_and_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "node"
    wrong.write_text("#!/bin/sh\necho no\n")
    wrong.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with log_events() as logged:
        assert await find_node("", PLAIN, LIMITS) is None
    assert logged.has("javascript_tools_off", node=str(wrong))
    with pytest.raises(InvalidRequest, match=r"HOLDFAST_TOOL_NODE: .*/node cannot run tools"):
        await find_node(str(wrong), PLAIN, LIMITS)
    assert await find_node("off", PLAIN, LIMITS) is None


async def test_a_node_without_enough_memory_is_refused_at_the_start_not_by_the_first_call() -> None:
    node = need_node()
    limits = CallLimits(memory_bytes=8 << 20, processor_s=5, file_bytes=1 << 20)
    with pytest.raises(InvalidRequest, match="HOLDFAST_TOOL_NODE"):
        await find_node(node.executable, await walls("tier2"), limits)


async def test_a_cancelled_caller_leaves_no_process(sandbox: ToolSandbox) -> None:
    task = asyncio.create_task(sandbox.call(call_of("export function tool() { for (;;); }")), name="call")
    await asyncio.wait([task], timeout=0.5)
    task.cancel()
    await wait_until(task.done, description="the call to be over")
    assert task.cancelled()
