"""Runs one tool function in the process that a watcher or zygote forked for it, and writes its result as one frame.

It is loaded by path into an interpreter that has only the standard library. The frame has its own descriptor: four
bytes of length, big-endian, then JSON `{"status", "text", "truncated", "is_text"}`. This module never pickles, inserts
no argument into code, and trusts nothing that the tool changed: results become text inside the tool boundary.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import resource
import signal
import sys
import types

TYPE_CHECKING = False  # typing takes milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

OPEN_FILES = 128
TYPING = frozenset({
    "Annotated", "Any", "Awaitable", "Callable", "ClassVar", "DefaultDict", "Dict", "Final", "FrozenSet", "Generator",
    "Iterable", "Iterator", "List", "Literal", "Mapping", "NamedTuple", "Optional", "Sequence", "Set", "Tuple", "Type",
    "TypedDict", "TypeVar", "Union", "cast",
})  # fmt: skip
"""Names of `typing` that a source may use without an import, because clients send a function without its module's
imports."""
NOT_FOR_THE_MODEL = ("self", "cls", "agent_state", "agent_id", "client", "idempotency_key")
"""Parameters that the API omits from a tool's schema. A function that demands one gets the agent's value, or None."""

TAKES_ANY_NAME = 0x08
"""The flag of a function's code that has a parameter with `**`."""


class ToolCancelled(BaseException):
    """The call was cancelled or timed out. The tool has to clean up now, because the process is killed after the grace
    period."""


ToolCancelled.__module__ = "builtins"


class Cancellation:
    """Raises ToolCancelled in the tool's code on the first SIGTERM."""

    def __init__(self) -> None:
        self.over = False
        self._asked = False
        self._asyncio: Any = None
        self._task: Any = None

    def on_signal(self, _signal: int, _frame: object) -> None:
        if self._asked or self.over:
            return
        self._asked = True
        if self._task is None:
            raise ToolCancelled
        loop = self._task.get_loop()
        running = self._asyncio.current_task(loop)
        if running is not self._task:
            loop.call_soon_threadsafe(self._task.cancel)
        if running is not None:
            raise self.named(self._asyncio.CancelledError())

    def named(self, error: BaseException) -> BaseException:
        """Replaces a task's cancellation with an error that `except` catches as ToolCancelled and as CancelledError."""
        if not self._asked or not isinstance(error, self._asyncio.CancelledError):
            return error
        return type("ToolCancelled", (ToolCancelled, self._asyncio.CancelledError), {"__module__": "builtins"})()

    def run(self, awaitable: Any) -> Any:
        """Runs an async tool. asyncio is imported here because that takes longer than starting the interpreter."""
        self._asyncio = importlib.import_module("asyncio")

        async def unwrapped() -> Any:
            return await awaitable

        async def tool() -> Any:
            self._task = self._asyncio.current_task()
            return await Relay(unwrapped(), self)

        return self._asyncio.run(tool())


class Relay:
    """Wraps a coroutine, and converts the cancellations that are thrown into it to `ToolCancelled`."""

    def __init__(self, coroutine: Any, cancellation: Cancellation) -> None:
        self._coroutine = coroutine
        self._cancellation = cancellation

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._coroutine.send(None)

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, error: BaseException) -> Any:
        return self._coroutine.throw(self._cancellation.named(error))

    def close(self) -> None:
        self._coroutine.close()


def run(result_fd: int, blocked: Iterable[int]) -> None:
    """Runs the tool's process until its end. Never returns. `blocked`: signals to unblock once it can handle them."""
    cancellation = Cancellation()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, cancellation.on_signal)
    _, error = attempt(lambda: answer(result_fd, blocked, cancellation))
    cancellation.over = True
    if error is not None and not isinstance(error, ToolCancelled):
        attempt(lambda: show_traceback(error))
    os._exit(0 if error is None else 1)


def attempt(action: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """The tool boundary: returns the result, or any exception of foreign code."""
    try:
        return action(), None
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a tool are its outcome too
        return None, error


def answer(result_fd: int, blocked: Iterable[int], cancellation: Cancellation) -> None:
    """Reads the call from standard input, executes it, and writes the frame."""
    write, dumps, itself = os.write, json.dumps, os.getpid()  # a tool may replace them in their modules
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    call = json.loads(read_all(0))
    prepare(call)
    result, failed = attempt(lambda: run_function(call, cancellation))
    text: str = ""
    if failed is None:
        text, failed = attempt(lambda: as_text(result))
    if os.getpid() != itself:
        return  # the tool has forked, and this is its child: only the parent writes the call's result
    if failed is not None:
        attempt(lambda: show_traceback(failed))
        text = describe(call["function"], failed)
    attempt(sys.stdout.flush)
    attempt(sys.stderr.flush)
    cancellation.over = True
    kept = text[: call["text_limit"]].encode("utf-8", "replace").decode()
    frame = {"status": "error" if failed else "success", "text": kept, "truncated": len(text) > call["text_limit"]}
    body = dumps(frame | {"is_text": isinstance(result, str)}, ensure_ascii=False).encode()
    rest = memoryview(len(body).to_bytes(4, "big") + body)
    while rest:
        rest = rest[write(result_fd, rest) :]


def read_all(descriptor: int) -> bytes:
    parts: list[bytes] = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def prepare(call: dict[str, Any]) -> None:
    """Sets limits, environment and names before any foreign code runs."""
    given = call["limits"]
    limits = [
        (resource.RLIMIT_AS, given["memory_bytes"]),
        (resource.RLIMIT_CPU, given["processor_s"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, given["file_bytes"]),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ]
    if os.getuid() != 0:
        limits.append((resource.RLIMIT_NPROC, given["threads"]))
    for kind, wanted in limits:
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(call["environment"])
    sys.path += call["folders"]  # last, so that no package hides a module of the standard library
    sys.argv = ["<tool>"]
    builtins.__dict__["ToolCancelled"] = ToolCancelled


def run_function(call: dict[str, Any], cancellation: Cancellation) -> Any:
    source, name = call["source"], call["function"]
    objects = importlib.import_module("child_objects")
    schema = objects.ArgumentSchema(call["argument_schema"] or {})
    module = types.ModuleType("tool")
    module.__dict__.update(schema.classes)
    sys.modules["tool"] = module  # dataclasses and type hints look it up
    lines = source.splitlines(keepends=True)
    importlib.import_module("linecache").cache["<tool>"] = (len(source), None, lines, "<tool>")
    code = compile(source, "<tool>", "exec", dont_inherit=True)
    if wanted := TYPING & names_in(code):
        typing = importlib.import_module("typing")
        module.__dict__.update({wanted_name: getattr(typing, wanted_name) for wanted_name in wanted})
    exec(code, module.__dict__)  # noqa: S102 - this is what we are for
    if name not in module.__dict__:
        raise NameError(f"the source defines no function {name!r}")
    function: Any = module.__dict__[name]
    arguments = schema.objects(call["arguments"], module.__dict__)
    positional, named = bind(
        function, arguments, known_values(call, objects.read_only(call["agent"])), call["is_probe"]
    )
    result: Any = function(*positional, **named)
    return cancellation.run(result) if hasattr(result, "__await__") else result


def names_in(code: types.CodeType) -> set[str]:
    """Returns every name that the code uses, including those in its functions and classes."""
    inner = [names_in(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)


def known_values(call: dict[str, Any], agent: Any) -> dict[str, Any]:
    """Returns values for parameters that the model does not fill."""
    known = {"idempotency_key": call["idempotency_key"]} if call["idempotency_key"] else {}
    return known if agent is None else known | {"agent_state": agent, "agent_id": agent.id}


def bind(
    function: Any, arguments: dict[str, Any], known: dict[str, Any], drops_others: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Returns positional and named arguments for the function, with values converted to its annotations.
    `drops_others`: leaves out arguments for which it has no parameter."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return [], arguments
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if drops_others and not code.co_flags & TAKES_ANY_NAME:
        arguments = {name: value for name, value in arguments.items() if name in names}
    first_default = code.co_argcount - len(function.__defaults__ or ())
    optional = {*names[first_default : code.co_argcount], *(function.__kwdefaults__ or ())}
    demanded = [name for name in names if name in NOT_FOR_THE_MODEL and (name in known or name not in optional)]
    given: dict[str, Any] = {name: known.get(name) for name in demanded}
    given.update(converted_arguments(function, arguments))
    leading = [name for name in names[: code.co_posonlyargcount] if name in given]
    return [given.pop(name) for name in leading], given


def converted_arguments(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Converts JSON values to the types of the annotations, such as a date, an enum or a dataclass of the source."""
    plain = (str, int, float, bool, dict, list, "str", "int", "float", "bool", "dict", "list")
    if all(function.__annotations__.get(name, str) in plain for name in arguments):
        return arguments
    typing = importlib.import_module("typing")
    hints, unreadable = attempt(lambda: typing.get_type_hints(function))
    if unreadable is not None:
        return arguments
    return {name: converted(hints.get(name), value, typing) for name, value in arguments.items()}


def converted(kind: Any, value: Any, typing: Any) -> Any:
    items: Any = value
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        parts = tuple(part for part in parts if part is not type(None))
        return converted(parts[0], value, typing) if len(parts) == 1 and value is not None else items
    if isinstance(value, list) and (origin or kind) in (list, set, frozenset, tuple):
        return (origin or kind)(converted(parts[0] if parts else None, item, typing) for item in items)
    if isinstance(value, dict) and origin is dict:
        return {key: converted(parts[1], item, typing) for key, item in items.items()}
    if not isinstance(kind, type):
        return items
    if isinstance(value, dict) and hasattr(kind, "__dataclass_fields__"):
        hints = typing.get_type_hints(kind)
        return kind(**{key: converted(hints.get(key), item, typing) for key, item in items.items()})
    maker: Any = kind
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, str) and name in ("datetime.datetime", "datetime.date", "datetime.time"):
        return maker.fromisoformat(value)
    if hasattr(kind, "__members__") or name in ("decimal.Decimal", "uuid.UUID", "pathlib.Path"):
        return kind(value)
    return items


def as_text(result: Any) -> str:
    """Renders a result: a string unchanged; None, booleans and values that JSON cannot express as Python prints them;
    all other values as JSON."""
    if isinstance(result, str):
        return str.__str__(result)
    if result is None or isinstance(result, bool):
        return str(result)
    try:
        return json.dumps(result, default=importlib.import_module("child_objects").for_json, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(result)


def describe(function: str, error: BaseException) -> str:
    message, _ = attempt(lambda: str(error))
    detail = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"Error executing function {function}: {detail}"


def show_traceback(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    importlib.import_module("traceback").print_exception(type(error), error, trace)
