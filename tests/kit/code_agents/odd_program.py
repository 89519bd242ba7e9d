"""Agents that emit text which readers cannot be shown, and end as programs do by accident."""

import asyncio
import functools
import itertools
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.agents import Run, StepFailed, Usage, agent
from holdfast.agents.values import Answer
from tests.kit.code_agents.places import STAGE, at, reach

HALF = "a\ud800b"
NUL = "a\x00b"


@agent("says")
async def says(run: Run) -> str:
    """Says a text in the way that the text of the run names, and answers with what became of it."""
    way, _, named = run.text.partition(" ")
    text = NUL if named == "nul" else HALF
    return await SAYINGS[way](run, text)


async def _emits(run: Run, text: str) -> str:
    run.emit_reasoning(text)
    run.emit_text(text)
    return ""


async def _returns(_run: Run, text: str) -> str:
    return text


async def _finds(run: Run, text: str) -> str:
    await run.tool("look", lambda: {text: text})
    return await run.step("look", lambda: text)


async def _gives(run: Run, text: str) -> str:
    return await run.tool("look", _same, text)


async def _raises(_run: Run, text: str) -> str:
    raise ValueError(text)


async def _step_raises(run: Run, text: str) -> str:
    def look() -> None:
        raise ValueError(text)

    await run.tool("look", look)
    return "not reached"


async def _names(run: Run, text: str) -> str:
    await run.step(f"step {text}", _same, 1)
    return await run.tool(f"tool {text}", _same, "found")


async def _keeps(run: Run, text: str) -> str:
    was = run.state.get(text)
    run.state[text] = text
    return "new" if was is None else "known"


async def _same(value: Any) -> Any:
    return value


SAYINGS: dict[str, Callable[[Run, str], Awaitable[str]]] = {
    "emits": _emits,
    "returns": _returns,
    "finds": _finds,
    "gives": _gives,
    "raises": _raises,
    "step-raises": _step_raises,
    "names": _names,
    "keeps": _keeps,
}


@agent("goes-wrong")
async def goes_wrong(run: Run) -> Any:
    """Does what the text names."""
    return await WAYS[run.text](run)


async def _exits(run: Run) -> str:
    await run.step("begin", at, "begin")
    sys.exit(3)


async def _body_forks(run: Run) -> str:
    return f"{_forked(lambda: sys.exit(3))}"


async def _steps_fork(run: Run) -> str:
    async def look() -> int:
        return _forked(lambda: 0)

    return f"{await run.step('look', look)} {await run.step('parse', _forked, _parse, key=1)}"


def _forked(work: Callable[[], Any]) -> int:
    """The status with which a process ends that has done the work."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return work()


async def _only_thinks(run: Run) -> str:
    run.emit_reasoning("I have ")
    run.emit_reasoning(f"{len(run.history)} messages.")
    return ""


async def _emits_answer_in_pieces(run: Run) -> str:
    answer = Answer('{"title":"otters"}')
    for piece in ("Looking. ", '{"title":', '"otters"}'):
        run.emit_text(piece)
    return answer


async def _emits_end_of_answer(run: Run) -> str:
    run.emit_text('The list is [{"title":"otters"}')
    return Answer('{"title":"otters"}')


async def _emits_answer(run: Run) -> str:
    answer = Answer('{"title":"otters"}')
    run.emit_text("Looking. ")
    run.emit_text(answer)
    return answer


async def _tool_exits(run: Run) -> str:
    async def parse() -> None:
        _parse()

    return await _failure(run.tool("parse", parse))


async def _says_nothing(run: Run) -> str:
    run.emit_text("")
    return "found"


async def _task_exits(run: Run) -> str:
    async def parse() -> None:
        _parse()

    task = asyncio.create_task(parse())
    await asyncio.Event().wait()
    return f"not reached {task}"


async def _task_exits_beside_step(run: Run) -> str:
    return await run.step("wait", functools.partial(_task_exits, run))


async def _tool_exits_in_thread(run: Run) -> str:
    return await _failure(run.tool("parse", _parse))


def _parse() -> None:
    sys.exit("usage: parse FILE")


async def _failure(call: Awaitable[Any]) -> str:
    try:
        return await call
    except StepFailed as failed:
        return f"{failed.error_type}: {failed.text}"


async def _awaits_cancelled(run: Run) -> str:
    await run.step("begin", at, "begin")
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task
    return "not reached"


async def _raises_group(_run: Run) -> str:
    async def look(page: str) -> None:
        raise LookupError(f"no {page}")

    await _all(look("page"))
    return "not reached"


async def _all(*looking: Awaitable[None]) -> None:
    """What `asyncio.TaskGroup` does, which Python 3.10 lacks: it raises all that was raised."""
    said = await asyncio.gather(*looking, return_exceptions=True)
    raise ExceptionGroup("several", [one for one in said if isinstance(one, Exception)])


async def _raises_groups(run: Run) -> str:
    async def look(page: str) -> None:
        raise LookupError(f"no {page}")

    await run.step("look", _all, look("page"), look("book"), key="look")
    return "not reached"


async def _raises_unsayable(_run: Run) -> str:
    raise Unsayable


async def _step_raises_unsayable(run: Run) -> str:
    def look() -> None:
        raise Unsayable

    try:
        await run.step("look", look)
    except StepFailed as failed:
        agreed = await run.approval("go on", {"after": failed.error_type})
        return f"went on after {agreed.arguments['after']}"
    return "not reached"


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def _stops_iteration(run: Run) -> str:
    def first() -> str:
        return next(iter(()))

    await run.step("first", first)
    return "not reached"


async def _says_much(_run: Run) -> str:
    raise ValueError("x" * 1_000_000)


async def _has_list_as_state(run: Run) -> str:
    run.state = [1]  # type: ignore[assignment]
    return "not reached"


async def _keeps_much(run: Run) -> str:
    run.state["page"] = "x" * 1_000_000
    return "not reached"


async def _keeps_otters(run: Run) -> str:
    run.state["page"] = "\N{OTTER}" * 200_000
    return await run.step("draw", _same, "\N{OTTER}" * 200_000)


async def _emits_number(run: Run) -> str:
    run.emit_text(5)  # type: ignore[arg-type]
    return "not reached"


async def _names_nothing(run: Run) -> str:
    return await run.step(None, _same, 1)  # type: ignore[arg-type]


async def _names_much(run: Run) -> str:
    return await run.tool("n" * 3000, _same, 1)


async def _counts_nothing(run: Run) -> str:
    none: Any = None
    return await run.model("house/small", lambda: "hello", request=1, usage=lambda _: Usage(none, 1))


async def _returns_object(_run: Run) -> dict[str, Any]:
    return {"page": "otters", "at": 1.5, "who": "\N{OTTER}"}


async def _returns_nothing_that_json_says(_run: Run) -> Any:
    return itertools.count()


async def _raises_nested(_run: Run) -> str:
    raise Nested


async def _tool_raises_nested(run: Run) -> str:
    def ask() -> None:
        raise Nested

    return await _failure(run.tool("ask", ask))


async def _raises_base(_run: Run) -> str:
    raise Skipped("not today")


async def _tool_raises_base(run: Run) -> str:
    def skip() -> None:
        raise Skipped("not today")

    return await _failure(run.tool("skip", skip))


class Skipped(BaseException):
    """As those of test frameworks, which pass by `except Exception`."""


class Nested(Exception):
    """An error of a client's library, which is no group."""

    exceptions = 504

    def __str__(self) -> str:
        return "no service answers"


async def _uses_run_in_thread(run: Run) -> str:
    def drawn() -> list[str]:
        return [run.now().isoformat(), str(run.uuid()), str(run.random())]

    def looked() -> str:
        return asyncio.run(run.step("inner", at, "inner", returns=str))

    first = await run.step("draw", drawn)
    assert await run.step("look", looked) == "None"
    await run.approval("go on", {})
    return f"{first == await run.step('draw', drawn)} {first == await asyncio.to_thread(drawn)}"


async def _uses_run_in_strange_thread(run: Run) -> str:
    said: list[str] = []

    def drawn() -> None:
        try:
            run.uuid()
        except RuntimeError as error:
            said.append(str(error))

    thread = threading.Thread(target=drawn)
    thread.start()
    thread.join()
    return said[0]


async def _prints(run: Run) -> str:
    print(f"otters of {run.id}")
    await run.step("begin", at, "printed")
    return "printed"


print("imported")


WAYS: dict[str, Callable[[Run], Awaitable[Any]]] = {
    "exits": _exits,
    "body forks": _body_forks,
    "steps fork": _steps_fork,
    "emits its answer": _emits_answer,
    "emits its answer in pieces": _emits_answer_in_pieces,
    "emits the end of its answer": _emits_end_of_answer,
    "only thinks": _only_thinks,
    "says nothing": _says_nothing,
    "task exits": _task_exits,
    "task exits beside step": _task_exits_beside_step,
    "tool exits": _tool_exits,
    "tool exits in a thread": _tool_exits_in_thread,
    "awaits cancelled": _awaits_cancelled,
    "raises group": _raises_group,
    "raises groups": _raises_groups,
    "raises unsayable": _raises_unsayable,
    "step raises unsayable": _step_raises_unsayable,
    "stops iteration": _stops_iteration,
    "says much": _says_much,
    "has a list as state": _has_list_as_state,
    "keeps much": _keeps_much,
    "keeps otters": _keeps_otters,
    "emits a number": _emits_number,
    "names nothing": _names_nothing,
    "names much": _names_much,
    "counts nothing": _counts_nothing,
    "raises base": _raises_base,
    "tool raises base": _tool_raises_base,
    "raises nested": _raises_nested,
    "tool raises nested": _tool_raises_nested,
    "uses its run in a thread": _uses_run_in_thread,
    "uses its run in a strange thread": _uses_run_in_strange_thread,
    "prints": _prints,
    "returns an object": _returns_object,
    "returns nothing that json says": _returns_nothing_that_json_says,
}


@agent("asks")
async def asks(run: Run) -> str:
    """Calls a tool that takes arguments by no name, once a person agrees."""
    function, args, named = TAKING[run.text]
    return await _failure(run.tool("take", function, *args, needs_approval=True, **named))


def _all_of(*parts: str, end: str = ".") -> str:
    return " ".join(parts) + end


def _first_of(first: str, /, *rest: str, end: str = ".") -> str:
    return f"{first} of {len(rest)}{end}"


TAKING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "all": (_all_of, ("a", "b"), {"end": "!"}),
    "first": (_first_of, ("a", "b"), {}),
    "partial": (functools.partial(_first_of, "a"), ("b",), {}),
    "builtin": (max, ("a", "b"), {}),
}


@agent("hands-over")
async def hands_over(run: Run) -> str:
    """A tool waits for what steps hand it over, while another task asks a person."""
    fetched: asyncio.Queue[str | None] = asyncio.Queue()
    asked = asyncio.Event()

    async def consumed() -> str:
        found: list[str] = []
        while (page := await fetched.get()) is not None:
            found.append(page)
        return "|".join(found)

    async def produce() -> None:
        fetched.put_nowait(await run.step("fetch", _same, "one"))
        await asked.wait()
        for page in ("two", "three"):
            fetched.put_nowait(await run.step("fetch", _same, page))
        fetched.put_nowait(None)

    async def ask() -> None:
        asking = asyncio.ensure_future(run.approval("go on", {}))
        asyncio.get_running_loop().call_soon(asked.set)
        await asking

    _, said, _ = await asyncio.gather(produce(), run.tool("consume", consumed), ask())
    return said


@agent("gives-up")
async def gives_up(run: Run) -> str:
    """Gives a call up in the way that the text names, and asks a person then."""
    said = await GIVING_UP[run.text](run)
    await run.approval("go on", {"said": said})
    return said


async def _times_out(run: Run) -> str:
    try:
        await asyncio.wait_for(run.tool("slow", _never, "slow"), 0.2)
    except asyncio.TimeoutError:  # noqa: UP041 - Python 3.10
        return "too slow"
    return "not reached"


async def _falls_back(run: Run) -> str:
    try:
        return await asyncio.wait_for(run.model("house/large", _never, "large", request=1), 0.2)
    except asyncio.TimeoutError:  # noqa: UP041 - Python 3.10
        return await run.model("house/small", lambda: "small", request=1)


async def _races(run: Run) -> str:
    tasks = {asyncio.create_task(run.step(f"look {name}", _looked, name)) for name in ("near", "far")}
    done, lost = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for one in lost:
        one.cancel()
    await asyncio.wait(lost)
    return await run.step("report", _same, "|".join(task.result() for task in done))


async def _fails_beside(run: Run) -> str:
    said: list[str] = []
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.step("far", _never, "far"))
            group.create_task(run.step("page", _no_page))
    except* StepFailed as failed:
        said = [str(one) for one in failed.exceptions]
    return await run.step("report", _same, "|".join(said))


async def _is_cancelled_inside(run: Run) -> str:
    return await _failure(run.tool("inside", _cancelled))


async def _never(name: str) -> None:
    reach(name)
    await asyncio.Event().wait()


async def _looked(name: str) -> str:
    return name if name == "near" else str(await _never(name))


async def _no_page() -> None:
    raise LookupError("no page")


async def _cancelled() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


GIVING_UP: dict[str, Callable[[Run], Awaitable[str]]] = {
    "times out": _times_out,
    "falls back": _falls_back,
    "races": _races,
    "fails beside": _fails_beside,
    "is cancelled inside": _is_cancelled_inside,
}


@agent("leaves")
async def leaves(run: Run) -> str:
    """Returns while a tool of its own goes on, or without the call that a person has decided about."""
    asks, asked = run.text == "asked", STAGE / "asked"
    if asks and asked.exists():
        return "left"
    if asks:
        asked.touch()
    began = asyncio.Event()

    async def goes_on() -> None:
        began.set()
        await asyncio.Event().wait()

    tool = asyncio.create_task(run.tool("go on", goes_on, key=1, needs_approval=asks))
    await began.wait()
    run.emit_text(f"left {tool.done()}")
    return ""


@agent("keeps-first")
async def keeps_first(run: Run) -> str:
    """Has a state in its first version alone."""
    reach(f"version {VERSION} attempt {run.attempt}")
    await run.step("begin", _begin)
    if VERSION == "1":
        run.state["count"] = run.state.get("count", 0) + 1
    return f"counted {run.state.get('count')}"


def _begin() -> None:
    reach("began")


VERSION = os.environ.get("HOLDFAST_AGENTS_VERSION", "1")
