"""A request of OpenAI's Chat Completions, for OpenAI's models that do not reason and for every server that imitates it.

Where a server differs from OpenAI's is in its `Quirks`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from shared.domain.model_catalog import family_of
from shared.domain.model_providers import PROVIDERS
from shared.domain.model_servers import Quirks
from worker.models.history_mapping import map_history
from worker.models.provider import ModelCall, Route, ToolSpec
from worker.models.special_tokens import broken_tokens, tokenizes_text
from worker.models.tool_schema import NO_PARAMETERS, inlined, tool_schema
from worker.models.turns import Answered, Called, Image, ImageLink, Prompt, Reasoned, Result, Said, Turn

FROM_TAGS = "content"
"""The name of reasoning that came in tags inside the text, not in a field of its own."""
_FIELDS_OF_REASONING = ("reasoning", "reasoning_content")
THINK_TAGS = ("<think>", "</think>")
_FOLLOW_NO_REFERENCES = ("qwen/", "meta-llama/", "amazon/", "google/")
"""Beginnings of the names under which hosts serve models that want a tool's schema in one piece."""


_Message = dict[str, Any]


class ChatRequest:
    """Makes the requests of one route."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._quirks = PROVIDERS[route.provider].quirks
        length = self._quirks.call_id_length
        self._safe_call_id = None if length is None else partial(_short_call_id, length=length)
        self._follows_references = not route.model.lower().startswith(_FOLLOW_NO_REFERENCES)
        self._guard: Callable[[str], str] = broken_tokens if tokenizes_text(route.model) else str

    def body(self, call: ModelCall) -> bytes:
        """The request as JSON. Raises `ModelError` for what cannot be sent."""
        turns = map_history(call, provider_name=self._route.provider, safe_call_id=self._safe_call_id)
        if call.beginning:
            turns.append(Answered([Said(call.beginning)]))
        body: dict[str, Any] = {"model": self._route.model, "stream": True, "messages": self._messages(call, turns)}
        body["stream_options"] = {"include_usage": True} if self._quirks.takes_stream_options else None
        body |= self._options(call)
        if call.tools:
            body |= self._tools(call)
        return msgspec.json.encode(body)

    def _messages(self, call: ModelCall, turns: Sequence[Turn]) -> list[_Message]:
        messages = [message for turn in turns for message in self._turn(turn)]
        _complete_reasoning(messages, self._quirks)
        instructions = [{"role": "system", "content": call.system}] if call.system else []
        return [*instructions, *messages]

    def _turn(self, turn: Turn) -> Iterator[_Message]:
        if isinstance(turn, Answered):
            if (message := self._answer(turn)) is not None:
                yield message
            return
        yield from (self._asked(part) for part in turn.parts)
        images = [part for one in turn.parts if isinstance(one, Result) for part in self._images(one)]
        if images:
            yield {"role": "user", "content": images}

    def _asked(self, part: Prompt | Result) -> _Message:
        if isinstance(part, Result):
            content = self._guard(json.dumps(part.envelope, ensure_ascii=False))
            return {"role": "tool", "tool_call_id": part.call_id, "content": content}
        if isinstance(part.content, str):
            return {"role": "user", "content": self._guard(part.content)}
        return {"role": "user", "content": [self._content(one) for one in part.content]}

    def _content(self, part: str | Image) -> _Message:
        if isinstance(part, str):
            return {"type": "text", "text": self._guard(part)}
        return {"type": "image_url", "image_url": {"url": part.url if isinstance(part, ImageLink) else part.data_url}}

    def _images(self, result: Result) -> list[_Message]:
        """A result is text alone on this wire, so a user shows its images, after all results."""
        if not result.images:
            return []
        label = f"The images in the result of the call {result.call_id} ({result.tool_name}):"
        return [{"type": "text", "text": self._guard(label)}, *(self._content(image) for image in result.images)]

    def _answer(self, turn: Answered) -> _Message | None:
        texts: list[str] = []
        fields: dict[str, list[str]] = {}
        calls: list[_Message] = []
        for part in turn.parts:
            match part:
                case Said(text=text):
                    texts.append(self._guard(text))
                case Reasoned(text=text, id=name):
                    field = self._field_for(name)
                    if field is not None:
                        fields.setdefault(field, []).append(self._guard(text))
                    elif self._quirks.reasoning_goes_back == "as it came":
                        texts.append("\n".join((THINK_TAGS[0], self._guard(text), THINK_TAGS[1])))
                case Called():
                    calls.append(self._call(part))
        if not texts and not calls:
            return None
        reasoning = {field: "\n\n".join(pieces) for field, pieces in fields.items()}
        message = {"role": "assistant", **reasoning, "content": "\n\n".join(texts) if texts else None}
        return {**message, "tool_calls": calls} if calls else message

    def _field_for(self, name: str | None) -> str | None:
        """The field in which reasoning goes back, if it does in one."""
        match self._quirks.reasoning_goes_back:
            case "always":
                return "reasoning_content"
            case "as it came":
                return None if name == FROM_TAGS else name
            case "never":
                return None

    def _call(self, call: Called) -> _Message:
        function = {"name": self._guard(call.name), "arguments": self._guard(call.arguments)}
        return {"id": call.id, "type": "function", "function": function, **(call.details or {})}

    def _options(self, call: ModelCall) -> _Message:
        options, family, quirks = call.options, family_of(call.handle), self._quirks
        is_openais_own = self._route.provider == "openai"
        fields: _Message = {}
        if options.temperature is not None and family.takes_temperature:
            fields["temperature"] = options.temperature
        if options.max_output_tokens is not None:
            fields[quirks.limit_field] = options.max_output_tokens
        if options.response_format is not None and options.response_format.get("type") != "text":
            # Every model answers in text anyway.
            fields["response_format"] = options.response_format
        if options.verbosity is not None and family.takes_verbosity:
            fields["verbosity"] = options.verbosity
        if options.reasoning and options.reasoning_effort is not None and not is_openais_own:
            # The models that OpenAI itself serves over this wire do not reason, and refuse the field.
            fields["reasoning_effort"] = options.reasoning_effort
        if quirks.has_thinking_switch and family.can_think:
            fields["thinking"] = {"type": "enabled" if options.reasoning else "disabled"}
        if call.beginning and quirks.continues_answers == "when told":
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        if call.thread_id and is_openais_own:
            fields["prompt_cache_key"] = call.thread_id
        return fields

    def _tools(self, call: ModelCall) -> _Message:
        forced = call.must_call and self._quirks.takes_forced_calls
        fields: _Message = {
            "tools": [_tool(tool, follows_references=self._follows_references) for tool in call.tools],
            "tool_choice": "required" if forced else "auto",
        }
        if self._quirks.takes_parallel_tool_calls and family_of(call.handle).takes_parallel_tool_calls:
            fields["parallel_tool_calls"] = call.options.parallel_tool_calls
        return fields


def _tool(tool: ToolSpec, *, follows_references: bool) -> _Message:
    function: _Message = {"name": tool.name, "description": tool.description}
    if follows_references:
        schema = tool_schema(tool.parameters or NO_PARAMETERS)
        function |= {"parameters": schema.parameters, **({"strict": True} if schema.is_strict else {})}
    else:
        function |= {"parameters": inlined(tool.parameters or NO_PARAMETERS), "strict": True}
    return {"type": "function", "function": function}


def _complete_reasoning(messages: list[_Message], quirks: Quirks) -> None:
    """Adds an empty field of reasoning to answers with calls that have none, where the server would refuse them.

    Whether it would is known of some servers; others have shown which field they use, and want it since the last
    question only.
    """
    answers = [message for message in messages if message["role"] == "assistant"]
    if quirks.reasoning_goes_back == "always":
        fields, since = {"reasoning_content"}, 0
    else:
        fields = {field for message in answers for field in _FIELDS_OF_REASONING if field in message}
        since = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1) + 1
    if len(fields) != 1:
        return
    [field] = fields
    for message in messages[since:]:
        if message["role"] == "assistant" and "tool_calls" in message:
            message.setdefault(field, "")


def _short_call_id(call_id: str, length: int) -> str:
    """The id if it is as short as the server's own; else one that always comes out the same for this one."""
    if len(call_id) == length and call_id.isalnum() and call_id.isascii():
        return call_id
    return sha256(call_id.encode()).hexdigest()[:length]
