"""Answers that list messages: a page of a history or of a run, of the types that were asked for."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, get_args

from api.access.callers import Caller, may_see_instructions
from api.letta.messages import MessageType, is_shown, parts_of, wire_messages
from api.long_answers import CHARACTERS_OF_A_VALUE
from api.services import Services
from shared.concurrency import beside
from shared.domain.ids import MessageId
from shared.domain.messages import Message
from shared.domain.runs import Run
from shared.sql.history.message_lists import MessageFilter
from shared.sql.paging import Page

_NO_INSTRUCTIONS = [name for name in get_args(MessageType) if name != "system_message"]


def types_for(caller: Caller, asked: Collection[str] | None) -> list[str] | None:
    """The types of messages that are shown to the caller, who has asked for these. None: all."""
    if may_see_instructions(caller):
        return None if asked is None else list(asked)
    return [name for name in _NO_INSTRUCTIONS if asked is None or name in asked]


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
    return await wire_messages_beside(found[::-1] if turned and not page.ascending else found, types)


async def wire_messages_beside(messages: Sequence[Message], types: Collection[str] | None) -> list[dict[str, Any]]:
    """As `wire_messages`, for as many as there are."""
    return await beside(partial(wire_messages, messages, types), CHARACTERS_OF_A_VALUE * parts_of(messages))


async def run_message_answers(services: Services, run: Run, page: Page, caller: Caller) -> list[dict[str, Any]]:
    """The wire's messages of a page of what the run has added, of the types that its submission asked for, oldest
    first. A run that waits for its turn has added nothing: what it will begin with stands for that, with the same
    ids. A run that asks a model one question never adds anything, and what it asks stands for that."""
    types = types_for(caller, run.options.shown_types)
    if run.turn is not None and run.options.generation is None:
        return await message_answers(services, MessageFilter(run.project_id, run_id=run.id), page, types)
    waiting = await services.runs.waiting_input(run)
    places = {message.id: place for place, message in enumerate(waiting)}
    begin = 0 if page.after is None else places.get(MessageId(page.after), -1) + 1
    end = len(waiting) if page.before is None else places.get(MessageId(page.before), len(waiting))
    wanted = [message for message in waiting[begin:end] if types is None or is_shown(message, types)]
    found = wanted[: page.limit] if page.ascending else wanted[-page.limit :]
    return await wire_messages_beside(found, types)
