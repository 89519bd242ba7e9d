"""Where a message goes: an agent's default history, or one of its further conversations."""

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated
from uuid import uuid4

import typer

from cli.client.server import ConnectionLost, Record, Server, segment
from cli.client.terminal import hint
from cli.exit_statuses import INTERRUPTED
from shared.domain.errors import InvalidRequest, Unavailable

ConversationOption = Annotated[
    str | None,
    typer.Option(metavar="CONV", help="A conversation, conv-…; `new` begins one (default: the agent's own history)."),
]
PAUSES_S = (0.5, 2.0)
"""Before a message is sent again whose answer was lost."""


@dataclass(frozen=True)
class Conversation:
    """A history of an agent. `id` is None for the agent's default one."""

    server: Server
    agent_id: str
    id: str | None = None

    def submit(self, text: str, *, if_busy: str | None = None) -> str:
        """The id of the run that a message has made. It goes on whatever becomes of this process. Raises `typer.Exit`
        when the person interrupts the sending."""
        body: Record = {"input": text, "background": True, "stream_tokens": True, "if_busy": if_busy}
        path = f"/v1/agents/{self.agent_id}/messages/stream"
        if self.id:
            # Where nothing else is said, a conversation refuses what an agent's own history would let wait.
            path, body = f"{self._path}/messages", {**body, "if_busy": if_busy or "enqueue"}
        key = str(uuid4())  # with which a message that is sent again is the same one
        try:
            for pause in PAUSES_S:
                try:
                    return self._run_of(path, body, key)
                except ConnectionLost:
                    time.sleep(pause)
            return self._run_of(path, body, key)
        except KeyboardInterrupt:
            look = f"holdfast runs list --agent {self.agent_id}"
            hint(f"[interrupted before the server answered: it may have the message, and then {look} shows the run]")
            raise typer.Exit(INTERRUPTED) from None

    def _run_of(self, path: str, body: Record, key: str) -> str:
        with closing(self.server.frames(path, body, idempotency_key=key)) as frames:
            for frame in frames:
                return str(frame["run_id"])
        raise Unavailable("the server has shown no run for this message: `holdfast runs list` shows what there is")

    def history(self, count: int) -> list[Record]:
        """What was said last, oldest first."""
        path, said = f"{self._path}/messages", ["user_message", "assistant_message"]
        found: list[Record] = self.server.get(
            path, agent_id=self.agent_id, limit=count, order="desc", include_return_message_types=said
        )
        return found[::-1] if self.id else found  # an agent's own newest are listed oldest first

    def active_runs(self) -> list[Record]:
        """The runs that are waiting or at work, in the order in which they were made."""
        found: list[Record] = self.server.get("/v1/runs/active", agent_id=self.agent_id)
        return sorted((one for one in found if one["conversation_id"] == self.id), key=lambda one: one["created_at"])

    def waiting_approvals(self) -> list[Record]:
        """The oldest tool call that waits for a decision, if one does."""
        path, conversation_id = "/v1/approvals", self.id or "default"
        return self.server.get(path, agent_id=self.agent_id, conversation_id=conversation_id, limit=1)

    def cancel(self, reason: str) -> dict[str, str]:
        """Ends what waits or is at work. Gives what became of each run, by its id."""
        return self.server.post(f"{self._path}/cancel?agent_id={self.agent_id}", {"reason": reason})

    @property
    def _path(self) -> str:
        return f"/v1/conversations/{segment(self.id or 'default')}"


def conversation_of(server: Server, agent: Record, given: str | None) -> Conversation:
    """The conversation that an option names. Raises `NotFound`, and `InvalidRequest` for another agent's."""
    agent_id = str(agent["id"])
    if given is None or given == "default":
        return Conversation(server, agent_id)
    if given == "new":
        made: Record = server.post(f"/v1/conversations?agent_id={agent_id}")
        hint(f"[{made['id']} is new; come back to it with --conversation {made['id']}]")
        return Conversation(server, agent_id, str(made["id"]))
    found: Record = server.get(f"/v1/conversations/{segment(given)}")
    if found["agent_id"] != agent_id:
        raise InvalidRequest(f"{given} is a conversation of {found['agent_id']}, not of {agent_id}")
    return Conversation(server, agent_id, given)
