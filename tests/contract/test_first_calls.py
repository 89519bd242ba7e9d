"""Which answer of a run has to make the call that the run demands, whichever worker has the run."""

from collections.abc import AsyncGenerator

import msgspec
import pytest
from arq.connections import ArqRedis

from shared.domain.lifecycle import RunStatus
from shared.domain.runs import RunOptions
from shared.domain.tools import ToolChoice
from tests.kit.runs.executing import Workers
from tests.kit.runs.guest_bodies import Stage, agent_loop
from tests.kit.runs.stored_runs import Stores, approve, said, stored_runs

REQUIRED = RunOptions(tool_choice=ToolChoice("required"))


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.mark.parametrize(
    ("moment", "demanded"),
    [("model 0", [True, True, False]), ("tool call-0", [True, False]), ("model 1", [True, False, False])],
)
async def test_the_next_worker_knows_whether_the_first_answer_was_given(
    stores: Stores, redis: ArqRedis, moment: str, demanded: list[bool]
) -> None:
    stage = Stage()
    workers = Workers(stores, redis, {"message": await agent_loop(stores, stage)})
    run = await stores.submitted(said("look"), options=REQUIRED)
    stage.stop_at(moment)
    first = await workers.begin(run.id)
    await stage.is_reached(moment)
    await first.die()
    stage.go_on()

    assert await (await workers.begin(run.id)).ended() is None
    assert (await stores.runs.look_up(run.id)).status is RunStatus.COMPLETED
    assert [call.must_call for call in stage.asked] == demanded


@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice("none"), ToolChoice(names=["look"]), None])
async def test_a_continuation_has_a_choice_of_its_own(
    stores: Stores, redis: ArqRedis, choice: ToolChoice | None
) -> None:
    """It says nothing of the calls that were decided, which the run before has made."""
    stage = Stage()
    workers = Workers(stores, redis, {"message": await agent_loop(stores, stage)})
    asking = await stores.submitted(said("ask look"), options=REQUIRED)
    assert await (await workers.begin(asking.id)).ended() is None
    run = await stores.decide(approve("call-0"), options=RunOptions(tool_choice=choice))

    assert await (await workers.begin(run.id)).ended() is None
    assert "tool call-0" in stage.reached
    assert ("tool call-1" in stage.reached) is (choice != ToolChoice("none"))
    assert [call.must_call for call in stage.asked] == [True, choice == ToolChoice("required"), False]
    assert [call.may_call for call in stage.asked] == [True, *[choice != ToolChoice("none")] * 2]


def test_options_that_an_earlier_release_stored_are_read() -> None:
    stored = b'{"client_tools":[{"name":"a","description":"","parameters":{}}]}'
    options = msgspec.json.decode(stored, type=RunOptions)
    assert (options.tool_choice, options.client_tools[0].strict, options.demanded) == (None, None, [])
