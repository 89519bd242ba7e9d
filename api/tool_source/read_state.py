"""What one reading of a source has used up and complained about: a small hostile text must not cause much work."""

from shared.domain.errors import InvalidToolSource

MAX_TYPES = 2_000
MAX_DEPTH = 64
MAX_WARNINGS = 50


class ReadState:
    """Handed through one call of `read_tool_source`."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._types_left = MAX_TYPES

    def warn(self, text: str) -> None:
        """Notes something that the model will not be told as the author may have meant it."""
        if text not in self.warnings and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)

    def spend(self, depth: int) -> None:
        """Counts one more type. A type used twice counts twice, because the schema will say it twice."""
        self._types_left -= 1
        if self._types_left < 0:
            raise InvalidToolSource(f"The parameters' types have more than {MAX_TYPES} parts: use simpler types.")
        if depth > MAX_DEPTH:
            raise InvalidToolSource(f"A parameter's type is nested deeper than {MAX_DEPTH} levels: flatten it.")
