"""The base tools that run a program of the model's: in the tools' sandbox, behind the same walls and limits.

The answer is the wire's: `{"results": [texts], "logs": {"stdout": [texts], "stderr": [texts]}, "error": {"name",
"value", "traceback"}}`, without `error` when there was none.
"""

import json
import textwrap
from asyncio import to_thread
from pathlib import Path
from typing import Any

import msgspec

from shared.domain.agents import requires_approval
from shared.domain.errors import InvalidToolSource
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.tool_catalog import RUNS_CODE_WITH_TOOLS, is_base_tool
from shared.domain.tools import PYTHON, Tool
from shared.typescript.functions import Module, program_module
from worker.run.context import RunContext
from worker.tools.invocation import ToolInvocation, ToolOutcome, without_secrets
from worker.tools.outcomes import MAX_RESULT_CHARS

PROGRAM = Path(__file__).parent.parent / "tools" / "inside" / "child_program.py"
JAVASCRIPT = ("js", "ts")
NOT_HERE = "This server runs code in python, js and ts, not in {}. Write it in one of these."
FREE_RULES = ("continue_loop", "exit_loop", "run_first", "required_before_exit")
"""Rules of tools that say nothing about a call from within a program."""


class _Error(msgspec.Struct):
    name: str = "Error"
    value: str = ""
    traceback: str = ""


class _Said(msgspec.Struct):
    results: list[str] = []
    error: _Error | None = None


async def run_code(
    context: RunContext, call: ToolCall, tool: Tool, arguments: dict[str, Any], environment: dict[str, str]
) -> ToolReturn:
    """The result of a call of one of the two. `environment`: the variables that a tool of the agent's would see."""
    language = arguments.get("language", "python")
    try:
        invocation = await _invocation(context, tool, arguments["code"], language)
    except InvalidToolSource as error:
        return _returned(call, tool, ToolOutcome("error", str(error)))
    if invocation is None:
        return _returned(call, tool, ToolOutcome("error", NOT_HERE.format(language)))
    invocation = msgspec.structs.replace(
        invocation,
        environment=environment,
        timeout_s=context.services.tool_timeout_s,
        return_char_limit=MAX_RESULT_CHARS,
    )
    outcome = await without_secrets(await context.services.sandbox.call(invocation), context.secrets)
    return _returned(call, tool, outcome)


async def _invocation(context: RunContext, tool: Tool, code: str, language: str) -> ToolInvocation | None:
    """None for a language that is not here. Raises `InvalidToolSource` for TypeScript that cannot be read."""
    project_id = context.run.project_id
    if language in JAVASCRIPT:
        module: Module = await to_thread(program_module, code, is_typescript=language == "ts")
        return ToolInvocation(project_id, module.source, "", {}, language="javascript")
    if language != PYTHON:
        return None
    tools = _callable_tools(context) if tool.name == RUNS_CODE_WITH_TOOLS else []
    source = await to_thread(PROGRAM.read_text, encoding="utf-8")
    return ToolInvocation(project_id, source, "run_code", {"code": code, "tools": tools})


def _callable_tools(context: RunContext) -> list[dict[str, str]]:
    """The agent's tools as functions of the program. What a person or a rule has a say in stays a call of its own."""
    rules = [rule for rule in context.agent.tool_rules if rule["type"] not in FREE_RULES]
    ruled = {name for rule in rules for name in (rule["tool_name"], *rule.get("children", ()))}
    found: list[dict[str, str]] = []
    for name, tool in context.tools.items():
        if is_base_tool(tool):
            reason = "a program cannot call it"
        elif tool.source_type != PYTHON:
            reason = f"it is written in {tool.source_type}"
        elif name in ruled or requires_approval(context.agent, name, tool.default_requires_approval):
            reason = "a person or a rule has a say in its calls"
        else:
            found.append({"name": name, "source": textwrap.dedent(tool.source_code)})
            continue
        found.append({"name": name, "refused": f"{name} cannot be called from here ({reason}): call it as a tool"})
    return found


def _returned(call: ToolCall, tool: Tool, outcome: ToolOutcome) -> ToolReturn:
    said = _said(outcome)
    most = tool.return_char_limit // 4
    answer: dict[str, Any] = {
        "results": [_cut(text, most) for text in said.results],
        "logs": {"stdout": _log(outcome.stdout, most), "stderr": _log(outcome.stderr, most)},
    }
    if said.error is not None:
        error = msgspec.structs.replace(said.error, value=_cut(said.error.value, most))
        answer["error"] = msgspec.to_builtins(msgspec.structs.replace(error, traceback=_cut(error.traceback, most)))
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status="success" if said.error is None else "error",
        text=json.dumps(answer, ensure_ascii=False),
        stdout=outcome.stdout,
        stderr=outcome.stderr,
    )


def _said(outcome: ToolOutcome) -> _Said:
    """What the program came to. It can write anything where its own answer should be, so nothing there is believed."""
    try:
        said = msgspec.json.decode(outcome.text, type=_Said)
    except (msgspec.MsgspecError, RecursionError):
        if outcome.status == "success":
            return _Said(results=[outcome.text])
        return _Said(error=_Error(value=outcome.text))
    if outcome.status == "error" and said.error is None:
        said.error = _Error(value=outcome.text)
    return said


def _log(texts: list[str], most: int) -> list[str]:
    whole = "\n".join(texts)
    return [_cut(whole, most)] if whole else []


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... [{len(text) - most} more characters left out]"
