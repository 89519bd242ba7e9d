"""What lists of runs say of how each began: of every run of a page with the runs themselves, and to nobody else."""

from collections.abc import AsyncGenerator

import httpx
import pytest

from shared.domain.messages import FIRST_WORDS, ContentPart, ImageContent, NewMessage, TextContent, UserMessage
from shared.domain.runs import RunOptions
from shared.sql.paging import Page
from shared.sql.runs.listing import RunFilter
from tests.kit.keys import KeyMaker
from tests.kit.product.in_process import api_client
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT
from tests.kit.runs.stored_runs import AGENT, IDS, Stores, approve, call, said, stored_runs
from tests.kit.services.databases import statements

KEY = "the-long-key-of-our-project"


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.fixture
async def http(stores: Stores) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(stores.database, api_keys=f"{PROJECT}={KEY}") as http:
        http.headers["Authorization"] = f"Bearer {KEY}"
        yield http


def spoken(content: str | list[ContentPart], role: str = "user") -> NewMessage:
    assert role in ("user", "system", "assistant")
    return NewMessage(id=IDS.message(), created_at=NOW, body=UserMessage(content=content, role=role))


async def words_of(http: httpx.AsyncClient, **query: str) -> list[str | None]:
    """The first words of the project's runs, newest first."""
    answer = await http.get("/v1/runs", params=query)
    assert answer.is_success, answer.text
    return [run["metadata"].get("first_words") for run in answer.json()]


async def test_a_list_of_runs_did_not_say_what_each_was_asked(stores: Stores, http: httpx.AsyncClient) -> None:
    image = ImageContent(media_type="image/png", data="aGk=")
    await stores.submitted(said("  What is\n\n the <b>weather</b>\tin Rome?  "))
    await stores.submitted(spoken("Be brief.", role="system"), said("Hello"), said("Never mind"))
    await stores.submitted(said(" \n "), said("Still there?"))
    await stores.submitted(spoken([image, TextContent("What is this?")]))
    await stores.submitted(spoken([image]))
    assert await words_of(http) == [
        "[Image omitted]",
        "What is this? [Image omitted]",
        "Still there?",
        "Hello",
        "What is the <b>weather</b> in Rome?",
    ]


@pytest.mark.parametrize("text", ["x" * 100_000, "word " * 20_000, "\n\t" * 50_000 + "y" * 201, "日本 " * 5_000])
async def test_the_first_words_of_a_long_text_are_bounded(stores: Stores, http: httpx.AsyncClient, text: str) -> None:
    await stores.submitted(said(text))
    [words] = await words_of(http)
    assert words is not None
    assert (len(words) <= FIRST_WORDS, words[-1], "\n" in words) == (True, "…", False)
    assert " ".join(text.split()).startswith(words[:-1])


async def test_a_text_of_just_so_many_characters_is_whole(stores: Stores, http: httpx.AsyncClient) -> None:
    await stores.submitted(said("z" * FIRST_WORDS))
    assert await words_of(http) == ["z" * FIRST_WORDS]


async def test_what_the_application_said_as_the_system_is_in_no_list(stores: Stores, http: httpx.AsyncClient) -> None:
    await stores.submitted(spoken("The customer is behind with payments.", role="system"))
    await stores.submitted(spoken("I have said this.", role="assistant"))
    await stores.submitted(options=RunOptions(run_type="compaction"))
    answer = await http.get("/v1/runs")
    assert "behind with payments" not in answer.text
    assert [run["metadata"].get("first_words") for run in answer.json()] == ["hi", None, None]


async def test_a_run_that_goes_on_after_a_decision_says_what_was_asked(stores: Stores, http: httpx.AsyncClient) -> None:
    await stores.parked(call("a", needs_approval=True))
    await stores.decide(approve("a"))
    assert await words_of(http) == ["hi", "hi"]


async def test_a_decision_that_comes_with_words_of_its_own_is_known_by_them(
    stores: Stores, http: httpx.AsyncClient
) -> None:
    await stores.parked(call("a", needs_approval=True))
    await stores.decide(approve("a"), more=[said("And hurry")])
    assert await words_of(http) == ["And hurry", "hi"]


async def test_first_words_stay_in_their_project(stores: Stores, http: httpx.AsyncClient) -> None:
    await stores.submitted(said("ours"))
    await stores.submitted(said("theirs"), project_id=OTHER_PROJECT)
    assert await words_of(http) == ["ours"]


async def test_first_words_are_shown_to_keys_that_may_read_the_messages(
    stores: Stores, http: httpx.AsyncClient
) -> None:
    run = await stores.submitted(said("ours"))
    keys = KeyMaker(stores.database, PROJECT)
    reads = await keys.headers("read", f"agent:{AGENT.id}")
    other = (await http.post("/v1/agents", json={"name": "other", "model": "builtin/echo"})).json()
    others = await keys.headers("read", f"agent:{other['id']}")
    listed = {"agent_id": AGENT.id}
    http.headers.update(reads)
    assert await words_of(http, **listed) == ["ours"]
    assert "ours" in (await http.get(f"/v1/runs/{run.id}/messages")).text
    http.headers.update(others)
    assert "ours" not in (await http.get("/v1/runs", params=listed)).text
    assert (await http.get(f"/v1/runs/{run.id}")).status_code == 404
    assert (await http.get(f"/v1/runs/{run.id}/messages")).status_code == 404


async def test_a_page_of_first_words_costs_one_question(stores: Stores) -> None:
    for number in range(10):
        await stores.submitted(said(f"number {number}"))
    with statements() as asked:
        page = await stores.listing.page(PROJECT, RunFilter(), Page(limit=10))
    assert [run.options.first_words for run in page] == [f"number {number}" for number in reversed(range(10))]
    assert len([text for text in asked if text.startswith("SELECT")]) == 1
    assert not any("run_inputs" in text or "messages" in text for text in asked)
