"""The module of agents that tests run. A process of its own imports it, and communicates with the test by files."""

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any

from holdfast.agents import (
    Denied,
    NestedApproval,
    OutcomeUnknown,
    Run,
    StepFailed,
    Usage,
    Verdict,
    agent,
    call,
    cannot_tell,
    did_not_happen,
    happened,
)
from tests.kit.code_agents.places import STAGE, at, reach


def _fork_stands_still() -> None:
    while (STAGE / "stop fork").exists():
        signal.sigtimedwait([], 0.01)


os.register_at_fork(after_in_child=_fork_stands_still)


@agent("words", description="Does what the words say")
async def words(run: Run) -> str:
    for number, word in enumerate(run.text.split()):
        for injected in await run.inbox.take():
            reach(f"inbox {injected['text']}")
        run.emit_text(f"{word} {number}")
        await run.step("model", at, f"model {number}")
        if word == "look":
            await run.tool("look", _look, number)
        elif word == "ask":
            await run.approval("ask", {})
            await run.tool("look", _look, number)
    return "done"


@agent("floods", description="Says more at once than a read of its worker takes")
async def floods(run: Run) -> str:
    for number in range(3000):
        run.emit_text(f"{number} ")
    run.emit_text("x" * 300_000)
    await run.step("behind", at, "behind")
    run.emit_text(" and the end")
    return ""


@agent("shows-data")
async def shows_data(run: Run) -> str:
    """Shows data beside its answer, before and behind a decision."""
    reach(f"pid {os.getpid()}")
    for refused in ("holdfast-gap", "no name", ""):
        try:
            run.emit_data(refused, 1)
        except ValueError as error:
            reach(f"refused {error}")
    run.emit_data("progress", {"done": 1})
    await run.step("one", at, "one")
    run.emit_data("progress", {"done": 2})
    await run.approval("go on", {})
    run.emit_data("progress", {"done": 3, "of": "\N{OTTER}"})
    return "done"


async def _look(number: int) -> str:
    await at(f"tool {number}")
    return "found"


@agent("story")
async def story(run: Run) -> str:
    """One of everything, with a moment between any two."""
    reach(f"pid {os.getpid()}")
    await at("0")
    plan = await run.step("plan", _value, {"a": 1})
    seen = f"{run.now().isoformat()} {run.uuid()} {run.random():.3f}"
    reach(f"seen {seen}")
    await at("1")
    run.emit_text("One. ")
    first = await _once(run, "first")
    await at("2")
    run.emit_text("Two. ")
    both = await asyncio.gather(run.step("left", _value, 1), run.step("right", _value, 2))
    await at("3")
    run.emit_text("Three. ")
    agreed = await run.approval("publish", {"page": "draft"})
    await at("4")
    second = await _once(run, "second", page=agreed.arguments["page"])
    await at("5")
    reach(f"then {run.uuid()}")
    run.state["count"] = run.state.get("count", 0) + 1
    run.emit_text("Done. ")
    await at("6")
    return f"{plan} {first} {both} {second} {run.state['count']}"


async def _once(run: Run, name: str, **arguments: Any) -> str:
    try:
        return await run.tool(name, _effect, name, **arguments)
    except OutcomeUnknown:
        return "unknown"


async def _value(value: Any) -> Any:
    reach(f"step {value}")
    return value


async def _effect(name: str, page: str = "") -> str:
    reach(f"effect {name} {call().idempotency_key}")
    await at(f"in {name}")
    return f"{name} {page}".strip()


@agent("tools")
async def tools(run: Run) -> str:
    """A tool that may start twice, one with a probe, and one of which nobody knows."""
    reach(f"pid {os.getpid()}")
    match run.text:
        case "idempotent":
            return await run.tool("send", _send, idempotent=True)
        case "probe":
            return await run.tool("send", _send, probe=_was_it_sent)
        case "odd probe" | "idempotent with an odd probe":
            try:
                return await run.tool("send", _send, probe=_odd_probe, idempotent=run.text != "odd probe")
            except OutcomeUnknown:
                return "unknown"
        case "beside":
            reach(f"pid {os.getpid()}")
            both = await asyncio.gather(run.tool("left", _send, 1), run.tool("right", _send, 2))
            return " ".join(both)
        case _:
            try:
                return await run.tool("send", _send)
            except OutcomeUnknown as unknown:
                return f"unknown {unknown.name} {unknown.idempotency_key}"


async def _send(number: int = 0) -> str:
    await at(f"send {number} {call().attempt}")
    return f"sent {number}"


async def _was_it_sent(key: str) -> Verdict:
    reach(f"asked {key}")
    return happened("it was sent") if (STAGE / "was sent").exists() else did_not_happen()


async def _odd_probe(key: str) -> Any:
    """Raises at first, and then says what the folder has for it."""
    reach(f"asked {key}")
    if not (STAGE / "asked").exists():
        (STAGE / "asked").touch()
        raise ConnectionError("the service is away")
    match (STAGE / "probe says").read_text():
        case "true":
            return True
        case "object":
            return happened(object())
        case _:
            return cannot_tell()


@agent("ends")
async def ends(run: Run) -> str:
    """Ends in the way that the text names."""
    run.emit_text("I begin. ")
    await run.step("begin", _value, run.text)
    return await WAYS[run.text](run)


async def _raise(run: Run) -> str:
    return await run.step("work", _raises)


async def _raise_plainly(_run: Run) -> str:
    raise LookupError("nothing there")


async def _exit(_run: Run) -> str:
    os._exit(3)


async def _segfault(_run: Run) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return "not reached"


async def _crash_once(_run: Run) -> str:
    if not (STAGE / "crashed").exists():
        (STAGE / "crashed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "well"


async def _block(_run: Run) -> str:
    reach("blocked")
    signal.pause()
    return "not reached"


async def _swallow(_run: Run) -> str:
    while True:
        try:
            reach("swallows")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def _listen(run: Run) -> str:
    try:
        reach("listens")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        reach(f"cancelled {run.cancelled} {run.cancel_reason}")
        raise
    return "not reached"


async def _start_child(_run: Run) -> str:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])  # noqa: ASYNC220 - it is not awaited
    reach(f"child {child.pid}")
    await asyncio.Event().wait()
    return "not reached"


async def _start_session(_run: Run) -> str:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)  # noqa: ASYNC220 - it is not awaited
    reach(f"child {child.pid}")
    return "started"


async def _say_environment(_run: Run) -> str:
    return " ".join(sorted(os.environ))


async def _sleep(run: Run) -> str:
    await run.sleep(0.01)
    print("a line of the agent's")
    return "slept"


async def _count(run: Run) -> str:
    run.state["count"] = run.state.get("count", 0) + 1
    return "counted"


WAYS = {
    "count": _count,
    "raise": _raise,
    "raise plainly": _raise_plainly,
    "exit": _exit,
    "segfault": _segfault,
    "once": _crash_once,
    "block": _block,
    "swallow": _swallow,
    "listen": _listen,
    "child": _start_child,
    "session": _start_session,
    "environment": _say_environment,
    "sleep": _sleep,
}


def _raises() -> None:
    raise ValueError("no such page")


@agent("catches")
async def catches(run: Run) -> str:
    """Goes on after a failed step and a denial."""
    try:
        await run.step("work", _raises)
    except StepFailed as failed:
        reach(f"caught {failed.error_type}")
    try:
        await run.approval("publish", {"a": 1})
    except Denied as denied:
        return f"denied: {denied.reason}"
    return "allowed"


@agent("asks-client")
async def asks_client(run: Run) -> str:
    """Asks the client that has brought a tool."""
    [tool] = run.client_tools
    return await run.tool(tool["name"])


@agent("asks")
async def asks(run: Run) -> str:
    """Asks a model as often as the text says, and once inside of a tool."""
    temperature = 0 if VERSION == "1" else 1
    said: list[str] = []
    for number in range(int(run.text)):
        said.append(
            await run.model(
                "house/small",
                partial(_answer, run),
                number,
                request=[number],
                settings=temperature,
                usage=_tokens,
                text=str,
            )
        )
        await at(f"answered {number}")
    said.append(await run.tool("inner", partial(_asks_inside, run)))
    await at("asks")
    return " ".join(said)


async def _answer(run: Run, number: int) -> str:
    await at(f"model {number}")
    run.emit_text(f"answer {number}. ")
    return f"answer {number}. "


def _tokens(answer: str) -> Usage:
    return Usage(input_tokens=10, output_tokens=len(answer), cached_tokens=4, reasoning_tokens=1)


async def _asks_inside(run: Run) -> str:
    try:
        await run.approval("inside", {})
    except NestedApproval as refused:
        reach(str(refused))
    try:
        return await run.model("house/small", _value, "inner", request="inner", text=str)
    except StepFailed as failed:
        return failed.error_type


@agent("gated")
async def gated(run: Run) -> str:
    """A tool that a person decides about, with a lost result if the test wants it."""
    reach(f"pid {os.getpid()}")
    try:
        return await run.tool("pay", _pay, 5, to="ada", needs_approval=True, idempotent=run.text == "again")
    except Denied as denied:
        return f"denied {denied.reason}"
    except OutcomeUnknown:
        return "unknown"


async def _pay(amount: int, to: str) -> str:
    await at(f"pay {amount} {to} {call().attempt}")
    return f"paid {amount} to {to}"


@agent("scopes")
async def scopes(run: Run) -> str:
    """Two experts side by side, each of which asks a person in its middle; or one that a person has to let in."""
    reach(f"pid {os.getpid()}")
    run.emit_text("I ask. ")
    if run.text == "gated":
        return await run.scope("expert", partial(_expert, run), "ada", needs_approval=True)
    both = await asyncio.gather(*(run.scope("expert", partial(_expert, run), to) for to in run.text.split()))
    await at("asked")
    return "; ".join(both)


async def _expert(run: Run, to: str) -> str:
    price = await run.step("price", _value, f"price of {to}")
    await at(f"priced {to}")
    try:
        paid = await run.tool("pay", _pay, 5, to=to, needs_approval=True)
        agreed = await run.approval("tell", {"to": to, "text": price})
        told = await run.scope("teller", partial(_teller, run), agreed.arguments["text"])
    except Denied as denied:
        return f"denied {denied.reason}"
    except OutcomeUnknown:
        return "unknown"
    return f"{paid}, {told}"


async def _teller(run: Run, text: str) -> str:
    """A scope in a scope, with a call that the client of the run makes if it can."""
    if run.client_tools:
        return await run.tool(run.client_tools[0]["name"], text=text)
    return await run.tool("tell", _value, f"told {text}")


VERSION = os.environ.get("HOLDFAST_AGENTS_VERSION", "1")


@agent("changing")
async def changing(run: Run) -> str:
    """Asks for another step in a newer version."""
    await run.step("one", _value, 1)
    await run.step("two" if VERSION == "1" else "two_b", _value, 2)
    await at("changing")
    return f"version {VERSION}"


@agent("adapting", on_change="restart")
async def adapting(run: Run) -> str:
    """The same, but its turn begins anew."""
    try:
        said = await run.tool("send", _send)
    except OutcomeUnknown:
        said = "unknown"
    await run.step("two" if VERSION == "1" else "two_b", _value, 2)
    await at("adapting")
    return f"version {VERSION} {said}"


@agent("gives-up")
async def gives_up(run: Run) -> str:
    """Ends a call of its own, and asks a person then."""
    began = asyncio.Event()

    async def never_ends() -> None:
        began.set()
        await asyncio.Event().wait()

    waiting = asyncio.create_task(run.tool("wait", never_ends, key="wait"))
    beginning = asyncio.create_task(began.wait())  # the second time, the call comes from the journal and never begins
    await asyncio.wait([waiting, beginning], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.wait([waiting])
    await run.approval("go on", {})
    return "gone on"
