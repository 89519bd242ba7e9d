"""Runs a model's program as a tool: the source of the base tools `run_code` and `run_code_with_tools`.

It runs where no module of this project can be imported. It returns the program's value and error; the program's output
is the call's output.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import traceback
import types
from typing import Any

NAME = "<code>"


def run_code(code: str, tools: list[dict[str, str]]) -> Any:
    """Returns `{"results": [repr of a last expression's value], "error": {"name", "value", "traceback"}}`, without
    `error` if there is none; an awaitable of it if the program awaits at its top level. `tools`: `{"name", "source"}`
    of functions that the program may call, or `{"name", "refused"}` with the message that their call raises."""
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    parts = types.SimpleNamespace(module=module.__dict__, statements=None, value=None)
    try:
        for tool in tools:
            parts.module[tool["name"]] = refusing(tool) if "refused" in tool else made(tool)
        compile_into(parts, code)
        ran = eval(parts.statements, parts.module)  # noqa: S307 - this is what we are for
        if inspect.iscoroutine(ran) or is_async(parts.value):
            return finished(parts, ran)
        return answer(parts.value and eval(parts.value, parts.module))  # noqa: S307 - as above
    except BaseException as error:  # noqa: BLE001 - every error of the program is its outcome
        return failed(error)


async def finished(parts: Any, ran: Any) -> dict[str, Any]:
    try:
        if inspect.iscoroutine(ran):
            await ran
        value = parts.value and eval(parts.value, parts.module)  # noqa: S307 - as above
        return answer(await value if is_async(parts.value) else value)
    except BaseException as error:  # noqa: BLE001 - as above
        return failed(error)


def compile_into(parts: Any, code: str) -> None:
    """Compiles a last expression separately, because its value is the result."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(code, NAME, "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        value = ast.Expression(tree.body.pop().value)
        parts.value = compile(value, NAME, "eval", flags, dont_inherit=True)
    parts.statements = compile(tree, NAME, "exec", flags, dont_inherit=True)


def is_async(code: types.CodeType | None) -> bool:
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)


def answer(value: object) -> dict[str, Any]:
    return {"results": [] if value is None else [repr(value)]}


def failed(error: BaseException) -> dict[str, Any]:
    """Returns the program's error. Raises a cancellation again, because that is not an error of the program."""
    if isinstance(error, builtins.__dict__["ToolCancelled"]):
        raise error
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return {"results": []}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return {"results": [], "error": {"name": type(error).__name__, "value": str(error), "traceback": "".join(lines)}}


def made(tool: dict[str, str]) -> Any:
    """Executes a tool's source in its own module, and returns the tool's function."""
    place = f"<{tool['name']}>"
    source = tool["source"]
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    module = types.ModuleType(tool["name"])
    sys.modules.setdefault(tool["name"], module)
    exec(compile(source, place, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - a tool of the same agent
    return module.__dict__[tool["name"]]


def refusing(tool: dict[str, str]) -> Any:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(tool["refused"])

    return refuse
