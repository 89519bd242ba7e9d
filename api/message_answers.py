"""Answers that list messages: a page of a history, of the types that were asked for."""

from collections.abc import Collection
from typing import Any

from api.letta.messages import is_shown, wire_messages
from api.services import Services
from shared.domain.ids import MessageId
from shared.domain.messages import Message
from shared.sql.history.message_lists import MessageFilter
from shared.sql.paging import Page


async def message_answers(
    services: Services, of: MessageFilter, page: Page, types: Collection[str] | None, *, turned: bool = False
) -> list[dict[str, Any]]:
    """The wire's messages of a page, oldest first; with `turned`, in the order that was asked for.

    The cursors are ids of messages: after is newer, before is older, whatever the order. The page is full when it has
    as many messages as its limit of which a part is of the types.
    """

    def is_wanted(message: Message) -> bool:
        return types is None or is_shown(message, types)

    found = await services.message_lists.page(
        of,
        limit=page.limit,
        before=None if page.before is None else MessageId(page.before),
        after=None if page.after is None else MessageId(page.after),
        order="asc" if page.ascending else "desc",
        is_wanted=is_wanted,
    )
    return wire_messages(found[::-1] if turned and not page.ascending else found, types)
