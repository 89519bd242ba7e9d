"""By what a submission is recognised, on every database."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from shared.domain.errors import NameTaken
from shared.domain.ids import ThreadId
from shared.domain.runs import SentBody, SubmissionKeys
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import Stores, said, second_process, some_run, stored_runs

GIVEN = [said("hi")]
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def first(key: str = "body:1", minutes: int = 0) -> SubmissionKeys:
    return SubmissionKeys(body=SentBody(key, NOW + minutes * MINUTE))


def again(key: str = "body:1", minutes: int = 1, after: int = 1) -> SubmissionKeys:
    """Sent so many minutes after the beginning, and for the first time at most `after` minutes before that."""
    now = NOW + minutes * MINUTE
    return SubmissionKeys(body=SentBody(key, now, now - after * MINUTE))


async def submit(stores: Stores, keys: SubmissionKeys, thread: str = "conv-1") -> str:
    return (await stores.runs.submit(some_run(thread_id=ThreadId(thread)), GIVEN, keys=keys)).run.id


async def test_equal_bodies_that_are_sent_for_the_first_time_are_two_submissions(stores: Stores) -> None:
    one, two = await submit(stores, first()), await submit(stores, first(minutes=1))
    assert one != two
    assert await submit(stores, again(minutes=2, after=5)) == two


async def test_a_body_that_was_sent_too_long_ago_is_new(stores: Stores) -> None:
    one = await submit(stores, first())
    assert await submit(stores, again(minutes=2, after=1)) != one


async def test_another_body_and_another_thread_are_new(stores: Stores) -> None:
    one = await submit(stores, first())
    assert await submit(stores, again("body:2")) != one
    assert await submit(stores, again(), thread="conv-2") != one
    assert await submit(stores, again()) == one


async def test_a_second_try_that_came_without_the_first_is_known_to_the_third(stores: Stores) -> None:
    assert await submit(stores, again(minutes=1)) == await submit(stores, again(minutes=2, after=2))


async def test_tries_at_the_same_instant_are_one_run(stores: Stores) -> None:
    async with second_process(stores) as other:
        tries = await asyncio.gather(*(submit(each, again()) for each in (stores, other, stores, other)))
    assert len(set(tries)) == 1


async def test_an_injection_is_recognised_by_its_body(stores: Stores) -> None:
    run = await stores.submitted()
    assert await stores.inbox.inject(run, [said("psst")], "next", keys=first())
    assert not await stores.inbox.inject(run, [said("psst")], "next", keys=again())
    assert await stores.inbox.inject(run, [said("psst")], "next", keys=first(minutes=2))


async def test_a_name_stands_for_one_content(stores: Stores) -> None:
    one = await submit(stores, SubmissionKeys(["otids:1"], "a"))
    with pytest.raises(NameTaken, match="the otid '1'") as refused:
        await submit(stores, SubmissionKeys(["otids:1"], "b"))
    assert refused.value.run_id == one
    with pytest.raises(NameTaken):
        await stores.runs.of_keys(PROJECT, ThreadId("conv-1"), SubmissionKeys(["otids:1"], "b"))
    assert await submit(stores, SubmissionKeys(["otids:1"], "a")) == one
