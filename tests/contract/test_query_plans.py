"""What is asked all the time costs the same with ten earlier runs and with a hundred thousand: every query finds its
rows by an index. The statements are those that the stores really send."""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.ids import ConversationId, Seq, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus, RunTrigger
from shared.domain.log_writer import LogTail
from shared.domain.runs import CancelRequest, Run, RunOptions, Step, SubmissionKeys
from shared.sql.definitions.conversations import ConversationFilter, ConversationStore
from shared.sql.history.message_lists import MessageFilter, Order
from shared.sql.paging import Page
from shared.sql.run_tables import (
    approvals,
    callbacks,
    event_blocks,
    injected_messages,
    metadata,
    run_inputs,
    run_steps,
    runs,
    steps,
    submission_keys,
    tool_intents,
)
from shared.sql.runs.listing import RunFilter, RunStatStore
from shared.sql.runs.steps import StepFilter
from shared.sql.runs.webhooks import WebhookDeliveryStore, WebhookEndpointStore
from shared.sql.tables import conversations, messages, to_json
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.ended_runs import EARLIER, OURS, fill_with_ended_runs
from tests.kit.runs.stored_runs import (
    AGENT,
    IDS,
    IN_THREAD,
    THREAD,
    Stores,
    answer,
    approve,
    call,
    callback_of,
    checkpoint,
    ending,
    next_seq,
    said,
    some_conversation,
    some_endpoint,
    some_run,
    stored_runs,
)
from tests.kit.services.sent_statements import Sent, sent_statements

GROWING = {
    table.name
    for table in (
        runs, run_inputs, messages, event_blocks, injected_messages, approvals, callbacks, submission_keys, steps,
        tool_intents, run_steps,
    )
}  # fmt: skip
"""Tables that have rows for every run."""

OF_WHAT_IS_OVER = re.compile(
    r"ix_runs_(ended|stopped|project_id_completed_at)|ix_approvals_decided|ix_messages_beg[iu]n"
)
PARTIAL = {
    str(index.name)
    for table in metadata.sorted_tables
    for index in table.indexes
    if index.dialect_options["sqlite"]["where"] is not None and not OF_WHAT_IS_OVER.match(str(index.name))
}
"""Indices of the few rows that are open, or in a context: reading all of such an index is cheap."""

INDICES = [
    named
    for table in metadata.sorted_tables
    for named in (*table.indexes, *table.constraints)
    if isinstance(named, sa.Index | sa.PrimaryKeyConstraint | sa.UniqueConstraint)
]
COLUMNS = {str(index.name): {column.name for column in index.columns} for index in INDICES}
FIRST_COLUMN = {str(index.name): next(iter(index.columns)).name for index in INDICES}
"""What each index is ordered by. To use one without a condition on this is to read all of it."""

OWNERS = {"thread_id", "agent_id", "project_id"}
"""What may have a hundred thousand rows."""

ENTRY = b'{"type":"status","at":1,"status":"running"}'
WAITS = call("a", needs_approval=True)
NAMED = ConversationId("conv-9")


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def a_submission(stores: Stores) -> None:
    await stores.runs.submit(some_run(), [said("hi")], keys=SubmissionKeys(["otids:new"]), refuse_if_busy=True)


async def a_claim(stores: Stores) -> None:
    await stores.claimed()


async def a_step(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.inbox.inject(run, [said("psst")], "next", keys=SubmissionKeys(["otids:newer"]))
    await stores.delivered(run)
    run = await stores.recorded(await stores.runs.look_up(run.id), answer("", call("b")), starting=[call("b")])
    await stores.checkpoints.record_intents(run, [call("b")], NOW)
    await stores.checkpoints.record_events(run, LogTail(next_seq(run), [ENTRY]), NOW)
    await stores.checkpoints.has_fence(run)
    await stores.checkpoints.intents(run.id)
    await stores.runs.owns(run.id, run.fence, run.dispatch)


async def a_hand_over(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.checkpoints.hand_over(run, LogTail(Seq(2), [ENTRY]), NOW)
    run = await stores.claim(run)
    await stores.checkpoints.adopt(run, [(Seq(3), ENTRY)], NOW)
    await stores.runs.take_over(run, IDS.claim(), NOW)


async def an_end(stores: Stores) -> None:
    run = await stores.claimed(callback_url="http://127.0.0.1/")
    await stores.submitted()
    end = ending(RunTrigger.COMPLETE, run, messages=[answer("done")], unless_more_input=True)
    await stores.settlements.settle(run, end)
    await stores.settlements.settle(run, end)


async def a_failure(stores: Stores) -> None:
    await stores.settle(await stores.claimed(), RunTrigger.FAIL)


async def an_approval(stores: Stores) -> None:
    parked = await stores.parked(WAITS)
    await stores.approvals.waiting_on_thread(PROJECT, THREAD)
    await stores.approvals.decided_call_ids(parked)
    await stores.approvals.waiting_of_runs([await stores.runs.look_up(parked.id)])
    await stores.claim(await stores.decide(approve("a")))
    await stores.asked(parked)


async def a_cancel(stores: Stores) -> None:
    run = await stores.submitted()
    await stores.runs.request_cancel(run, CancelRequest(requested_at=NOW, actor="ada"))
    await stores.runs.cancels_among([run.id])
    await stores.listing.cancelled_but_unclaimed()
    await stores.settle(run, RunTrigger.CANCEL)


async def a_sweep(stores: Stores) -> None:
    await stores.submitted()
    await stores.claimed(thread_id=ThreadId("conv-2"))
    later = NOW.replace(year=2030)
    quiet = await stores.listing.quiet(later, later)
    await stores.listing.quiet(later, later, quiet[0])
    await stores.runs.dispatch_again(quiet)


async def due_approvals(stores: Stores) -> None:
    await stores.approvals.expired(NOW)
    await stores.approvals.of_project(PROJECT, Page(ascending=True))
    await stores.approvals.of_project(PROJECT, Page(ascending=True), thread_id=THREAD)
    await stores.approvals.of_project(PROJECT, Page(), is_decided=True)


async def due_callbacks(stores: Stores) -> None:
    run = await stores.ended(callback_url="http://127.0.0.1/")
    await stores.callbacks.claim_due(NOW)
    await stores.callbacks.record_attempt(callback_of(run), now=NOW, status_code=200, error=None, next_at=None)


async def a_look_at_the_deployment(stores: Stores) -> None:
    run = await stores.ended(callback_url="http://127.0.0.1/")
    await stores.callbacks.record_attempt(callback_of(run), now=NOW, status_code=410, error="gone", next_at=None)
    await stores.callbacks.list_open(PROJECT, Page(limit=20))
    await stores.callbacks.retry(PROJECT, run.id, NOW)
    webhooks = WebhookDeliveryStore(stores.database)
    await stores.ended(options=RunOptions(dialect=some_endpoint().dialect, background=True))
    [due] = await webhooks.claim_due(NOW)
    await webhooks.record_attempt(due, now=NOW, status_code=410, error="gone", next_at=None)
    await webhooks.list_open(PROJECT, Page(limit=20, after=f"{due.run_id}.{due.endpoint_id}"))
    await webhooks.retry(PROJECT, due.run_id, due.endpoint_id, NOW)
    figures = RunStatStore(stores.database)
    await figures.of_runs(PROJECT, NOW.replace(year=2030))
    await figures.of_callbacks(PROJECT)
    await figures.quietest(20)


async def lists(stores: Stores) -> None:
    newest = Page(limit=20)
    thread = RunFilter(thread_id=THREAD)
    for wanted in (RunFilter(), thread, RunFilter(statuses=sorted(ACTIVE)), RunFilter(agent_ids=[AGENT.id])):
        await stores.listing.page(PROJECT, wanted, newest)
    failed, later = RunFilter(statuses=[RunStatus.FAILED], agent_ids=[AGENT.id]), NOW.replace(year=2030)
    for wanted in (failed, RunFilter(stop_reason="error"), RunFilter(created_after=NOW, created_before=later)):
        await stores.listing.page(PROJECT, wanted, newest)
    await stores.listing.page(PROJECT, thread, Page(limit=20, after="run-81"))
    await stores.runs.ends_of_logs([(await stores.submitted()).id])


async def the_active_runs(stores: Stores) -> None:
    await stores.submitted()
    await stores.listing.active_of_agent(PROJECT, AGENT.id)
    await stores.listing.active_of_agent(PROJECT, AGENT.id, THREAD)
    await stores.listing.just_streamed(PROJECT, AGENT.id, THREAD, NOW)


async def reading(stores: Stores) -> None:
    run = await stores.ended()
    await stores.events.read(run.id, Seq(1))
    await stores.runs.of_keys(PROJECT, THREAD, SubmissionKeys(["otids:7"]))
    await stores.runs.input_of(run)
    await stores.messages.list_of_run(run)
    await stores.lists.page(IN_THREAD, limit=20)
    await stores.lists.page(MessageFilter(PROJECT, agent_id=AGENT.id), limit=20)
    await stores.steps.list(PROJECT, Page(ascending=True), StepFilter(run_id=run.id))
    await stores.steps.list(PROJECT, Page(limit=20), StepFilter())


async def a_round_of_retention(stores: Stores) -> None:
    run = await stores.ended(callback_url="http://127.0.0.1/")
    await stores.callbacks.record_attempt(callback_of(run), now=NOW, status_code=200, error=None, next_at=None)
    assert (await stores.retention.prune(NOW.replace(year=2030), NOW))["runs"]


async def a_deletion(stores: Stores) -> None:
    await stores.listing.delete(PROJECT, (await stores.ended()).id)


CALLS = (
    a_submission, a_claim, a_step, a_hand_over, an_end, a_failure, an_approval, a_cancel, a_sweep, due_approvals,
    due_callbacks, a_look_at_the_deployment, lists, the_active_runs, reading, a_round_of_retention,
    a_deletion,
)  # fmt: skip


async def read_whole(stores: Stores, statements: Sequence[Sent]) -> dict[str, list[str]]:
    """The statements that read a whole table, each with what its plan says of it."""
    scans = sqlite_scans if stores.database.is_sqlite else postgres_scans
    async with stores.database.write() as connection:
        found = {sent.text: await scans(connection, sent) for sent in statements}
    return {text: parts for text, parts in found.items() if parts}


async def sqlite_scans(connection: AsyncConnection, sent: Sent) -> list[str]:
    found = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent.text}", tuple(sent.parameters))
    plan = [row.detail for row in found]
    made_here = {part.split()[1] for part in plan if part.startswith(("CO-ROUTINE ", "MATERIALIZE "))}
    takes_few = ("LIMIT" in sent.text and "USE TEMP B-TREE FOR ORDER BY" not in plan) or "SELECT max(" in sent.text
    return [
        part
        for part in plan
        if not any(index in part.split() for index in PARTIAL)
        and (
            (part.startswith("SCAN ") and "CONSTANT ROW" not in part and part.split()[1] not in made_here)
            or (ALL_OF_ONE_OWNER.search(part) and not takes_few)
        )
    ]


ALL_OF_ONE_OWNER = re.compile(r"USING (COVERING )?INDEX \w+ \((thread_id|agent_id|project_id)=\?\)")


async def postgres_scans(connection: AsyncConnection, sent: Sent) -> list[str]:
    if "LIMIT" in sent.text:
        # Postgres weighs a limit by its value, and chooses among the indices by who has how much.
        found = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sent.text}", tuple(sent.parameters))
        return [describe(node) for node in nodes_of(found.scalar_one()[0]["Plan"]) if reads_whole_table(node)]
    # The plan that it makes once for all values: that of a statement which is sent again and again.
    await connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
    await connection.exec_driver_sql(f"PREPARE sent AS {sent.text}")
    values = ", ".join("NULL" for _ in sent.parameters)
    execute = f"EXECUTE sent({values})" if values else "EXECUTE sent"
    found = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {execute}")
    await connection.exec_driver_sql("DEALLOCATE sent")
    return [
        describe(node)
        for node in nodes_of(found.scalar_one()[0]["Plan"])
        if reads_whole_table(node) or reads_whole_index(node)
    ]


def nodes_of(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        # `max` takes the last entry of an index.
        if part["Node Type"] != "Limit":
            yield from nodes_of(part)


def describe(node: Mapping[str, Any]) -> str:
    return " ".join(str(node.get(key, "")) for key in ("Node Type", "Relation Name", "Index Name", "Index Cond"))


def reads_whole_table(node: Mapping[str, Any]) -> bool:
    return node["Node Type"] == "Seq Scan" and node["Relation Name"] in GROWING


def reads_whole_index(node: Mapping[str, Any]) -> bool:
    index = node.get("Index Name")
    # Whether Postgres reads all of the one agent there is, depends on what was in its table when it last looked.
    if index is None or index in PARTIAL or node.get("Relation Name") not in (None, *GROWING):
        return False
    used = set(re.findall(r"[a-z_]+", node.get("Index Cond", "")))
    return FIRST_COLUMN[index] not in used or (FIRST_COLUMN[index] in OWNERS and len(used & COLUMNS[index]) == 1)


def a_step_of(run: Run) -> Step:
    return Step(id=IDS.step(), run_id=run.id, agent_id=AGENT.id, number=1, model="builtin/echo", created_at=NOW)


async def end_what_is_active(stores: Stores) -> None:
    for run in await stores.listing.active_of_agent(PROJECT, AGENT.id):
        await stores.settle(run, RunTrigger.CANCEL)


async def test_no_query_reads_a_whole_table(stores: Stores) -> None:
    await fill_with_ended_runs(stores)
    await WebhookEndpointStore(stores.database).create(some_endpoint())
    whole: dict[str, list[str]] = {}
    for ask in CALLS:
        with sent_statements() as statements:
            await ask(stores)
        assert statements, f"{ask.__name__} asks nothing"
        whole |= await read_whole(stores, statements)
        await end_what_is_active(stores)
    assert whole == {}


@pytest.mark.parametrize("owner", ["thread_id", "agent_id", "project_id"])
async def test_a_list_walked_back_over_all_that_others_had_added_since(postgres_url: str, owner: str) -> None:
    """Postgres took the primary key for its order, and threw a million rows away to find fifty."""
    wanted = {"thread_id": RunFilter(thread_id=THREAD), "agent_id": RunFilter(agent_ids=[AGENT.id])}
    async with stored_runs(postgres_url) as stores:
        await fill_with_ended_runs(stores)
        async with stores.database.write() as connection:
            ours = {"thread_id": str(THREAD), "agent_id": AGENT.id, "project_id": PROJECT}[owner]
            last = (await connection.execute(sa.select(sa.func.max(runs.c.number)))).scalar_one() - EARLIER // 2
            older = sa.case((runs.c.number <= last, ours), else_="others")
            everybody = {"agent_id": AGENT.id, "project_id": PROJECT, owner: older}
            await connection.execute(sa.update(runs).values(everybody))
            await connection.execute(sa.text("ANALYZE"))
        with sent_statements() as statements:
            found = await stores.listing.page(PROJECT, wanted.get(owner, RunFilter()), Page(limit=50))
        with sent_statements() as more:
            thread_id = THREAD if owner == "thread_id" else None
            await stores.listing.just_streamed(PROJECT, AGENT.id, thread_id, NOW)
        statements += more if owner != "project_id" else []

        assert [run.number for run in found] == [*range(last, last - 50, -1)]
        async with stores.database.read() as connection:
            for sent in statements:
                plan = await connection.exec_driver_sql(f"EXPLAIN {sent.text}", tuple(sent.parameters))
                assert f"using ix_runs_{owner}_number" in "\n".join(str(row[0]) for row in plan)


async def test_a_round_of_retention_costs_nothing_for_runs_that_were_pruned(stores: Stores) -> None:
    """It finds the others by the index that has no others in it. SQLite took the one of all runs that ever ended."""
    await fill_with_ended_runs(stores)
    async with stores.database.write() as connection:
        was_pruned = runs.c.number % OURS != 1
        await connection.execute(sa.update(runs).where(was_pruned).values(pruned_at=NOW))
        if not stores.database.is_sqlite:
            await connection.execute(sa.text("ANALYZE"))
    with sent_statements() as statements:
        await stores.retention.prune(NOW.replace(year=2030), NOW)

    [finding] = [sent for sent in statements if "LIMIT" in sent.text]
    async with stores.database.read() as connection:
        explain = "EXPLAIN QUERY PLAN" if stores.database.is_sqlite else "EXPLAIN"
        plan = await connection.exec_driver_sql(f"{explain} {finding.text}", tuple(finding.parameters))
        of_runs = [line for row in plan for line in row if re.search(r" (on )?runs ", str(line))]
    assert len(of_runs) == 1
    assert "ix_runs_not_pruned" in of_runs[0]


@pytest.mark.parametrize(
    "wanted",
    [StepFilter(has_feedback=True), StepFilter(feedback="negative"), StepFilter(tags=["too long"])],
    ids=["any", "feedback", "tags"],
)
async def test_the_few_steps_of_which_somebody_thought_something_were_looked_for_among_all(
    stores: Stores, wanted: StepFilter
) -> None:
    await fill_with_ended_runs(stores)
    run = await stores.claimed()
    await stores.checkpoints.record(run, checkpoint(run, step=a_step_of(run)))
    [step] = await stores.steps.of_run(run)
    await stores.steps.give_feedback(PROJECT, step.id, feedback="negative", tags=["too long"])

    with sent_statements() as statements:
        found = await stores.steps.list(PROJECT, Page(limit=20), wanted)

    assert [one.id for one in found] == [step.id]
    async with stores.database.read() as connection:
        explain = "EXPLAIN QUERY PLAN" if stores.database.is_sqlite else "EXPLAIN"
        plan = await connection.exec_driver_sql(f"{explain} {statements[0].text}", tuple(statements[0].parameters))
        assert "ix_steps_opinions" in " ".join(str(part) for row in plan for part in row)


async def test_a_conversation_is_found_by_its_name_alone(stores: Stores) -> None:
    """A page names it with every request, and its agent may have one for each user."""
    store = ConversationStore(stores.database)
    named = await store.ensure(some_conversation(NAMED, name="tea"), system_message_id=IDS.message())
    rows = [
        {
            "id": f"conv-of-{number}",
            "project_id": PROJECT,
            "agent_id": AGENT.id,
            "document": "{}",
            "name": f"user-{number}",
            "created_at": NOW,
            "updated_at": NOW,
        }
        for number in range(EARLIER)
    ]
    async with stores.database.write() as connection:
        await connection.execute(sa.insert(conversations), rows)
        if not stores.database.is_sqlite:
            await connection.execute(sa.text("ANALYZE"))
    with sent_statements() as statements:
        assert (await store.named(PROJECT, AGENT.id, "tea"))[1] == named
    async with stores.database.read() as connection:
        explain = "EXPLAIN QUERY PLAN" if stores.database.is_sqlite else "EXPLAIN"
        plan = await connection.exec_driver_sql(f"{explain} {statements[0].text}", tuple(statements[0].parameters))
        assert "uq_conversations_agent_id_name" in " ".join(str(part) for row in plan for part in row)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize(
    ("of", "index"),
    [
        # All messages here are of one agent, so either index has them in order.
        pytest.param(MessageFilter(PROJECT, agent_id=AGENT.id), "ix_messages_beg(?:ins|un)", id="of an agent"),
        pytest.param(MessageFilter(PROJECT), "ix_messages_begun", id="of a project"),
    ],
)
async def test_a_page_of_several_histories_sorted_all_of_their_messages(
    stores: Stores, order: Order, of: MessageFilter, index: str
) -> None:
    """With twenty thousand conversations, or half a million messages in a project, each page took seconds."""
    await fill_with_ended_runs(stores)
    await ConversationStore(stores.database).ensure(
        some_conversation(NAMED, name="tea"), system_message_id=IDS.message()
    )
    if not stores.database.is_sqlite:
        async with stores.database.write() as connection:
            await connection.execute(sa.text("ANALYZE"))
    whole = await stores.lists.page(of, limit=1000, order=order)
    with sent_statements() as statements:
        found = await stores.lists.page(of, limit=5, order=order)
        after, before = (found[-1].id, None) if order == "asc" else (None, found[0].id)
        found_behind = await stores.lists.page(of, limit=5, order=order, after=after, before=before)
    shown = found + found_behind if order == "asc" else found_behind + found
    assert shown == (whole[:10] if order == "asc" else whole[-10:])
    pages = [sent for sent in statements if "LIMIT" in sent.text and " first" in sent.text]
    assert len(pages) == 2
    async with stores.database.read() as connection:
        explain = "EXPLAIN QUERY PLAN" if stores.database.is_sqlite else "EXPLAIN"
        if not stores.database.is_sqlite:
            # Of so few messages Postgres would sort all.
            await connection.execute(sa.text("SET enable_sort = off"))
        for sent in pages:
            plan = await connection.exec_driver_sql(f"{explain} {sent.text}", tuple(sent.parameters))
            said_of_it = " ".join(str(part) for row in plan for part in row)
            assert re.search(rf"(SEARCH|SCAN) first USING INDEX {index}|using {index} on", said_of_it)


@pytest.mark.parametrize("owner", ["agent_id", "project_id"])
async def test_a_page_of_conversations_sorted_all_of_them(postgres_url: str, owner: str) -> None:
    """An agent may have one for each user, and each page read all of their documents."""
    wanted = ConversationFilter(agent_id=AGENT.id if owner == "agent_id" else None)
    row = {"document": to_json(some_conversation(NAMED, name="tea")), "created_at": NOW, "updated_at": NOW}
    ours = {"agent_id": AGENT.id, "project_id": PROJECT}
    async with stored_runs(postgres_url) as stores:
        async with stores.database.write() as connection:
            owners = [ours if number % 2 else ours | {owner: "others"} for number in range(EARLIER)]
            rows = [{**row, **owned, "id": f"conv-of-{number}"} for number, owned in enumerate(owners)]
            await connection.execute(sa.insert(conversations), rows)
            await connection.execute(sa.text("ANALYZE"))
        with sent_statements() as statements:
            found = await ConversationStore(stores.database).list(PROJECT, wanted, Page(limit=20))
        assert len(found) == 20
        async with stores.database.read() as connection:
            plan = await connection.exec_driver_sql(f"EXPLAIN {statements[0].text}", tuple(statements[0].parameters))
            said_of_it = " ".join(str(row[0]) for row in plan)
    assert f"using ix_conversations_{owner}_number" in said_of_it
    assert "Sort" not in said_of_it


async def test_each_second_read_all_callbacks_until_postgres_had_statistics(postgres_url: str) -> None:
    """After a restore the API asks for due ones long before autovacuum has passed."""
    delivered = sa.text(
        "INSERT INTO callbacks (run_id, project_id, url, attempts) "
        "SELECT 'run-' || n, 'ours', '', 1 FROM generate_series(1, 20000) n"
    )
    async with stored_runs(postgres_url) as stores:
        async with stores.database.write() as connection:
            await connection.execute(delivered)
        async with stores.database.read() as connection:
            await connection.execute(sa.text("VACUUM callbacks"))
            await connection.execute(sa.text("DELETE FROM pg_statistic WHERE starelid = 'callbacks'::regclass"))
        with sent_statements() as statements:
            assert await stores.callbacks.claim_due(NOW) == []
        async with stores.database.read() as connection:
            plan = await connection.exec_driver_sql(f"EXPLAIN {statements[0].text}", tuple(statements[0].parameters))
            assert "ix_callbacks_next_attempt_at" in " ".join(str(row[0]) for row in plan)


async def test_a_query_without_an_index_is_seen(stores: Stores) -> None:
    """The test above could find nothing because it sees nothing."""
    with sent_statements() as statements:
        async with stores.database.read() as connection:
            await connection.execute(sa.select(runs.c.id).where(runs.c.stop_reason == "end_turn"))
            await connection.execute(sa.select(messages.c.id).where(messages.c.turn == 7).order_by(messages.c.id))
    assert len(await read_whole(stores, statements)) == 2
