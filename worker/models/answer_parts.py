"""The parts of one answer while they arrive, and their events. Every protocol uses them."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import Any, TypeVar, cast

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import AssistantMessage, ToolReturns, estimate_tokens
from shared.domain.runs import Usage
from worker.models.history_mapping import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from worker.models.provider import (
    CallArguments,
    CallFinished,
    CallStarted,
    EmptyAnswer,
    Finished,
    ModelCall,
    ModelEvent,
    Text,
    Thought,
)
from worker.models.special_tokens import JoinedPieces, SpecialTokenUnescaper, whole_characters

# The ids of an answer's tool calls. Results and decisions find their call by its id, so no two calls share one.


LONGEST = 200
"""Characters. Databases index ids, and clients send them back."""


class CallIds:
    """Gives each call of one answer an id that differs from those of its history and of every decided call of its
    conversation: a repeated old decision must not match a new call.

    Some servers give two calls of an answer the same id, number the calls of every answer anew, or take the id from the
    model's own text. A provider's id that is unused, short and printable stays. Other calls get an id of ours.
    """

    def __init__(self, call: ModelCall, new_id: Callable[[], str]) -> None:
        self._call = call
        self._new_id = new_id

    @cached_property
    def _taken(self) -> set[str]:
        bodies = (message.body for message in self._call.history)
        in_history = {call.id for body in bodies if isinstance(body, AssistantMessage) for call in body.tool_calls}
        return in_history | self._call.taken_call_ids

    def own(self, given: str | None) -> str:
        """Returns our id for a call with this id from the server, or without one."""
        theirs = whole_characters(given or "")
        is_usable = 0 < len(theirs) <= LONGEST and theirs.isprintable() and theirs not in self._taken
        call_id = theirs if is_usable else self._new_id()
        self._taken.add(call_id)
        return call_id


# The end of an answer: whether it is complete, and its usage. Every protocol uses it.


FinishReason = str
"""Why a provider ended an answer. All providers' terms are translated to `stop`, `length`, `tool_call`,
`content_filter` and `error`."""


_REASONS: Mapping[str, FinishReason] = {
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), "tool_call"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("content_filter", "safety", "refusal"), "content_filter"),
    **dict.fromkeys(("error", "abort"), "error"),
}
"""OpenAI's and Anthropic's, Mistral's `model_length` and `error`, and `abort` of vLLM and SGLang. Gateways forward the
reasons of other APIs. Any other reason counts as `stop`."""

_NO_REASONS = ("null", "none")
"""Values that some gateways send while there is no reason yet."""


def reason_in(said: str | None) -> FinishReason | None:
    """Translates a provider's reason to ours. An unknown reason ends an answer as well."""
    if not said or said.lower() in _NO_REASONS:
        return None
    return _REASONS.get(said.lower(), "length" if "context" in said.lower() else "stop")


MOST_TOKENS = 1_000_000_000
"""The most tokens of one answer. A larger count is an error of the server; it would use up budgets and may not be
stored."""


class CountedTokens(msgspec.Struct, frozen=True):
    """Tokens as the provider counted them. Some servers report -1 for a missing count."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0


class WholeAnswer(msgspec.Struct, frozen=True):
    """A complete answer."""

    reason: FinishReason | None
    """None when the stream ended without one."""
    text: str
    """All text and reasoning."""
    arguments: list[str]
    """The arguments of each tool call."""
    counted: CountedTokens
    provider_response: str | None
    details: object = None
    """The provider's details of an answer that ended with an error."""
    words: str = ""
    """The provider's sentence about the end, if there is one."""


def finalize(call: ModelCall, answer: WholeAnswer) -> Finished:
    """The end of the answer. Raises `ModelError` when it was cut short, refused or empty."""
    reason = answer.reason
    if reason is None:
        raise ModelError(
            ModelErrorType.ERROR, "The model's stream ended before its answer did (no finish reason).", retryable=True
        )
    words = f" The provider says: {answer.words}" if answer.words else ""
    if reason == "error":
        text = f"The model ended its answer with an error: {answer.details}{words}"
        raise ModelError(ModelErrorType.ERROR, text, retryable=True)
    is_empty = not answer.text and not answer.arguments and not call.beginning
    # After results, Claude may have nothing to add. Its few tokens tell such an end from an answer that failed.
    has_results = bool(call.history) and isinstance(call.history[-1].body, ToolReturns)
    is_done = has_results and reason == "stop" and answer.counted.completion > 0
    if is_empty and reason == "length" and ("context" in str(answer.details) or answer.counted.completion <= 1):
        raise ModelError(
            ModelErrorType.CONTEXT_WINDOW, "The model ended its answer before it began: its context window is full."
        )
    usage = _usage(call, answer)
    if is_empty and not is_done:
        text = f"LLM provider returned empty content in response (finish reason: {reason}).{words}"
        # Models sometimes return nothing, and something when they are asked again.
        raise EmptyAnswer(text, usage, retryable=reason in ("stop", "tool_call"))
    if reason == "length" or reason == "content_filter":
        return Finished(reason, usage, answer.provider_response)
    return Finished("tool_calls" if answer.arguments else "stop", usage, answer.provider_response)


def _usage(call: ModelCall, answer: WholeAnswer) -> Usage:
    counted = answer.counted
    prompt, completion = counted.prompt, counted.completion
    if not prompt + completion or not _is_possible(counted):
        return _estimated_usage(call, answer)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        # A negative count would return tokens to a budget.
        cached_input_tokens=max(counted.cached, 0),
        cache_write_tokens=max(counted.cache_written, 0),
        reasoning_tokens=max(counted.reasoning, 0),
        context_tokens=prompt + completion,
    )


def _is_possible(counted: CountedTokens) -> bool:
    every = (counted.prompt, counted.completion, counted.cached, counted.cache_written, counted.reasoning)
    return min(counted.prompt, counted.completion) >= 0 and max(every) <= MOST_TOKENS


def _estimated_usage(call: ModelCall, answer: WholeAnswer) -> Usage:
    """For servers that report no usage at all."""
    prompt = call.estimated_tokens()
    completion = estimate_tokens(answer.text + "".join(answer.arguments))
    return Usage(prompt_tokens=prompt, completion_tokens=completion, context_tokens=prompt + completion, estimated=True)


BETWEEN_THOUGHTS = "\n\n"

THINK_TAGS = ("<think>", "</think>")


class TaggedThoughts:
    """Separates reasoning between tags from text, in pieces of any size. Reasoning may begin the text; elsewhere it
    begins only with a piece that is exactly the tag, because a text may also be about tags."""

    def __init__(self) -> None:
        self._is_inside = False
        self._may_begin = True
        """Only white space has arrived since the beginning or since earlier reasoning."""
        self._held = ""
        """A piece that may be the beginning of a tag."""

    def is_text(self, piece: str) -> bool:
        """Whether the piece is text, whatever it contains: `more` would return it unchanged."""
        return not (self._is_inside or self._may_begin or piece == THINK_TAGS[0])

    def more(self, piece: str) -> Iterator[tuple[bool, str]]:
        """Returns the new pieces, and whether each is reasoning."""
        begin, end = THINK_TAGS
        text, self._held = self._held + piece, ""
        spoken = text.lstrip() if self._may_begin else text
        if self._is_inside:
            thought, ended, rest = text.partition(end)
            if not ended:
                length = next((n for n in range(len(end) - 1, 0, -1) if text.endswith(end[:n])), 0)
                thought, self._held = text[: len(text) - length], end[:length]
            self._is_inside, self._may_begin = not ended, True
            yield True, thought
            yield from self.more(rest) if rest else ()
        elif text == begin or (self._may_begin and spoken.startswith(begin)):
            self._is_inside = True
            yield from self.more(spoken.removeprefix(begin))
        elif self._may_begin and spoken and begin.startswith(spoken):
            self._held = text
        else:
            self._may_begin = not spoken
            yield False, text

    def rest(self) -> list[tuple[bool, str]]:
        """Returns the held text, which is not a tag."""
        held, self._held = self._held, ""
        return [(self._is_inside, held)] if held else []


def add_details(details: list[dict[str, Any]], more: object) -> None:
    """Adds pieces of reasoning in OpenRouter's form. Joins pieces of one number and type, as it wants them back."""
    pieces = cast("list[object]", more) if isinstance(more, list) else []
    for piece in (cast("dict[str, Any]", one) for one in pieces if isinstance(one, dict)):
        last = details[-1] if details else {}
        is_more = bool(last) and all(last.get(name) == piece.get(name) for name in ("type", "index"))
        if not is_more or piece.get("type") == "reasoning.encrypted":
            details.append(dict(piece))
            continue
        for name, value in piece.items():
            if name in ("text", "summary"):
                last[name] = f"{last.get(name) or ''}{value or ''}"
            elif value is not None:
                last[name] = value


class _Pieces:
    """Text that arrives in pieces. Joins split characters and undoes the escaping of special tokens."""

    def __init__(self, mended: SpecialTokenUnescaper | None = None) -> None:
        self._characters = JoinedPieces()
        self._mended = mended
        self._pieces: list[str] = []

    def add(self, piece: str) -> str:
        """Returns the part of the text that can be emitted now."""
        return self._mended_text(self._characters.more(piece))

    def pause(self) -> str:
        """Returns the text that was held back for special tokens, if any. More may follow."""
        return "" if self._mended is None else self._kept(self._mended.rest())

    def end(self) -> str:
        """Returns the text that was held back, if any."""
        return self._mended_text(self._characters.rest()) + self.pause()

    def _mended_text(self, text: str) -> str:
        return self._kept(text if self._mended is None else self._mended.more(text))

    def _kept(self, text: str) -> str:
        if text:
            self._pieces.append(text)
        return text

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __str__(self) -> str:
        return "".join(self._pieces)


class _GrowingText:
    def __init__(self, pieces: _Pieces) -> None:
        self.pieces = pieces


class GrowingThought:
    """Reasoning in progress. Its name is that of its field, or of its kind."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.pieces = _Pieces()
        self.signature: str | None = None


class GrowingCall:
    """A tool call in progress. Its first event is emitted as soon as it has a name."""

    def __init__(self, call_id: str | None, pieces: _Pieces) -> None:
        self.given_id = call_id
        """The server's id for this call, which another call may share."""
        self.id = ""
        self.name = ""
        self.pieces = pieces
        self.first_arguments = ""
        """The arguments from the call's beginning. Some servers repeat them in pieces."""
        self.details: dict[str, Any] | None = None
        self.number: int | None = None
        self.finished_arguments: str | None = None
        """The arguments in the event of the complete call."""

    @property
    def arguments(self) -> str:
        """The arguments received so far."""
        return str(self.pieces) or "{}"

    def is_whole(self) -> bool:
        """Whether the arguments are JSON, so that the call may be at its end."""
        try:
            msgspec.json.decode(str(self.pieces), type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def ends_before(self, index: int | None, call_id: str | None, name: str, arguments: str) -> bool:
        """Returns whether a piece with a name begins another call. Some servers send whole calls, all with index 0 or
        without an index; others repeat id and name with each piece."""
        if index is None and not (call_id or self.given_id or arguments):
            return True  # a server that sends neither names a call once, before its arguments
        begins_arguments, has_other_id = arguments.lstrip().startswith("{"), bool(call_id) and call_id != self.given_id
        has_arguments, has_own_id = bool(self.pieces), bool(call_id) or not self.given_id
        if self.name not in ("", name) and (index is None or has_arguments or (begins_arguments and has_own_id)):
            return True  # a name may also come in pieces, but none of them after arguments
        if (begins_arguments or has_other_id) and self.is_whole():
            return True
        return has_other_id and bool(self.given_id) and (index is None or not has_arguments)


def arguments_text(arguments: object) -> str:
    """A call's arguments as text. Some servers send an object, or a text in place of an object."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


_Growing = _GrowingText | GrowingThought | GrowingCall
_GrowingPart = TypeVar("_GrowingPart", _GrowingText, GrowingThought, GrowingCall)


class AnswerParts:
    """Collects the parts of an answer, in the order in which they began."""

    def __init__(self, ids: CallIds, *, mends_tokens: bool = False) -> None:
        """`mends_tokens`: see `special_tokens.py`."""
        self._ids = ids
        self._mends_tokens = mends_tokens
        self._parts: list[_Growing] = []
        self._open: _Growing | None = None
        """The part that began last."""
        self._calls = self._finished_calls = 0
        """The calls with a name, and those of them that were emitted as a whole, in their order."""
        self._newest: dict[tuple[int | None, str | None], GrowingCall] = {}
        """The newest call of each index and id; with None, of any index or any id."""
        self._thought: GrowingThought | None = None
        """The part of reasoning whose event went out last."""
        self._events: list[ModelEvent] = []

    @property
    def has_begun(self) -> bool:
        """Whether any part of the answer has begun."""
        return bool(self._parts)

    @property
    def is_saying(self) -> bool:
        """Whether the part that began last is text."""
        return isinstance(self._open, _GrowingText)

    def drain_events(self) -> list[ModelEvent]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events

    def say(self, text: str) -> None:
        """Adds text to the current part, or begins a new one."""
        part = self._open
        if not isinstance(part, _GrowingText):
            part = self._begin(_GrowingText(self._pieces()))
        if ready := part.pieces.add(text):
            self._events.append(Text(ready))

    def begin_thought(self, name: str | None = None) -> GrowingThought:
        """Begins a part of reasoning."""
        return self._begin(GrowingThought(name))

    def think(self, text: str, name: str | None) -> None:
        """Adds reasoning to the current part of this name, or begins a new one."""
        part = self._open
        if not isinstance(part, GrowingThought) or part.name != name:
            part = self._begin(GrowingThought(name))
        self.add_thought(part, text)

    def add_thought(self, part: GrowingThought, text: str) -> None:
        """Adds to a part of reasoning."""
        self._tell_thought(part, part.pieces.add(text))

    def begin_call(self, call_id: str | None) -> GrowingCall:
        """Begins a tool call."""
        return self._begin(GrowingCall(call_id, self._pieces()))

    def call_of(self, index: int | None, call_id: str | None, name: str, arguments: str) -> GrowingCall:
        """Returns the call that a piece belongs to; a new one if the piece begins a call."""
        call = self._newest.get((index, call_id)) or self._newest.get((index, None))
        if call is None or (name and call.ends_before(index, call_id, name, arguments)):
            call = self.begin_call(call_id)
            self._newest |= dict.fromkeys(product((index, None), (call_id, None)), call)
        return call

    def name_call(self, call: GrowingCall, name: str) -> None:
        """Adds the name of a call, or a piece of it; some servers repeat the whole name with every piece of the
        call."""
        name = whole_characters(name)
        if name == call.name:
            return
        call.name += name
        if call.number is None:
            call.number, self._calls = self._calls, self._calls + 1
            call.id = self._ids.own(call.given_id)
            self._events.append(CallStarted(call.number, call.id, call.name))
            if call.pieces:
                self._events.append(CallArguments(call.number, str(call.pieces)))

    def argue(self, call: GrowingCall, text: str) -> None:
        """Adds to a call's arguments."""
        ready = call.pieces.add(text)
        if ready and call.number is not None:
            self._events.append(CallArguments(call.number, ready))

    def close(self) -> None:
        """Ends the current part."""
        match self._open:
            case _GrowingText(pieces=pieces):
                if rest := pieces.end():
                    self._events.append(Text(rest))
            case GrowingCall() as call if call.pieces and call.number == self._finished_calls:
                # A server may continue the call after the next part, or begin its arguments there.
                self._finish_call(call, call.pieces.pause())
            case GrowingThought() as thought:
                self._tell_thought(thought, thought.pieces.end())
                if thought.signature:
                    self._events.append(Thought("", thought.signature))
            case GrowingCall() | None:
                pass
        self._open = None

    def finish(self) -> list[AnswerPart]:
        """Ends and returns all parts of the answer."""
        self.close()
        for part in self._parts:
            if isinstance(part, GrowingCall):
                self._finish_call(part, part.pieces.end())
        return [whole for part in self._parts if (whole := _whole(part)) is not None]

    def tell(self, event: Finished) -> None:
        """Adds the last event, the end of the answer."""
        self._events.append(event)

    def _pieces(self) -> _Pieces:
        return _Pieces(SpecialTokenUnescaper() if self._mends_tokens else None)

    def _begin(self, part: _GrowingPart) -> _GrowingPart:
        self.close()
        self._parts.append(part)
        self._open = part
        return part

    def _tell_thought(self, part: GrowingThought, text: str) -> None:
        if text:
            another = self._thought is not None and self._thought is not part
            self._thought = part
            self._events.append(Thought((BETWEEN_THOUGHTS if another else "") + text))

    def _finish_call(self, call: GrowingCall, rest: str) -> None:
        """Emits the complete call, and again if the provider continued it after all."""
        if call.number is None:
            return
        if call.first_arguments and not call.pieces:
            self.argue(call, call.first_arguments)
        if rest:
            self._events.append(CallArguments(call.number, rest))
        if call.finished_arguments != (arguments := call.arguments):
            self._finished_calls += call.finished_arguments is None
            call.finished_arguments = arguments
            self._events.append(CallFinished(call.number, call.id, call.name, arguments))


def _whole(part: _Growing) -> AnswerPart | None:
    match part:
        case _GrowingText(pieces=pieces):
            return TextPart(str(pieces))
        case GrowingThought(pieces=pieces, name=name, signature=signature):
            return ReasoningPart(str(pieces), name, signature)
        case GrowingCall(id=call_id, name=name, number=number, details=details):
            # A call that never got a name does not count.
            return None if number is None else ToolCallPart(call_id, name, part.arguments, details)
