"""Where the database is: `HOLDFAST_DATABASE_URL`, read once, and never shown with its password."""

from collections.abc import Mapping

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from shared.domain.errors import InvalidRequest

_SETTING = "HOLDFAST_DATABASE_URL"
_EXAMPLES = "use postgresql://role:password@host/database, or sqlite:///path"
_DRIVERS = {"postgres": "postgresql+asyncpg", "postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}

_PARAMETERS = frozenset(
    {"host", "port", "user", "password", "passfile", "ssl", "sslmode", "target_session_attrs"}
    | {"prepared_statement_cache_size"}
)
"""What may stand behind the `?` of a Postgres URL: asyncpg's own names that take a text, and `sslmode`, by which
everybody else calls its `ssl`."""


def database_url(text: str) -> URL:
    """The URL with our drivers in it. Raises `InvalidRequest` when it names neither Postgres nor a SQLite file. Its
    text is in no message, because a password may stand anywhere in a URL that cannot be read."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        # A ValueError is one of a port that is no number.
        raise InvalidRequest(f"{_SETTING} is not a database URL: {_EXAMPLES}") from error
    backend = url.drivername.partition("+")[0]
    if backend not in _DRIVERS:
        raise InvalidRequest(f"{_SETTING} names {backend!r}; Holdfast runs on Postgres and SQLite: {_EXAMPLES}")
    url = url.set(drivername=_DRIVERS[backend])
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise InvalidRequest(f"{_SETTING} names no file: use sqlite:///path, with a fourth / for an absolute path")
        return url
    return _of_postgres(url)


def _of_postgres(url: URL) -> URL:
    if url.port is not None and not 1 <= url.port <= 65535:
        raise InvalidRequest(f"{_SETTING} names port {url.port}: use one from 1 to 65535, Postgres listens on 5432")
    unknown = sorted(url.query.keys() - _PARAMETERS)
    if unknown:
        raise InvalidRequest(
            f"{_SETTING} has a parameter {unknown[0]!r}, which is not known here: use {', '.join(sorted(_PARAMETERS))}"
        )
    query: Mapping[str, str | tuple[str, ...]] = {
        ("ssl" if name == "sslmode" else name): value for name, value in url.query.items()
    }
    modes = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
    if query.get("ssl", "prefer") not in modes:
        raise InvalidRequest(f"{_SETTING}: sslmode is one of {', '.join(modes)}")
    return url.set(query=query)


def shown(url: URL) -> str:
    """The URL for a message: without the password and what stands behind the `?`."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database}"
    return url.set(drivername="postgresql", query={}).render_as_string()
