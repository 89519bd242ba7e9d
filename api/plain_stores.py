"""The stores that routes use as they are, without a service around them."""

from typing import NamedTuple

from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageStore
from shared.sql.definitions.blocks import BlockStore, TagStore
from shared.sql.engine import Database
from shared.sql.history.message_lists import MessageLists
from shared.sql.runs.effects import EffectStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.journal import JournalStore
from shared.sql.runs.steps import StepStore


class PlainStores(NamedTuple):
    """Stores by the names that they have among the services."""

    blocks: BlockStore
    tags: TagStore
    archives: ArchiveStore
    passages: PassageStore
    message_lists: MessageLists
    journals: JournalStore
    steps: StepStore
    inbox: InboxStore
    effects: EffectStore


def plain_stores(database: Database) -> PlainStores:
    """Returns the stores on this database."""
    return PlainStores(
        blocks=BlockStore(database),
        tags=TagStore(database),
        archives=ArchiveStore(database),
        passages=PassageStore(database),
        message_lists=MessageLists(database),
        journals=JournalStore(database),
        steps=StepStore(database),
        inbox=InboxStore(database),
        effects=EffectStore(database),
    )
