"""What holds for every store of definitions, on both databases: creation, lists, changes, deletion, other projects,
races between two processes, lost answers and limits.

A new store brings a guest in `tests/kit/stores/definitions.py`, which gives the inputs. A store of another kind is in
`ELSEWHERE`, with the test that has its cases.
"""

import asyncio
import importlib
import inspect
import itertools
import json
import pkgutil
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.exc import IntegrityError

import shared.sql
from shared.domain.errors import Conflict, HoldfastError, InvalidRequest, NotFound
from shared.sql.engine import Database
from shared.sql.paging import Page
from tests.kit.project.documents import ROOT
from tests.kit.runs.definitions import OTHER_PROJECT, PROJECT
from tests.kit.services.databases import open_database
from tests.kit.stores.definitions import GUESTS
from tests.kit.stores.guest import BY_CREATION, LATER, ChangingGuest, Order, StoreGuest
from tests.kit.stores.outboxes import OUTBOXES

CHANGING = [guest for guest in GUESTS if issubclass(guest, ChangingGuest)]

RUNS = "tests/contract/test_run_store.py"
ELSEWHERE: dict[str, tuple[str, str]] = {
    "ApprovalStore": ("reads what runs write", "tests/contract/test_approval_rows.py"),
    "AuditLog": ("only appends", "tests/contract/test_recorded_acts.py"),
    "ImportedAgentStore": ("stores a file of several definitions at once", "tests/contract/test_agent_files.py"),
    "BudgetStore": ("keeps sums", "tests/contract/test_budget_store.py"),
    "CheckpointStore": ("writes under a run's fence", "tests/contract/test_checkpoint_store.py"),
    "ChildStore": ("writes under a run's lock", "tests/contract/test_children.py"),
    "CodeAgentStore": ("workers keep its rows alive", "tests/contract/test_code_bodies.py"),
    "DecisionStore": ("writes under a run's lock", "tests/contract/test_approval_rows.py"),
    "EffectStore": ("reads what runs write", "tests/contract/test_effects.py"),
    "EndpointSecretStore": ("replaces secrets of all projects", "tests/contract/test_webhook_stores.py"),
    "EventStore": ("reads what runs write", RUNS),
    "GroupCommit": ("is no store: it commits writes of others", "tests/contract/test_group_commit.py"),
    "GroupTurnStore": ("keeps a queue per group", "tests/contract/test_due_turns.py"),
    "InboxStore": ("writes under a run's lock", "tests/contract/test_inbox_store.py"),
    "JournalStore": ("reads what runs write", "tests/story/test_code_agents.py"),
    "McpSignInStore": ("has rows that one process takes once", "tests/story/test_mcp_sign_in_abuse.py"),
    "MemoryStore": ("writes under a run's fence", "tests/contract/test_memory_store.py"),
    "MessageLists": ("reads what runs write", "tests/contract/test_message_store.py"),
    "MessageStore": ("reads what runs write", "tests/contract/test_message_store.py"),
    "OwnerStore": ("looks up one column", "tests/contract/test_agent_keys.py"),
    "PassageSearchStore": ("searches", "tests/contract/test_archival_store.py"),
    "PassageStore": ("has rows of an archive", "tests/contract/test_archival_store.py"),
    "RetentionStore": ("deletes old runs", "tests/contract/test_retention.py"),
    "RunChangeStore": ("reads what runs write", "tests/story/test_run_changes.py"),
    "RunStatStore": ("counts", "tests/contract/test_operations.py"),
    "RunListing": ("lists what runs write", "tests/contract/test_run_listing.py"),
    "RunStore": ("writes under a run's lock", RUNS),
    "ServerSecretStore": ("replaces secrets of all projects", "tests/contract/test_secrets_at_rest.py"),
    "SettlementStore": ("writes under a run's fence", "tests/contract/test_settlement.py"),
    "StepStore": ("reads what runs write", "tests/contract/test_checkpoint_store.py"),
    "StoredSecretStore": ("replaces secrets of all projects", "tests/contract/test_secrets_at_rest.py"),
    "TagStore": ("reads what other stores write", "tests/contract/test_api_definitions.py"),
    "ToolRunStore": ("reads what runs write", "tests/contract/test_tool_runs.py"),
    "TurnStore": ("reads what runs write", "tests/contract/test_thread_streams.py"),
    "VectorStore": ("writes columns of another store's rows", "tests/contract/test_archival_vectors.py"),
}
"""Stores that are no guests: why, and where their cases are."""

NO_TEXTS = {"NUL": "a\0b", "half a surrogate pair": "a\ud800b"}


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
async def other_process(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


def ids_of(nouns: Sequence[Any]) -> list[str]:
    return [noun.id for noun in nouns]


async def at_once(*calls: Awaitable[Any]) -> tuple[list[Any], list[HoldfastError]]:
    """Returns the results of the calls that succeeded and the errors of the others. Fails for any other exception."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, HoldfastError)]
    results = [outcome for outcome in outcomes if not isinstance(outcome, HoldfastError)]
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results, errors


@pytest.mark.parametrize("kind", GUESTS, ids=lambda kind: kind.__name__)
async def test_a_value_is_read_and_listed_as_it_was_stored(database: Database, kind: type[StoreGuest]) -> None:
    guest = kind(database)
    made = [await guest.make(number) for number in range(3)]

    stored = [await guest.create(one) for one in made]

    assert ids_of(stored) == ids_of(made)
    assert [getattr(one, guest.text_field) for one in stored] == [getattr(one, guest.text_field) for one in made]
    assert [await guest.get(PROJECT, one.id) for one in stored] == stored
    assert list(await guest.list(PROJECT)) == stored
    assert await guest.count(PROJECT) == 3
    with pytest.raises(NotFound):
        await guest.get(PROJECT, (await guest.make(9)).id)


def expected_page(ids: Sequence[str], page: Page) -> Sequence[str]:
    """The page of a list whose ids are these in the requested order."""
    first = ids.index(page.after) + 1 if page.after in ids else 0
    end = ids.index(page.before) if page.before in ids else len(ids)
    found = ids[first:end]
    ends_at_the_cursor = page.before is not None and page.after is None
    return found[-page.limit :] if ends_at_the_cursor else found[: page.limit]


@pytest.mark.parametrize(
    ("kind", "order"),
    [(kind, order) for kind in GUESTS if kind.is_paged for order in kind.sorts],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_every_page_of_every_sort(database: Database, kind: type[StoreGuest], order: str) -> None:
    """All cursors and limits around the boundaries, with rows of another project between those of the list."""
    guest, nouns, theirs = kind(database), list[Any](), list[Any]()
    for number in range(3):
        nouns.append(await guest.create(await guest.make(number)))
        theirs.append(await guest.create(await guest.make(number, OTHER_PROJECT)))
    ids = ids_of(nouns)
    arranged = await guest.arrange(order, nouns) if order != BY_CREATION else Order(ids, ids[::-1])

    for is_ascending, wanted in ((True, arranged.ascending), (False, arranged.descending)):
        cursors = [None, *wanted, theirs[1].id, "unknown"]
        for after, before, limit in itertools.product(cursors, cursors, (1, 5)):
            page = Page(limit=limit, after=after, before=before, ascending=is_ascending)
            assert ids_of(await guest.list(PROJECT, page, order)) == expected_page(wanted, page), page


def with_unknown_fields(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a field that this release does not know, in itself and in each object inside."""
    objects = {name: cast("dict[str, Any]", value) for name, value in document.items() if isinstance(value, dict)}
    return document | {name: value | {"mood": "new"} for name, value in objects.items()} | {"mood": {"since": 1}}


@pytest.mark.parametrize("kind", [kind for kind in GUESTS if kind.has_document], ids=lambda kind: kind.__name__)
async def test_a_field_of_a_newer_release_is_ignored(database: Database, kind: type[StoreGuest]) -> None:
    """A process of this release could read neither the value nor any list that has it."""
    guest = kind(database)
    [stored] = await guest.created(1)
    async with database.write() as connection:
        is_it = guest.table.c.id == stored.id
        text = (await connection.execute(sa.select(guest.table.c.document).where(is_it))).scalar_one()
        newer = json.dumps(with_unknown_fields(json.loads(text)))
        await connection.execute(sa.update(guest.table).where(is_it).values(document=newer))
    known = await guest.get(PROJECT, stored.id)
    assert getattr(known, guest.text_field) == getattr(stored, guest.text_field)
    assert ids_of(await guest.list(PROJECT)) == [stored.id]


@pytest.mark.parametrize("kind", GUESTS, ids=lambda kind: kind.__name__)
async def test_another_project_sees_and_changes_nothing(database: Database, kind: type[StoreGuest]) -> None:
    guest = kind(database)
    [stored] = await guest.created(1)

    with pytest.raises(NotFound, match=stored.id):
        await guest.get(OTHER_PROJECT, stored.id)
    if isinstance(guest, ChangingGuest):
        with pytest.raises(NotFound, match=stored.id):
            await guest.update(OTHER_PROJECT, stored.id, lambda one: guest.with_word(one, "theirs"), LATER)
        with pytest.raises(NotFound, match=stored.id):
            await guest.delete(OTHER_PROJECT, stored.id)

    assert list(await guest.list(OTHER_PROJECT)) == []
    assert await guest.count(OTHER_PROJECT) == 0
    assert await guest.get(PROJECT, stored.id) == stored


@pytest.mark.parametrize("kind", GUESTS, ids=lambda kind: kind.__name__)
async def test_a_creation_whose_answer_was_lost_is_stored_once(database: Database, kind: type[StoreGuest]) -> None:
    """The repetition returns the stored value or fails, and changes nothing."""
    guest = kind(database)
    made = await guest.make(0)
    stored = await guest.create(made)
    try:
        again = await guest.create(made)
    except (HoldfastError, IntegrityError):
        again = stored
    assert again.id == stored.id
    assert list(await guest.list(PROJECT)) == [stored]


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
async def test_a_change_is_stored_with_its_time_and_leaves_other_rows_alone(
    database: Database, kind: type[ChangingGuest]
) -> None:
    guest = kind(database)
    before, other = await guest.created(2)

    after = await guest.update(PROJECT, before.id, lambda one: guest.worded(one, "new"), LATER)

    expected = replace(guest.worded(before, "new"), updated_at=LATER)
    if guest.counts_changes:
        expected = replace(expected, version=before.version + 1)
    assert after == expected
    assert list(await guest.list(PROJECT)) == [after, other]


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
async def test_a_change_of_nothing_changes_the_time_at_most(database: Database, kind: type[ChangingGuest]) -> None:
    guest = kind(database)
    [before] = await guest.created(1)
    text = getattr(before, guest.text_field)

    after = await guest.update(PROJECT, before.id, lambda one: guest.worded(one, text), LATER)

    assert after.updated_at == (before.updated_at if guest.sees_no_change else LATER)
    same = replace(after, updated_at=before.updated_at)
    assert (replace(same, version=before.version) if guest.counts_changes else same) == before


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
async def test_a_change_that_raises_changes_nothing(database: Database, kind: type[ChangingGuest]) -> None:
    guest = kind(database)
    [before] = await guest.created(1)

    def refuse(noun: Any) -> Any:
        raise Conflict("not this one")

    with pytest.raises(Conflict, match="not this one"):
        await guest.update(PROJECT, before.id, refuse, LATER)
    assert await guest.get(PROJECT, before.id) == before


@pytest.mark.parametrize("kind", [kind for kind in CHANGING if not kind.takes_fields], ids=lambda kind: kind.__name__)
async def test_changes_at_the_same_instant_are_all_stored(
    database: Database, other_process: Database, kind: type[ChangingGuest]
) -> None:
    """The change that waits for the lock gets the result of the first one, in whichever process."""
    guests = [kind(database), kind(other_process)] * 2
    [before] = await guests[0].created(1)
    words = [f"word{number}" for number in range(len(guests))]

    await asyncio.gather(
        *(
            guest.update(PROJECT, before.id, lambda one, word=word: guests[0].with_word(one, word), LATER)
            for guest, word in zip(guests, words, strict=True)
        )
    )

    after = await guests[0].get(PROJECT, before.id)
    assert set(words) <= set(getattr(after, kind.text_field).split())
    if kind.counts_changes:
        assert after.version == before.version + len(words)


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
async def test_a_change_whose_answer_was_lost_is_the_same_when_repeated(
    database: Database, kind: type[ChangingGuest]
) -> None:
    guest = kind(database)
    [before] = await guest.created(1)
    first, again = [
        await guest.update(PROJECT, before.id, lambda one: guest.worded(one, "new"), LATER) for _ in range(2)
    ]
    assert again == (replace(first, version=first.version + 1) if guest.counts_changes else first)
    assert await guest.get(PROJECT, before.id) == again


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
async def test_a_deleted_row_is_gone_and_a_repeated_deletion_is_not_found(
    database: Database, kind: type[ChangingGuest]
) -> None:
    guest = kind(database)
    gone, other = await guest.created(2)

    await guest.delete(PROJECT, gone.id)

    assert list(await guest.list(PROJECT)) == [other]
    assert await guest.count(PROJECT) == 1
    for call in (
        guest.get(PROJECT, gone.id),
        guest.delete(PROJECT, gone.id),
        guest.update(PROJECT, gone.id, lambda one: one, LATER),
    ):
        with pytest.raises(NotFound, match=gone.id):
            await call
    assert list(await guest.list(PROJECT)) == [other]


@pytest.mark.parametrize("kind", [kind for kind in CHANGING if kind.is_paged], ids=lambda kind: kind.__name__)
async def test_a_deleted_row_still_marks_its_place(database: Database, kind: type[ChangingGuest]) -> None:
    """A client that deletes each row that it lists got the list from its beginning, again and again."""
    guest = kind(database)
    ids = ids_of(await guest.created(4))
    await guest.delete(PROJECT, ids[1])

    assert ids_of(await guest.list(PROJECT, Page(after=ids[1], ascending=True))) == [ids[2], ids[3]]
    assert ids_of(await guest.list(PROJECT, Page(before=ids[1], ascending=True))) == [ids[0]]
    assert ids_of(await guest.list(PROJECT, Page(after=ids[1]))) == [ids[0]]


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
async def test_of_deletions_at_the_same_instant_one_succeeds(
    database: Database, other_process: Database, kind: type[ChangingGuest]
) -> None:
    ours, theirs = kind(database), kind(other_process)
    [stored] = await ours.created(1)

    done, refused = await at_once(ours.delete(PROJECT, stored.id), theirs.delete(PROJECT, stored.id))

    assert (len(done), [type(error) for error in refused]) == (1, [NotFound])
    assert await ours.count(PROJECT) == 0


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
async def test_a_change_and_a_deletion_at_the_same_instant_leave_no_row(
    database: Database, other_process: Database, kind: type[ChangingGuest]
) -> None:
    ours, theirs = kind(database), kind(other_process)
    [stored] = await ours.created(1)

    _, refused = await at_once(
        ours.update(PROJECT, stored.id, lambda one: ours.with_word(one, "new"), LATER),
        theirs.delete(PROJECT, stored.id),
    )

    assert all(isinstance(error, NotFound) for error in refused)
    assert len(refused) <= 1
    assert await ours.count(PROJECT) == 0


UNIQUE = [kind for kind in CHANGING if kind.unique_field is not None]


@pytest.mark.parametrize("kind", UNIQUE, ids=lambda kind: kind.__name__)
async def test_a_name_that_another_row_has_is_refused(database: Database, kind: type[ChangingGuest]) -> None:
    guest, name = kind(database), str(kind.unique_field)
    first, second = await guest.created(2)
    taken = {name: getattr(first, name)}

    with pytest.raises(Conflict, match=taken[name]):
        await guest.update(PROJECT, second.id, lambda one: replace(one, **taken), LATER)

    assert list(await guest.list(PROJECT)) == [first, second]


@pytest.mark.parametrize("kind", UNIQUE, ids=lambda kind: kind.__name__)
async def test_of_creations_with_one_name_at_the_same_instant_one_row_is_stored(
    database: Database, other_process: Database, kind: type[ChangingGuest]
) -> None:
    guests, name = [kind(database), kind(other_process)] * 2, str(kind.unique_field)
    first, *others = [await guests[0].make(number) for number in range(len(guests))]
    named = [first, *(replace(one, **{name: getattr(first, name)}) for one in others)]

    stored, refused = await at_once(*(guest.create(one) for guest, one in zip(guests, named, strict=True)))

    assert len({one.id for one in stored}) == 1
    assert all(isinstance(error, Conflict) for error in refused)
    assert await guests[0].count(PROJECT) == 1


BOUNDED = [kind for kind in GUESTS if kind.most is not None]


@pytest.mark.parametrize("kind", BOUNDED, ids=lambda kind: kind.__name__)
async def test_a_project_has_so_many_rows_at_most(
    database: Database, other_process: Database, kind: type[StoreGuest]
) -> None:
    ours, most = kind(database), kind.most or 0
    guests = [ours, kind(other_process)] * 4
    await ours.created(most - 1)
    last = [await ours.make(most + number) for number in range(len(guests))]
    await at_once(*(guest.count(PROJECT) for guest in guests))  # opens the connections, so that none comes later

    stored, refused = await at_once(*(guest.create(one) for guest, one in zip(guests, last, strict=True)))

    assert len(stored) == 1
    assert {type(error) for error in refused} == {InvalidRequest}
    with pytest.raises(InvalidRequest, match=str(most)):
        await ours.create(await ours.make(2 * most))
    assert await ours.count(PROJECT) == most
    await ours.create(await ours.make(0, OTHER_PROJECT))


@pytest.mark.parametrize("text", NO_TEXTS.values(), ids=NO_TEXTS)
@pytest.mark.parametrize("kind", [kind for kind in GUESTS if kind.has_document], ids=lambda kind: kind.__name__)
async def test_a_text_that_postgres_could_not_return_is_refused(
    database: Database, kind: type[StoreGuest], text: str
) -> None:
    """Each query of Postgres for a field of the document failed, also when it wanted other rows."""
    guest = kind(database)
    with pytest.raises(InvalidRequest, match="remove it"):
        await guest.create(guest.worded(await guest.make(0), text))
    assert await guest.count(PROJECT) == 0
    if isinstance(guest, ChangingGuest):
        [stored] = await guest.created(1)
        with pytest.raises(InvalidRequest, match="remove it"):
            await guest.update(PROJECT, stored.id, lambda one: guest.worded(one, text), LATER)
        assert list(await guest.list(PROJECT)) == [stored]


def stores() -> Iterator[str]:
    """The classes of `shared.sql` that are made with a database."""
    for module in pkgutil.walk_packages(shared.sql.__path__, f"{shared.sql.__name__}."):
        if ".migrations" in module.name:
            continue
        for name, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if found.__module__ == module.name and "database" in inspect.signature(found.__init__).parameters:
                yield name


def test_every_store_is_a_guest_or_says_where_its_cases_are() -> None:
    """A store without a guest and without a reason is new: give it a guest (docs/architecture.md, "Add a store")."""
    guests = {base.__name__ for guest in (*GUESTS, *OUTBOXES) for base in guest.store.__mro__[:-1]}
    assert sorted(set(stores()) - guests - ELSEWHERE.keys()) == []
    assert sorted(ELSEWHERE.keys() - set(stores())) == [], "gone"
    assert sorted(ELSEWHERE.keys() & guests) == [], "are guests"
    assert sorted(place for _, place in ELSEWHERE.values() if not Path(ROOT, place).is_file()) == []
