"""The ids of the messages in a context. They are derived from the rows: a list that was stored beside them could
disagree."""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from shared.concurrency import beside
from shared.domain.ids import MessageId
from shared.domain.messages import AssistantMessage, NewMessage
from shared.sql.connection import Connection
from shared.sql.tables import from_json, messages

_IDS = (
    sa.select(
        messages.c.thread_id,
        messages.c.id,
        messages.c.sibling_id,
        sa.case((messages.c.sibling_id.is_not(None), messages.c.body)),
    )
    .where(messages.c.thread_id.in_(sa.bindparam("thread_ids", expanding=True)), messages.c.in_context)
    .order_by(messages.c.thread_id, messages.c.turn, messages.c.position)
)


async def ids_in_context(connection: Connection, thread_ids: Collection[str]) -> dict[str, list[MessageId]]:
    """The ids per thread, in the order of the messages on the wire, which shows some rows as two messages."""
    found = await connection.execute(_IDS, {"thread_ids": list(thread_ids)})
    rows = found.all()
    return await beside(partial(_by_thread, rows), len(rows) * CHARACTERS_OF_AN_ID)


CHARACTERS_OF_AN_ID = 50
"""As many characters of JSON are read in the time that the id of a message takes."""


def _by_thread(rows: Iterable[Sequence[Any]]) -> dict[str, list[MessageId]]:
    ids: dict[str, list[MessageId]] = {}
    for thread_id, message_id, sibling_id, body in rows:
        assistant = None if body is None else from_json(body, AssistantMessage)
        ids.setdefault(thread_id, []).extend(_shown(message_id, sibling_id, assistant))
    return ids


def ids_of(new: Sequence[NewMessage]) -> list[MessageId]:
    """The same, of messages that nobody has stored yet."""
    ids = list[MessageId]()
    for message in new:
        assistant = message.body if isinstance(message.body, AssistantMessage) else None
        ids += _shown(message.id, assistant and assistant.sibling_id, assistant)
    return ids


def _shown(message_id: MessageId, sibling_id: MessageId | None, body: AssistantMessage | None) -> list[MessageId]:
    if sibling_id is None:
        return [message_id]
    begins_with_sibling = body is not None and _begins_with_sibling(body)
    return [sibling_id, message_id] if begins_with_sibling else [message_id, sibling_id]


def _begins_with_sibling(body: AssistantMessage) -> bool:
    """Whether the second id comes first. The wire shows calls before approval requests, and the second id is for the
    kind that the model named second."""
    return body.sibling_holds == "calls" and not body.text and body.reasoning is None
