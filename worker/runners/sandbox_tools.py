"""Runs the code of an agent's tools, and programs that the model writes, in the sandbox with the same limits."""

import json
import re
import textwrap
from asyncio import to_thread
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from shared.domain.agents import agent_for_tool, requires_approval
from shared.domain.effects import KEY_VARIABLE, PROBE
from shared.domain.errors import InvalidRequest, InvalidToolSource, Unavailable
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.tool_catalog import RUNS_CODE_WITH_TOOLS, JsonObject, base_tool_arguments, is_base_tool
from shared.domain.tools import PYTHON, TYPESCRIPT, Tool, ToolLimits
from shared.packages.environments import PackageEnvironments
from shared.typescript import Module, program_module, tool_module
from worker.runners.tool_runner import CallingRun, ForeignOutcome, RunnerTraits, error_return
from worker.tools.outcomes import MAX_RESULT_CHARS, ToolInvocation, ToolOutcome, ToolSandbox

_ASKS = re.compile(r"\bagent_(state|id)\b")
"""Matches a source that uses the agent. Other sources do not get it: the memory may be large, and most tools do not
need it."""


BEHIND_WALLS = RunnerTraits(limits_results=True, timeout_s=None)
"""The sandbox itself limits a call's result, and ends a call with all its processes."""


@dataclass(frozen=True, kw_only=True)
class SandboxRunner:
    """Calls functions from the source in the tool's row."""

    sandbox: ToolSandbox
    packages: PackageEnvironments
    timeout_s: float
    traits: RunnerTraits = BEHIND_WALLS

    def arguments(self, tool: Tool) -> JsonObject:
        """Returns the schema of the tool's row."""
        return tool.accepted_arguments

    async def call(
        self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]
    ) -> ToolReturn | ForeignOutcome:
        """Returns the outcome of the function."""
        module = Module(tool.source_code)
        try:
            if tool.source_type == TYPESCRIPT:
                module = await to_thread(tool_module, tool.source_code, tool.name)
            # The time limit of a call begins after this: a machine without the packages installs them first.
            async with self.packages.folders(tool.packages) as folders:
                outcome = await self.sandbox.call(
                    ToolInvocation(
                        project_id=run.run.project_id,
                        source_code=module.source,
                        function=tool.name,
                        arguments=arguments,
                        language="javascript" if tool.source_type == TYPESCRIPT else "python",
                        parameters=module.parameters,
                        argument_schema=tool.args_json_schema,
                        environment=_environment(run, call),
                        idempotency_key=run.idempotency_key(call),
                        is_probe=tool.name.startswith(PROBE),
                        agent=_agent(run, tool),
                        folders=folders,
                        has_network=tool.network == "host",
                        run_id=run.run.id if tool.scratch == "run" else None,
                        timeout_s=self.timeout_s,
                        limits=tool.limits or ToolLimits(),
                        return_char_limit=tool.return_char_limit,
                    )
                )
        except InvalidToolSource as error:
            return error_return(call, f"Error: {error}")
        except (InvalidRequest, Unavailable) as error:
            return error_return(call, f"Error: the tool was not started, for it lacks its packages: {error.message}")

        return ForeignOutcome(outcome, partial(_as_it_is, call))


def _as_it_is(call: ToolCall, outcome: ToolOutcome) -> ToolReturn:
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status=outcome.status,
        text=outcome.text,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        is_text=outcome.is_text,
    )


def _agent(run: CallingRun, tool: Tool) -> dict[str, Any] | None:
    return agent_for_tool(run.agent, run.blocks) if _ASKS.search(tool.source_code) else None


def _environment(run: CallingRun, call: ToolCall) -> dict[str, str]:
    """Returns the agent's secrets, and variables that name the agent, run, conversation and call: tools that were
    written for Letta's server read the first of these."""
    return {
        **run.secrets,
        "LETTA_AGENT_ID": run.run.agent_id,
        "LETTA_RUN_ID": run.run.id,
        "LETTA_CONVERSATION_ID": run.run.conversation_id or "default",
        KEY_VARIABLE: run.idempotency_key(call),
    }


# Programs that the model writes: the base tools `run_code` and `run_code_with_tools`.
#
# The answer is `{"results": [texts], "logs": {"stdout": [texts], "stderr": [texts]}, "error": {"name", "value",
# "traceback"}}`, as prompts and programs expect it, without `error` if there was none.


PROGRAM = Path(__file__).parent.parent / "tools" / "guest" / "child_program.py"
JAVASCRIPT = ("js", "ts")
NOT_HERE = "This server runs code in python, js and ts, not in {}. Write it in one of these."
FREE_RULES = ("continue_loop", "exit_loop", "run_first", "required_before_exit")
"""Types of tool rules that do not restrict a call from within a program."""


class _Error(msgspec.Struct):
    name: str = "Error"
    value: str = ""
    traceback: str = ""


class _Said(msgspec.Struct):
    results: list[str] = []
    error: _Error | None = None


@dataclass(frozen=True, kw_only=True)
class ProgramRunner:
    """Runs programs that the model has written."""

    sandbox: ToolSandbox
    timeout_s: float
    traits: RunnerTraits = BEHIND_WALLS

    def arguments(self, tool: Tool) -> JsonObject:
        """Returns the base tool's own schema."""
        return base_tool_arguments(tool)

    async def call(self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ForeignOutcome:
        """Returns the outcome of the program."""
        return ForeignOutcome(await self._outcome(run, call, tool, arguments), partial(_answer_of, call, tool))

    async def _outcome(self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> ToolOutcome:
        try:
            invocation = await self._invocation(run, call, tool, arguments)
        except InvalidToolSource as error:
            return ToolOutcome("error", str(error))
        if invocation is None:
            return ToolOutcome("error", NOT_HERE.format(arguments["language"]))
        return await self.sandbox.call(invocation)

    async def _invocation(
        self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]
    ) -> ToolInvocation | None:
        """Returns None for an unsupported language. Raises `InvalidToolSource` if TypeScript cannot be parsed."""
        code, language = arguments["code"], arguments.get("language", PYTHON)
        if language in JAVASCRIPT:
            module: Module = await to_thread(program_module, code, is_typescript=language == "ts")
            invocation = ToolInvocation(run.run.project_id, module.source, "", {}, language="javascript")
        elif language == PYTHON:
            tools = _callable_tools(run) if tool.name == RUNS_CODE_WITH_TOOLS else []
            source = await to_thread(PROGRAM.read_text, encoding="utf-8")
            invocation = ToolInvocation(run.run.project_id, source, "run_code", {"code": code, "tools": tools})
        else:
            return None
        return msgspec.structs.replace(
            invocation,
            environment=_environment(run, call),
            idempotency_key=run.idempotency_key(call),
            timeout_s=self.timeout_s,
            return_char_limit=MAX_RESULT_CHARS,
        )


def _callable_tools(run: CallingRun) -> list[dict[str, str]]:
    """Returns the agent's tools as functions of the program, except those that a rule or an approval restricts."""
    rules = [rule for rule in run.agent.tool_rules if rule["type"] not in FREE_RULES]
    ruled = {name for rule in rules for name in (rule["tool_name"], *rule.get("children", ()))}
    found: list[dict[str, str]] = []
    for name, tool in run.tools.items():
        if is_base_tool(tool) or not tool.source_code:
            reason = "a program cannot call it"
        elif tool.source_type != PYTHON:
            reason = f"it is written in {tool.source_type}"
        elif name in ruled or requires_approval(run.agent, name, tool.default_requires_approval):
            reason = "a person or a rule has a say in its calls"
        else:
            found.append({"name": name, "source": textwrap.dedent(tool.source_code)})
            continue
        found.append({"name": name, "refused": f"{name} cannot be called from here ({reason}): call it as a tool"})
    return found


def _answer_of(call: ToolCall, tool: Tool, outcome: ToolOutcome) -> ToolReturn:
    """Returns the program's outcome as the model sees it, cut to the tool's limit."""
    said = _said(outcome)
    most = tool.return_char_limit // 4
    answer: dict[str, Any] = {
        "results": [_cut(text, most) for text in said.results],
        "logs": {"stdout": _log(outcome.stdout, most), "stderr": _log(outcome.stderr, most)},
    }
    if said.error is not None:
        error = msgspec.structs.replace(said.error, value=_cut(said.error.value, most))
        error = msgspec.structs.replace(error, traceback=_cut(error.traceback, most))
        answer["error"] = msgspec.to_builtins(error)
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status="success" if said.error is None else "error",
        text=json.dumps(answer, ensure_ascii=False),
        stdout=outcome.stdout,
        stderr=outcome.stderr,
    )


def _said(outcome: ToolOutcome) -> _Said:
    """Parses the program's answer. The program can write anything there, so it is not trusted."""
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
