"""Which fields of a body a key of single agents may not send: those that replace what the agent is.

Such a key is for strangers. They talk with the agent that the project has made; its instructions, its model, its tools,
the length of its runs and the shape of its memory are the project's. A field that is null, or an empty list, asks for
nothing, so that clients which send every field go on working.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, cast

OF_THE_AGENT = frozenset(
    [
        *("override_model", "override_system", "client_skills", "client_tools", "tools"),
        *("model", "model_settings", "context_window_limit", "compaction_settings"),
    ]
)
"""In the body of any route; `model` of a chat completion names the agent."""

OF_A_BLOCK = frozenset(("label", "description", "limit", "read_only", "metadata", "tags"))
"""All of a memory block but its value."""

MOST_STEPS = 50
"""What a submission has that does not say `max_steps`."""

_BLOCK = re.compile(r"/v1/agents/[^/]+/core-memory/blocks/[^/]+")


def refused_field(fields: Mapping[str, Any], method: str, path: str, *, is_chat: bool) -> str | None:
    """The first field of this body that such a key may not send, as a person would name it."""
    refused = (OF_THE_AGENT - {"model"}) if is_chat else OF_THE_AGENT
    refused |= OF_A_BLOCK if _BLOCK.fullmatch(path) else frozenset()
    # In a change null is a value: it takes away what the project has set.
    is_change = method == "PATCH"
    named = (name for name, value in fields.items() if name in refused and (is_change or value not in (None, [])))
    return next(chain(named, _beyond(fields, is_chat=is_chat)), None)


def _beyond(fields: Mapping[str, Any], *, is_chat: bool) -> Iterator[str]:
    steps = fields.get("max_steps")
    if steps is not None and not (isinstance(steps, int) and steps <= MOST_STEPS):
        yield f"max_steps above {MOST_STEPS}"
    messages = fields.get("messages")
    # Of a chat completion only users' messages and results of tools become input.
    if is_chat or not isinstance(messages, list):
        return
    for number, message in enumerate(cast("list[Any]", messages)):
        role: Any = cast("dict[str, Any]", message).get("role", "user") if isinstance(message, dict) else "user"
        if role != "user":
            yield f"messages[{number}].role {str(role)[:50]!r}"
