"""How the agents of every framework outlive what ends them, and that nothing of them is left, in the newest and the
oldest version that its adapter supports."""

import asyncio
import re
from dataclasses import replace
from typing import Literal

import pytest

from shared.domain.errors import ShutdownRequested
from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import Decision
from shared.domain.runs import Run, RunOptions
from shared.domain.settling import OUTCOME_UNKNOWN
from tests.kit.frameworks.world import CANCEL, FrameworkWorld
from tests.kit.model_server import Call, ReceivedRequest, Turn
from tests.kit.runs.executing import OneWorker
from tests.kit.runs.stored_runs import said
from tests.kit.wait_until import HANGS_S, wait_until

DOZENS = 24

Lost = Literal["process", "worker"]


async def _it_answers(world: FrameworkWorld) -> None:
    """Nothing is left of what was, and the next message is answered."""
    assert not world.is_alive
    assert await world.is_valid()
    world.stage.go_on()
    world.models.say("Here I am.")
    run = await world.done(await world.submitted("support", "Still there?"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "Here I am."
    assert not world.is_alive


async def _goes_on(world: FrameworkWorld, run: Run, worker: OneWorker, lost: Lost) -> Run:
    """The run at its end, behind the loss of its process or its worker."""
    if lost == "process":
        world.kill()
        world.stage.go_on()
        assert await worker.ended() is None
        return await world.stores.runs.look_up(run.id)
    await worker.die()
    await wait_until(lambda: not world.is_alive, description="the process to be gone")
    world.stage.go_on()
    return await world.done(run)


@pytest.mark.parametrize("lost", ["process", "worker"])
@pytest.mark.parametrize("silent", ["before_headers", "after_headers", "behind_text"])
async def test_it_is_lost_while_a_model_is_asked(world: FrameworkWorld, lost: Lost, silent: str) -> None:
    """The answer in flight is asked for again, and readers see it once."""
    if silent == "behind_text":
        world.models.say("Hello there, my friend.", silent_after=2)
    else:
        world.models.say("Hello.", **{f"silent_{silent}": 3600.0})
    world.models.say("Good day.")
    run = await world.submitted("support", "Hi")
    worker = await world.workers().begin(run.id)
    await wait_until(lambda: world.models.requests, description="the model to be asked")
    if silent == "behind_text":
        await world.shows(run, "Hello there,")
    run = await _goes_on(world, run, worker, lost)
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(world.models.requests) == 2
    assert await world.shown_text(run) == "Good day."
    assert world.models.requests[0].client_left
    await _it_answers(world)


@pytest.mark.parametrize("lost", ["process", "worker"])
async def test_it_is_lost_with_tools_side_by_side(world: FrameworkWorld, lost: Lost) -> None:
    whats = ("otters", "eels", "crabs")
    world.models.play(Turn(calls=[Call("look", {"what": what}) for what in whats]), Turn(text="Well."))
    run = await world.submitted("support", "Hi")
    for what in whats:
        world.stage.stop_at(f"look {what}")
    worker = await world.workers().begin(run.id)
    for what in whats:
        await world.stage.is_reached(f"look {what}")
    run = await _goes_on(world, run, worker, lost)
    assert run.status is RunStatus.COMPLETED, run.error
    assert sorted(world.did) == sorted(f"look {what}" for what in whats), "a tool was started twice"
    assert len(world.models.requests) == 2, "a recorded answer was asked for again"
    assert await world.results() == [OUTCOME_UNKNOWN] * 3
    await _it_answers(world)


async def test_its_worker_drains(world: FrameworkWorld) -> None:
    """What is in hand ends, nothing begins, and another worker goes on without a repetition."""
    calls = [Call("look", {"what": what}) for what in ("otters", "eels")]
    world.models.play(*(Turn(text="I look.", calls=[call]) for call in calls), Turn(text="Found."))
    run = await world.submitted("support", "Hi")
    worker = await world.begun(run, "look otters")
    worker.active.end_after_steps()
    world.stage.go_on()
    assert isinstance(await worker.ended(), ShutdownRequested)
    assert not world.is_alive
    assert world.did == ["look otters"]
    run = await world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == ["look otters", "look eels"]
    assert len(world.models.requests) == 3
    assert await world.results() == ["found otters", "found eels"]
    assert await world.shown_text(run) == "I look.|I look.|Found."


@pytest.mark.parametrize("tool", ["look", "block"])
async def test_its_worker_must_go_at_once(world: FrameworkWorld, tool: str) -> None:
    """As at the end of the time for draining: the call in hand is unknown to the next worker."""
    world.models.play(Turn(calls=[Call(tool, {"what": "otters"})]), Turn(text="Who knows."))
    run = await world.submitted("support", "Hi")
    worker = await world.begun(run, f"{tool} otters")
    worker.active.shut_down()
    assert isinstance(await worker.ended(), ShutdownRequested)
    assert not world.is_alive
    world.stage.go_on()
    run = await world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    assert await world.results() == [OUTCOME_UNKNOWN]
    assert world.did == [f"{tool} otters"]


@pytest.mark.parametrize("way", ["exit", "segfault"])
async def test_a_tool_takes_its_process_down(world: FrameworkWorld, way: str) -> None:
    """Other runs notice nothing, and the model hears that nobody knows how the call ended."""
    other = await world.stores.submitted(
        said("Hi"), options=RunOptions(code_agent="support", stream_tokens=True), thread_id=ThreadId("conv-other")
    )
    world.models.answer_with(lambda _: Turn(text="Hello there, my friend.", silent_after=2))
    beside = await world.workers().begin(other.id)
    await world.shows(other, "Hello there,")
    world.models.forget()
    world.models.play(Turn(calls=[Call("look", {"what": way})]), Turn(text="Who knows."))
    run = await world.done(await world.submitted("support", "Hi"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert world.did == [f"look {way}"], "a tool was started twice"
    assert await world.results() == [OUTCOME_UNKNOWN]
    assert (await world.cancelled(other, beside)).status is RunStatus.CANCELLED
    await _it_answers(world)


@pytest.mark.parametrize("way", ["standstill", "stubborn"])
async def test_a_tool_that_does_not_listen_is_cancelled(world: FrameworkWorld, way: str) -> None:
    """It blocks the loop of its process, or swallows the cancel."""
    world.models.call("look", what=way)
    run = await world.submitted("support", "Hi")
    worker = await world.begun(run, f"look {way}")
    world.stage.go_on()
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    await _it_answers(world)


async def test_it_is_cancelled_with_tools_side_by_side(world: FrameworkWorld) -> None:
    """The result that was stored is kept; the others say that they were cancelled."""
    calls = [Call("look", {"what": "otters"}), Call("block", {"what": "eels"}), Call("look", {"what": "crabs"})]
    world.models.play(Turn(text="I look.", calls=calls))
    run = await world.submitted("support", "Hi")
    world.stage.stop_at("block eels")
    worker = await world.begun(run, "look otters")
    await world.stage.is_reached("block eels")
    assert (await world.cancelled(run, worker)).status is RunStatus.CANCELLED
    await _it_answers(world)


async def test_it_is_cancelled_while_it_waits_for_a_person(world: FrameworkWorld) -> None:
    world.models.call("send", to="ada")
    run = await world.done(await world.submitted("support", "Hi"))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    await world.stores.settle(run, RunTrigger.CANCEL)
    await _it_answers(world)
    assert world.did == []


@pytest.mark.parametrize("is_compatible", [True, False], ids=["compatible", "other tools"])
async def test_it_is_deployed_while_it_waits_for_a_person(world: FrameworkWorld, is_compatible: bool) -> None:
    """The new code goes on from the decision; or it fails by the name of what differs, and starts nothing."""
    world.models.play(
        Turn(calls=[Call("look", {"what": "otters"})]), Turn(calls=[Call("send", {"to": "ada"})]), Turn(text="Sent.")
    )
    run = await world.done(await world.submitted("support"))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    run = await world.approved(run)
    changed = {"HOLDFAST_AGENTS_INSTRUCTIONS": "Be verbose."} if is_compatible else {"HOLDFAST_AGENTS_VERSION": "2"}
    async with world.hosted.changed(**changed) as newer:
        run = await world.done(run, newer)
    assert await world.is_valid()
    if is_compatible:
        assert run.status is RunStatus.COMPLETED, run.error
        assert world.did == ["look otters", "send ada"]
        assert len(world.models.requests) == 3, "a recorded answer was asked for again"
        return
    assert run.error is not None
    assert run.error.error_type == "body_changed"
    assert "'model'" in str(run.error.detail) or "'gpt-4o'" in str(run.error.detail), "it names what was recorded"
    assert world.did == ["look otters"]
    world.models.forget()
    await _it_answers(world)


async def test_dozens_work_at_once(world: FrameworkWorld) -> None:
    """Each asks a person, and each does its own."""

    def answer(request: ReceivedRequest) -> Turn:
        said_so_far = str(request.body["messages"])
        if "tool_call_id" in said_so_far:
            return Turn(text="Sent.")
        [to] = re.findall(r"ada\d+", said_so_far)
        return Turn(calls=[Call("send", {"to": to})])

    world.models.answer_with(answer)
    options = RunOptions(code_agent="support", stream_tokens=True)
    runs = [
        await world.stores.submitted(said(f"ada{n}"), options=options, thread_id=ThreadId(f"conv-{n}"))
        for n in range(DOZENS)
    ]
    workers = replace(world.workers(), run_timeout_s=HANGS_S)
    await _all_end([await workers.begin(run.id) for run in runs])
    assert not world.is_alive
    begun: list[OneWorker] = []
    for n, run in enumerate(runs):
        [asked] = await world.stores.asked(run)
        allowed = Decision(tool_call_id=asked.tool_call_id, approve=True)
        runs[n] = await world.stores.decide(allowed, thread_id=run.thread_id)
        begun.append(await workers.begin(runs[n].id))
    await _all_end(begun)
    assert {await world.stores.status_of(run) for run in runs} == {RunStatus.COMPLETED}
    assert sorted(world.did) == sorted(f"send ada{n}" for n in range(DOZENS)), "each once"
    assert len(world.models.requests) == 2 * DOZENS
    assert not world.is_alive


async def _all_end(workers: list[OneWorker]) -> None:
    await asyncio.wait([worker.work for worker in workers])
    assert [worker.work.exception() for worker in workers] == [None] * len(workers)


async def test_dozens_are_cancelled_at_once(world: FrameworkWorld) -> None:
    world.models.answer_with(lambda _: Turn(text="Hello there, my friend.", silent_after=1))
    options = RunOptions(code_agent="support", stream_tokens=True)
    runs = [
        await world.stores.submitted(said("Hi"), options=options, thread_id=ThreadId(f"conv-{n}"))
        for n in range(DOZENS)
    ]
    workers = replace(world.workers(), run_timeout_s=HANGS_S)
    begun = [await workers.begin(run.id) for run in runs]
    await wait_until(lambda: len(world.models.requests) == DOZENS, description="every model to be asked")
    for run in runs:
        await world.stores.runs.request_cancel(await world.stores.runs.look_up(run.id), CANCEL)
    await _all_end(begun)
    assert {await world.stores.status_of(run) for run in runs} == {RunStatus.CANCELLED}
    assert not world.is_alive
    await wait_until(lambda: all(one.client_left for one in world.models.requests), description="the connections")
