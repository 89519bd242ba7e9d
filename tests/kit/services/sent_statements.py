"""The statements that stores really send, for tests of their query plans."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import event
from sqlalchemy.engine import Engine


class Sent(NamedTuple):
    """A statement as it was passed to the driver."""

    text: str
    parameters: Sequence[Any]


@contextmanager
def sent_statements() -> Generator[list[Sent]]:
    """The statements sent to a database in the block, each text once, without pure inserts."""
    sent: dict[str, Sent] = {}

    def note(_connection: Any, _cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        if text.startswith(("SELECT", "UPDATE", "DELETE")) and "advisory" not in text:
            sent.setdefault(text, Sent(text, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    statements: list[Sent] = []
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        statements.extend(sent.values())
