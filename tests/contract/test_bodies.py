"""What holds for every body: the cases that the agent loop and the smallest body of all go through.

A new body brings one line in `BODIES`: what makes it from `tests.kit.runs.guest_bodies`. A kind of run that
cannot pass them has a line in `ELSEWHERE`, with the test that has its cases.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import get_args

import pytest
from arq.connections import ArqRedis

from shared.domain.errors import InvalidRequest, LeaseLost, ShutdownRequested
from shared.domain.events import InputDelivered, ToolsReturned, decode
from shared.domain.ids import Seq
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import continues
from shared.domain.messages import ToolReturns
from shared.domain.runs import CancelRequest, Run, RunKind
from shared.domain.settling import open_calls
from tests.kit.project.documents import ROOT
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.executing import OneWorker, Workers
from tests.kit.runs.guest_bodies import Stage, agent_loop, words_body
from tests.kit.runs.stored_runs import THREAD, Stores, approve, found, said, stored_runs, texts_of
from worker.run.run_handle import LARGEST_STATE, Body, Outcome, Parked, RunHandle

BODIES: dict[str, Callable[[Stores, Stage], Awaitable[Body]]] = {"agent loop": agent_loop, "words": words_body}

ELSEWHERE: dict[RunKind, str] = {
    "code": "tests/contract/test_code_bodies.py",
    "compaction": "tests/story/test_compaction.py",
    "generation": "tests/contract/test_generation.py",
    "tool": "tests/contract/test_tool_runs.py",
}
"""The kinds of runs whose bodies have cases of their own, and where; `BODIES` has that of "message"."""

CANCEL = CancelRequest(requested_at=NOW, actor="ada", reason="enough")


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@dataclass(frozen=True)
class Guest:
    """A body with workers that have it."""

    stores: Stores
    stage: Stage
    workers: Workers

    async def submitted(self, words: str) -> Run:
        return await self.stores.submitted(said(words))

    async def done(self, run: Run) -> Run:
        """The run once a worker has brought it to its end."""
        worker = await self.workers.begin(run.id)
        assert await worker.ended() is None
        return await self.stores.runs.look_up(run.id)

    async def begun(self, run: Run, moment: str) -> OneWorker:
        """A worker whose run stands still there."""
        self.stage.stop_at(moment)
        worker = await self.workers.begin(run.id)
        await self.stage.is_reached(moment)
        return worker

    async def texts(self) -> list[str]:
        return texts_of(await self.stores.messages.context(PROJECT, THREAD))

    async def results(self) -> list[str]:
        """The results in the history, in order."""
        bodies = await self.stores.context()
        return [one.text for body in bodies if isinstance(body, ToolReturns) for one in body.returns]

    async def is_valid(self) -> bool:
        """Whether a model would take the history: each call has its result."""
        return open_calls(await self.stores.messages.context(PROJECT, THREAD)) is None

    async def events(self, run: Run) -> list[object]:
        """The run's log, which has no hole."""
        entries, last = await self.stores.events.read(run.id, Seq(1)), Seq(1)
        for seq, entry in entries:
            assert continues(last, seq, entry), f"a hole before {seq}"
            last = seq
        return [decode(entry) for _, entry in entries]


@pytest.fixture(params=list(BODIES))
async def guest(request: pytest.FixtureRequest, stores: Stores, redis: ArqRedis) -> Guest:
    stage = Stage()
    body = await BODIES[request.param](stores, stage)
    return Guest(stores, stage, Workers(stores, redis, {"message": body}))


def test_every_kind_of_run_has_its_cases() -> None:
    assert {"message", *ELSEWHERE} == set(get_args(RunKind)), "give its body a line in BODIES or in ELSEWHERE"
    assert [place for place in ELSEWHERE.values() if not (ROOT / place).is_file()] == []


async def test_it_does_its_work_and_ends(guest: Guest) -> None:
    run = await guest.done(await guest.submitted("look look"))
    assert (run.status, run.stop_reason) == (RunStatus.COMPLETED, "end_turn")
    assert await guest.texts() == ["look look", "look 0", "look 1", "done"]
    assert await guest.results() == ["found", "found"]
    assert guest.stage.reached.count("tool call-1") == 1


@pytest.mark.parametrize("moment", ["model 0", "tool call-0", "model 1"])
async def test_it_is_cancelled_wherever_it_is(guest: Guest, moment: str) -> None:
    """The run ends at once, its history stays valid, and the next message is taken."""
    run = await guest.submitted("look look")
    worker = await guest.begun(run, moment)
    await guest.stores.runs.request_cancel(await guest.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    assert (await guest.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED
    assert await guest.is_valid()
    guest.stage.go_on()
    assert (await guest.done(await guest.submitted("look"))).status is RunStatus.COMPLETED
    assert await guest.is_valid()


@pytest.mark.parametrize("moment", ["model 0", "tool call-0", "model 1"])
async def test_its_worker_dies_wherever_it_is(guest: Guest, moment: str) -> None:
    """The next owner goes on, and starts no tool a second time."""
    run = await guest.submitted("look look")
    await (await guest.begun(run, moment)).die()
    guest.stage.go_on()
    run = await guest.done(run)
    assert run.status is RunStatus.COMPLETED
    assert await guest.texts() == ["look look", "look 0", "look 1", "done"]
    assert guest.stage.reached.count("tool call-0") == 1
    unknown = [text for text in await guest.results() if text != "found"]
    assert len(unknown) == (moment == "tool call-0"), "a result that nobody knows, and no other"
    shown = [event for event in await guest.events(run) if isinstance(event, ToolsReturned)]
    assert len(shown) == 2


async def test_a_result_that_was_stored_counts_after_a_crash(guest: Guest) -> None:
    """Between a call's result and the next checkpoint, the worker dies: the tool is not asked again."""
    run = await guest.submitted("look")
    worker = await guest.begun(run, "tool call-0")
    claimed = await guest.stores.runs.look_up(run.id)
    await guest.stores.checkpoints.record_results(claimed, [found("call-0", "stored")])
    await worker.die()
    guest.stage.go_on()
    assert (await guest.done(run)).status is RunStatus.COMPLETED
    assert await guest.results() == ["stored"]


@pytest.mark.parametrize("moment", ["model 0", "tool call-0", "model 1"])
async def test_it_is_handed_over_wherever_it_is(guest: Guest, moment: str) -> None:
    run = await guest.submitted("look look")
    worker = await guest.begun(run, moment)
    worker.active.shut_down()
    assert isinstance(await worker.ended(), ShutdownRequested)
    guest.stage.go_on()
    run = await guest.done(run)
    assert (run.status, run.attempts_without_progress) == (RunStatus.COMPLETED, 0)
    assert await guest.texts() == ["look look", "look 0", "look 1", "done"]
    assert guest.stage.reached.count("tool call-0") == 1


async def test_it_leaves_after_its_step_when_its_worker_drains(guest: Guest) -> None:
    run = await guest.submitted("look look")
    worker = await guest.begun(run, "tool call-0")
    worker.active.end_after_steps()
    guest.stage.go_on()
    assert isinstance(await worker.ended(), ShutdownRequested)
    assert "model 1" not in guest.stage.reached
    assert (await guest.done(run)).status is RunStatus.COMPLETED
    assert await guest.results() == ["found", "found"]


async def test_it_waits_for_a_person_and_goes_on(guest: Guest) -> None:
    """Nothing of it is left in a worker while it waits; behind the decision it goes on where it was."""
    run = await guest.done(await guest.submitted("look ask look"))
    assert run.status is RunStatus.AWAITING_APPROVAL
    [asked] = await guest.stores.asked(run)
    assert (asked.tool_name, asked.tool_call_id) == ("ask", "call-1")
    going_on = await guest.done(await guest.stores.decide(approve("call-1")))
    assert (going_on.status, going_on.continues) == (RunStatus.COMPLETED, run.id)
    assert await guest.texts() == ["look ask look", "look 0", "ask 1", "look 2", "done"]
    assert await guest.results() == ["found", "found", "found"]
    assert [guest.stage.reached.count(f"tool call-{number}") for number in range(3)] == [1, 1, 1]


async def test_a_worker_dies_behind_a_decision(guest: Guest) -> None:
    run = await guest.done(await guest.submitted("ask"))
    assert run.status is RunStatus.AWAITING_APPROVAL
    decided = await guest.stores.decide(approve("call-0"))
    await (await guest.begun(decided, "tool call-0")).die()
    guest.stage.go_on()
    assert (await guest.done(decided)).status is RunStatus.COMPLETED
    assert guest.stage.reached.count("tool call-0") == 1
    assert len(await guest.results()) == 1


async def test_what_is_injected_is_delivered_once(guest: Guest) -> None:
    run = await guest.submitted("look look")
    worker = await guest.begun(run, "tool call-0")
    injected = said("injected")
    await guest.stores.inbox.inject(await guest.stores.runs.look_up(run.id), [injected], "refuse")
    await worker.die()
    guest.stage.go_on()
    run = await guest.done(run)
    assert run.status is RunStatus.COMPLETED
    assert (await guest.texts()).count("injected") == 1
    assert [one.message_id for one in await guest.events(run) if isinstance(one, InputDelivered)] == [injected.id]


async def test_a_lost_owner_changes_nothing(guest: Guest) -> None:
    """Its worker did not hear that it has the run no more."""
    run = await guest.submitted("look look")
    stale = await guest.begun(run, "tool call-0")
    newer = await guest.workers.begin(run.id)
    await guest.stage.is_reached("model 1")
    guest.stage.go_on()
    assert isinstance(await stale.ended(), LeaseLost)
    assert await newer.ended() is None
    assert await guest.texts() == ["look look", "look 0", "look 1", "done"]
    assert guest.stage.reached.count("tool call-1") == 1
    assert await guest.is_valid()


class _Breaks(Body):
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def execute(self, handle: RunHandle) -> Outcome | Parked:
        raise self._error


async def test_a_body_that_breaks_fails_its_run_alone(stores: Stores, redis: ArqRedis) -> None:
    guest = Guest(stores, Stage(), Workers(stores, redis, {"message": _Breaks(ValueError("a defect"))}))
    run = await guest.done(await guest.submitted("say"))
    assert (run.status, run.cause) == (RunStatus.FAILED, "internal_error")
    assert run.error is not None
    assert "ValueError: a defect" in (run.error.detail or "")


class _Hoards(Body):
    async def execute(self, handle: RunHandle) -> Outcome | Parked:
        await handle.checkpoint(state=bytes(LARGEST_STATE))
        assert await handle.state() == bytes(LARGEST_STATE)
        with pytest.raises(InvalidRequest, match=str(LARGEST_STATE)):
            await handle.checkpoint(state=bytes(LARGEST_STATE + 1))
        raise InvalidRequest("it was refused")


async def test_a_state_that_is_too_large_is_refused_by_its_size(stores: Stores, redis: ArqRedis) -> None:
    """What was stored before stays."""
    guest = Guest(stores, Stage(), Workers(stores, redis, {"message": _Hoards()}))
    run = await guest.done(await guest.submitted("say"))
    assert "it was refused" in str(run.error)
    assert len(await stores.checkpoints.body_state(run) or b"") == LARGEST_STATE
