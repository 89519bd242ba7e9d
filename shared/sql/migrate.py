"""Migrations, with alembic: they bring a database to the shape of `tables.py`. `holdfast migrate` and `holdfast dev`
call it."""

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import sqlalchemy as sa
import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from shared.domain.errors import Unavailable, Unusable
from shared.sql.engine import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"

TRIES = 10
PAUSE_S = 1.0
"""How often a migration is begun, and seconds between. One that waits for a worker that waits for it is ended by
Postgres, if the worker is not: nothing of it has happened then."""

_MAY_NOT = "42501"
"""The SQLSTATE of a privilege that the role does not have."""


async def migrate(database: Database) -> str:
    """Applies every migration that the database lacks; gives the revision that it has then.

    Each has a transaction of its own: it lets its tables go before the next one begins, and does not keep one while it
    waits for another, as long as it changes one table alone. A new database, which nobody uses, gets all of them in one
    transaction. Where a call was interrupted, the next one goes on.

    Raises `Unavailable`; as `Unusable` for a database that is another version's, or somebody else's.
    """
    config = _config()
    try:
        async with database.read() as connection:
            revision = await connection.run_sync(_revision_of)
        _refuse_newer(revision)
        for target in _lacking(revision):
            await _apply(database, config, target)
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _MAY_NOT:
            raise
        raise Unusable(
            "the role may not make tables there: make it the owner of the database, or grant it CREATE on its schema"
        ) from error
    return newest_revision()


async def _apply(database: Database, config: Config, target: str) -> None:
    for left in reversed(range(TRIES)):
        try:
            async with database.migrating() as connection:
                # Another process may have migrated it meanwhile.
                _refuse_newer(await connection.run_sync(_revision_of))
                await connection.run_sync(_refuse_foreign)
                await connection.run_sync(_upgrade, config, target)
        except Unavailable as error:
            if isinstance(error, Unusable) or not left:
                raise
            log.warning("migration_tried_again", revision=target, reason=str(error))
            await asyncio.sleep(PAUSE_S)
        else:
            return


async def is_current(database: Database) -> bool:
    """Whether the database has the shape that this version needs. Raises `Unavailable`."""
    async with database.read() as connection:
        return await connection.run_sync(_revision_of) == newest_revision()


async def require_current(database: Database) -> None:
    """Raises `Unusable` for a database that does not have the shape that this version needs, or `Unavailable`."""
    async with database.read() as connection:
        revision = await connection.run_sync(_revision_of)
    _refuse_newer(revision)
    if revision != newest_revision():
        raise Unusable("it does not have the shape that this version needs: run `holdfast migrate`")


def _refuse_newer(revision: str | None) -> None:
    """Raises `Unusable` for a revision that this version does not know: migrations only go forward."""
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is not None and revision not in known:
        raise Unusable(
            f"a newer version has migrated the database, to revision {revision[:40]!r}: run that version, or restore a "
            "back-up from before"
        )


def _lacking(revision: str | None) -> Sequence[str]:
    """Where to go from this revision, oldest first."""
    if revision is None:
        return [newest_revision()]
    return [script.revision for script in _scripts().iterate_revisions("head", revision)][::-1]


@cache
def newest_revision() -> str:
    """The revision that this version of the product brings. Readiness asks for it every few seconds."""
    return _scripts().get_current_head() or ""


@cache
def _scripts() -> ScriptDirectory:
    """The migrations. Reading them runs each."""
    return ScriptDirectory.from_config(_config())


def _refuse_foreign(connection: Connection) -> None:
    """Raises `Unusable` for a database in which somebody else has a table under a name of ours."""
    found = sa.inspect(connection)
    if not found.has_table("alembic_version") and found.has_table("agents"):
        raise Unusable("somebody else's tables are there, under names of ours: give Holdfast a database of its own")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _upgrade(connection: Connection, config: Config, target: str) -> None:
    config.attributes["connection"] = connection
    command.upgrade(config, target)


def _revision_of(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return MigrationContext.configure(connection).get_current_revision()
