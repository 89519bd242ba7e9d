"""What of an answer's text is new to readers, when it does not simply come piece by piece. Pure.

An agent may speak by a call of `send_message`, whose arguments the model still writes; and an answer may go on that
another worker began to show.
"""

from typing import cast

from pydantic_core import from_json

LEAST_REPEATED = 20
"""Characters. Some servers begin with what they were given, others do not; where an answer's beginning is shorter, it
cannot be told from words that the model says once more."""


class ContinuedText:
    """Joins what the model says to what readers have seen, so that nothing is said twice."""

    def __init__(self, shown: str) -> None:
        self.asked = shown.rstrip()
        """What the model is given: some wires refuse an answer that ends in white space."""
        self._shown = shown
        self._space = shown[len(self.asked) :]
        self._held = ""
        self._is_joined = False

    def more(self, text: str) -> str:
        """What is new in the next piece."""
        if self._is_joined:
            return text
        self._held += text
        may_repeat = len(self._shown) >= LEAST_REPEATED
        if may_repeat and self._held.startswith(self._shown):
            return self._join(self._held[len(self._shown) :])
        if may_repeat and self._shown.startswith(self._held):
            return ""
        return self._join(self._without_space(self._held))

    def rest(self) -> str:
        """What is new at the end of the answer, when it might have become a repetition and did not."""
        if self._is_joined or self._held == self.asked:
            return ""
        return self._join(self._without_space(self._held))

    def _join(self, text: str) -> str:
        self._is_joined = True
        return text

    def _without_space(self, text: str) -> str:
        """The model begins with the white space that readers have seen and it was not given."""
        return text.removeprefix(self._space)


def said_so_far(arguments: str) -> str:
    """The text that a call of `send_message` says, by JSON arguments that may not be finished."""
    try:
        given: object = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    message = cast("dict[str, object]", given).get("message") if isinstance(given, dict) else None
    return message if isinstance(message, str) else ""


class Speech:
    """A call by which the agent says something, while the model still writes it."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._shown = 0

    def more(self, arguments: str) -> str:
        """What is said beyond what was said so far."""
        self._arguments.append(arguments)
        text = said_so_far("".join(self._arguments))
        new = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return new
