"""Answers of the worker's models: in the journal's form, and in OpenAI's two dialects, streamed or whole. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from shared.domain.journal import JournalEntry
from shared.domain.messages import AssistantMessage, Reasoning, ToolCall
from shared.domain.runs import Usage
from worker.agents.models.requests import ModelRequest
from worker.models.provider import (
    CallArguments,
    CallFinished,
    CallStarted,
    Finished,
    FinishReason,
    ModelEvent,
    Text,
    Thought,
)

Frame = dict[str, Any]


class RecordedAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A complete answer."""

    text: str
    reasoning: str
    calls: list[ToolCall]
    reason: FinishReason
    usage: Usage
    kept: str | None = None
    """As `AssistantMessage.provider_response`."""
    signature: str | None = None
    model: str = ""
    """The model's handle."""

    def events(self) -> list[ModelEvent]:
        """Returns the answer's events, as if the model gave it now."""
        said: list[ModelEvent] = [Thought(self.reasoning)] if self.reasoning else []
        said += [Text(self.text)] if self.text else []
        for number, call in enumerate(self.calls):
            said.append(CallStarted(number, call.id, call.name))
            said.append(CallFinished(number, call.id, call.name, call.arguments))
        return [*said, Finished(self.reason, self.usage, self.kept)]

    def message(self) -> AssistantMessage:
        """Returns the answer for a history, in the form that its provider needs."""
        reasoning = Reasoning(self.reasoning, self.signature) if self.reasoning else None
        kept, model = self.kept, self.model
        return AssistantMessage(
            text=self.text, reasoning=reasoning, tool_calls=self.calls, provider_response=kept, model=model
        )


def recorded(events: Iterable[ModelEvent], model: str) -> RecordedAnswer:
    """Returns the answer that these events form. The last event is `Finished`."""
    text, thoughts, calls, end = "", "", dict[int, ToolCall](), Finished("stop", Usage(), None)
    signature = None
    for event in events:
        match event:
            case Text():
                text += event.text
            case Thought():
                thoughts, signature = thoughts + event.text, event.signature or signature
            case CallFinished():
                calls[event.index] = ToolCall(event.call_id, event.name, event.arguments)
            case Finished():
                end = event
            case _:
                pass
    return RecordedAnswer(
        text, thoughts, list(calls.values()), end.reason, end.usage, end.provider_response, signature, model
    )


class _Head(NamedTuple):
    """The fields of an answer that do not depend on the model, so that a replay produces the same fields."""

    id: str
    created: int
    model: str


def _head(prefix: str, entry: JournalEntry, asked: ModelRequest) -> _Head:
    return _Head(f"{prefix}{entry.idempotency_key.removeprefix('hf-')}", int(entry.started_at.timestamp()), asked.name)


class ChatAnswer:
    """An answer as a chat completion."""

    end: Sequence[bytes] = (b"data: [DONE]\n\n",)

    def __init__(self, entry: JournalEntry, asked: ModelRequest) -> None:
        self._head = _head("chatcmpl-", entry, asked)
        self._shows_usage = asked.shows_usage
        self._events: list[ModelEvent] = []
        self._written: dict[int, str] = {}

    def begin(self) -> list[Frame]:
        """The first chunk."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def take(self, event: ModelEvent) -> list[Frame]:
        """The chunks for the next event."""
        self._events.append(event)
        match event:
            case Text(text=text) if text:
                return [self._chunk({"content": text})]
            case Thought(text=text) if text:
                return [self._chunk({"reasoning_content": text})]
            case CallStarted(index=index, call_id=call_id, name=name):
                self._written[index] = ""
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return [self._chunk({"tool_calls": [call]})]
            case CallArguments(index=index, text=text):
                return self._arguments(index, text)
            case CallFinished(index=index, arguments=arguments):
                return self._arguments(index, rest_of(arguments, self._written[index]))
            case Finished(reason=reason, usage=usage):
                ended = [self._chunk({}, finish_reason=reason)]
                return [*ended, {**self._chunk(None), "usage": _chat_usage(usage)}] if self._shows_usage else ended
            case _:
                return []

    def whole(self) -> Frame:
        """The completion after the last event."""
        answer, head = recorded(self._events, ""), self._head
        message: Frame = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.reason}
        whole = {"id": head.id, "object": "chat.completion", "created": head.created, "model": head.model}
        return {**whole, "choices": [choice], "usage": _chat_usage(answer.usage)}

    def framed(self, frame: Frame) -> bytes:
        """The frame as a server-sent event."""
        return b"data: " + msgspec.json.encode(frame) + b"\n\n"

    def _arguments(self, index: int, text: str) -> list[Frame]:
        self._written[index] += text
        return [self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})] if text else []

    def _chunk(self, delta: Frame | None, finish_reason: str | None = None) -> Frame:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        head = self._head
        chunk = {"id": head.id, "object": "chat.completion.chunk", "created": head.created, "model": head.model}
        return {**chunk, "choices": [] if delta is None else [choice]}


def rest_of(arguments: str, written: str) -> str:
    """Returns the part of the arguments that was not written yet."""
    return arguments[len(written) :] if arguments.startswith(written) else ""


def _chat_usage(used: Usage) -> Frame:
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
    }


_PART: dict[str, Frame] = {
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "reasoning": {"type": "summary_text", "text": ""},
}


class ResponseAnswer:
    """An answer as a response, item by item."""

    end: Sequence[bytes] = ()

    def __init__(self, entry: JournalEntry, asked: ModelRequest) -> None:
        self._head = _head("resp_", entry, asked)
        self._asked = asked
        self._items: list[Frame] = []
        self._open: Frame | None = None
        """The unfinished message or reasoning."""
        self._calls: dict[int, Frame] = {}
        self._number = 0
        self._response = self._as_response("in_progress", None)

    def begin(self) -> list[Frame]:
        """The first events."""
        return [self._event(f"response.{name}", response=self._response) for name in ("created", "in_progress")]

    def take(self, event: ModelEvent) -> list[Frame]:
        """The events for the next event of the model."""
        match event:
            case Text(text=text) if text:
                return self._say("message", text)
            case Thought(text=text) if text:
                return self._say("reasoning", text)
            case CallStarted(index=index, call_id=call_id, name=name):
                closed = self._close()
                item = self._new("function_call", "fc_", call_id=call_id, name=name, arguments="")
                self._calls[index] = item
                return [*closed, self._of_whole("added", item)]
            case CallArguments(index=index, text=text):
                return self._argue(self._calls[index], text)
            case CallFinished(index=index, arguments=arguments):
                call = self._calls[index]
                return self._argue(call, rest_of(arguments, call["arguments"]))
            case Finished():
                return [*self._close(), *self._close_calls(), self._end(event)]
            case _:
                return []

    def whole(self) -> Frame:
        """The response after the last event."""
        return self._response

    def framed(self, frame: Frame) -> bytes:
        """The frame as a server-sent event."""
        return f"event: {frame['type']}\n".encode() + b"data: " + msgspec.json.encode(frame) + b"\n\n"

    def _say(self, kind: str, text: str) -> list[Frame]:
        events: list[Frame] = []
        if self._open is None or self._open["type"] != kind:
            events = [*self._close(), *self._begin_text(kind)]
        item = self._open or {}
        part = _parts(item)[0]
        part["text"] += text
        return [*events, self._of_text(item, "delta", delta=text)]

    def _begin_text(self, kind: str) -> list[Frame]:
        if kind == "message":
            self._open = item = self._new("message", "msg_", role="assistant", content=[])
        else:
            self._open = item = self._new("reasoning", "rs_", summary=[])
        added = self._of_whole("added", item)
        _parts(item).append(dict(_PART[kind]))
        return [added, self._of_part(item, "added")]

    def _close(self) -> list[Frame]:
        """Ends the unfinished text."""
        item, self._open = self._open, None
        if item is None:
            return []
        item["status"] = "completed"
        text = self._of_text(item, "done", text=_parts(item)[0]["text"])
        return [text, self._of_part(item, "done"), self._of_whole("done", item)]

    def _argue(self, call: Frame, text: str) -> list[Frame]:
        call["arguments"] += text
        return [self._of_item("response.function_call_arguments.delta", call, delta=text)] if text else []

    def _close_calls(self) -> list[Frame]:
        events: list[Frame] = []
        for call in self._calls.values():
            call["status"] = "completed"
            said = {"name": call["name"], "arguments": call["arguments"]}
            events.append(self._of_item("response.function_call_arguments.done", call, **said))
            events.append(self._of_whole("done", call))
        return events

    def _end(self, finished: Finished) -> Frame:
        is_cut = finished.reason in ("length", "content_filter")
        status = "incomplete" if is_cut else "completed"
        self._response = self._as_response(status, finished.usage)
        if is_cut:
            reason = "max_output_tokens" if finished.reason == "length" else "content_filter"
            self._response["incomplete_details"] = {"reason": reason}
        return self._event(f"response.{status}", response=self._response)

    def _as_response(self, status: str, usage: Usage | None) -> Frame:
        head, choice = self._head, self._asked.choice
        named = {"type": "function", "name": choice[1:]} if choice.startswith("=") else choice
        tools = [
            {"type": "function", "name": one.name, "description": one.description, "parameters": one.parameters}
            for one in self._asked.tools
        ]
        fields = {"id": head.id, "object": "response", "created_at": head.created, "model": head.model}
        fields |= {"status": status, "error": None, "incomplete_details": None, "instructions": None, "metadata": {}}
        fields |= {"output": list(self._items), "usage": None if usage is None else _response_usage(usage)}
        parallel = self._asked.options.get("parallel_tool_calls", True)
        return {**fields, "tools": tools, "tool_choice": named, "parallel_tool_calls": parallel}

    def _new(self, kind: str, prefix: str, **fields: Any) -> Frame:
        own_id = f"{prefix}{self._head.id.removeprefix('resp_')}-{len(self._items)}"
        item: Frame = {"id": own_id, "type": kind, "status": "in_progress", **fields}
        self._items.append(item)
        return item

    def _of_part(self, item: Frame, what: str) -> Frame:
        kind = "response.content_part" if item["type"] == "message" else "response.reasoning_summary_part"
        return self._of_item(f"{kind}.{what}", item, **_place(item), part=dict(_parts(item)[0]))

    def _of_text(self, item: Frame, what: str, **fields: Any) -> Frame:
        is_message = item["type"] == "message"
        kind = "response.output_text" if is_message else "response.reasoning_summary_text"
        logprobs: Frame = {"logprobs": []} if is_message else {}
        return self._of_item(f"{kind}.{what}", item, **_place(item), **fields, **logprobs)

    def _of_whole(self, what: str, item: Frame) -> Frame:
        shown = msgspec.json.decode(msgspec.json.encode(item))  # a copy of its present state
        return self._event(f"response.output_item.{what}", output_index=self._items.index(item), item=shown)

    def _of_item(self, kind: str, item: Frame, **fields: Any) -> Frame:
        return self._event(kind, output_index=self._items.index(item), item_id=item["id"], **fields)

    def _event(self, kind: str, **fields: Any) -> Frame:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _place(item: Frame) -> Frame:
    return {"content_index": 0} if item["type"] == "message" else {"summary_index": 0}


def _parts(item: Frame) -> list[Frame]:
    return item["content"] if item["type"] == "message" else item["summary"]


def _response_usage(used: Usage) -> Frame:
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": used.cached_input_tokens,
            "cache_write_tokens": used.cache_write_tokens,
        },
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }
