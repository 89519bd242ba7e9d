"""A function of an operator's own as the body of runs: what holds for it when anything of it ends at any moment."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import uvloop
from arq.connections import ArqRedis

from shared.domain.errors import ShutdownRequested
from shared.domain.events import DataPart, InputDelivered, StepRestarted
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision
from shared.domain.runs import CancelRequest, Run
from shared.domain.settling import OUTCOME_UNKNOWN
from shared.sql.runs.effects import EffectStore
from tests.kit.code_agents.stage import FileStage
from tests.kit.code_agents.world import World, world_of_agents
from tests.kit.runs.definitions import NOW
from tests.kit.runs.executing import OneWorker
from tests.kit.runs.stored_runs import said
from tests.kit.wait_until import wait_until
from worker.agents.body_process import ProcessEnd

CANCEL = CancelRequest(requested_at=NOW, actor="ada", reason="enough")


@pytest.fixture
async def world(database_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[World]:
    async with world_of_agents(database_url, redis, tmp_path) as world:
        yield world


async def test_it_does_its_work_and_ends(world: World) -> None:
    run = await world.done(await world.submitted("words", "look say look"))
    assert (run.status, run.stop_reason) == (RunStatus.COMPLETED, "end_turn")
    assert await world.texts() == ["look say look", "look 0", "say 1look 2", "done"]
    assert await world.results() == ["found", "found"]
    assert await world.shown_text(run) == "look 0|say 1look 2|done"


async def test_frames_come_in_order_whether_a_read_has_many_of_them_or_a_part_of_one(world: World) -> None:
    run = await world.done(await world.submitted("floods"))
    said = "".join(f"{number} " for number in range(3000)) + "x" * 300_000 + " and the end"
    assert run.status is RunStatus.COMPLETED
    assert (await world.texts())[-1] == said


IN_THE_CONTINUATION = ("4", "5", "6", "in second")
PLACES = ("0", "1", "2", "3", "in first", *IN_THE_CONTINUATION)


async def _brought_to(world: World, run: Run, moment: str) -> tuple[Run, OneWorker]:
    """The run that stands still there, in a worker."""
    if moment in IN_THE_CONTINUATION:
        run = await world.approved(await world.done(run))
    return run, await world.begun(run, moment)


async def _to_its_end(world: World, run: Run) -> Run:
    run = await world.done(run)
    return await world.done(await world.approved(run)) if run.status is RunStatus.AWAITING_APPROVAL else run


def _pids(world: World) -> list[int]:
    return [int(one.split()[1]) for one in world.stage.reached if one.startswith("pid ")]


async def _assert_the_story_is_whole(world: World, run: Run, moment: str) -> None:
    """No tool has started twice, no recorded step was taken again, and readers have every text once."""
    assert run.status is RunStatus.COMPLETED, run.error
    reached = world.stage.reached
    for step in ("step {'a': 1}", "step 1", "step 2"):
        assert reached.count(step) == 1, step
    effects = [one for one in reached if one.startswith("effect ")]
    assert len(effects) == len(set(effects)) == 2, "a tool was started twice"
    assert len({one for one in reached if one.startswith("seen ")}) == 1, "times and ids repeat themselves"
    assert await world.texts() == ["go", "One. ", "Two. Three. ", "", "Done. "]
    made = ["first", '{"page": "draft"}', "second draft"]
    lost = {"in first": 0, "in second": 2}.get(moment)
    assert await world.results() == [OUTCOME_UNKNOWN if at == lost else text for at, text in enumerate(made)]
    assert await world.is_valid()
    begun = run if run.continues is None else await world.stores.runs.look_up(run.continues)
    assert await world.shown_text(begun) == "One. |Two. Three. "
    assert await world.shown_text(run) == "Done. "


@pytest.mark.parametrize("moment", PLACES)
async def test_its_process_is_killed_anywhere(world: World, moment: str) -> None:
    run, worker = await _brought_to(world, await world.submitted("story"), moment)
    os.kill(_pids(world)[-1], signal.SIGKILL)
    world.stage.go_on()
    assert await worker.ended() is None
    run = await world.stores.runs.look_up(run.id)
    if run.status is RunStatus.AWAITING_APPROVAL:
        run = await world.done(await world.approved(run))
    await _assert_the_story_is_whole(world, run, moment)


@pytest.mark.parametrize("moment", PLACES)
async def test_its_worker_is_lost_anywhere(world: World, moment: str) -> None:
    run, worker = await _brought_to(world, await world.submitted("story"), moment)
    await worker.die()
    await wait_until(lambda: not _lives(_pids(world)[-1]), description="its process to be gone")
    world.stage.go_on()
    await _assert_the_story_is_whole(world, await _to_its_end(world, run), moment)


@pytest.mark.parametrize("moment", PLACES)
async def test_it_is_handed_over_anywhere(world: World, moment: str) -> None:
    run, worker = await _brought_to(world, await world.submitted("story"), moment)
    worker.active.shut_down()
    assert isinstance(await worker.ended(), ShutdownRequested)
    assert not _lives(_pids(world)[-1])
    world.stage.go_on()
    run = await _to_its_end(world, run)
    assert run.attempts_without_progress == 0
    await _assert_the_story_is_whole(world, run, moment)


@pytest.mark.parametrize("moment", PLACES)
async def test_it_is_cancelled_anywhere(world: World, moment: str) -> None:
    """The receipt comes when the process is gone; the history stays valid, and the next message is taken."""
    run, worker = await _brought_to(world, await world.submitted("story"), moment)
    await world.stores.runs.request_cancel(await world.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED
    assert not _lives(_pids(world)[-1])
    assert await world.is_valid()
    world.stage.go_on()
    assert (await world.done(await world.submitted("words", "look"))).status is RunStatus.COMPLETED
    assert await world.is_valid()


async def test_what_is_in_hand_ends_when_its_worker_drains(world: World) -> None:
    run, worker = await _brought_to(world, await world.submitted("story"), "in first")
    worker.active.end_after_steps()
    world.stage.go_on()
    assert isinstance(await worker.ended(), ShutdownRequested)
    assert "2" not in world.stage.reached
    await _assert_the_story_is_whole(world, await _to_its_end(world, run), "")


async def test_a_body_that_listens_cleans_up_when_it_is_cancelled(world: World) -> None:
    run = await world.submitted("ends", "listen")
    worker = await world.workers().begin(run.id)
    await world.stage.is_reached("listens")
    await world.stores.runs.request_cancel(await world.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED
    assert "cancelled True enough" in world.stage.reached
    assert await world.texts() == ["listen", "I begin. "], "what was shown stays"


@pytest.mark.parametrize(("way", "moment"), [("block", "blocked"), ("swallow", "swallows")])
async def test_a_body_that_does_not_listen_is_killed(world: World, way: str, moment: str) -> None:
    run = await world.submitted("ends", way)
    worker = await world.workers().begin(run.id)
    await world.stage.is_reached(moment)
    await world.stores.runs.request_cancel(await world.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED


async def test_what_a_body_has_started_ends_with_it(world: World) -> None:
    run = await world.submitted("ends", "child")
    worker = await world.workers().begin(run.id)
    child = int((await world.stage.begins("child ")).split()[1])
    await world.stores.runs.request_cancel(await world.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    await wait_until(lambda: not _lives(child), description="the child to be gone")


async def test_what_a_body_had_started_in_a_session_of_its_own_survived_its_run(world: World) -> None:
    run = await world.done(await world.submitted("ends", "session"))
    assert run.status is RunStatus.COMPLETED
    child = int((await world.stage.begins("child ")).split()[1])
    await wait_until(lambda: not _lives(child), description="the child to be gone")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("way", "named"), [("exit", "exit code 3"), ("segfault", "SIGSEGV")])
async def test_a_body_whose_process_ends_again_and_again_fails(world: World, way: str, named: str) -> None:
    run = await world.done(await world.submitted("ends", way))
    assert (run.status, run.cause) == (RunStatus.FAILED, "body")
    assert run.error is not None
    assert run.error.error_type == "body_crashed"
    assert named in (run.error.detail or "")
    assert world.stage.reached.count(f"step {way}") == 1
    assert (await world.done(await world.submitted("words", "say"))).status is RunStatus.COMPLETED, "others see nothing"


async def test_a_crash_is_survived(world: World) -> None:
    run = await world.done(await world.submitted("ends", "once"))
    assert run.status is RunStatus.COMPLETED
    assert world.stage.reached.count("step once") == 1
    assert await world.shown_text(run) == "I begin. "


async def test_an_exception_is_named_without_paths(world: World) -> None:
    run = await world.done(await world.submitted("ends", "raise"))
    assert run.error is not None
    assert run.error.error_type == "body_error"
    detail = run.error.detail or ""
    assert "ValueError: no such page (in 'work')" in detail
    assert "_raises" in detail
    assert "/" not in detail
    run = await world.done(await world.submitted("ends", "raise plainly"))
    assert run.error is not None
    assert "LookupError: nothing there" in (run.error.detail or "")


async def test_a_tool_that_may_start_twice_has_one_key(world: World) -> None:
    run = await world.submitted("tools", "idempotent")
    await (await world.begun(run, "send 0 1")).die()
    world.stage.go_on()
    assert (await world.done(run)).status is RunStatus.COMPLETED
    assert [one for one in world.stage.reached if one.startswith("send")] == ["send 0 1", "send 0 2"]
    assert await world.results() == ["sent 0"]


@pytest.mark.parametrize("happened", [True, False])
async def test_a_probe_says_what_became_of_a_lost_call(world: World, happened: bool) -> None:
    run = await world.submitted("tools", "probe")
    await (await world.begun(run, "send 0 1")).die()
    if happened:
        (world.stage.folder / "was sent").touch()
    world.stage.go_on()
    assert (await world.done(run)).status is RunStatus.COMPLETED
    assert [one.split()[0] for one in world.stage.reached if not one.startswith("pid")] == (
        ["send", "asked"] if happened else ["send", "asked", "send"]
    )
    assert await world.results() == ["it was sent" if happened else "sent 0"]
    stored = await world.stores.runs.look_up(run.id)
    [effect] = await EffectStore(world.stores.database).of_run(stored, ())
    assert (effect.name, effect.state, effect.attempt) == ("send", *(("settled", 1) if happened else ("done", 2)))
    assert (effect.settlement is not None) == happened
    assert f"asked {effect.idempotency_key}" in world.stage.reached


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("odd probe", "true"),
        ("odd probe", "object"),
        ("odd probe", "cannot_tell"),
        ("idempotent with an odd probe", "true"),
    ],
)
async def test_a_probe_that_raised_failed_the_run_or_left_its_call_open(world: World, text: str, says: str) -> None:
    """So did one that returned no verdict, or one that is no JSON. And a tool that may start twice did not."""
    (world.stage.folder / "probe says").write_text(says)
    run = await world.submitted("tools", text)
    await (await world.begun(run, "send 0 1")).die()
    world.stage.go_on()
    run = await world.done(run)
    assert run.status is RunStatus.COMPLETED, run.error
    may_repeat = text != "odd probe"
    assert await world.results() == ["sent 0" if may_repeat else OUTCOME_UNKNOWN]
    asked = [one for one in world.stage.reached if one.startswith("asked ")]
    assert (len(asked), len(set(asked))) == (2, 1)
    assert await world.is_valid()
    [effect] = await EffectStore(world.stores.database).of_run(run, ())
    assert (effect.state, effect.attempt) == (("done", 2) if may_repeat else ("unknown", 1))


async def test_the_code_is_told_of_a_call_whose_outcome_is_unknown(world: World) -> None:
    run = await world.submitted("tools", "unknown")
    await (await world.begun(run, "send 0 1")).die()
    world.stage.go_on()
    assert (await world.done(run)).status is RunStatus.COMPLETED
    [answer] = [text for text in await world.texts() if text.startswith("unknown send hf-")]
    assert answer
    assert world.stage.reached.count("send 0 1") == 1
    assert await world.results() == [OUTCOME_UNKNOWN]
    [effect] = await EffectStore(world.stores.database).of_run(await world.stores.runs.look_up(run.id), ())
    assert (effect.state, f"unknown send {effect.idempotency_key}" in answer) == ("unknown", True)


@pytest.mark.parametrize("killed", [False, True])
async def test_tools_side_by_side_each_have_their_result(world: World, killed: bool) -> None:
    run = await world.submitted("tools", "beside")
    if killed:
        world.stage.stop_at("send 1 1")
        worker = await world.begun(run, "send 2 1")
        await world.stage.is_reached("send 1 1")
        await worker.die()
    world.stage.go_on()
    run = await world.done(run)
    assert run.status is (RunStatus.FAILED if killed else RunStatus.COMPLETED)
    assert sorted(await world.results()) == ([OUTCOME_UNKNOWN] * 2 if killed else ["sent 1", "sent 2"])
    assert [world.stage.reached.count(f"send {number} 1") for number in (1, 2)] == [1, 1]
    assert await world.is_valid()


async def test_a_person_may_edit_what_is_approved(world: World) -> None:
    run = await world.done(await world.submitted("story"))
    assert not any(map(_lives, _pids(world))), "nothing is left while it waits"
    run = await world.done(await world.approved(run, edited='{"page": "better"}'))
    assert run.status is RunStatus.COMPLETED
    assert (await world.results())[-1] == "second better"


async def test_a_run_that_had_given_up_a_call_never_waited_for_a_person(world: World) -> None:
    run = await world.done(await world.submitted("gives-up"))
    assert run.status is RunStatus.AWAITING_APPROVAL, run.error
    run = await world.done(await world.approved(run))
    assert run.status is RunStatus.COMPLETED, run.error
    assert (await world.texts())[-1] == "gone on"


async def test_a_denial_is_told_to_the_code(world: World) -> None:
    run = await world.done(await world.submitted("catches"))
    [asked] = await world.stores.asked(run)
    denied = Decision(tool_call_id=asked.tool_call_id, approve=False, reason="not today")
    run = await world.done(await world.stores.decide(denied))
    assert run.status is RunStatus.COMPLETED
    assert (await world.texts())[-1] == "denied: not today"
    assert world.stage.reached == ["caught ValueError"] * 2


async def test_data_is_shown_again_with_the_step_that_begins_again_and_not_behind_a_decision(world: World) -> None:
    run = await world.submitted("shows-data")
    worker = await world.begun(run, "one")
    os.kill(int((await world.stage.begins("pid ")).split()[1]), signal.SIGKILL)
    await wait_until(lambda: world.stage.reached.count("one") == 2, description="another process")
    world.stage.go_on()
    assert await worker.ended() is None
    first, again, second = [one for one in await world.events(run) if isinstance(one, DataPart)]
    assert [one.value for one in (first, again, second)] == [{"done": 1}, {"done": 1}, {"done": 2}]
    [restarted] = [one for one in await world.events(run) if isinstance(one, StepRestarted)]
    assert restarted.void_message_ids == [first.message_id]
    assert again.message_id == second.message_id != first.message_id
    parked = await world.stores.runs.look_up(run.id)
    behind = await world.approved(parked)
    assert (await world.done(behind)).status is RunStatus.COMPLETED
    [third] = [one for one in await world.events(behind) if isinstance(one, DataPart)]
    assert (third.name, third.value) == ("progress", {"done": 3, "of": "\N{OTTER}"})
    refused = [one for one in world.stage.reached if one.startswith("refused ")]
    assert "'holdfast-gap' is a name of data of Holdfast itself" in refused[0]
    assert "'no name' is no name of data" in refused[1]


async def test_what_is_injected_is_taken_once(world: World) -> None:
    """Also when the worker is lost behind it."""
    run = await world.submitted("words", "look look look")
    worker = await world.begun(run, "tool 0")
    injected = said("injected")
    await world.stores.inbox.inject(await world.stores.runs.look_up(run.id), [injected], "refuse")
    world.stage.stop_at("tool 2")
    (world.stage.folder / "stop tool 0").unlink()
    await world.stage.is_reached("tool 2")
    await worker.die()
    world.stage.go_on()
    run = await world.done(run)
    assert (await world.texts()).count("injected") == 1
    assert [one.message_id for one in await world.events(run) if isinstance(one, InputDelivered)] == [injected.id]
    assert world.stage.reached.count("inbox injected") == 2, "each execution sees it at its place"
    assert await world.is_valid()


async def test_a_state_belongs_to_the_thread(world: World) -> None:
    for count in ("1", "2"):
        run = await _to_its_end(world, await world.submitted("story"))
        state = await world.stores.checkpoints.thread_state(run)
        assert state == f'{{"count": {count}}}'.encode()


async def test_a_run_that_had_waited_behind_a_parked_one_lost_its_state(world: World) -> None:
    """The continuation has a larger number than the run that was submitted before the decision."""
    first, behind = await world.submitted("story"), await world.submitted("ends", "count")
    await _to_its_end(world, first)
    await world.done(behind)
    last = await world.done(await world.submitted("ends", "count"))
    assert await world.stores.checkpoints.thread_state(last) == b'{"count": 3}'


async def test_a_body_has_no_secret_of_the_deployment(world: World) -> None:
    assert (await world.done(await world.submitted("ends", "environment"))).status is RunStatus.COMPLETED
    own = await world.agents.fork("ends")
    names = _environment_of(own.pid)
    await own.kill()
    assert "HOLDFAST_AGENTS_STAGE" in names
    assert "HOLDFAST_API_KEYS" not in names
    assert "HOLDFAST_DATABASE_URL" not in names


async def test_a_process_that_was_ended_before_its_first_instruction_stopped_its_host(world: World) -> None:
    world.stage.stop_at("fork")
    unborn = await world.agents.fork("ends")
    assert await unborn.kill() == ProcessEnd(-signal.SIGKILL)
    world.stage.go_on()
    assert (await world.done(await world.submitted("ends", "environment"))).status is RunStatus.COMPLETED


def test_a_frame_for_a_process_that_was_gone_failed_its_run_on_uvloop(tmp_path: Path) -> None:
    async def answer_late() -> None:
        async with FileStage(tmp_path).agents() as agents:
            process = await agents.fork("words")
            assert await process.kill() == ProcessEnd(-signal.SIGKILL)
            await (await agents.fork("words")).kill()  # the loop has closed the first one's socket meanwhile
            process.send({"t": "stored", "id": 1})

    uvloop.run(answer_late())


async def test_a_sleep_is_counted_from_its_first_attempt(world: World) -> None:
    assert (await world.done(await world.submitted("ends", "sleep"))).status is RunStatus.COMPLETED


async def test_code_that_asks_for_another_step_fails_by_its_name(world: World) -> None:
    run = await world.submitted("changing")
    await (await world.begun(run, "changing")).die()
    world.stage.go_on()
    async with world.stage.agents(environment={"HOLDFAST_AGENTS_VERSION": "2"}) as newer:
        run = await world.done(run, newer)
    assert run.error is not None
    assert run.error.error_type == "body_changed"
    assert "recorded as 'two' (step, 2 of 2), the code now asks for 'two_b'" in (run.error.detail or "")
    assert world.stage.reached.count("step 2") == 1, "nothing was started"


async def test_a_turn_may_begin_anew_with_other_code(world: World) -> None:
    run = await world.submitted("adapting")
    await (await world.begun(run, "adapting")).die()
    world.stage.go_on()
    async with world.stage.agents(environment={"HOLDFAST_AGENTS_VERSION": "2"}) as newer:
        run = await world.done(run, newer)
    assert run.status is RunStatus.COMPLETED
    assert (await world.texts())[-1] == "version 2 unknown"
    assert world.stage.reached.count("send 0 1") == 1


async def test_a_host_that_was_lost_is_started_again(world: World) -> None:
    run, worker = await _brought_to(world, await world.submitted("story"), "2")
    [host] = [int(line) for line in _parents(_pids(world)[-1])]
    os.kill(host, signal.SIGKILL)
    world.stage.go_on()
    assert await worker.ended() is None
    await _assert_the_story_is_whole(world, await _to_its_end(world, run), "2")


async def test_a_lost_host_was_started_once_for_each_of_its_runs(world: World) -> None:
    """A host has imported a framework, so as many of them as a worker has runs may need all memory there is."""
    lost = await world.agents.fork("story")
    os.kill(int(_parents(lost.pid)[0]), signal.SIGKILL)
    assert await lost.kill() is None
    processes = await asyncio.gather(*(world.agents.fork("story") for _ in range(4)))
    assert len({_parents(one.pid)[0] for one in processes}) == 1
    for one in processes:
        await one.kill()


async def test_what_a_body_had_started_survived_the_end_of_its_host(world: World) -> None:
    run = await world.submitted("ends", "child")
    worker = await world.workers().begin(run.id)
    child = int((await world.stage.begins("child ")).split()[1])
    [body] = _parents(child)
    os.kill(int(_parents(int(body))[0]), signal.SIGKILL)
    await wait_until(lambda: not _lives(child), description="the body's own process to be gone")
    await worker.die()


def _environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode()


def _parents(pid: int) -> list[str]:
    return [Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]]
