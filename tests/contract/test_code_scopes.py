"""Calls of a body that are entered again when their process has ended: what they do may wait for a person."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from arq.connections import ArqRedis

from shared.domain.body_input import calls_of, hello_of
from shared.domain.errors import ShutdownRequested
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import AssistantMessage, Decision, ToolReturns
from shared.domain.runs import Run, RunOptions
from shared.domain.tools import ClientTool
from tests.kit.code_agents.world import World, world_of_agents
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.stored_runs import THREAD, said
from worker.agents.dry_replay import DryReplay
from worker.agents.shown_turn import WAITS_FOR_A_PERSON


@pytest.fixture
async def world(database_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[World]:
    async with world_of_agents(database_url, redis, tmp_path) as world:
        yield world


async def _asked(world: World, run: Run) -> list[tuple[str, str]]:
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    return sorted((one.tool_name, one.arguments) for one in await world.stores.asked(run))


async def _allowed(world: World, run: Run) -> Run:
    """The run that goes on when everything that was asked for is allowed."""
    asked = await world.stores.asked(run)
    return await world.stores.decide(*(Decision(tool_call_id=one.tool_call_id, approve=True) for one in asked))


async def _calls(world: World) -> list[tuple[str, str]]:
    """The calls of the history with their results. No two have one id."""
    bodies = await world.stores.context()
    calls = [call for one in bodies if isinstance(one, AssistantMessage) for call in one.tool_calls]
    results = {back.tool_call_id: back.text for one in bodies if isinstance(one, ToolReturns) for back in one.returns}
    assert len({call.id for call in calls}) == len(calls)
    return [(call.name, results[call.id]) for call in calls]


def _did(world: World) -> list[str]:
    return [one for one in world.stage.reached if one.startswith(("step", "pay"))]


async def test_a_person_is_asked_in_the_middle_of_a_call(world: World) -> None:
    run = await world.done(await world.submitted("scopes", "ada"))
    assert await _asked(world, run) == [("pay", '{"amount": 5, "to": "ada"}')]
    run = await world.done(await _allowed(world, run))
    assert await _asked(world, run) == [("tell", '{"to": "ada", "text": "price of ada"}')]
    run = await world.done(await world.approved(run, '{"to": "ada", "text": "it costs 5"}'))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "paid 5 to ada, told it costs 5"
    assert _did(world) == ["step price of ada", "pay 5 ada 1", "step told it costs 5"]
    assert await _calls(world) == [
        ("expert", WAITS_FOR_A_PERSON),
        ("pay", "paid 5 to ada"),
        ("tell", '{"to": "ada", "text": "it costs 5"}'),
        ("expert", "paid 5 to ada, told it costs 5"),
    ]
    assert await world.shown_text(run) == "paid 5 to ada, told it costs 5"
    assert await world.is_valid()


async def test_calls_side_by_side_ask_in_one_pause(world: World) -> None:
    run = await world.done(await world.submitted("scopes", "ada bob"))
    pays = [("pay", f'{{"amount": 5, "to": "{to}"}}') for to in ("ada", "bob")]
    assert await _asked(world, run) == pays
    run = await world.done(await _allowed(world, run))
    assert [name for name, _ in await _asked(world, run)] == ["tell", "tell"]
    run = await world.done(await _allowed(world, run))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "paid 5 to ada, told price of ada; paid 5 to bob, told price of bob"
    assert sorted(_did(world)) == sorted(
        f"{what}"
        for to in ("ada", "bob")
        for what in (f"step price of {to}", f"pay 5 {to} 1", f"step told price of {to}")
    )
    assert sorted(name for name, _ in await _calls(world)) == ["expert"] * 3 + ["pay"] * 2 + ["tell"] * 2
    assert await world.is_valid()


async def test_one_of_two_is_denied(world: World) -> None:
    run = await world.done(await world.submitted("scopes", "ada bob"))
    ada, bob = sorted(await world.stores.asked(run), key=lambda one: one.arguments)
    no = Decision(tool_call_id=ada.tool_call_id, approve=False, reason="not her")
    run = await world.done(await world.stores.decide(no, Decision(tool_call_id=bob.tool_call_id, approve=True)))
    run = await world.done(await _allowed(world, run))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "denied not her; paid 5 to bob, told price of bob"
    assert await world.is_valid()


@pytest.mark.parametrize("moment", ["priced ada", "pay 5 ada 1", "asked"])
@pytest.mark.parametrize("lost", ["process", "worker"])
async def test_a_call_that_is_entered_again_repeats_nothing(world: World, moment: str, lost: str) -> None:
    """Killed before it asks, in what was approved, and behind its end. It came back as unknown when its process was
    lost in its middle."""
    run = await world.submitted("scopes", "ada")
    world.stage.stop_at(moment)
    run, is_lost = await _to_its_end(world, run, moment, lost)
    assert is_lost
    assert run.status is RunStatus.COMPLETED, run.error
    end = "unknown" if moment.startswith("pay") else "paid 5 to ada, told price of ada"
    assert (await world.texts())[-1] == end
    did = ["step price of ada", "pay 5 ada 1", "step told price of ada"]
    assert _did(world) == (did if end != "unknown" else did[:2])
    assert ("expert", end) in await _calls(world)
    assert await world.is_valid()


async def _to_its_end(world: World, run: Run, moment: str, lost: str) -> tuple[Run, bool]:
    """Allows everything, and kills the process or the worker that comes to the moment."""
    is_lost = False
    while run.status is not RunStatus.COMPLETED:
        worker = await world.workers().begin(run.id)
        if not is_lost:
            there = asyncio.create_task(world.stage.is_reached(moment))
            await asyncio.wait([there, worker.work], return_when=asyncio.FIRST_COMPLETED)
            is_lost = there.done()
            there.cancel()
        if is_lost and lost == "worker":
            await worker.die()
            worker = await world.workers().begin(run.id)
        elif is_lost and lost == "process":
            os.kill(int([one for one in world.stage.reached if one.startswith("pid ")][-1].split()[1]), signal.SIGKILL)
        if is_lost:
            lost = "nothing"
            world.stage.go_on()
        assert await worker.ended() is None
        run = await world.stores.runs.look_up(run.id)
        if run.status is RunStatus.AWAITING_APPROVAL:
            run = await _allowed(world, run)
    return run, is_lost


async def test_a_denied_call_is_never_entered(world: World) -> None:
    run = await world.done(await world.submitted("scopes", "gated"))
    assert [name for name, _ in await _asked(world, run)] == ["expert"]
    run = await world.done(await world.denied(run, "no expert"))
    assert run.error is not None
    assert "no expert" in (run.error.detail or "")
    assert _did(world) == []
    assert await world.is_valid()


async def test_a_call_that_a_person_let_in_is_asked_about_once(world: World) -> None:
    """Its own decision is in the history, but no longer of the newest answer, when it is entered again."""
    run = await world.done(await world.submitted("scopes", "gated"))
    for name in ("expert", "pay", "tell"):
        assert [one for one, _ in await _asked(world, run)] == [name]
        run = await world.done(await _allowed(world, run))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "paid 5 to ada, told price of ada"
    assert await world.is_valid()


async def test_the_client_makes_a_call_in_the_middle_of_another(world: World) -> None:
    sensor = ClientTool(name="sensor", parameters={"type": "object", "properties": {}})
    options = RunOptions(code_agent="scopes", stream_tokens=True, client_tools=[sensor])
    run = await world.done(await world.stores.submitted(said("ada"), options=options))
    for _ in range(2):
        decided = await world.stores.asked(run)
        made = [Decision(tool_call_id=one.tool_call_id, approve=True) for one in decided]
        run = await world.done(await world.stores.decide(*made, options=options))
    [asked] = await world.stores.asked(run)
    assert (asked.tool_name, asked.client_side) == ("sensor", True)
    made = Decision(tool_call_id=asked.tool_call_id, kind="tool", tool_return="21 degrees")
    run = await world.done(await world.stores.decide(made, options=options))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "paid 5 to ada, 21 degrees"
    assert await world.is_valid()


async def test_a_run_that_waits_in_the_middle_of_a_call_is_cancelled(world: World) -> None:
    run = await world.done(await world.submitted("scopes", "ada bob"))
    await world.stores.settle(run, RunTrigger.CANCEL)
    assert await world.is_valid()
    assert not [one for one in world.stage.reached if one.startswith("pay")]


async def test_a_dry_replay_enters_a_call_that_waits_in_its_middle(world: World) -> None:
    """It stopped in front of the call, and did not say that the recorded steps in it are asked for."""
    run = await world.done(await world.submitted("scopes", "ada"))
    entries = await world.stores.checkpoints.journal(run)
    history = await world.stores.messages.context(PROJECT, THREAD)
    process = await world.agents.fork("scopes")
    report = await DryReplay(hello_of(run, entries, history, {}, 1), calls_of(entries)).execute(process)
    await process.kill()
    assert (report.end, report.replayed, report.left) == ("end_of_record", 1, [])
    assert "would go on with 'pay'" in report.said
    assert _did(world) == ["step price of ada"]


async def test_a_worker_that_drains_leaves_a_call_in_its_middle(world: World) -> None:
    """It waited for the end of the whole call, which may take longer than it has."""
    run = await world.submitted("scopes", "ada")
    worker = await world.begun(run, "priced ada")
    worker.active.end_after_steps()
    world.stage.go_on()
    assert isinstance(await worker.ended(), ShutdownRequested)
    run = await world.done(run)
    assert await _asked(world, run) == [("pay", '{"amount": 5, "to": "ada"}')]
    assert _did(world) == ["step price of ada"]
