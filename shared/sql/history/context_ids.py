"""The ids of the messages in a context. They are derived from the rows: a list that was stored beside them could
disagree."""

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.ids import MessageId
from shared.domain.messages import AssistantMessage
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


async def ids_in_context(connection: AsyncConnection, thread_ids: Collection[str]) -> dict[str, list[MessageId]]:
    """The ids per thread, in the order of the messages on the wire, which shows some rows as two messages."""
    found = await connection.execute(_IDS, {"thread_ids": list(thread_ids)})
    ids: dict[str, list[MessageId]] = {}
    for thread_id, message_id, sibling_id, body in found:
        shown = [message_id] if sibling_id is None else [message_id, sibling_id]
        if body is not None and _begins_with_sibling(from_json(body, AssistantMessage)):
            shown.reverse()
        ids.setdefault(thread_id, []).extend(shown)
    return ids


def _begins_with_sibling(body: AssistantMessage) -> bool:
    """Whether the second id comes first. The wire shows calls before approval requests, and the second id is for the
    kind that the model named second."""
    return body.sibling_holds == "calls" and not body.text and body.reasoning is None
