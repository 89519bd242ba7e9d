"""Identifiers. An id is a prefix that names its noun, a dash and a UUID4."""

import re
from collections.abc import Callable
from typing import NewType
from uuid import UUID, uuid4

AgentId = NewType("AgentId", str)
ApprovalId = NewType("ApprovalId", str)
ArchiveId = NewType("ArchiveId", str)
AuditEventId = NewType("AuditEventId", str)
BlockId = NewType("BlockId", str)
ConversationId = NewType("ConversationId", str)
GroupId = NewType("GroupId", str)
McpServerId = NewType("McpServerId", str)
McpSignInId = NewType("McpSignInId", str)
KeyId = NewType("KeyId", str)
MessageId = NewType("MessageId", str)
PassageId = NewType("PassageId", str)
ProjectId = NewType("ProjectId", str)
RunId = NewType("RunId", str)
StepId = NewType("StepId", str)
ToolId = NewType("ToolId", str)
WebhookId = NewType("WebhookId", str)

ThreadId = NewType("ThreadId", str)
"""The history that a run reads and extends: a conversation's id, the agent's own id for its default history, or,
outside of conversations, the id of the run that began the history."""

Fence = NewType("Fence", int)
"""Grows with every claim of a run; SQL and the log refuse a write with an old one."""

Seq = NewType("Seq", int)
"""Number of an event in its run's log (`log_writer`). A reader's cursor is the last one that it has seen."""

MAX_SEQ = Seq(2**53 - 1)
"""The largest number that a client of any language can write exactly; no log gets that far."""

UUID4_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_UUID4 = re.compile(f"[a-z_]+-{UUID4_PATTERN}")


def is_id(text: str, prefix: str) -> bool:
    """Whether `text` is `<prefix>-<uuid4>`."""
    return text.startswith(f"{prefix}-") and _UUID4.fullmatch(text) is not None


class IdMaker:
    """Makes new ids. Tests give it a counted `make_uuid`; the product uses `uuid4`."""

    def __init__(self, make_uuid: Callable[[], UUID] = uuid4) -> None:
        self._make_uuid = make_uuid

    def agent(self) -> AgentId:
        return AgentId(self._make("agent"))

    def approval(self) -> ApprovalId:
        return ApprovalId(self._make("approval"))

    def archive(self) -> ArchiveId:
        return ArchiveId(self._make("archive"))

    def audit_event(self) -> AuditEventId:
        return AuditEventId(self._make("audit"))

    def block(self) -> BlockId:
        return BlockId(self._make("block"))

    def claim(self) -> str:
        """The part of an owner's name that no other claim has."""
        return self._make("claim")

    def conversation(self) -> ConversationId:
        return ConversationId(self._make("conv"))

    def group(self) -> GroupId:
        return GroupId(self._make("group"))

    def key(self) -> KeyId:
        return KeyId(self._make("key"))

    def message(self) -> MessageId:
        return MessageId(self._make("message"))

    def passage(self) -> PassageId:
        return PassageId(self._make("passage"))

    def run(self) -> RunId:
        return RunId(self._make("run"))

    def step(self) -> StepId:
        return StepId(self._make("step"))

    def tool(self) -> ToolId:
        return ToolId(self._make("tool"))

    def tool_call(self) -> str:
        """The id of a call that has none from a model."""
        return self._make("call")

    def mcp_session(self) -> str:
        """The name of the session of an MCP client that began with a handshake."""
        return self._make("mcp_session")

    def mcp_server(self) -> McpServerId:
        return McpServerId(self._make("mcp_server"))

    def mcp_sign_in(self) -> McpSignInId:
        return McpSignInId(self._make("mcp_oauth"))

    def webhook(self) -> WebhookId:
        return WebhookId(self._make("webhook"))

    def _make(self, prefix: str) -> str:
        return f"{prefix}-{self._make_uuid()}"
