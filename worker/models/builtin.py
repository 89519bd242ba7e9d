"""Models without a key or a network, for a first look and for tests of everything around a model.

* `builtin/echo` repeats the user's message, 10 ms per word
* `builtin/slow` does the same at 100 ms per word and then counts to 200, so that there is something to cancel
* both make up a value (`sample_of`) if their answer has to fit a schema
* `builtin/scripted` plays a script from the user's message (format: `Script`): reasoning, text, tool calls, pauses and
  errors

They stream and count tokens like a provider, and never import an SDK. Any caller who may send a message determines the
answer, so its cost is bounded: a script is short, an answer is generated word by word, silence is limited.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import AssistantMessage, Message, UserMessage, text_of, tokens_in
from shared.domain.runs import Usage
from worker.models.provider import (
    CallArguments,
    CallFinished,
    CallStarted,
    Finished,
    ModelCall,
    ModelEvent,
    SilenceLimit,
    Text,
    Thought,
)
from worker.models.tool_schema import schema_of

LONGEST_SAMPLE = 200
"""Characters of a sample's text, because a schema may have thousands of texts."""

_PLAIN: dict[str, Any] = {"boolean": True, "integer": 1, "number": 1, "null": None}
_MOST_LEVELS = 20


def sample_of(schema: object, text: str, *, level: int = 0) -> Any:
    """Makes a value of the schema's shape, from its constants, defaults, enumerations and examples. `text` is used for
    any other string. The value may violate patterns, references and bounds. The schema's size bounds the value's."""
    if not isinstance(schema, dict) or level > _MOST_LEVELS:
        return text
    given = cast("dict[str, Any]", schema)
    for name in ("const", "default"):
        if name in given:
            return given[name]
    for name in ("enum", "examples", "anyOf", "oneOf"):
        if isinstance(given.get(name), list) and given[name]:
            first: Any = given[name][0]
            return sample_of(first, text, level=level + 1) if name.endswith("Of") else first
    kinds: Any = given.get("type", "object" if "properties" in given else "string")
    kind: object = cast("list[object]", kinds)[0] if isinstance(kinds, list) and kinds else cast("object", kinds)
    match kind:
        case "object":
            properties = given.get("properties")
            inside = cast("dict[str, Any]", properties).items() if isinstance(properties, dict) else ()
            return {key: sample_of(one, text, level=level + 1) for key, one in inside}
        case "array":
            return [sample_of(given.get("items"), text, level=level + 1)]
        case str():
            return _PLAIN.get(kind, text)
        case _:
            return text


LONGEST_SCRIPT = 50_000
"""Characters of a message to `builtin/scripted`. Parsing takes 3 ms at most, once per model call."""

LONGEST_ANSWER = 1_000_000
"""Characters of one answer: about twice the longest answer of providers' models."""

MOST_TURNS = 1_000
MOST_CALLS = 128
"""Tool calls of one answer: OpenAI's limit."""

LONGEST_PAUSE_MS = 600_000

EXPLANATION = f"""\
This model plays a script. Send one as JSON, as the whole message or between ```script fences, for example:
{{"turns": [{{"text": "Hello from the script.", "delay_ms": 20}}, {{"text": "This answers the second model call."}}]}}
Fields of a turn: text, reasoning, repeat, calls, delay_ms, first_delay_ms, error, error_after. Beside turns: loop.
Limits: {LONGEST_SCRIPT} characters, {MOST_TURNS} turns; of a turn {LONGEST_ANSWER} characters with all repeats, \
{MOST_CALLS} calls, {LONGEST_PAUSE_MS} ms per pause."""

THE_END = "The script has no more turns."

_FENCE = "```script"
_LONGEST_REASON = 500

_Count = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_ANSWER)]
_Pause = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_PAUSE_MS)]


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call of a turn."""

    name: str
    arguments: dict[str, Any] = {}


class ScriptedTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of the model."""

    text: str = ""
    reasoning: str = ""
    repeat: _Count = 1
    calls: Annotated[Sequence[ScriptedCall], msgspec.Meta(max_length=MOST_CALLS)] = ()
    delay_ms: _Pause = 0
    first_delay_ms: _Pause = 0
    error: Literal["rate_limit", "auth", "server", "timeout", "context"] | None = None
    error_after: _Count = 0


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The script of `builtin/scripted`: the turns of a conversation, in order.

    The user's last message is the script, either as a whole or between ```script fences:

        {"turns": [
            {"reasoning": "Let me look.", "text": "Looking.", "calls": [{"name": "look_up", "arguments": {"of": "a"}}]},
            {"text": "A cat is a small animal.", "delay_ms": 20}
        ]}

    Turn K answers the K-th model call since that message. After the last turn the model says that there are no more;
    with `"loop": true` beside `turns` it repeats the last one. Fields of a turn, all optional:

    * `text`, `reasoning`: streamed word by word; `repeat` streams the text that many times
    * `calls`: tool calls, after the text
    * `first_delay_ms`: silence before the first event; `delay_ms`: pause before every word
    * `error`: `rate_limit`, `auth`, `server`, `timeout` or `context`: the call fails with it, after `error_after` words
    """

    turns: Annotated[list[ScriptedTurn], msgspec.Meta(max_length=MOST_TURNS)]
    loop: bool = False

    def __post_init__(self) -> None:
        """Raises `ValueError` for a turn with too many characters. msgspec converts it to its own error."""
        for number, turn in enumerate(self.turns):
            characters = len(turn.reasoning) + len(turn.text) * turn.repeat
            if characters > LONGEST_ANSWER:
                raise ValueError(
                    f"turns[{number}] would stream {characters} characters of reasoning and repeated text, "
                    f"{LONGEST_ANSWER} are allowed"
                )


def turn_due(history: Sequence[Message]) -> ScriptedTurn:
    """Returns the turn that answers this history. Raises `ModelError` if the script is malformed or too long."""
    text, answers = last_user_text(history)
    if len(text) > LONGEST_SCRIPT:
        raise ModelError(
            ModelErrorType.BAD_REQUEST,
            f"A message to builtin/scripted may have {LONGEST_SCRIPT} characters, this one has {len(text)}.",
        )
    fenced = _fenced(text)
    source = fenced if fenced is not None else text.strip()
    if not source.startswith("{") and fenced is None:
        return ScriptedTurn(text=EXPLANATION)
    try:
        script = msgspec.json.decode(source, type=Script)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        reason = str(error)[:_LONGEST_REASON]
        raise ModelError(ModelErrorType.BAD_REQUEST, f"The script cannot be read: {reason}. {EXPLANATION}") from error
    if answers < len(script.turns):
        return script.turns[answers]
    return script.turns[-1] if script.loop and script.turns else ScriptedTurn(text=THE_END)


def _fenced(text: str) -> str | None:
    """Returns the text between the first ```script fences, or to the end if nothing closes them. None: no such fence.

    It takes linear time for any text, because the text is a caller's.
    """
    for piece in text.split(_FENCE)[1:]:
        rest_of_line, newline, below = piece.partition("\n")
        if newline and not rest_of_line.strip():
            return below.partition("```")[0]
    return None


def last_user_text(history: Sequence[Message]) -> tuple[str, int]:
    """Returns the user's last message, and the number of answers since."""
    answers = 0
    for message in reversed(history):
        match message.body:
            case UserMessage(role="user", content=content):
                return text_of(content), answers
            case AssistantMessage():
                answers += 1
            case _:
                continue
    return "", answers


ECHO_DELAY_MS = 10
SLOW_DELAY_MS = 100
COUNTED = " ".join(str(number) for number in range(1, 201))

_ERRORS = {
    "rate_limit": (ModelErrorType.RATE_LIMIT, 429, "Rate limit reached (scripted)."),
    "auth": (ModelErrorType.AUTHENTICATION, 401, "Incorrect API key provided (scripted)."),
    "server": (ModelErrorType.ERROR, 500, "The server had an error while processing your request (scripted)."),
    "timeout": (ModelErrorType.TIMEOUT, 408, "The model did not answer in time (scripted)."),
    "context": (ModelErrorType.CONTEXT_WINDOW, 400, "This model's maximum context length is exceeded (scripted)."),
}


class BuiltinModel:
    """The `ModelProvider` of the built-in models."""

    def __init__(
        self, name: str, sleep: Callable[[float], Awaitable[None]], first_event_timeout: float, idle_timeout: float
    ) -> None:
        self._name = name
        self._sleep = sleep
        self._first_event_timeout = first_event_timeout
        self._idle_timeout = idle_timeout

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """Streams the answer with the turn's pauses."""
        turn = _with_allowed_calls(self._turn(call), call)
        silence = SilenceLimit(self._first_event_timeout, self._idle_timeout)
        spoken = _Spoken(call)
        await silence.wait(self._sleep(turn.first_delay_ms / 1000))
        for event in spoken.unsaid(_words_of(turn)):
            if turn.error is not None and spoken.words >= turn.error_after:
                break
            if spoken.is_too_long:
                yield spoken.finished("length")
                return
            await silence.wait(self._sleep(turn.delay_ms / 1000))
            spoken.add(event)
            yield event
            silence.event_seen()
        if turn.error is not None:
            # Not retryable, because the script would play the same error again.
            error_type, status, detail = _ERRORS[turn.error]
            raise ModelError(error_type, detail, status=status)
        for event in _calls(call, turn):
            spoken.add(event)
            yield event
        yield spoken.finished("tool_calls" if turn.calls else "stop")

    def _turn(self, call: ModelCall) -> ScriptedTurn:
        if self._name == "scripted":
            return turn_due(call.history)
        text, _ = last_user_text(call.history)
        said = f"You said: {text}"
        calls: list[ScriptedCall] = []
        if call.must_call and call.tools:
            forced = next((tool for tool in call.tools if tool.name == call.forced_tool), call.tools[0])
            calls = [ScriptedCall(forced.name, sample_of(forced.parameters, said[:LONGEST_SAMPLE]))]
        elif (chosen := call.demanded_option("response_format")) is not None and chosen.get("type") != "text":
            schema = schema_of(chosen) or {"properties": {"text": {"type": "string"}}}
            return ScriptedTurn(text=msgspec.json.encode(sample_of(schema, said[:LONGEST_SAMPLE])).decode())
        if self._name == "slow":
            return ScriptedTurn(text=f"{said} {COUNTED}", delay_ms=SLOW_DELAY_MS, calls=calls)
        return ScriptedTurn(text=said, delay_ms=ECHO_DELAY_MS, calls=calls)


class _Spoken:
    """Counts an answer while it is streamed, because it may be long."""

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self.words = 0
        self._thought = 0
        self._text = 0
        self._calls = 0

    @property
    def is_too_long(self) -> bool:
        limit = self._call.options.max_output_tokens
        return (limit is not None and self.words >= limit) or self._thought + self._text >= LONGEST_ANSWER

    def unsaid(self, words: Iterator[Thought | Text]) -> Iterator[Thought | Text]:
        """Yields the words after the call's beginning of the answer. The beginning counts as streamed."""
        said = len(self._call.beginning)
        for word in words:
            if isinstance(word, Text) and said > 0:
                self.add(word)
                said -= len(word.text)
            else:
                yield word

    def add(self, event: ModelEvent) -> None:
        match event:
            case Thought(text=text):
                self.words += 1
                self._thought += len(text)
            case Text(text=text):
                self.words += 1
                self._text += len(text)
            case CallFinished(name=name, arguments=arguments):
                self._calls += len(name) + len(arguments)
            case _:
                return

    def finished(self, reason: Literal["stop", "tool_calls", "length"]) -> Finished:
        """Returns the end of the answer, with its tokens."""
        prompt, reasoning = self._call.estimated_tokens(), tokens_in(self._thought)
        completion = reasoning + tokens_in(self._text) + tokens_in(self._calls)
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            reasoning_tokens=reasoning,
            context_tokens=prompt + completion,
        )
        return Finished(reason, usage, provider_response=None)


_WORD = re.compile(r"\S{1,1000}\s{0,1000}|\s{1,1000}")
"""A word with the space after it, or a piece of a very long word."""


def _words_of(turn: ScriptedTurn) -> Iterator[Thought | Text]:
    yield from (Thought(word.group()) for word in _WORD.finditer(turn.reasoning))
    # An empty text with `repeat` would loop without an event.
    for _ in range(turn.repeat if turn.text else 0):
        yield from (Text(word.group()) for word in _WORD.finditer(turn.text))


def _with_allowed_calls(turn: ScriptedTurn, call: ModelCall) -> ScriptedTurn:
    """Returns the turn with as many calls as the request allows: none, one or all."""
    most = 0 if not call.may_call else len(turn.calls) if call.options.parallel_tool_calls else 1
    return turn if len(turn.calls) <= most else msgspec.structs.replace(turn, calls=turn.calls[:most])


def _calls(call: ModelCall, turn: ScriptedTurn) -> Iterator[ModelEvent]:
    """Yields the events of the turn's tool calls. The same history gives the same ids."""
    place = hashlib.sha256("".join(message.id for message in call.history).encode()).hexdigest()[:16]
    for index, scripted in enumerate(turn.calls):
        call_id = f"call_{place}_{index}"
        arguments = msgspec.json.encode(scripted.arguments).decode()
        yield CallStarted(index, call_id, scripted.name)
        yield CallArguments(index, arguments)
        yield CallFinished(index, call_id, scripted.name, arguments)
