"""A message that comes together with a decision reaches the body of an operator's own code, once, in every attempt."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from arq.connections import ArqRedis

from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision
from shared.domain.runs import Run, RunOptions
from tests.kit.code_agents.services import UNSERVED, services_of_code
from tests.kit.code_agents.stage import FileStage
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.executing import OneWorker, Workers
from tests.kit.runs.stored_runs import THREAD, Stores, said, stored_runs, texts_of
from worker.agents.code_body import CodeBody


@dataclass(frozen=True)
class Desk:
    """An agent that asks a person, and workers that have it."""

    stores: Stores
    stage: FileStage
    workers: Workers

    async def asked(self, text: str) -> Run:
        """A run that waits for the person."""
        options = RunOptions(code_agent="desk", stream_tokens=True)
        return await self.done(await self.stores.submitted(said(text), options=options))

    async def approved(self, parked: Run, *words: str) -> Run:
        [asked] = await self.stores.asked(parked)
        decision = Decision(tool_call_id=asked.tool_call_id, approve=True)
        return await self.stores.decide(decision, more=[said(word) for word in words])

    async def begun(self, run: Run, moment: str) -> OneWorker:
        self.stage.stop_at(moment)
        worker = await self.workers.begin(run.id)
        await self.stage.is_reached(moment)
        return worker

    async def done(self, run: Run) -> Run:
        worker = await self.workers.begin(run.id)
        assert await worker.ended() is None
        return await self.stores.runs.look_up(run.id)


@pytest.fixture
async def desk(database_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[Desk]:
    stage = FileStage(tmp_path)
    async with stored_runs(database_url) as stores, stage.agents("tests.kit.code_agents.decided") as agents:
        body = CodeBody(agents, services_of_code(stores), grace_s=0.5, endpoint=UNSERVED)
        yield Desk(stores, stage, Workers(stores, redis, {"code": body}))


async def test_the_message_was_in_the_history_and_the_body_never_saw_it(desk: Desk) -> None:
    parked = await desk.asked("go")
    run = await desk.done(await desk.approved(parked, "hurry"))
    assert (run.status, run.error) == (RunStatus.COMPLETED, None)
    assert desk.stage.reached.count("inbox hurry") == 1


async def test_a_body_that_crashed_behind_the_decision_got_another_input_and_the_message_stood_there_twice(
    desk: Desk,
) -> None:
    """The message had become input of the turn: the code saw another text than before, and asked for other steps."""
    run = await desk.approved(await desk.asked("go"), "hurry")
    worker = await desk.begun(run, "behind the decision")
    await worker.die()
    desk.stage.go_on()
    run = await desk.done(run)
    assert (run.status, run.error) == (RunStatus.COMPLETED, None)
    assert desk.stage.reached.count("inbox hurry") == 1
    assert {one for one in desk.stage.reached if one.startswith("text ")} == {"text go"}
    texts = texts_of(await desk.stores.messages.context(PROJECT, THREAD))
    assert texts.count("hurry") == 1


async def test_a_body_that_crashed_after_it_took_the_message_takes_it_from_the_journal(desk: Desk) -> None:
    run = await desk.approved(await desk.asked("go"), "hurry")
    worker = await desk.begun(run, "behind the inbox")
    await worker.die()
    desk.stage.go_on()
    run = await desk.done(run)
    assert (run.status, run.error) == (RunStatus.COMPLETED, None)
    assert desk.stage.reached.count("inbox hurry") == 2, "each execution sees it at its place"
