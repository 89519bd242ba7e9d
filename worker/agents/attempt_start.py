"""Reads the state with which an execution of a body begins: the journal, the shown history, and the first frame."""

from collections.abc import Sequence
from typing import NamedTuple

from shared.domain.body_input import came_later, hello_of
from shared.domain.journal import JournalEntry, Replay
from shared.domain.messages import Message, NewMessage
from worker.agents.attached_tools import new_agent_of_turn
from worker.agents.body_process import Frame
from worker.agents.models.run_models import RunModels
from worker.agents.shown_turn import ShownTurn
from worker.bodies.agent_context import AgentServices
from worker.run.run_handle import RunHandle


class AttemptStart(NamedTuple):
    """The state with which an attempt begins."""

    replay: Replay
    shown: ShownTurn
    decided_by: dict[str, str | None]
    """The person who has decided on a call, by the call's id."""
    late_input: list[NewMessage]
    """Messages that arrived with a decision. They follow the results in the history."""
    given: list[JournalEntry]
    """Entries at the beginning of the turn that SQL lacks."""
    for_inbox: Sequence[Message | NewMessage]
    """Late messages in the history that the body had not taken from its inbox before this attempt."""
    hello: Frame


async def read_start(handle: RunHandle, services: AgentServices, models: RunModels, number: int) -> AttemptStart:
    """Reads the journal and the history. `number`: the worker's attempt. Raises `NotFound` and `Unavailable`."""
    run, approvals = handle.run, services.approvals
    replay = Replay(run.journal, await handle.journal())
    given = await new_agent_of_turn(handle, services, replay)
    entries = [*replay.entries.values()]
    messages = (await handle.history()).messages
    turn = [one for one in messages if one.turn == run.turn]
    known = {entry.call_id for entry in entries if entry.kind in ("tool", "approval")}
    hello = hello_of(run, entries, messages, await handle.thread_state(), int(run.fence) + number - 1)
    hello["models"] = models.access
    shown, for_inbox = ShownTurn(handle, turn, known=known), came_later(turn, entries)
    if run.continues is None:
        return AttemptStart(replay, shown, {}, [], given, for_inbox, hello)
    asked_for = await handle.whole(lambda: approvals.followed_by(run))
    decided_by = {one.tool_call_id: one.decided_by for one in asked_for}
    stored = {one.id for one in turn}
    late_input = [one for one in (await handle.input())[1:] if one.id not in stored]
    return AttemptStart(replay, shown, decided_by, late_input, given, for_inbox, hello)
