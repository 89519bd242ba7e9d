"""The module of agents that the workers under chaos run. `player` plays the scripts of `scripts.py`, as the model
`builtin/scripted` does for other agents, and notes all of its actions: the requests to its model and the answers, the
starts of its tools, their effects, and the messages that it takes from its inbox.

It is imported in a process of its own, and so uses nothing of Holdfast but `holdfast.agents`.
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from bench.chaos.code_notes import NOTES, read_notes, write_note
from bench.chaos.tools import ASK_FIRST, NOTE_AGAIN, NOTE_CHECKED, ON_CLIENT, STARTS, birth_of, write_start
from holdfast.agents import Denied, OutcomeUnknown, Run, Usage, Verdict, agent, call, did_not_happen, happened

NOWHERE = "/dev/null"
WORDS_AT_ONCE = 4


@agent("player", description="Plays scripts")
async def player(run: Run) -> None:
    """Plays the script in the newest message."""
    _note("begun", run.id, "", str(os.getpid()))
    turns = json.loads(run.input[-1]["text"])["turns"]
    for number, turn in enumerate(turns):
        for message in await run.inbox.take():
            _note("taken", run.id, str(number), message["id"])
        answer = await run.model("player", _answer, run, number, turn, request=number, usage=_usage, text=_text)
        # All values that the run gets must be the same in every replay.
        _note("got", run.id, str(number), f"{answer['id']} {run.uuid()} {run.now().timestamp()}")
        calls = [_called(run, one["name"], one["arguments"]) for one in turn.get("calls", ())]
        await asyncio.gather(*calls)
    run.state["runs"] = run.state.get("runs", 0) + 1


async def _answer(run: Run, number: int, turn: dict[str, Any]) -> dict[str, str]:
    """The model: it streams the turn's words, and no two of its answers are the same."""
    answer = f"{os.getpid()}:{time.monotonic_ns()}"
    _note("asked", run.id, str(number), answer)
    await asyncio.sleep(turn.get("first_delay_ms", 0) / 1000)
    if "reasoning" in turn:
        run.emit_reasoning(turn["reasoning"])
    words = str(turn.get("text", "")).split()
    fails_after = turn.get("error_after", 0) if "error" in turn else None
    for place, word in enumerate(words[:fails_after]):
        run.emit_text(f"{word} ")
        await asyncio.sleep(turn.get("delay_ms", 0) / 1000 if place % WORDS_AT_ONCE == 0 else 0)
    if "error" in turn:
        raise RuntimeError(f"the script says {turn['error']}")
    return {"id": answer, "text": "".join(f"{word} " for word in words)}


def _text(answer: dict[str, str]) -> str:
    return answer["text"]


def _usage(answer: dict[str, str]) -> Usage:
    return Usage(input_tokens=10, output_tokens=len(answer["text"].split()))


async def _called(run: Run, name: str, arguments: dict[str, Any]) -> None:
    async def work(given: dict[str, Any]) -> str:
        return await _work(**given)

    key = arguments["key"]
    try:
        await run.perform(
            name,
            arguments,
            None if name == ON_CLIENT else work,
            idempotent=name == NOTE_AGAIN,
            probe=_was_it_done if name == NOTE_CHECKED else None,
            needs_approval=name == ASK_FIRST,
        )
    except Denied:
        _note("denied", run.id, key, "")
    except OutcomeUnknown:
        _note("unknown", run.id, key, "")


async def _work(key: str, seconds: float) -> str:
    """A tool: it starts, takes its time, has its effect, and returns its key."""
    write_start(os.environ.get(STARTS, NOWHERE), key, os.getpid(), birth_of(os.getpid()) or 0, time.time())
    _note("keyed", "-", key, call().idempotency_key)
    await asyncio.sleep(seconds)
    _note("effect", "-", key, call().idempotency_key)
    return key


async def _was_it_done(idempotency_key: str) -> Verdict:
    notes = read_notes(Path(os.environ.get(NOTES, NOWHERE)))
    effects = [one for one in notes if one.what == "effect" and one.detail == idempotency_key]
    return happened(effects[0].key) if effects else did_not_happen()


def _note(what: str, run_id: str, key: str, detail: str) -> None:
    write_note(os.environ.get(NOTES, NOWHERE), what, run_id, key, detail)
