"""Runs that make one call of a tool because a client asked for it, and nothing else.

Such a run is no part of a conversation, and it runs beside the agent's other runs: it has a thread of its own, so it
neither waits for them nor lets them wait. It need not wait, because what a call does to the agent's memory is one
fenced transaction on the blocks as they are then, as when two agents share a block. And it must not: the tool of a run
may ask for such a call of its own agent, and the two would wait for each other.

What is stored as its input is the call, in an answer that no model gave. Nothing of it enters a history; the result is
kept with the call's intent.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from shared.domain.ids import MessageId
from shared.domain.messages import AssistantMessage, NewMessage, ToolCall

TOOL_RUN: Final = "tool_run"
"""What the wire calls them (`run_type`)."""


class AskedCall(NamedTuple):
    """The call that a run is to make, and the id of the message that shows it in the run's stream."""

    message_id: MessageId
    call: ToolCall


def asked_call(given: Sequence[NewMessage]) -> AskedCall:
    """The call in a run's input. Raises `ValueError` when there is none."""
    for message in given:
        if isinstance(message.body, AssistantMessage) and message.body.tool_calls:
            return AskedCall(message.id, message.body.tool_calls[0])
    raise ValueError("the run's input has no call of a tool")
