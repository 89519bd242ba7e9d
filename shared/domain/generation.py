"""Runs that ask a model one question because a client asked for it, and nothing else.

The model gets no history, no memory and no tools of the agent. As a call of a tool (`tool_runs`), such a run is no part
of a conversation: it has a thread of its own, so it neither waits for the agent's other runs nor lets them wait, also
when one of them waits for a person.

Its input is the question. The answer is in the run's log, and nowhere else.
"""

from typing import Any, Final

import msgspec

GENERATE: Final = "generate"
"""What the wire calls them (`run_type`)."""

DEFAULT_SYSTEM: Final = "You are a helpful assistant."
"""The instructions for a question that comes without any, as on the wire."""

ANSWER_TOOL: Final = "structured_output"
"""The tool that a model has to call when its answer is to fit a schema. It exists for the model alone."""


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the client asked for, beside the question."""

    response_schema: dict[str, Any] | None = None
    """The JSON Schema of an object that the answer has to fit."""
