"""What a body asks a person or its client for. Its run is parked when nothing else of it goes on."""

from datetime import timedelta

import msgspec

from shared.domain.approvals import Approval, hash_of
from shared.domain.events import AnsweredBy
from shared.domain.ids import MessageId
from shared.domain.journal import JournalEntry
from shared.domain.messages import ToolCall
from worker.agents.body_process import Frame
from worker.run.run_handle import RunHandle


class Asked:
    """One call that waits."""

    def __init__(self, entry: JournalEntry, call: ToolCall, frame: Frame) -> None:
        self.entry = entry
        self.call = msgspec.structs.replace(call, needs_approval=True)
        self.by: AnsweredBy = "client" if frame.get("of_client") else "person"
        self._frame = frame

    def approval(self, handle: RunHandle, message_id: MessageId) -> Approval:
        """The request for a decision on the call of this message."""
        run, call, now = handle.run, self.call, handle.clock.now()
        expires_s = self._frame.get("expires_s")
        return Approval(
            id=handle.ids.approval(),
            project_id=run.project_id,
            agent_id=run.agent_id,
            thread_id=run.thread_id,
            run_id=run.id,
            message_id=message_id,
            tool_call_id=call.id,
            tool_name=call.name,
            arguments=call.arguments,
            arguments_hash=hash_of(call.arguments),
            tool_version=call.tool_version,
            client_side=self.by == "client",
            asked_at=now,
            expires_at=None if expires_s is None else now + timedelta(seconds=expires_s),
            on_expiry=self._frame.get("on_expiry", "keep"),
        )


def may_ask(frame: Frame) -> bool:
    """Whether a call that begins waits for a decision, unless there is one."""
    return frame["kind"] == "approval" or bool(frame.get("of_client") or frame.get("needs_approval"))
