"""What holds for every outbox, on both databases: one process attempts each row, failed attempts come again, and a
delivered row never does.

A new outbox brings a guest in `tests/kit/stores/outboxes.py`, which gives the inputs.
"""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from shared.domain.errors import Conflict, NotFound
from shared.sql.paging import Page
from shared.sql.runs.callbacks import CLAIM_HOLDS
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT
from tests.kit.runs.stored_runs import Stores, second_process, stored_runs
from tests.kit.stores.guest import LATER
from tests.kit.stores.outboxes import OUTBOXES, OutboxGuest

KINDS = pytest.mark.parametrize("kind", OUTBOXES, ids=lambda kind: kind.__name__)
MUCH_LATER = NOW + timedelta(days=30)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@KINDS
async def test_each_row_is_claimed_by_one_process(stores: Stores, kind: type[OutboxGuest]) -> None:
    guest = kind(stores)
    runs = await guest.fill(stores, 6)
    async with second_process(stores) as other:
        claims = await asyncio.gather(*(each.claim(NOW, limit=4) for each in (guest, kind(other)) * 2))
    claimed = [row.run_id for claim in claims for row in claim]
    assert len(set(claimed)) == len(claimed)
    claimed += [row.run_id for row in await guest.claim(NOW)]
    assert sorted(claimed) == sorted(runs)


@KINDS
async def test_the_row_of_a_process_that_died_is_due_again(stores: Stores, kind: type[OutboxGuest]) -> None:
    guest = kind(stores)
    [run_id] = await guest.fill(stores, 1)
    await guest.claim(NOW)
    assert list(await guest.claim(NOW + CLAIM_HOLDS)) == []
    over = NOW + CLAIM_HOLDS + timedelta(seconds=1)
    assert [(row.run_id, row.attempts) for row in await guest.claim(over)] == [(run_id, 2)]


@KINDS
async def test_a_process_that_came_back_late_had_a_delivered_row_sent_again(
    stores: Stores, kind: type[OutboxGuest]
) -> None:
    guest = kind(stores)
    [run_id] = await guest.fill(stores, 1)
    [late] = await guest.claim(NOW)
    over = NOW + CLAIM_HOLDS + timedelta(seconds=1)
    [claimed] = await guest.claim(over)
    await guest.record(claimed, now=over, status_code=200, error=None, next_at=None)
    shown = await stores.runs.look_up(run_id)

    await guest.record(late, now=over, status_code=None, error="no answer", next_at=over)

    assert list(await guest.claim(MUCH_LATER)) == []
    assert list(await guest.list_open(PROJECT, Page())) == []
    assert await stores.runs.look_up(run_id) == shown


@KINDS
async def test_a_postponed_row_waits_and_has_no_further_attempt(stores: Stores, kind: type[OutboxGuest]) -> None:
    guest = kind(stores)
    await guest.fill(stores, 1)
    [claimed] = await guest.claim(NOW)
    await guest.postpone(claimed, LATER)
    assert list(await guest.claim(NOW)) == []
    assert [row.attempts for row in await guest.claim(LATER)] == [1]


@KINDS
async def test_a_failed_attempt_is_listed_and_due_again_later(stores: Stores, kind: type[OutboxGuest]) -> None:
    guest = kind(stores)
    await guest.fill(stores, 1)
    [claimed] = await guest.claim(NOW)
    for _ in range(2):  # as after a lost answer
        await guest.record(claimed, now=NOW, status_code=503, error="busy", next_at=LATER)

    [listed] = await guest.list_open(PROJECT, Page())
    assert (listed.attempts, listed.next_attempt_at) == (1, LATER)
    assert (listed.last_status_code, listed.last_error) == (503, "busy")
    assert list(await guest.claim(NOW)) == []
    assert [row.attempts for row in await guest.claim(LATER)] == [2]


@KINDS
async def test_a_row_that_was_given_up_gets_one_more_attempt_when_a_person_retries_it(
    stores: Stores, kind: type[OutboxGuest]
) -> None:
    guest = kind(stores)
    await guest.fill(stores, 1)
    [claimed] = await guest.claim(NOW)
    await guest.record(claimed, now=NOW, status_code=410, error="gone", next_at=None)
    [given_up] = await guest.list_open(PROJECT, Page())
    assert (given_up.next_attempt_at, given_up.last_error) == (None, "gone")
    assert list(await guest.claim(MUCH_LATER)) == []

    retried = await guest.retry(PROJECT, claimed, LATER)

    assert (retried.next_attempt_at, retried.last_error) == (LATER, "gone")
    assert [row.attempts for row in await guest.claim(LATER)] == [2]


@KINDS
async def test_a_delivered_row_is_never_due_again(stores: Stores, kind: type[OutboxGuest]) -> None:
    guest = kind(stores)
    await guest.fill(stores, 1)
    [claimed] = await guest.claim(NOW)
    for _ in range(2):  # as after a lost answer
        await guest.record(claimed, now=NOW, status_code=200, error=None, next_at=None)

    assert list(await guest.claim(MUCH_LATER)) == []
    assert list(await guest.list_open(PROJECT, Page())) == []
    with pytest.raises(Conflict, match="nothing to try again"):
        await guest.retry(PROJECT, claimed, LATER)


@KINDS
async def test_another_project_sees_and_retries_nothing(stores: Stores, kind: type[OutboxGuest]) -> None:
    guest = kind(stores)
    await guest.fill(stores, 1)
    [claimed] = await guest.claim(NOW)
    assert list(await guest.list_open(OTHER_PROJECT, Page())) == []
    with pytest.raises(NotFound, match=claimed.run_id):
        await guest.retry(OTHER_PROJECT, claimed, LATER)
    assert list(await guest.claim(NOW)) == []


@KINDS
async def test_open_rows_are_listed_by_pages(stores: Stores, kind: type[OutboxGuest]) -> None:
    guest = kind(stores)
    runs = await guest.fill(stores, 3)
    cursors = [guest.cursor(row) for row in await guest.list_open(PROJECT, Page(ascending=True))]

    async def found(page: Page) -> list[int]:
        return [runs.index(row.run_id) for row in await guest.list_open(PROJECT, page)]

    assert await found(Page()) == [2, 1, 0]
    assert await found(Page(limit=1, after=cursors[2])) == [1]
    assert await found(Page(limit=1, before=cursors[0])) == [1]
    assert await found(Page(after=cursors[0], ascending=True)) == [1, 2]
    assert await found(Page(after="unknown")) == [2, 1, 0]
