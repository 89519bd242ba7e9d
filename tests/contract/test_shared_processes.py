"""Runs that share a process (`HOLDFAST_AGENTS_PER_PROCESS`), and the memory that a process may have
(`HOLDFAST_AGENTS_MAX_MB`)."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
from arq.connections import ArqRedis

from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import CancelRequest, Run
from tests.kit.code_agents.world import World, world_of_agents
from tests.kit.runs.definitions import NOW
from tests.kit.runs.executing import OneWorker
from tests.kit.wait_until import wait_until

SHARING = "tests.kit.code_agents.sharing"
CANCEL = CancelRequest(requested_at=NOW, actor="ada", reason="enough")


@pytest.fixture
async def world(sqlite_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[World]:
    async with world_of_agents(sqlite_url, redis, tmp_path, module=SHARING, per_process=3) as world:
        yield world


@pytest.fixture
async def narrow(sqlite_url: str, redis: ArqRedis, tmp_path: Path) -> AsyncGenerator[World]:
    async with world_of_agents(sqlite_url, redis, tmp_path, module=SHARING, per_process=2, max_mb=64) as world:
        yield world


async def _begun(world: World, *ways: str, agent: str = "mate") -> list[tuple[Run, OneWorker]]:
    """Runs in threads of their own, each of which stands still where it says its name."""
    begun: list[tuple[Run, OneWorker]] = []
    for way in ways:
        name = way.split()[0]
        run = await world.submitted(agent, way, thread_id=ThreadId(f"thread-{name}"))
        world.stage.stop_at(name)
        begun.append((run, await world.workers().begin(run.id)))
        await world.stage.begins(f"{name} in ")
    return begun


def _pids(world: World, name: str) -> list[int]:
    """The processes that the run has had."""
    return [int(one.split()[2]) for one in world.stage.reached if one.startswith(f"{name} in ")]


async def _ended(world: World, begun: Sequence[tuple[Run, OneWorker]]) -> list[Run]:
    world.stage.go_on()
    for _, worker in begun:
        assert await worker.ended() is None
    return [await world.stores.runs.look_up(run.id) for run, _ in begun]


async def _cancel(world: World, run: Run, worker: OneWorker) -> None:
    await world.stores.runs.request_cancel(await world.stores.runs.look_up(run.id), CANCEL)
    assert await worker.ended() is None
    assert (await world.stores.runs.look_up(run.id)).status is RunStatus.CANCELLED


async def _is_gone(pid: int) -> None:
    await wait_until(lambda: not Path(f"/proc/{pid}").exists(), description="the process to be gone")


async def test_runs_share_a_process_up_to_a_number(world: World) -> None:
    begun = await _begun(world, "ada stands", "bob stands", "cyd stands", "dan stands")
    [shared] = _pids(world, "ada")
    assert _pids(world, "bob") == _pids(world, "cyd") == [shared]
    [other] = _pids(world, "dan")
    assert other != shared
    runs = await _ended(world, begun)
    assert [run.status for run in runs] == [RunStatus.COMPLETED] * 4
    assert [await world.shown_text(run) for run in runs] == [
        f"{name} begins. " for name in ("ada", "bob", "cyd", "dan")
    ]
    await _is_gone(shared)
    await _is_gone(other)


async def test_agents_that_ask_the_workers_models_have_processes_of_their_own(world: World) -> None:
    """The variables that name the models name one run."""
    begun = await _begun(world, "ada stands", "bob stands", agent="apart")
    assert _pids(world, "ada") != _pids(world, "bob")
    assert [run.status for run in await _ended(world, begun)] == [RunStatus.COMPLETED] * 2


async def test_a_crash_counts_for_nobody_until_each_run_is_alone(world: World) -> None:
    begun = await _begun(world, "ada stands", "bob exits", "cyd stands")
    (world.stage.folder / "stop bob").unlink()
    await wait_until(lambda: len(_pids(world, "ada")) == len(_pids(world, "cyd")) == 2, description="the replays")
    assert len({*_pids(world, "ada"), *_pids(world, "cyd")}) == 3, "each is alone then"
    ada, bob, cyd = await _ended(world, begun)
    assert (ada.status, cyd.status) == (RunStatus.COMPLETED, RunStatus.COMPLETED)
    assert bob.error is not None
    assert (bob.error.error_type, "exit code 3" in (bob.error.detail or "")) == ("body_crashed", True)
    assert len(_pids(world, "bob")) == 4, "the process that it shared was none of the three"
    assert [world.stage.reached.count(f"{name} first") for name in ("ada", "bob", "cyd")] == [1, 1, 1]
    assert await world.shown_text(ada) == "ada begins. "


async def test_code_that_left_by_sys_exit_cost_the_others_a_replay(world: World) -> None:
    begun = await _begun(world, "ada stands", "bob leaves")
    ada, bob = await _ended(world, begun)
    assert ada.status is RunStatus.COMPLETED
    assert bob.error is not None
    assert (bob.error.error_type, "SystemExit: 4" in (bob.error.detail or "")) == ("body_error", True)
    assert len({*_pids(world, "ada"), *_pids(world, "bob")}) == 1, "nothing was executed again"


async def test_a_cancel_ends_its_run_alone(world: World) -> None:
    begun = await _begun(world, "ada listens", "bob stands")
    await _cancel(world, *begun[0])
    assert {"ada is cancelled", "ada cleans up, False"} <= {*world.stage.reached}
    [late] = await _begun(world, "cyd stands")
    assert _pids(world, "bob") == _pids(world, "cyd"), "nothing of it is left in the process"
    assert [run.status for run in await _ended(world, [begun[1], late])] == [RunStatus.COMPLETED] * 2
    assert len(_pids(world, "bob")) == 1


@pytest.mark.parametrize("way", ["blocks", "blocks-thread", "leaves-thread"])
async def test_a_cancelled_run_that_does_not_end_costs_the_others_a_replay(world: World, way: str) -> None:
    begun = await _begun(world, "ada stands", f"bob {way}")
    await world.stage.is_reached("bob")
    await _cancel(world, *begun[1])
    await _is_gone(_pids(world, "bob")[0])
    [ada] = await _ended(world, begun[:1])
    assert ada.status is RunStatus.COMPLETED
    assert (len(_pids(world, "ada")), world.stage.reached.count("ada first")) == (2, 1)


async def test_a_run_that_was_cancelled_while_it_joined_a_process_kept_that_for_ever(world: World) -> None:
    first = await world.agents.join("mate")
    joining = asyncio.create_task(world.agents.join("mate"))
    asyncio.get_running_loop().call_soon(joining.cancel)  # behind its first step, which begins the run
    with pytest.raises(asyncio.CancelledError):
        await joining
    await first.leave()
    await _is_gone(first.pid)


async def test_what_a_run_leaves_behind_ends_with_it_or_closes_the_process_to_others(world: World) -> None:
    begun = await _begun(world, "ada leaves-task", "bob stands")
    (world.stage.folder / "stop ada").unlink()
    assert await begun[0][1].ended() is None
    await world.stage.is_reached("ada has left a task")
    [cyd] = await _begun(world, "cyd leaves-thread")
    assert _pids(world, "cyd") == _pids(world, "bob"), "a task has ended"
    (world.stage.folder / "stop cyd").unlink()
    assert await cyd[1].ended() is None
    [dan] = await _begun(world, "dan stands")
    assert _pids(world, "dan") != _pids(world, "bob"), "nobody can end a thread"
    runs = await _ended(world, [begun[1], dan])
    assert [run.status for run in runs] == [RunStatus.COMPLETED] * 2
    await _is_gone(_pids(world, "bob")[0])


async def test_a_run_that_waits_for_a_person_is_not_ended_where_it_waits(world: World) -> None:
    """What its code does in `finally` would be done although it goes on: no killed process does it."""
    [bob, (ada, worker)] = await _begun(world, "bob stands", "ada asks")
    assert _pids(world, "ada") == _pids(world, "bob")
    assert await worker.ended() is None
    [cyd] = await _begun(world, "cyd stands")
    assert "ada cleans up" not in world.stage.reached
    assert _pids(world, "cyd") != _pids(world, "bob"), "the process takes no further runs"
    after = await world.done(await world.approved(ada))
    assert after.status is RunStatus.COMPLETED
    assert [run.status for run in await _ended(world, [bob, cyd])] == [RunStatus.COMPLETED] * 2
    assert [world.stage.reached.count(f"ada {what}") for what in ("cleans up", "first")] == [1, 1]
    await _is_gone(_pids(world, "bob")[0])


async def _left_while_another_works(world: World, way: str) -> Run:
    """A run that has left its worker, beside one that has worked on for a while and notices nothing of it."""
    [bob, (ada, worker)] = await _begun(world, "bob works", f"ada {way}")
    assert _pids(world, "ada") == _pids(world, "bob")
    assert await worker.ended() is None
    reached = [one for one in world.stage.reached if one.startswith("ada ")]
    [ended] = await _ended(world, [bob])
    assert ended.status is RunStatus.COMPLETED
    assert len(_pids(world, "bob")) == 1, "it was replayed"
    assert [one for one in world.stage.reached if one.startswith("ada ")] == reached, "something of the run went on"
    await _is_gone(_pids(world, "bob")[0])
    return ada


async def test_a_run_that_waited_in_a_scope_cost_the_others_a_replay(world: World) -> None:
    """Neither a task nor a timer of it goes on where it waits."""
    ada = await _left_while_another_works(world, "asks-in-a-scope")
    assert {"ada ticks", "ada tocks"} <= {*world.stage.reached}
    assert "ada cleans up" not in world.stage.reached
    after = await world.done(await world.approved(ada))
    assert after.status is RunStatus.COMPLETED, after.error
    assert [world.stage.reached.count(f"ada {what}") for what in ("cleans up", "first")] == [1, 1]


async def test_a_run_that_slept_cost_the_others_a_replay(world: World) -> None:
    await _left_while_another_works(world, "sleeps")
    assert "ada cleans up" not in world.stage.reached


async def test_a_thread_of_a_run_that_waits_for_a_person_does_not_outlive_it(world: World) -> None:
    """Nobody can end it alone, so the others are replayed."""
    [bob, (ada, worker)] = await _begun(world, "bob stands", "ada asks-beside-a-thread")
    await world.stage.is_reached("ada")
    assert await worker.ended() is None
    await _is_gone(_pids(world, "ada")[0])
    [ended] = await _ended(world, [bob])
    assert (ended.status, len(_pids(world, "bob"))) == (RunStatus.COMPLETED, 2)
    assert world.stage.reached.count("bob first") == 1, "nothing is done twice"
    after = await world.done(await world.approved(ada))
    assert after.status is RunStatus.COMPLETED, after.error


async def test_a_process_that_grows_fails_its_run_once(narrow: World) -> None:
    [begun] = await _begun(narrow, "ada grows")
    [run] = await _ended(narrow, [begun])
    assert run.error is not None
    assert run.error.error_type == "body_out_of_memory"
    assert run.error.message == "The agent's process has grown beyond HOLDFAST_AGENTS_MAX_MB (64 MiB)."
    assert "MiB of its own" in (run.error.detail or "")
    assert narrow.stage.reached.count("ada grows") == 1, "no other process has grown in the same way"


async def test_a_shared_process_that_grows_fails_the_run_that_grows_alone(narrow: World) -> None:
    begun = await _begun(narrow, "ada stands", "bob grows")
    (narrow.stage.folder / "stop bob").unlink()
    assert await begun[1][1].ended() is None
    [ada, bob] = await _ended(narrow, begun)
    assert ada.status is RunStatus.COMPLETED
    assert bob.error is not None
    assert (bob.error.error_type, len(_pids(narrow, "bob"))) == ("body_out_of_memory", 2)


async def test_what_a_process_shares_with_its_host_is_not_counted(narrow: World) -> None:
    run = await narrow.done(await narrow.submitted("mate", "ada sees"))
    assert run.status is RunStatus.COMPLETED, run.error
    assert "ada has seen it" in narrow.stage.reached


async def test_a_memory_error_of_the_code_has_the_same_name(world: World) -> None:
    run = await world.done(await world.submitted("mate", "ada grows-in-a-step"))
    assert run.error is not None
    assert (run.error.error_type, "MemoryError" in (run.error.detail or "")) == ("body_out_of_memory", True)


async def test_agents_of_pydantic_ai_share_a_process(sqlite_url: str, redis: ArqRedis, tmp_path: Path) -> None:
    """Two runs ask the model, and call a tool, side by side in one process."""
    module = "tests.kit.code_agents.sharing_pydantic_ai"
    async with world_of_agents(sqlite_url, redis, tmp_path, module=module, per_process=2) as world:
        begun = await _begun(world, "ada", "bob", agent="desk")
        assert _pids(world, "ada") == _pids(world, "bob")
        runs = await _ended(world, begun)
        assert [run.status for run in runs] == [RunStatus.COMPLETED] * 2, [run.error for run in runs]
        assert [await world.shown_text(run) for run in runs] == ["ada has what ada has", "bob has what bob has"]
        assert [len(set(_pids(world, one))) for one in ("ada", "bob")] == [1, 1]
