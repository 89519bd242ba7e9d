"""Turns that sleep-time agents are to be told of: each is counted once and told once, whoever looks and how often."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import msgspec
import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from shared.concurrency import SystemClock
from shared.domain.errors import NotFound
from shared.domain.groups import DueTurns, Group, with_group_flag
from shared.domain.ids import RunId, ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import UserMessage
from shared.redis.queue import RunQueue
from shared.runs.started_runs import SleeptimeRuns, StartedRuns
from shared.sql.definitions.agent_changes import AgentEditor, GroupEditor
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.tables import messages
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT, some_agent
from tests.kit.runs.stored_runs import AGENT, IDS, THREAD, Stores, answer, said, second_process, stored_runs
from tests.kit.services.redis_servers import RedisService

SLEEPERS = [some_agent(name="one"), some_agent(name="two")]


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        for sleeper in SLEEPERS:
            await AgentEditor(stores.database).create(sleeper, system_message_id=IDS.message())
        yield stores


async def group_of(stores: Stores, *, frequency: int | None = 1, sleepers: int = 1) -> Group:
    ids = [sleeper.id for sleeper in SLEEPERS[:sleepers]]
    group = Group(
        id=IDS.group(),
        project_id=PROJECT,
        manager_agent_id=AGENT.id,
        agent_ids=ids,
        frequency=frequency,
        created_at=NOW,
        updated_at=NOW,
    )
    return await GroupEditor(stores.database).create(group)


def starter_on(stores: Stores, redis: RedisService) -> SleeptimeRuns:
    return SleeptimeRuns(
        turns=GroupTurnStore(stores.database),
        agents=stores.agents,
        runs=stores.runs,
        started=StartedRuns(runs=stores.runs, queue=RunQueue(redis.client())),
        clock=SystemClock(),
        ids=IDS,
    )


async def turn(stores: Stores, text: str, trigger: RunTrigger = RunTrigger.COMPLETE) -> RunId:
    run = await stores.claimed(said(text))
    await stores.settle(run, trigger, messages=[answer("yes")])
    return run.id


async def due(stores: Stores, group: Group) -> DueTurns | None:
    return await GroupTurnStore(stores.database).due(group.id, NOW)


async def texts_of(stores: Stores, found: DueTurns) -> list[str]:
    messages = await GroupTurnStore(stores.database).said_in(found)
    return [str(message.body.content) for message in messages if isinstance(message.body, UserMessage)]


async def tell(stores: Stores, group: Group) -> list[str]:
    """What the group's agents are told next, if they are."""
    found = await due(stores, group)
    if found is None:
        return []
    said_to_them = await texts_of(stores, found)
    await GroupTurnStore(stores.database).delivered(found, None)
    return said_to_them


@pytest.mark.parametrize(
    ("frequency", "told"),
    [
        (None, [["1"], ["2"], ["3"], ["4"]]),
        (1, [["1"], ["2"], ["3"], ["4"]]),
        (2, [["1"], [], ["2", "3"], []]),
        (3, [["1"], [], [], ["2", "3", "4"]]),
        (0, [list[str]()] * 4),
    ],
)
async def test_every_nth_turn_is_due_with_those_before_it(
    stores: Stores, frequency: int | None, told: list[list[str]]
) -> None:
    group = await group_of(stores, frequency=frequency)
    for number, expected in enumerate(told, start=1):
        await turn(stores, str(number))
        assert await tell(stores, group) == expected


async def test_turns_that_wait_while_nobody_looks_are_due_one_after_the_other(stores: Stores) -> None:
    group = await group_of(stores, frequency=2)
    for number in range(1, 6):
        await turn(stores, str(number))
    assert [await tell(stores, group) for _ in range(4)] == [["1"], ["2", "3"], ["4", "5"], []]


async def test_a_turn_that_failed_or_was_cancelled_does_not_count(stores: Stores) -> None:
    group = await group_of(stores, frequency=2)
    await turn(stores, "1")
    assert await tell(stores, group) == ["1"]
    await turn(stores, "2", RunTrigger.CANCEL)
    await turn(stores, "3")
    assert await tell(stores, group) == []
    await turn(stores, "4")
    assert await tell(stores, group) == ["2", "3", "4"]


async def test_an_agent_without_a_group_leaves_nothing_behind(stores: Stores) -> None:
    await turn(stores, "1")
    assert await GroupTurnStore(stores.database).to_look_at(NOW, 10) == []


async def test_what_was_found_due_stays_so_until_it_was_told_and_is_told_once(stores: Stores) -> None:
    """The answer to either write may be lost, and it is then repeated."""
    group, turns = await group_of(stores), GroupTurnStore(stores.database)
    first = await turn(stores, "1")
    found = await due(stores, group)
    assert found is not None
    assert found.cause_id == first
    second = await turn(stores, "2")
    assert (await due(stores, group)) == found, "no further turn is counted meanwhile"
    [last, *_] = reversed(await turns.said_in(found))
    for _ in range(2):
        await turns.delivered(found, last)
    assert (await GroupEditor(stores.database).get(PROJECT, group.id)).last_message_id == last.id
    later = await due(stores, group)
    assert later is not None
    assert later.cause_id == second
    await turns.delivered(found, last)
    assert await due(stores, group) == later, "a process that was slow takes nothing away"


async def test_two_processes_that_look_at_once_count_each_turn_once(stores: Stores) -> None:
    group = await group_of(stores, frequency=3)
    for number in range(1, 5):
        await turn(stores, str(number))
    async with second_process(stores) as other:
        for expected in (["1"], ["2", "3", "4"]):
            found = await asyncio.gather(*(due(both, group) for both in (stores, other) * 3))
            assert found.count(found[0]) == len(found)
            assert found[0] is not None
            assert await texts_of(stores, found[0]) == expected
            await asyncio.gather(*(GroupTurnStore(one.database).delivered(found[0], None) for one in (stores, other)))
        assert await due(other, group) is None


async def test_two_processes_that_start_at_once_start_one_run_for_each_sleep_time_agent(stores: Stores) -> None:
    group = await group_of(stores, sleepers=2)
    causes = [await turn(stores, "1"), await turn(stores, "2")]
    redis = RedisService(None)

    async with second_process(stores) as other:
        both = [starter_on(stores, redis), starter_on(other, redis)]
        await asyncio.gather(*(one.start_all_due() for one in both * 2))
        named = [await both[0].of_turn(PROJECT, AGENT.id, cause) for cause in causes]
    await redis.close()
    assert [len(runs) for runs in named] == [2, 2]
    stored = [await stores.runs.look_up(run_id) for runs in named for run_id in runs]
    assert [run.agent_id for run in stored] == [sleeper.id for sleeper in SLEEPERS] * 2
    assert all(run.options.background for run in stored)
    for sleeper in SLEEPERS:
        assert len(await stores.listing.active_of_agent(PROJECT, sleeper.id)) == 2
    assert await GroupTurnStore(stores.database).to_look_at(NOW + timedelta(days=1), 10) == []
    assert group.agent_ids == [sleeper.id for sleeper in SLEEPERS]


async def test_a_group_that_cannot_be_read_does_not_keep_the_others_waiting(stores: Stores) -> None:
    broken, other = await group_of(stores), some_agent(name="other")
    await turn(stores, "1")
    async with stores.database.write() as connection:
        await connection.execute(sa.update(messages).where(messages.c.thread_id == THREAD).values(body="{}"))
    await AgentEditor(stores.database).create(other, system_message_id=IDS.message())
    groups = GroupEditor(stores.database)
    second = await groups.create(replace(broken, id=IDS.group(), manager_agent_id=other.id, agent_ids=[SLEEPERS[1].id]))
    of_other = {"agent_id": other.id, "thread_id": ThreadId(other.id)}
    run = await stores.claimed(said("2"), **of_other)
    await stores.settle(run, messages=[answer("yes")])
    redis = RedisService(None)
    starter = starter_on(stores, redis)
    with pytest.raises(msgspec.ValidationError):
        await starter.start_all_due()
    await starter.start_all_due()
    await redis.close()
    assert len(await stores.listing.active_of_agent(PROJECT, SLEEPERS[1].id)) == 1
    assert await GroupTurnStore(stores.database).to_look_at(SystemClock().now(), 10) == []
    assert second.id != broken.id


async def test_a_group_is_the_business_of_its_own_project(stores: Stores) -> None:
    group = await group_of(stores)
    turns, groups = GroupTurnStore(stores.database), GroupEditor(stores.database)
    assert await turns.managed_by(OTHER_PROJECT, AGENT.id) is None
    with pytest.raises(NotFound):
        await groups.get(OTHER_PROJECT, group.id)
    with pytest.raises(NotFound):
        await groups.delete(OTHER_PROJECT, group.id)
    with pytest.raises(NotFound):
        await turns.capture(OTHER_PROJECT, AGENT.id, [said("hi")], submitted_by=None, now=NOW)
    assert await turns.to_look_at(NOW, 10) == []


async def test_a_deleted_group_forgets_its_turns_and_a_turned_off_one_too(stores: Stores) -> None:
    turns, editor = GroupTurnStore(stores.database), AgentEditor(stores.database)
    group = await group_of(stores, frequency=5)
    await turn(stores, "1")
    await editor.update(PROJECT, AGENT.id, lambda agent: with_group_flag(agent, is_on=False), NOW)
    assert await turns.to_look_at(NOW, 10) == []
    await turn(stores, "2")
    assert await turns.to_look_at(NOW, 10) == [], "none is stored while it is off"
    await editor.update(PROJECT, AGENT.id, lambda agent: with_group_flag(agent, is_on=True), NOW)
    await turn(stores, "3")
    assert await turns.to_look_at(NOW, 10) == [group.id]
    await turns.postpone(group.id, NOW + timedelta(minutes=1))
    assert await turns.to_look_at(NOW, 10) == []
    await GroupEditor(stores.database).delete(PROJECT, group.id)
    assert await turns.to_look_at(NOW + timedelta(minutes=1), 10) == []
    assert await turns.due(group.id, NOW) is None
