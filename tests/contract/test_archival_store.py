"""Archives and passages in SQL, and how passages are found by their words."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, event
from structlog.testing import capture_logs

from shared.domain.errors import Conflict, InvalidRequest, NotFound
from shared.domain.ids import PassageId
from shared.domain.searches import LONGEST_TAG, LONGEST_TEXT, MOST_TAGS
from shared.sql.archival.archives import ArchiveFilter
from shared.sql.archival.passages import PassagePage, insert_for_agent
from shared.sql.migrate import migrate
from shared.sql.paging import Page
from shared.sql.tables import metadata
from tests.kit.archival import IDS, Archival, archival_memory, new_passage
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT
from tests.kit.services.databases import open_database

FACTS = (
    "The capital of France is Paris.",
    "Tokyo is the capital of Japan.",
    "Python is a popular programming language.",
)


@pytest.fixture
async def archival(database_url: str) -> AsyncGenerator[Archival]:
    async with archival_memory(database_url) as archival:
        yield archival


async def test_a_passage_is_read_as_it_was_stored(archival: Archival) -> None:
    agent = await archival.agent(name="Ada")
    [stored] = await archival.remember(agent, "Said “hi”.", tags=["b", "a", "b"], created_at=NOW)
    assert (stored.text, stored.tags, stored.created_at, stored.vector) == ("Said “hi”.", ["b", "a"], NOW, None)
    assert await archival.passages.list_of_agent(PROJECT, agent.id, PassagePage()) == [stored]
    assert await archival.passages.count_of_agent(PROJECT, agent.id) == 1


async def test_the_first_passage_makes_the_agents_archive_and_later_ones_join_it(archival: Archival) -> None:
    agent = await archival.agent(name="Ada")
    assert await archival.archives.list(PROJECT, ArchiveFilter(agent_id=agent.id), Page()) == []
    stored = await asyncio.gather(*(archival.remember(agent, text) for text in FACTS))
    [archive] = await archival.archives.list(PROJECT, ArchiveFilter(agent_id=agent.id), Page())
    assert (archive.name, archive.description) == ("Ada's Archive", "Default archive created automatically")
    assert {passage.archive_id for [passage] in stored} == {archive.id}


async def test_passages_go_to_the_archive_that_was_attached_first(archival: Archival) -> None:
    agent, first, second = await archival.agent(), await archival.archive(), await archival.archive()
    for archive in (first, second, first):
        await archival.archives.attach(PROJECT, agent.id, archive.id)
    [stored] = await archival.remember(agent, "Hello.")
    assert stored.archive_id == first.id
    await archival.archives.detach(PROJECT, agent.id, first.id)
    assert await archival.find("hello", agent_id=agent.id) == []
    assert await archival.find("hello", archive_id=first.id) == ["Hello."]


async def test_an_insert_that_is_done_again_with_its_id_stores_nothing_twice(archival: Archival) -> None:
    agent, passage_id = await archival.agent(), IDS.passage()
    first = await archival.memory.insert(PROJECT, agent.id, "Once.", ["x"], passage_id=passage_id)
    again = await archival.memory.insert(PROJECT, agent.id, "Once.", ["x"], passage_id=passage_id)
    assert again == first
    assert await archival.find("once", agent_id=agent.id) == ["Once."]
    other = await archival.agent()
    with pytest.raises(Conflict, match="another archive"):
        await archival.memory.insert(PROJECT, other.id, "Once.", passage_id=passage_id)


async def test_an_insert_in_a_callers_transaction_is_undone_with_it(archival: Archival) -> None:
    agent = await archival.agent()

    async def insert(text: str) -> None:
        async with archival.database.write() as connection:
            await insert_for_agent(
                connection, PROJECT, agent.id, new_passage(text), new_archive_id=IDS.archive(), now=NOW
            )
            if text == "lost":
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await insert("lost")
    assert await archival.archives.list(PROJECT, ArchiveFilter(agent_id=agent.id), Page()) == []
    await insert("kept")
    assert await archival.find(None, agent_id=agent.id) == ["kept"]


async def test_another_project_sees_and_finds_nothing(archival: Archival) -> None:
    theirs = await archival.agent(project_id=OTHER_PROJECT)
    [secret] = await archival.remember(theirs, "The password is swordfish.")
    ours = await archival.agent()
    assert await archival.find("password") == []
    assert await archival.find("password", project_id=OTHER_PROJECT) == [secret.text]
    attempts = (
        archival.find("password", agent_id=theirs.id),
        archival.find("password", archive_id=secret.archive_id),
        archival.archives.get(PROJECT, secret.archive_id),
        archival.archives.attach(PROJECT, ours.id, secret.archive_id),
        archival.archives.attach(OTHER_PROJECT, ours.id, secret.archive_id),
        archival.archives.detach(PROJECT, theirs.id, secret.archive_id),
        archival.archives.delete(PROJECT, secret.archive_id),
        archival.passages.list_of_agent(PROJECT, theirs.id, PassagePage()),
        archival.passages.delete_from_agent(PROJECT, theirs.id, secret.id),
        archival.passages.delete_from_archive(PROJECT, secret.archive_id, secret.id),
        archival.memory.insert(PROJECT, theirs.id, "Mine now."),
        archival.memory.insert_into(PROJECT, secret.archive_id, [new_passage("Mine now.")]),
    )
    for attempt in attempts:
        with pytest.raises(NotFound):
            await attempt


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("capital France", "The capital of France is Paris."),
        ("JAPAN's capital?", "Tokyo is the capital of Japan."),
        ("programm", "Python is a popular programming language."),
        ("kaffee in KÖLN", "Das Café in Köln."),
        ("strasse", "Die Straße nach Rom."),
        ("首都", "東京は日本の首都です。"),
        ("कॉफ़ी", "उसे कॉफ़ी पसंद है।"),
        ("ЮЛЯ", "Юля!"),
        ("snake case", "call snake_case_names"),
    ],
)
async def test_words_are_found_in_any_language_and_case(archival: Archival, query: str, first: str) -> None:
    agent = await archival.agent()
    await archival.remember(
        agent, *FACTS, "Das Café in Köln.", "Die Straße nach Rom.", "東京は日本の首都です。", "उसे कॉफ़ी पसंद है।",
        "Юля!", "call snake_case_names",
    )  # fmt: skip
    assert (await archival.find(query, agent_id=agent.id))[0] == first


async def test_the_more_words_of_a_query_a_passage_has_the_higher_it_ranks(archival: Archival) -> None:
    agent = await archival.agent()
    texts = ["red apples", "red apples and green pears", "green pears", "blue plums"]
    await archival.remember(agent, *texts, *(f"{number} brown coconuts" for number in range(20)))
    found = await archival.find("red green pears", agent_id=agent.id, limit=10)
    assert found[0] == "red apples and green pears"
    assert sorted(found) == sorted(texts[:3])
    assert await archival.find("red green pears", agent_id=agent.id, limit=1) == found[:1]


async def test_a_rare_word_counts_for_more_than_many_common_ones(archival: Archival) -> None:
    agent = await archival.agent()
    await archival.remember(
        agent, *(f"the name of the dog number {number} is in the book" for number in range(20)), "France: Paris"
    )
    assert await archival.find("the name of the capital in France", agent_id=agent.id, limit=1) == ["France: Paris"]


@pytest.mark.parametrize(
    "query",
    [
        "!!! ???", '"', "AND OR NOT", "NEAR(x, y)", "words:capital", "capital*", "-capital", "x OR", "(", "'", "\\",
        "capital' | 'x", "capital:*", "<->", "^capital", "{words} : x", "%", "_", "\U0001f389", "x " * 5000,
    ],
)  # fmt: skip
async def test_no_query_is_an_error(archival: Archival, query: str) -> None:
    agent = await archival.agent()
    await archival.remember(agent, *FACTS)
    found = await archival.find(query, agent_id=agent.id, limit=100)
    assert sorted(found) == sorted(FACTS[:2] if "capital" in query else [])


async def test_tags_times_and_archives_narrow_a_search(archival: Archival) -> None:
    agent, day = await archival.agent(), timedelta(days=1)
    await archival.remember(agent, "note one", tags=["a"], created_at=NOW)
    await archival.remember(agent, "note two", tags=["a", "b"], created_at=NOW + day)
    await archival.remember(agent, "note three", created_at=NOW + 2 * day)

    async def found(**wanted: Any) -> list[str]:
        words = await archival.find("note", agent_id=agent.id, **wanted)
        assert sorted(words) == sorted(await archival.find(None, agent_id=agent.id, **wanted))
        return sorted(words)

    assert await found(tags=["a", "b"]) == ["note one", "note two"]
    assert await found(tags=["a", "b", "b"], match_all_tags=True) == ["note two"]
    assert await found(tags=["c"]) == []
    # Both ends belong to the span.
    assert await found(start=NOW, end=NOW + day) == ["note one", "note two"]
    assert await found(start=NOW + day + timedelta(microseconds=1)) == ["note three"]
    assert await found(end=NOW - timedelta(microseconds=1)) == []


async def test_passages_are_listed_by_the_times_that_they_are_from(archival: Archival) -> None:
    agent = await archival.agent()
    days = [2, 0, 1, 1, 3]
    stored = [(await archival.remember(agent, f"N° {at}", created_at=NOW + timedelta(days=at)))[0] for at in days]
    ordered = [stored[index].id for index in (1, 2, 3, 0, 4)]

    async def listed(**page: Any) -> list[PassageId]:
        return [passage.id for passage in await archival.passages.list_of_agent(PROJECT, agent.id, PassagePage(**page))]

    assert await listed() == ordered
    assert await listed(ascending=False) == ordered[::-1]
    assert await listed(after=ordered[1], limit=2) == ordered[2:4]
    assert await listed(before=ordered[3], ascending=False, limit=2) == [ordered[2], ordered[1]]
    assert await listed(after=ordered[0], before=ordered[4]) == ordered[1:4]
    assert await listed(search="n° 1") == ordered[1:3]
    assert await listed(search="%") == []


async def test_a_cursor_that_the_project_does_not_have_was_a_404_and_is_passed_over(archival: Archival) -> None:
    agent, stranger = await archival.agent(), await archival.agent(project_id=OTHER_PROJECT)
    stored = await archival.remember(agent, "one", "two")
    [theirs] = await archival.remember(stranger, "three")
    for cursor in (IDS.passage(), theirs.id, "passage-0"):
        for page in (PassagePage(after=cursor), PassagePage(before=cursor)):
            assert await archival.passages.list_of_agent(PROJECT, agent.id, page) == stored
    for page in (Page(after="archive-0"), Page(before="archive-0")):
        assert len(await archival.archives.list(PROJECT, ArchiveFilter(agent_id=agent.id), page)) == 1


async def test_nothing_is_left_of_what_was_deleted(archival: Archival) -> None:
    """Of a passage, of an archive with its passages, and of an agent with the archive that only it had."""
    agent, keeper = await archival.agent(), await archival.agent()
    [first, _] = await archival.remember(agent, "one", "two", tags=["x"])
    await archival.passages.delete_from_agent(PROJECT, agent.id, first.id)
    with pytest.raises(NotFound):
        await archival.passages.delete_from_agent(PROJECT, agent.id, first.id)
    shared = await archival.archive()
    [kept] = await archival.memory.insert_into(PROJECT, shared.id, [new_passage("three", tags=["x"])])
    with pytest.raises(NotFound):
        await archival.passages.delete_from_agent(PROJECT, agent.id, kept.id)
    for one in (agent, keeper):
        await archival.archives.attach(PROJECT, one.id, shared.id)
    await archival.agents.delete(PROJECT, agent.id)
    assert await archival.archives.list(PROJECT, ArchiveFilter(), Page()) == [shared]
    assert await archival.find("one two three") == ["three"]
    await archival.archives.delete(PROJECT, shared.id)
    assert await archival.find("three", agent_id=keeper.id) == []
    left = {name: await _count(archival, name) for name in metadata.tables if name.startswith(("passage", "archive"))}
    assert left == dict.fromkeys(left, 0)
    assert len(left) == 5
    assert await _count(archival, "agent_archives") == 0


async def test_an_agents_own_archive_stays_while_another_agent_has_it(archival: Archival) -> None:
    agent, other = await archival.agent(), await archival.agent()
    [stored] = await archival.remember(agent, "ours")
    await archival.archives.attach(PROJECT, other.id, stored.archive_id)
    await archival.agents.delete(PROJECT, agent.id)
    assert await archival.find("ours", agent_id=other.id) == ["ours"]


async def _count(archival: Archival, table: str) -> int:
    async with archival.database.read() as connection:
        return (await connection.execute(sa.select(sa.func.count()).select_from(sa.table(table)))).scalar_one()


@pytest.mark.parametrize(
    ("text", "tags", "said"),
    [
        ("  ", [], "text is empty"),
        ("x" * (LONGEST_TEXT + 1), [], f"{LONGEST_TEXT}: split"),
        ("x", [str(number) for number in range(MOST_TAGS + 1)], f"tags: {MOST_TAGS + 1} are more"),
        ("x", ["y" * (LONGEST_TAG + 1)], "tags: 'y"),
        ("x", [""], "tags: ''"),
        ("x\0y", [], "NUL"),
    ],
)
async def test_what_cannot_be_a_passage_is_refused_with_the_fix(
    archival: Archival, text: str, tags: list[str], said: str
) -> None:
    agent = await archival.agent()
    with pytest.raises(InvalidRequest, match=said):
        await archival.memory.insert(PROJECT, agent.id, text, tags)
    assert await archival.find(None, agent_id=agent.id) == []


async def test_the_longest_passage_is_stored_and_found_by_its_last_word(archival: Archival) -> None:
    agent = await archival.agent()
    text = ("日本語 " * LONGEST_TEXT)[: LONGEST_TEXT - 4] + " end"
    await archival.remember(agent, text)
    assert await archival.find("end", agent_id=agent.id) == [text]


@pytest.fixture
def no_fts5() -> Generator[None]:
    """SQLite says that FTS5 is not compiled in."""

    def is_used(_option: str) -> int:
        return 0

    def deny(connection: Any, _entry: Any) -> None:
        connection.create_function("sqlite_compileoption_used", 1, is_used)

    event.listen(Engine, "connect", deny)
    yield
    event.remove(Engine, "connect", deny)


@pytest.mark.usefixtures("no_fts5")
async def test_words_are_found_where_sqlite_has_no_fts5(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('plain') / 'holdfast.sqlite3'}"
    async with open_database(url) as database:
        with capture_logs() as logged:
            await migrate(database)
        assert "sqlite_has_no_fts5" in [entry["event"] for entry in logged]
        async with database.read() as connection:
            made = await connection.execute(sa.text("SELECT sql FROM sqlite_master WHERE name = 'passage_words'"))
            assert made.scalar_one().startswith("CREATE TABLE")
    async with archival_memory(url) as archival:
        agent = await archival.agent()
        [first, *_] = await archival.remember(agent, *FACTS, "東京は日本の首都です。")
        assert await archival.find("paris, capital", agent_id=agent.id) == [FACTS[0], FACTS[1]]
        assert await archival.find("首都", agent_id=agent.id) == ["東京は日本の首都です。"]
        assert await archival.find("' OR % _ *", agent_id=agent.id) == []
        await archival.passages.delete_from_agent(PROJECT, agent.id, first.id)
        assert await archival.find("paris", agent_id=agent.id) == []
