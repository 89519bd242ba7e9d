"""The smallest client of UI message streams: it accepts what `ai` accepts, in its versions 5, 6 and 7, and makes the
same message of it. A test compares the real packages with it (`tests/story/test_ai_sdk_clients.py`).

    reader = UiMessageReader(7)
    reader.read(body)
    assert reader.message["parts"][-1]["text"] == "Hello."
"""

import json
from typing import Any, Literal

Sdk = Literal[5, 6, 7]
Chunk = dict[str, Any]

_SINCE_6 = {"tool-approval-request", "tool-output-denied"}
_SINCE_7 = {"reset-step", "steering-message", "tool-approval-response"}
_FIELDS: dict[str, set[str]] = {
    "start": set(),
    "message-metadata": {"messageMetadata"},
    "start-step": set(),
    "finish-step": set(),
    "reset-step": set(),
    "text-start": {"id"},
    "text-delta": {"id", "delta"},
    "text-end": {"id"},
    "reasoning-start": {"id"},
    "reasoning-delta": {"id", "delta"},
    "reasoning-end": {"id"},
    "tool-input-start": {"toolCallId", "toolName"},
    "tool-input-delta": {"toolCallId", "inputTextDelta"},
    "tool-input-available": {"toolCallId", "toolName"},
    "tool-input-error": {"toolCallId", "toolName", "errorText"},
    "tool-output-available": {"toolCallId", "output"},
    "tool-output-error": {"toolCallId", "errorText"},
    "tool-output-denied": {"toolCallId"},
    "tool-approval-request": {"toolCallId", "approvalId"},
    "tool-approval-response": {"approvalId", "approved"},
    "steering-message": {"id", "parts"},
    "abort": set(),
    "finish": set(),
    "error": {"errorText"},
}
"""The types of chunks, and the fields that each must have."""

_REASONS = {"stop", "length", "content-filter", "tool-calls", "error", "other"}
DONE = "[DONE]"


def chunks_in(body: bytes) -> list[Any]:
    """The chunks of a stream's bytes, `DONE` among them."""
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    return [DONE if line == DONE else json.loads(line) for line in lines]


class UiMessageReader:
    """Reads one answer. Raises `AssertionError` if the SDK would take the stream for broken."""

    def __init__(self, sdk: Sdk = 7, message: dict[str, Any] | None = None) -> None:
        """`message` is the one that the stream continues."""
        self.sdk = sdk
        self.message: dict[str, Any] = json.loads(json.dumps(message)) if message else _begun()
        self.chunks: list[Any] = []
        self.error: str | None = None
        self.finish_reason: str | None = None
        self.is_done = False
        self.transient: list[Chunk] = []
        self._open: dict[tuple[str, str], dict[str, Any]] = {}
        self._inputs: dict[str, str] = {}

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of the message."""
        return self.message["parts"]

    @property
    def text(self) -> str:
        """All the text of the message."""
        return "".join(part["text"] for part in self.parts if part["type"] == "text")

    def read(self, body: bytes) -> "UiMessageReader":
        """Takes the chunks of a stream's bytes."""
        for chunk in chunks_in(body):
            self.take(chunk)
        return self

    def take(self, chunk: Any) -> None:
        """Takes the next chunk."""
        assert not self.is_done, f"a chunk behind the end: {chunk}"
        self.chunks.append(chunk)
        if chunk == DONE:
            self.is_done = True
            return
        assert self.error is None, f"nothing is read behind an error: {chunk}"
        self._check(chunk)
        kind = chunk["type"]
        if kind.startswith("data-"):
            self._take_data(chunk)
        elif kind.startswith(("text-", "reasoning-")):
            self._take_text(kind, chunk)
        elif kind.startswith("tool-"):
            self._take_tool(kind, chunk)
        else:
            self._take_frame(kind, chunk)

    def _check(self, chunk: Chunk) -> None:
        kind = chunk["type"]
        assert None not in chunk.values() or kind in ("tool-output-available", "tool-input-available"), f"null: {chunk}"
        if kind.startswith("data-"):
            assert "data" in chunk
            return
        assert kind in _FIELDS, f"unknown: {chunk}"
        assert _FIELDS[kind] <= set(chunk), f"a field is missing: {chunk}"
        assert self.sdk >= 6 or kind not in _SINCE_6, f"version 5 does not know {kind}"
        assert self.sdk >= 7 or kind not in _SINCE_7, f"version {self.sdk} does not know {kind}"
        if kind == "finish" and "finishReason" in chunk:
            known = _REASONS | ({"interrupted"} if self.sdk >= 7 else set[str]())
            assert chunk["finishReason"] in known, f"unknown: {chunk}"

    def _take_frame(self, kind: str, chunk: Chunk) -> None:
        match kind:
            case "start" | "message-metadata":
                self.message["id"] = chunk.get("messageId", self.message.get("id"))
                self.message["metadata"] = {**self.message.get("metadata", {}), **chunk.get("messageMetadata", {})}
            case "start-step":
                self.parts.append({"type": "step-start"})
            case "reset-step":
                assert not self._open, "parts are closed before their step is taken back"
                self._inputs.clear()
                del self.parts[self._step_at() :]
            case "steering-message":
                self.parts.append({"type": kind, "id": chunk["id"], "parts": chunk["parts"]})
            case "error":
                self.error = chunk["errorText"]
            case "finish":
                self.finish_reason = chunk.get("finishReason")
            case _:
                pass

    def _take_data(self, chunk: Chunk) -> None:
        if chunk.get("transient"):
            self.transient.append(chunk)
            return
        same = [part for part in self.parts if part["type"] == chunk["type"] and part.get("id") == chunk.get("id")]
        if same and "id" in chunk:
            same[0]["data"] = chunk["data"]
        else:
            self.parts.append(dict(chunk))

    def _take_text(self, whole_kind: str, chunk: Chunk) -> None:
        kind, _, what = whole_kind.partition("-")
        key = (kind, chunk["id"])
        if what == "start":
            named = {"id": chunk["id"]} if kind == "reasoning" else {}
            part = {"type": kind, **named, "text": "", "state": "streaming"}
            self._open[key] = part
            self.parts.append(part)
            return
        assert key in self._open, f"{what} without start: {chunk}"
        if what == "delta":
            assert chunk["delta"], "an empty delta"
            self._open[key]["text"] += chunk["delta"]
        else:
            self._open.pop(key)["state"] = "done"

    def _take_tool(self, kind: str, chunk: Chunk) -> None:
        call = chunk.get("toolCallId", "")
        match kind:
            case "tool-input-start":
                self._inputs[call] = ""
                self._set(chunk, state="input-streaming")
            case "tool-input-delta":
                assert call in self._inputs, f"delta without start: {chunk}"
                self._inputs[call] += chunk["inputTextDelta"]
            case "tool-input-available":
                self._set(chunk, state="input-available", input=chunk.get("input"))
            case "tool-input-error":
                input_name = "input" if self.sdk >= 7 or chunk.get("dynamic") else "rawInput"
                self._set(chunk, state="output-error", errorText=chunk["errorText"], **{input_name: chunk["input"]})
            case "tool-approval-response":
                part = next(part for part in self.parts if part.get("approval", {}).get("id") == chunk["approvalId"])
                said = {name: chunk[name] for name in ("approved", "reason") if name in chunk}
                part["state"] = "approval-responded"
                part["approval"] = {**part["approval"], **said}
            case _:
                self._take_output(kind, chunk)

    def _take_output(self, kind: str, chunk: Chunk) -> None:
        calls = [part for part in self.parts if part.get("toolCallId") == chunk["toolCallId"]]
        if self.sdk == 5:
            calls = [part for part in calls if (part["type"] == "dynamic-tool") is chunk.get("dynamic", False)]
        assert calls, f"No tool invocation found for tool call ID {chunk['toolCallId']}"
        part = calls[-1]
        match kind:
            case "tool-approval-request":
                part |= {"state": "approval-requested", "approval": {"id": chunk["approvalId"]}}
            case "tool-output-denied":
                part["state"] = "output-denied"
            case "tool-output-error":
                part |= {"state": "output-error", "errorText": chunk["errorText"]}
            case _:
                part |= {"state": "output-available", "output": chunk["output"]}

    def _set(self, chunk: Chunk, **fields: Any) -> None:
        is_dynamic = chunk.get("dynamic", False)
        kind = "dynamic-tool" if is_dynamic else f"tool-{chunk['toolName']}"
        named = {"type": kind, "toolCallId": chunk["toolCallId"]}
        if is_dynamic:
            named["toolName"] = chunk["toolName"]
        if "providerExecuted" in chunk:
            fields["providerExecuted"] = chunk["providerExecuted"]
        for part in self.parts[self._step_at() :]:
            if part["type"] == kind and part["toolCallId"] == chunk["toolCallId"]:
                part |= fields
                return
        self.parts.append({**named, **fields})

    def _step_at(self) -> int:
        """The place behind the last beginning of a step."""
        steps = [number for number, part in enumerate(self.parts, start=1) if part["type"] == "step-start"]
        return steps[-1] if steps else 0


def _begun() -> dict[str, Any]:
    return {"role": "assistant", "parts": []}
