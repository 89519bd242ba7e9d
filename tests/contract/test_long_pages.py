"""What is long is stored and read in pieces of a bounded length: logs, and pages of messages."""

from collections.abc import AsyncGenerator

import pytest
import sqlalchemy as sa

from shared.domain.ids import Seq
from shared.domain.log_writer import LogTail
from shared.domain.messages import Message
from shared.sql.history.message_lists import LONGEST_PAGE, MessageFilter, Order
from shared.sql.run_tables import event_blocks
from shared.sql.runs.steps import BLOCK_BYTES
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import THREAD, Stores, answer, checkpoint, stored_runs


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def test_each_page_of_a_log_unpacked_megabytes_of_others(stores: Stores) -> None:
    run = await stores.claimed()
    long = [b"%d %s" % (number, b"a" * (BLOCK_BYTES // 5)) for number in range(30)]
    written = [b"short", *long, b"longest" + b"b" * 3 * BLOCK_BYTES, *[b"short"] * 20]
    await stores.checkpoints.record_events(run, LogTail(Seq(2), written), NOW)

    async with stores.database.read() as connection:
        found = await connection.execute(
            sa.select(event_blocks.c.first_seq, event_blocks.c.last_seq).order_by(event_blocks.c.first_seq)
        )
        blocks = found.all()
    sizes = [sum(len(entry) for entry in written[row.first_seq - 2 : row.last_seq - 1]) for row in blocks]
    assert all(size <= BLOCK_BYTES or row.first_seq == row.last_seq for size, row in zip(sizes, blocks, strict=True))
    assert sum(sizes) == sum(map(len, written))

    read: list[bytes] = []
    pages = 0
    while page := await stores.events.read(run.id, Seq(1 + len(read))):
        assert [seq for seq, _ in page] == list(range(2 + len(read), 2 + len(read) + len(page)))
        read += [entry for _, entry in page]
        pages += 1
    assert read == written
    assert pages > 5
    assert [entry for _, entry in await stores.events.read(run.id, Seq(1), None)] == written


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_of_messages_had_as_many_megabytes_as_there_were(stores: Stores, order: Order) -> None:
    run = await stores.claimed()
    of_thread = MessageFilter(PROJECT, thread_id=THREAD)
    for number in range(12):
        long = answer(f"{number} " + "a" * (LONGEST_PAGE // 5))
        await stores.checkpoints.record(run, checkpoint(run, long))
    everything = await stores.messages.context(PROJECT, THREAD)
    assert len(everything) > 12

    listed: list[Message] = []
    pages = 0
    while True:
        after = listed[-1].id if listed and order == "asc" else None
        before = listed[0].id if listed and order == "desc" else None
        page = await stores.lists.page(of_thread, limit=1000, after=after, before=before, order=order)
        if not page:
            break
        assert len(page) <= 6
        listed = [*listed, *page] if order == "asc" else [*page, *listed]
        pages += 1
    assert [message.id for message in listed] == [message.id for message in everything]
    assert pages > 2


async def test_a_chat_whose_messages_filled_a_page_lacked_the_beginning_of_its_first_turn(stores: Stores) -> None:
    of_thread = MessageFilter(PROJECT, thread_id=THREAD)
    for _ in range(3):
        run = await stores.claimed()
        for number in range(3):
            await stores.checkpoints.record(run, checkpoint(run, answer(f"{number} " + "a" * (LONGEST_PAGE // 5))))
        await stores.settle(run)
    everything = await stores.messages.context(PROJECT, THREAD)
    last = everything[-1].turn

    listed = await stores.lists.newest_turns(of_thread, limit=1000)
    assert [message.id for message in listed] == [one.id for one in everything if one.turn == last]

    # A turn that is longer than a page is shown as far as it fits.
    assert [one.id for one in await stores.lists.newest_turns(of_thread, limit=2)] == [one.id for one in listed[-2:]]
    assert await stores.lists.newest_turns(of_thread, limit=len(listed)) == listed
