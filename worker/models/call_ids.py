"""The ids of an answer's tool calls. Results and decisions find their call by its id, so no two calls share one."""

from collections.abc import Callable
from functools import cached_property

from shared.domain.messages import AssistantMessage
from worker.models.characters import whole_characters
from worker.models.provider import ModelCall

LONGEST = 200
"""Characters. Databases index ids, and clients send them back."""


class CallIds:
    """Gives each call of one answer an id that no other call of its history has, nor one that was ever decided in its
    conversation: an old decision that comes once more must not find a new call.

    Some servers give two calls of an answer the same id, number the calls of every answer anew, or take the id from
    the model's own text. The provider's id stays where it is the first of its kind, short and printable. Another call
    gets one of ours.
    """

    def __init__(self, call: ModelCall, new_id: Callable[[], str]) -> None:
        self._call = call
        self._new_id = new_id

    @cached_property
    def _taken(self) -> set[str]:
        bodies = (message.body for message in self._call.history)
        in_history = {call.id for body in bodies if isinstance(body, AssistantMessage) for call in body.tool_calls}
        return in_history | self._call.taken_call_ids

    def own(self, given: str | None) -> str:
        """The id of a call to which the server gave this one, or none."""
        theirs = whole_characters(given or "")
        is_usable = 0 < len(theirs) <= LONGEST and theirs.isprintable() and theirs not in self._taken
        call_id = theirs if is_usable else self._new_id()
        self._taken.add(call_id)
        return call_id
