"""How much each part of a short run asks of the database: its statements are most of what a run costs."""

from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest

from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import Step, StepTiming
from tests.kit.product.in_process import api_client
from tests.kit.runs.definitions import NOW
from tests.kit.runs.stored_runs import AGENT, IDS, Stores, answer, said, some_run, stored_runs
from tests.kit.services.databases import open_database, round_trips, statements


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def begun(asked: list[str]) -> list[str]:
    """How each statement begins; those that are a part of a transaction on one
    of the databases alone are left out."""
    return [
        " ".join(text.split()[:2])
        for text in asked
        if not text.startswith(("BEGIN", "COMMIT", "SELECT pg_advisory_xact_lock"))
    ]


async def test_a_submission_writes_twice_and_asks_nothing(stores: Stores) -> None:
    with statements() as asked:
        await stores.runs.submit(some_run(), [said("hi")])
    assert begun(asked) == ["INSERT INTO", "INSERT INTO"]


async def test_a_response_asked_for_tools_and_tags_that_its_submission_does_not_need(sqlite_url: str) -> None:
    """So did a message to a conversation and a chat completion. A worker reads them when it has the run."""
    async with open_database(sqlite_url) as database, api_client(database) as http:
        agent = (await http.post("/v1/agents", json={"model": "builtin/echo"})).json()["id"]
        conversation = (await http.post(f"/v1/conversations?agent_id={agent}")).json()["id"]
        for named in ({"model": agent}, {"conversation": conversation}):
            with statements() as asked:
                answer = await http.post("/openai/v1/responses", json={"input": "hi", "background": True, **named})
            assert answer.status_code == 200, answer.text
            assert [text for text in asked if "INSERT INTO runs" in text], named
            assert [text for text in asked if "FROM agent_tools" in text] == [], named


async def test_a_claim_reads_the_run_once_and_makes_no_statement_anew(stores: Stores) -> None:
    """It asked nine questions between a submission and its first token."""
    run = await stores.submitted(said("hi"))
    with statements() as asked:
        assert await stores.runs.claim(run.id, run.dispatch, "worker/claim", NOW) is not None
    assert begun(asked) == ["SELECT runs.number,", "UPDATE runs", "INSERT INTO"]


async def test_an_end_looks_once_at_what_it_depends_on(stores: Stores) -> None:
    """It asked fourteen questions."""
    run = await stores.claimed(said("hi"))
    timing = StepTiming(first_token_at=int(NOW.timestamp() * 1000))
    step = Step(
        id=IDS.step(), run_id=run.id, agent_id=AGENT.id, number=1, model="openai/gpt", created_at=NOW, timing=timing
    )
    with statements() as asked:
        settled = await stores.settle(run, RunTrigger.COMPLETE, messages=[answer("done")], step=step)
    assert settled.run.first_token_at is not None
    assert begun(asked) == [
        "SELECT runs.status,",
        "SELECT EXISTS",
        # Deferred, and so on Postgres one statement.
        "INSERT INTO",
        "INSERT INTO",
        "INSERT INTO",
        "UPDATE agents",
        "INSERT INTO",  # for the agent's sleep-time group, if it has one
        "UPDATE runs",
    ]


async def test_a_short_run_goes_to_postgres_and_back_so_often(postgres_url: str) -> None:
    """As its transactions really are: what waits together, and what goes along with their beginnings."""
    with round_trips() as asked:
        async with stored_runs(postgres_url) as stores:
            ends = [0]
            for _ in range(3):  # from the third time on, each statement goes straight to the driver
                asked.clear()
                run, ends = some_run(), [0]
                await stores.runs.submit(run, [said("hi")])
                ends.append(len(asked))
                claimed = await stores.runs.claim(run.id, run.dispatch, "worker/claim", NOW)
                ends.append(len(asked))
                assert claimed is not None
                assert not (await stores.messages.context_of_run(claimed)).has_input
                ends.append(len(asked))
                await stores.settle(claimed, messages=[answer("done")])
                ends.append(len(asked))
    assert [after - before for before, after in pairwise(ends)] == [4, 5, 1, 5], asked
