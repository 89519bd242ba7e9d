"""The statements that stores really send, for tests that ask a database how it would find their rows."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import event
from sqlalchemy.engine import Engine


class Sent(NamedTuple):
    """A statement as it went to the driver."""

    text: str
    parameters: Sequence[Any]


@contextmanager
def sent_statements() -> Generator[list[Sent]]:
    """What is sent to a database in the block, each text once; what only inserts is left out."""
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
