"""The script that `builtin/scripted` plays: what it looks like, and which turn of it is due.

The user's last message is the script, either as a whole or between ```script fences:

    {"turns": [
        {"reasoning": "Let me look.", "text": "Looking.", "calls": [{"name": "look_up", "arguments": {"word": "cat"}}]},
        {"text": "A cat is a small animal.", "delay_ms": 20}
    ]}

Turn K answers the K-th model call since that message. When there is none left, the model says so; with `"loop": true`
beside `turns` the last one is played again and again. Fields of a turn, all optional:

* `text`, `reasoning`: what is streamed, word by word; `repeat` streams the text that many times
* `calls`: tool calls, after the text
* `first_delay_ms`: silence before the first event; `delay_ms`: pause before every word
* `error`: `rate_limit`, `auth`, `server`, `timeout` or `context` - the call fails with it, after `error_after` words
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import AssistantMessage, Message, UserMessage, text_of

EXPLANATION = """\
This model plays a script. Send one as JSON, as the whole message or between ```script fences, for example:
{"turns": [{"text": "Hello from the script.", "delay_ms": 20}, {"text": "This answers the second model call."}]}
Fields of a turn: text, reasoning, repeat, calls, delay_ms, first_delay_ms, error, error_after. Beside turns: loop."""

THE_END = "The script has no more turns."

_FENCED = re.compile(r"```script\s*\n(.*?)```", re.DOTALL)

_Count = Annotated[int, msgspec.Meta(ge=0)]


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call of a turn."""

    name: str
    arguments: dict[str, Any] = {}


class ScriptedTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of the model."""

    text: str = ""
    reasoning: str = ""
    repeat: _Count = 1
    calls: Sequence[ScriptedCall] = ()
    delay_ms: _Count = 0
    first_delay_ms: _Count = 0
    error: Literal["rate_limit", "auth", "server", "timeout", "context"] | None = None
    error_after: _Count = 0


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The turns of a conversation, as they will come."""

    turns: list[ScriptedTurn]
    loop: bool = False


def turn_due(history: Sequence[Message]) -> ScriptedTurn:
    """The turn that answers this history. Raises `ModelError` when the script cannot be read."""
    text, answers = last_user_text(history)
    fenced = _FENCED.search(text)
    source = fenced.group(1) if fenced else text.strip()
    if not source.startswith("{") and fenced is None:
        return ScriptedTurn(text=EXPLANATION)
    try:
        script = msgspec.json.decode(source, type=Script)
    except msgspec.DecodeError as error:
        raise ModelError(ModelErrorType.BAD_REQUEST, f"The script cannot be read: {error}. {EXPLANATION}") from error
    if answers < len(script.turns):
        return script.turns[answers]
    return script.turns[-1] if script.loop and script.turns else ScriptedTurn(text=THE_END)


def last_user_text(history: Sequence[Message]) -> tuple[str, int]:
    """What the user said last, and how many answers there have been since."""
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
