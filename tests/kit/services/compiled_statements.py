"""Statements are compiled once for all databases of a kind: each test has a database of its own, and compiling the same
statements for each of them took a fifth of the processor time of the stores' tests."""

from collections.abc import Hashable, Iterator, MutableMapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

Key = tuple[Any, ...]


class SharedStatements(MutableMapping[Key, Any]):
    """An engine's compiled statements. Their keys begin with the engine's dialect; any dialect of the same kind
    works."""

    def __init__(self, kept: dict[Key, Any], kind: Hashable) -> None:
        self._kept = kept
        self._kind = kind

    def __getitem__(self, key: Key) -> Any:
        return self._kept[self._kind, *key[1:]]

    def __setitem__(self, key: Key, compiled: Any) -> None:
        self._kept[self._kind, *key[1:]] = compiled

    def __delitem__(self, key: Key) -> None:
        del self._kept[self._kind, *key[1:]]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


def share_compiled_statements() -> None:
    """Makes each engine that connects from now on use the statements of all."""
    kept: dict[Key, Any] = {}

    def share(connection: sa.Connection) -> None:
        engine: Any = connection.engine
        kind: Hashable = (engine.dialect.driver, engine.dialect.server_version_info)
        if not isinstance(engine._compiled_cache, SharedStatements):
            engine._compiled_cache = SharedStatements(kept, kind)

    event.listen(sa.Engine, "engine_connect", share)
