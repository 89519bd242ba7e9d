"""OpenAI's Chat Completions: builds requests, and turns an answer's chunks into events. No I/O.

Compatible servers send many things that OpenAI does not. Unknown content is ignored, unless nothing of the answer
would be left. A server's deviations from OpenAI are in its `Quirks`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, cast

import httpx2
import msgspec

from shared.domain.errors import ModelError
from shared.domain.model_servers import Quirks
from shared.domain.models import PROVIDERS, family_of
from worker.models.answer_parts import (
    THINK_TAGS,
    CountedTokens,
    TaggedThoughts,
    add_details,
    arguments_text,
    reason_in,
)
from worker.models.history_mapping import (
    AssistantTurn,
    FileData,
    Given,
    Image,
    ImageLink,
    Prompt,
    ReasoningPart,
    Result,
    TextPart,
    ToolCallPart,
    Turn,
    map_history,
)
from worker.models.http_model import Answer, url_below
from worker.models.model_errors import stream_error
from worker.models.provider import ModelCall, Route, WireRequest
from worker.models.special_tokens import (
    Decoder,
    alternating,
    as_text,
    escaped_tokens,
    is_mistrals,
    number_in,
    read_json,
    tokenizes_text,
    whole_characters,
)
from worker.models.tool_schema import chat_choice, chat_tool

FROM_TAGS = "content"
"""The name of reasoning that arrived between tags in the text instead of in its own field."""
_FIELDS_OF_REASONING = ("reasoning", "reasoning_content")
_FIELDS_OF_THOUGHTS = ("thinking", "summary", "content", "text", "reasoning")
"""Of parts of the content."""
_DETAILS = "reasoning_details"
_PATH = "/chat/completions"
_FOLLOW_NO_REFERENCES = ("qwen/", "meta-llama/", "amazon/", "google/")
"""Prefixes of hosts' names for models that do not follow `$ref` in a tool's schema."""

_Message = dict[str, Any]


class ChatWire:
    """The `ProviderProtocol` of one route: of OpenAI's models that do not reason, or of any compatible server."""

    def __init__(self, route: Route, new_call_id: Callable[[], str]) -> None:
        self.route = route
        # Azure's older URLs need the deployment in the path and a version; its newer ones are like OpenAI's.
        self._names_deployment = bool(route.api_version) and not route.base_url.endswith("/v1")
        self.url = self._deployments_url() if self._names_deployment else url_below(route.base_url, _PATH)
        self._new_call_id = new_call_id
        self._quirks = PROVIDERS[route.provider].quirks
        length = self._quirks.call_id_length
        self._safe_call_id = None if length is None else partial(_short_call_id, length=length)
        self._follows_references = not route.model.lower().startswith(_FOLLOW_NO_REFERENCES)
        self._guard: Callable[[str], str] = escaped_tokens if tokenizes_text(route.model) else str
        self._is_mistrals = route.provider == "mistral" or is_mistrals(route.model)
        self._has_template = self._is_mistrals or tokenizes_text(route.model)

    def request(self, call: ModelCall) -> WireRequest:
        key = self.route.api_key
        headers = {"api-key": key} if self._names_deployment else {"authorization": f"Bearer {key}"}
        turns = map_history(call, provider_name=self.route.provider, safe_call_id=self._safe_call_id)
        if call.beginning:
            turns.append(AssistantTurn([TextPart(call.beginning)]))
        body: dict[str, Any] = {"model": self.route.model, "stream": True, "messages": self._messages(call, turns)}
        if self._quirks.takes_stream_options:
            body["stream_options"] = {"include_usage": True}
        body |= self._options(call)
        if call.tools:
            body |= self._tools(call)
        return WireRequest(headers, msgspec.json.encode(body))

    def request_after(self, call: ModelCall, error: ModelError) -> WireRequest | None:
        return None

    def answer(self, call: ModelCall) -> Answer:
        return ChatAnswer(call, self.route, self._new_call_id)

    def _deployments_url(self) -> httpx2.URL:
        url = url_below(self.route.base_url.removesuffix("/openai"), f"/openai/deployments/{self.route.model}{_PATH}")
        return url.copy_merge_params({"api-version": self.route.api_version})

    def _messages(self, call: ModelCall, turns: Sequence[Turn]) -> list[_Message]:
        messages = [message for turn in turns for message in self._turn(turn)]
        if self._has_template:
            messages = alternating(messages, answers_results=self._is_mistrals)
        _complete_reasoning(messages, self._quirks)
        instructions = [{"role": "system", "content": call.system}] if call.system else []
        return [*instructions, *messages]

    def _turn(self, turn: Turn) -> Iterator[_Message]:
        if isinstance(turn, AssistantTurn):
            if (message := self._answer(turn)) is not None:
                yield message
            return
        yield from (self._asked(part) for part in turn.parts)
        images = [part for one in turn.parts if isinstance(one, Result) for part in self._images(one)]
        if images:
            yield {"role": "user", "content": images}

    def _asked(self, part: Prompt | Result) -> _Message:
        if isinstance(part, Result):
            content = self._guard(part.text)
            return {"role": "tool", "tool_call_id": part.call_id, "content": content}
        if isinstance(part.content, str):
            return {"role": "user", "content": self._guard(part.content)}
        return {"role": "user", "content": [self._content(one) for one in part.content]}

    def _content(self, part: str | Image | FileData) -> _Message:
        if isinstance(part, FileData) and self._quirks.takes_files:
            return {"type": "file", "file": {"filename": part.name, "file_data": part.data_url}}
        if isinstance(part, str | FileData):
            return {"type": "text", "text": self._guard(part if isinstance(part, str) else part.note)}
        return {"type": "image_url", "image_url": {"url": part.url if isinstance(part, ImageLink) else part.data_url}}

    def _images(self, result: Result) -> list[_Message]:
        """Returns a result's images for a user's message after all results, because results have only text here."""
        if not result.images:
            return []
        label = f"The images in the result of the call {result.call_id} ({result.tool_name}):"
        return [{"type": "text", "text": self._guard(label)}, *(self._content(image) for image in result.images)]

    def _answer(self, turn: AssistantTurn) -> _Message | None:
        texts: list[str] = []
        fields: dict[str, list[str]] = {}
        calls: list[_Message] = []
        for part in turn.parts:
            match part:
                case TextPart(text=text):
                    texts.append(self._guard(text))
                case ReasoningPart(text=text, id=name):
                    field = self._field_for(name)
                    if field is not None:
                        fields.setdefault(field, []).append(self._guard(text))
                    elif self._quirks.reasoning_goes_back == "as it came":
                        texts.append("\n".join((THINK_TAGS[0], self._guard(text), THINK_TAGS[1])))
                case ToolCallPart():
                    calls.append(self._call(part))
        if not texts and not calls:
            return None
        kept = (turn.details or {}).get(_DETAILS) if self._quirks.reasoning_goes_back == "as it came" else None
        reasoning = {_DETAILS: kept} if kept else {field: "\n\n".join(pieces) for field, pieces in fields.items()}
        message = {"role": "assistant", **reasoning, "content": "\n\n".join(texts) if texts else None}
        return {**message, "tool_calls": calls} if calls else message

    def _field_for(self, name: str | None) -> str | None:
        """Returns the field in which reasoning goes back to the server; None if it does not go back in a field."""
        match self._quirks.reasoning_goes_back:
            case "always":
                return "reasoning_content"
            case "as it came":
                return None if name == FROM_TAGS else name
            case "never":
                return None

    def _call(self, call: ToolCallPart) -> _Message:
        function = {"name": self._guard(call.name), "arguments": self._guard(call.arguments)}
        return {"id": call.id, "type": "function", "function": function, **(call.details or {})}

    def _options(self, call: ModelCall) -> _Message:
        options, family, quirks = call.options, family_of(call.handle), self._quirks
        is_openais_own = self.route.provider == "openai"
        fields: _Message = {}
        if family.takes_temperature:
            fields |= options.sampling
        if options.max_output_tokens is not None:
            fields[quirks.limit_field] = options.max_output_tokens
        if options.response_format is not None and options.response_format.get("type") != "text":
            # Text is every model's default.
            fields["response_format"] = options.response_format
        if options.verbosity is not None and family.takes_verbosity:
            fields["verbosity"] = options.verbosity
        stops = call.demanded_option("reasoning_effort") == "none" and not quirks.has_thinking_switch
        if (options.reasoning or (stops and family.can_think)) and not is_openais_own:
            # OpenAI's own models on this API do not reason, and refuse the field.
            fields |= {} if options.reasoning_effort is None else {"reasoning_effort": options.reasoning_effort}
        if quirks.has_thinking_switch and family.can_think:
            fields["thinking"] = {"type": "enabled" if options.reasoning or family.always_thinks else "disabled"}
        if call.beginning and quirks.continues_answers == "when told":
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        if call.thread_id and is_openais_own:
            fields["prompt_cache_key"] = call.thread_id
        return fields

    def _tools(self, call: ModelCall) -> _Message:
        takes_choice = self._quirks.takes_forced_calls
        if not call.may_call and not takes_choice:
            return {}
        fields: _Message = {
            "tools": [chat_tool(tool, follows_references=self._follows_references) for tool in call.tools],
            "tool_choice": chat_choice(call) if takes_choice else "auto",
        }
        if self._quirks.takes_parallel_tool_calls and family_of(call.handle).takes_parallel_tool_calls:
            fields["parallel_tool_calls"] = call.options.parallel_tool_calls
        return fields


def _complete_reasoning(messages: list[_Message], quirks: Quirks) -> None:
    """Adds an empty reasoning field to answers with calls that lack it, if the server would refuse them without.

    The quirks name some of these servers. Others have used one of the fields in this history, and need it only since
    the last message of the user.
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
    """Returns the id if it has the server's own form; otherwise one that is derived from it."""
    if len(call_id) == length and call_id.isalnum() and call_id.isascii():
        return call_id
    return sha256(call_id.encode()).hexdigest()[:length]


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None
    """Text; from some servers an object."""


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None
    """Google's signatures, from its compatible API."""


class _Delta(msgspec.Struct):
    content: Any = None
    """Text; from some servers a number or a list of parts."""
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    """OpenRouter's form of the reasoning, with the signatures of the model's provider."""
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    """The form of calls before `tool_calls`. Some servers send both."""


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: Any = None
    """The whole answer of a server that does not stream. With a delta or behind deltas, the answer so far."""
    text: Any = None
    """A piece of text in the form of OpenAI's older API. Some servers send it beside the delta."""
    finish_reason: str | None = None
    usage: Any = None
    """Moonshot's place for the counts."""
    error: Any = None


class _Chunk(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    message: Any = None
    """The error's message, from servers that send it without `error`."""


_CHUNKS = Decoder(_Chunk)
_WHOLE = Decoder(_Delta)
_DONE = b"[DONE]"

_TEXT_MAY_BEGIN_BLANK = ("qwen/", "deepseek/", "moonshotai/", "openai/gpt-oss")
"""Prefixes of hosts' names for models that write blank lines before a tool call."""


class ChatAnswer(Answer):
    """The `Answer` of Chat Completions."""

    def __init__(self, call: ModelCall, route: Route, new_id: Callable[[], str]) -> None:
        super().__init__(call, route, new_id, mends_tokens=tokenizes_text(route.model))
        self._drops_blank_beginnings = route.model.lower().startswith(_TEXT_MAY_BEGIN_BLANK)
        self._refusal = ""
        self._tags = TaggedThoughts()
        self._details: list[dict[str, Any]] = []
        self._usage: Any = None
        self._model = route.model
        self._response_id: str | None = None

    def take(self, data: bytes) -> None:
        if data.startswith(_DONE):
            self.is_over = True
            return
        chunk = _CHUNKS.decode(data)
        choice = chunk.choices[0] if chunk.choices else _Choice()
        if error := chunk.error or choice.error or (chunk.message and not chunk.choices and read_json(data)):
            raise stream_error(error, provider=self._route.provider)
        self._usage = chunk.usage or choice.usage or self._usage  # cumulative
        self._response_id = chunk.id or self._response_id
        self._model = chunk.model or self._model
        self._raw_reason = choice.finish_reason or self._raw_reason
        if choice.delta is not None:
            self._take_delta(choice.delta)
        elif choice.text:
            self._take_delta(_Delta(content=choice.text))
        if choice.message and (choice.delta is None or choice.finish_reason):
            self._raw_reason = self._raw_reason or "stop"
            if not self.has_begun:  # some servers repeat the whole answer behind its deltas
                self._take_delta(_WHOLE.convert(choice.message))

    def finish(self) -> None:
        self._say(self._tags.rest())
        provider = self._route.provider
        reason = "content_filter" if self._refusal else reason_in(self._raw_reason)
        details = {_DETAILS: self._details} if self._details else None
        counted = _counted(self._usage, reasoning_is_apart=PROVIDERS[provider].quirks.counts_reasoning_apart)
        given = Given(provider, self._model, self._response_id, reason, details)
        self._end(given, counted, whole_characters(self._refusal))

    def _take_delta(self, delta: _Delta) -> None:
        if delta.refusal:
            self._refusal += delta.refusal
            return
        for name, text in (("reasoning", delta.reasoning), ("reasoning_content", delta.reasoning_content)):
            if isinstance(text, str) and text:
                self._parts.think(text, name)
                break
        if delta.reasoning_details:
            add_details(self._details, delta.reasoning_details)
        if isinstance(delta.content, str) and self._parts.is_saying and self._tags.is_text(delta.content):
            self._parts.say(delta.content)  # nearly every piece
        elif delta.content is not None:
            for is_thought, text in _pieces_in(delta.content):
                self._say([(True, text)] if is_thought else self._tags.more(text))
        for call in delta.tool_calls or ([_ToolCall(function=delta.function_call)] if delta.function_call else ()):
            self._take_call(call)

    def _say(self, pieces: Iterable[tuple[bool, str]]) -> None:
        """Takes pieces of text and of reasoning."""
        for is_thought, text in pieces:
            if is_thought:
                self._parts.think(text, FROM_TAGS)
            elif self._parts.is_saying or not (self._drops_blank_beginnings and text.isspace()):
                self._parts.say(text)

    def _take_call(self, piece: _ToolCall) -> None:
        function = piece.function or _Function()
        name, text = function.name or "", arguments_text(function.arguments or "")
        if not (piece.id or name or text or piece.extra_content):
            return  # some servers send an empty call with each piece of text
        self._say(self._tags.rest())
        call = self._parts.call_of(piece.index, piece.id or None, name, text)
        if piece.extra_content:
            call.details = {"extra_content": piece.extra_content}
        if name:
            self._parts.name_call(call, name)
        if text:
            self._parts.argue(call, text)


def _pieces_in(content: object) -> Iterator[tuple[bool, str]]:
    """Yields the texts of content, and whether each is reasoning. Mistral and Databricks send it in a list of parts."""
    for part in cast("list[object]", content) if isinstance(content, list) else [content]:
        match part:
            case _ if text := as_text(part):
                yield False, text
            case {"type": "text" | "output_text" | "summary_text" | "reasoning_text", "text": str(text)}:
                yield False, text
            case {"type": "thinking" | "reasoning"}:
                fields = cast("Mapping[str, object]", part)
                thought = next((fields[name] for name in _FIELDS_OF_THOUGHTS if fields.get(name)), None)
                yield True, "".join(text for _, text in _pieces_in(thought))
            case _:
                continue


def _counted(usage: object, *, reasoning_is_apart: bool) -> CountedTokens:
    reasoning = number_in(usage, "completion_tokens_details", "reasoning_tokens")
    return CountedTokens(
        prompt=number_in(usage, "prompt_tokens"),
        completion=number_in(usage, "completion_tokens") + (max(reasoning, 0) if reasoning_is_apart else 0),
        # DeepSeek has its own field for cached tokens.
        cached=number_in(usage, "prompt_tokens_details", "cached_tokens")
        or number_in(usage, "prompt_cache_hit_tokens"),
        cache_written=number_in(usage, "prompt_tokens_details", "cache_write_tokens"),
        reasoning=reasoning,
    )
