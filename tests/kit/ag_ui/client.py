"""A client of AG-UI in Python: it verifies a stream by the rules of `verifyEvents` and builds messages from it, as
`@ag-ui/client` does. `tests/story/test_ag_ui_clients.py` compares the two. It is stricter where older releases refuse
something: no empty pieces, no null, no type and no outcome that they do not know.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

LONGEST_FRAME = 10 * 1024 * 1024
"""Characters after which clients reject a frame."""

FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "RUN_STARTED": ({"threadId", "runId"}, {"protocolVersion", "parentRunId", "input"}),
    "RUN_FINISHED": ({"threadId", "runId"}, {"outcome", "usage", "result"}),
    "RUN_ERROR": ({"message"}, {"code", "usage"}),
    "TEXT_MESSAGE_START": ({"messageId", "role"}, set()),
    "TEXT_MESSAGE_CONTENT": ({"messageId", "delta"}, set()),
    "TEXT_MESSAGE_END": ({"messageId"}, set()),
    "REASONING_START": ({"messageId"}, set()),
    "REASONING_MESSAGE_START": ({"messageId", "role"}, set()),
    "REASONING_MESSAGE_CONTENT": ({"messageId", "delta"}, set()),
    "REASONING_MESSAGE_END": ({"messageId"}, set()),
    "REASONING_END": ({"messageId"}, set()),
    "TOOL_CALL_START": ({"toolCallId", "toolCallName"}, {"parentMessageId"}),
    "TOOL_CALL_ARGS": ({"toolCallId", "delta"}, set()),
    "TOOL_CALL_END": ({"toolCallId"}, set()),
    "TOOL_CALL_RESULT": ({"messageId", "toolCallId", "content"}, {"role"}),
    "MESSAGES_SNAPSHOT": ({"messages"}, set()),
    "CUSTOM": ({"name", "value"}, set()),
}
"""The events that we send, with their required and their optional fields. Clients strip others, with
a warning for each."""

_OPENS = {
    "TEXT_MESSAGE_START": ("text", "messageId"),
    "REASONING_START": ("span", "messageId"),
    "REASONING_MESSAGE_START": ("reasoning", "messageId"),
    "TOOL_CALL_START": ("call", "toolCallId"),
}
_CONTINUES = {
    "TEXT_MESSAGE_CONTENT": ("text", "messageId"),
    "REASONING_MESSAGE_CONTENT": ("reasoning", "messageId"),
    "TOOL_CALL_ARGS": ("call", "toolCallId"),
}
_CLOSES = {
    "TEXT_MESSAGE_END": ("text", "messageId"),
    "REASONING_MESSAGE_END": ("reasoning", "messageId"),
    "REASONING_END": ("span", "messageId"),
    "TOOL_CALL_END": ("call", "toolCallId"),
}


class ClientRefused(AssertionError):
    """An error that the client throws."""


class Frame:
    """A frame of a stream."""

    def __init__(self, event: dict[str, Any], cursor: str | None) -> None:
        self.event, self.cursor = event, cursor


def frames_in(body: bytes) -> Iterator[Frame]:
    """The frames of a stream. Comments are left out."""
    text = body.decode()
    if "\r" in text:
        raise ClientRefused("a line ends with CR")
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if len(block) > LONGEST_FRAME:
            raise ClientRefused("a frame is too long")
        data = [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]
        if data:
            cursor = next((line.removeprefix("id: ") for line in lines if line.startswith("id: ")), None)
            yield Frame(json.loads("\n".join(data)), cursor)


class AgUiClient:
    """One client. It may read several streams, one after the other."""

    def __init__(self, messages: Sequence[dict[str, Any]] = (), *, is_current: bool = True) -> None:
        self.messages: list[dict[str, Any]] = copy.deepcopy(list(messages))
        self.is_current = is_current
        self.pending: list[dict[str, Any]] = []
        """The interrupts that it knows of."""
        self.outcomes: list[dict[str, Any]] = []
        """The outcome of each run so far: RUN_FINISHED or RUN_ERROR."""
        self.custom: list[dict[str, Any]] = []
        self.cursor: str | None = None
        self.connects()

    def connects(self) -> None:
        """A stream begins."""
        self._open: set[tuple[str, str]] = set()
        self._state = "before"

    def read(self, body: bytes) -> "AgUiClient":
        """Reads the whole frames of a stream."""
        for frame in frames_in(body):
            self.take(frame.event)
            self.cursor = frame.cursor or self.cursor
        return self

    @property
    def text(self) -> str:
        """The assistant's whole text."""
        return "".join(one.get("content", "") for one in self.messages if one["role"] == "assistant")

    def of_role(self, role: str) -> list[Any]:
        """The contents of the messages of one role."""
        return [one.get("content") for one in self.messages if one["role"] == role]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The role and content of each message with content."""
        return [(one["role"], str(one["content"])) for one in self.messages if one.get("content")]

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """The id, name and arguments of each call."""
        found = [call for one in self.messages for call in one.get("toolCalls", ())]
        return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in found]

    def take(self, event: dict[str, Any]) -> None:
        """Verifies and applies one event."""
        self._check_form(event)
        self._verify(event)
        self._apply(event)

    def _hold(self, is_kept: bool, rule: str, event: dict[str, Any]) -> None:
        if not is_kept:
            raise ClientRefused(f"{rule}: {json.dumps(event)[:500]}")

    def _check_form(self, event: dict[str, Any]) -> None:
        kind = event.get("type", "")
        self._hold(kind in FIELDS, "an event that clients do not know", event)
        needed, allowed = FIELDS[kind]
        fields = event.keys() - {"type", "timestamp", "metadata"}
        self._hold(needed <= fields <= needed | allowed, "other fields", event)
        self._hold(not _has_null(event), "a null", event)
        self._hold(event.get("delta") != "", "an empty piece, which older clients refuse", event)
        if kind == "TOOL_CALL_RESULT":
            types = (str, list) if self.is_current else (str,)
            self._hold(isinstance(event["content"], types), "a result of another form", event)
        if kind == "RUN_FINISHED" and not self.is_current:
            outcome = event.get("outcome", {"type": "success"})
            self._hold(outcome["type"] in ("success", "interrupt"), "an outcome of 1.0", event)
            self._hold("pendingToolCallIds" not in outcome, "a field of 1.0", event)

    def _verify(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "RUN_STARTED":
            self._hold(self._state != "running", "a run begins in a run", event)
            self._open.clear()
            self._state = "running"
            return
        if kind == "RUN_ERROR":
            self._hold(self._state != "failed", "an error after an error", event)
            self._state = "failed"
            return
        self._hold(self._state == "running", f"an event outside of a run ({self._state})", event)
        if kind == "RUN_FINISHED":
            self._hold(not self._open, f"{self._open} still active", event)
            self._state = "finished"
        if kind in _OPENS:
            key = _key(_OPENS[kind], event)
            self._hold(key not in self._open, "open already", event)
            self._open.add(key)
        if kind in _CONTINUES or kind in _CLOSES:
            key = _key((_CONTINUES | _CLOSES)[kind], event)
            self._hold(key in self._open, "not open", event)
            if kind in _CLOSES:
                self._open.discard(key)

    def _apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "RUN_STARTED":
                known = {one["id"] for one in self.messages}
                added = event.get("input", {}).get("messages", ())
                self.messages += [copy.deepcopy(one) for one in added if one["id"] not in known]
            case "RUN_FINISHED":
                self.outcomes.append(event)
                outcome = event.get("outcome", {})
                self.pending = outcome["interrupts"] if outcome.get("type") == "interrupt" else []
            case "RUN_ERROR":
                self.outcomes.append(event)
            case "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START":
                if self._message(event["messageId"]) is None:
                    self.messages.append({"id": event["messageId"], "role": event["role"], "content": ""})
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                message = self._message(event["messageId"])
                self._hold(message is not None, "a message that is not there", event)
                assert message is not None
                message["content"] = message.get("content", "") + event["delta"]
            case "TOOL_CALL_RESULT":
                self._put_result(event)
            case "MESSAGES_SNAPSHOT":
                self._put_snapshot(event["messages"])
            case "CUSTOM":
                self.custom.append(event)
            case _:
                self._apply_call(event)

    def _apply_call(self, event: dict[str, Any]) -> None:
        if event["type"] == "TOOL_CALL_START" and self._call(event["toolCallId"]) is None:
            parent = event.get("parentMessageId", event["toolCallId"])
            message = self._message(parent)
            if message is None:
                message = dict[str, Any](id=parent, role="assistant")
                self.messages.append(message)
            function = {"name": event["toolCallName"], "arguments": ""}
            calls = message.setdefault("toolCalls", [])
            calls.append({"id": event["toolCallId"], "type": "function", "function": function})
        if event["type"] == "TOOL_CALL_ARGS":
            call = self._call(event["toolCallId"])
            assert call is not None
            call["function"]["arguments"] += event["delta"]

    def _put_result(self, event: dict[str, Any]) -> None:
        names = ("toolCallId", "content", "metadata")
        fields = {name: event[name] for name in names if name in event}
        message = {"id": event["messageId"], "role": "tool", **fields}
        place = len(self.messages)
        for number, one in enumerate(self.messages):
            if any(call["id"] == event["toolCallId"] for call in one.get("toolCalls", ())):
                place = number + 1
                while place < len(self.messages) and self.messages[place]["role"] == "tool":
                    place += 1
                break
        self.messages.insert(place, message)

    def _put_snapshot(self, given: list[dict[str, Any]]) -> None:
        new = {one["id"]: copy.deepcopy(one) for one in given}
        has_reasoning = any(one["role"] == "reasoning" for one in given)
        kept = [one for one in self.messages if one["id"] in new or (one["role"] == "reasoning" and not has_reasoning)]
        self.messages = [new.get(one["id"], one) for one in kept]
        known = {one["id"] for one in self.messages}
        self.messages += [one for name, one in new.items() if name not in known]

    def _message(self, message_id: str) -> dict[str, Any] | None:
        return next((one for one in self.messages if one["id"] == message_id), None)

    def _call(self, call_id: str) -> dict[str, Any] | None:
        calls = (call for one in self.messages for call in one.get("toolCalls", ()))
        return next((call for call in calls if call["id"] == call_id), None)


class OldestAgUiClient(AgUiClient):
    """Release 0.0.47. It puts results at the end, adds calls only to the last message, opens no call again, keeps no
    reasoning that a snapshot lacks, and does not verify reasoning."""

    def __init__(self, messages: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(messages, is_current=False)

    def _verify(self, event: dict[str, Any]) -> None:
        if not event["type"].startswith("REASONING_"):
            super()._verify(event)

    def _apply_call(self, event: dict[str, Any]) -> None:
        if event["type"] == "TOOL_CALL_START":
            parent = event["parentMessageId"]
            if not self.messages or self.messages[-1]["id"] != parent:
                self.messages.append(dict[str, Any](id=parent, role="assistant"))
            function = {"name": event["toolCallName"], "arguments": ""}
            calls = self.messages[-1].setdefault("toolCalls", [])
            calls.append({"id": event["toolCallId"], "type": "function", "function": function})
            return
        super()._apply_call(event)

    def _put_result(self, event: dict[str, Any]) -> None:
        fields = {name: event[name] for name in ("toolCallId", "content")}
        self.messages.append({"id": event["messageId"], "role": "tool", **fields})

    def _put_snapshot(self, given: list[dict[str, Any]]) -> None:
        new = {one["id"]: copy.deepcopy(one) for one in given}
        self.messages = [copy.deepcopy(new[one["id"]]) for one in self.messages if one["id"] in new]
        known = {one["id"] for one in self.messages}
        self.messages += [one for name, one in new.items() if name not in known]


def _key(kind: tuple[str, str], event: dict[str, Any]) -> tuple[str, str]:
    return kind[0], event[kind[1]]


def _has_null(value: Any) -> bool:
    match value:
        case dict():
            return any(map(_has_null, cast("dict[str, Any]", value).values()))
        case list():
            return any(map(_has_null, cast("list[Any]", value)))
        case _:
            return value is None
