"""Agents that call the tools attached to them, and sleep. The test's message names the calls in JSON."""

import asyncio
import json
import os
from typing import Any

from holdfast.agents import Denied, OutcomeUnknown, Run, StepFailed, agent
from tests.kit.code_agents.places import at, reach


@agent("calls")
async def calls(run: Run) -> str:
    """Makes the calls of the message, side by side, and says what each has come to."""
    reach(f"pid {os.getpid()}")
    asked: list[dict[str, Any]] = json.loads(run.text)
    ends = await asyncio.gather(*(_end(run, one) for one in asked))
    await at("called")
    return "|".join(ends)


async def _end(run: Run, asked: dict[str, Any]) -> str:
    try:
        if asked.get("inside"):
            return await run.step("inside", run.call_tool, asked["tool"], asked["arguments"], key=asked)
        returns = json.loads if asked.get("json") else None
        made = run.call_tool(asked["tool"], asked["arguments"], returns=returns, parts=asked.get("parts", False))
        return repr(await asyncio.wait_for(made, asked.get("within_s")))
    except StepFailed as failed:
        return f"{failed.error_type}: {failed.text}"
    except Denied as denied:
        return f"denied {denied.reason}"
    except OutcomeUnknown as unknown:
        return f"unknown {unknown.name}"
    except TimeoutError:
        return "given up"


@agent("knows")
async def knows(run: Run) -> str:
    """Says what it knows of its agent, once more after a call."""
    reach(f"knows {_known(run)}")
    await run.step("look", _look)
    await at("looked")
    return _known(run)


async def _look() -> None:
    pass


def _known(run: Run) -> str:
    try:
        of, blocks = run.agent, run.agent.blocks.values()
    except ValueError as error:
        return str(error)
    memory = [f"{one.label}={one.value} ({one.description}, {one.limit}, {one.read_only})" for one in blocks]
    tools = [f"{one.name}: {one.description} {json.dumps(dict(one.parameters))}" for one in of.tools.values()]
    return f"{of.name} {of.description} {of.system} {memory} {tools} {dict(of.metadata)} {dict(of.model_settings)}"


@agent("sleeps")
async def sleeps(run: Run) -> str:
    """Sleeps as long as the message says, beside a call if it says so."""
    reach(f"pid {os.getpid()}")
    seconds, _, beside = run.text.partition(" ")
    run.emit_text("Good night. ")
    if beside == "ask":
        await asyncio.gather(_sleep(run, seconds), run.approval("wake", {}))
    elif beside:
        await asyncio.gather(_sleep(run, seconds), run.step("work", at, "work"))
    else:
        await _sleep(run, seconds)
    taken = [one["text"] for one in await run.inbox.take()]
    return f"Good morning. {taken}"


async def _sleep(run: Run, seconds: str) -> None:
    reach("sleeps")
    await run.sleep(float(seconds))
    reach("slept")
