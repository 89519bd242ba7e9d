"""The differences between requests to Anthropic's models. Data only.

From Anthropic's pages "Extended thinking", "Adaptive thinking" and "Models overview", as pydantic-ai read them
(`profiles/anthropic.py`). A model that is not listed gets the requests of the older ones.
"""

import re
from typing import Literal, NamedTuple


class ClaudeModel(NamedTuple):
    """The properties that models with the same name prefix share."""

    pattern: str
    """Matched against the beginning of the model's name."""
    most_output_tokens: int | None = None
    """The API refuses a request for more."""
    thinks_adaptively: bool = False
    """The model decides itself how long it thinks; others get a number of tokens."""
    without_thinking: Literal["unsaid", "disabled", "between_tools", "least"] = "unsaid"
    """How a request turns thinking off: by leaving the field out, or with this value. Some models always think; their
    requests ask for the least."""
    takes_temperature: bool = True
    takes_forced_calls: bool = True
    binds_thinking: bool = False
    """The API refuses returned thinking if anything before it has changed."""


_LONG = 128_000

CLAUDE_MODELS: tuple[ClaudeModel, ...] = (
    ClaudeModel(r"claude-(fable-5-[12]|mythos-5-2)", _LONG, True, "least", False, False, True),
    ClaudeModel(r"claude-mythos-5-1", _LONG, True, "least", False, False),
    ClaudeModel(r"claude-(fable|mythos)-5", _LONG, True, "least", False),
    ClaudeModel(r"claude-mythos-preview", None, True),
    ClaudeModel(r"claude-opus-5-5", _LONG, True, "least", False, False, True),
    ClaudeModel(r"claude-sonnet-5-5", _LONG, True, "between_tools", False, False, True),
    ClaudeModel(r"claude-haiku-5-5", _LONG, True, "disabled", False, True, True),
    ClaudeModel(r"claude-(opus|sonnet)-5", _LONG, True, "disabled", False),
    ClaudeModel(r"claude-opus-4-[78]", _LONG, True, "unsaid", False),
    ClaudeModel(r"claude-(opus|sonnet)-4-6", _LONG, True),
    ClaudeModel(r"claude-(haiku|opus|sonnet)-4-5", 64_000),
    ClaudeModel(r""),
)
"""The first match counts."""


_TAKES_EFFORT = re.compile(r"claude-((fable|mythos)-5|opus-4-[5-8]|sonnet-4-6|(opus|sonnet|haiku)-5)")
_TAKES_FORMAT = re.compile(r"claude-((fable|mythos)-5|opus-4-1|(opus|sonnet|haiku)-4-[5-8]|(opus|sonnet|haiku)-5)")


def takes_effort(model: str) -> bool:
    """Whether a request may say how much the model is to think, as a word."""
    return _TAKES_EFFORT.match(model) is not None


def takes_format(model: str) -> bool:
    """Whether a request may have a JSON schema that the answer fits."""
    return _TAKES_FORMAT.match(model) is not None


def claude_model(model: str) -> ClaudeModel:
    """Returns the properties of a model by its name."""
    return next(known for known in CLAUDE_MODELS if re.match(known.pattern, model))
