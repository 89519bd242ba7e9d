"""Migrations, which bring a database to the schema of `tables.py` for `holdfast migrate` and `holdfast dev`; and the
check of that schema that every process makes. Alembic applies them.
"""

import asyncio
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from shared.domain.errors import Unavailable, Unusable
from shared.sql.engine import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"

_REVISION = re.compile(r"\d{4}_\w+(?=\.pyc?$)")

_UNRELEASED = re.compile(r"\d{4}")
"""The form of revisions in commits before the first release: only a number."""

_VERSIONS = sa.table("alembic_version", sa.column("version_num", sa.Text))
"""Where Alembic keeps the revision of a database, in one row."""

TRIES = 10
PAUSE_S = 1.0
"""How often a migration is tried, and the seconds between. If a migration and a worker wait for each other, Postgres
aborts one of the two; an aborted migration has changed nothing."""

_MAY_NOT = "42501"
"""The SQLSTATE of a privilege that the role does not have."""


async def migrate(database: Database) -> str:
    """Applies every migration that the database lacks. Returns its new revision.

    Each migration has its own transaction, so it releases the locks of its tables before the next one begins. If it
    changes only one table, it never holds one lock while it waits for another. A new database, which no process uses,
    gets all of them in one transaction. After an interruption, the next call continues.

    Raises `Unavailable`, and its subclass `Unusable` for a database of another version or another program.
    """
    try:
        async with database.read() as connection:
            revision = await connection.run_sync(_revision_of)
        _refuse_unknown(revision)
        for target in _lacking(revision):
            await _apply(database, target)
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _MAY_NOT:
            raise
        raise Unusable(
            "the role may not make tables there: make it the owner of the database, or grant it CREATE on its schema"
        ) from error
    return newest_revision()


async def _apply(database: Database, target: str) -> None:
    for left in reversed(range(TRIES)):
        try:
            async with database.migrating() as connection:
                # Another process may have migrated it meanwhile.
                _refuse_unknown(await connection.run_sync(_revision_of))
                await connection.run_sync(_refuse_foreign)
                await connection.run_sync(upgrade, MIGRATIONS, target)
        except Unavailable as error:
            if isinstance(error, Unusable) or not left:
                raise
            log.warning("migration_tried_again", revision=target, reason=str(error))
            await asyncio.sleep(PAUSE_S)
        else:
            return


def upgrade(connection: Connection, migrations: Path, target: str) -> None:
    """Brings the database to the revision `target`, in the transaction of the connection."""
    # Imported here because Alembic takes a tenth of a second, and most processes find their database up to date.
    from alembic.command import upgrade as apply
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations))
    config.attributes["connection"] = connection
    apply(config, target)


async def is_current(database: Database) -> bool:
    """Whether the database has the shape that this version needs. Raises `Unavailable`."""
    async with database.read() as connection:
        return await connection.run_sync(_revision_of) == newest_revision()


async def require_current(database: Database) -> None:
    """Raises `Unusable` for a database that does not have the shape that this version needs, or `Unavailable`."""
    async with database.read() as connection:
        revision = await connection.run_sync(_revision_of)
    _refuse_unknown(revision)
    if revision != newest_revision():
        raise Unusable("it does not have the shape that this version needs: run `holdfast migrate`")


def _refuse_unknown(revision: str | None) -> None:
    """Raises `Unusable` for a revision that this version does not know. Migrations only go forward, and databases of
    commits before the first release have none."""
    if revision is None or revision in revisions():
        return
    if _UNRELEASED.fullmatch(revision):
        raise Unusable(
            f"a version from before 0.2.0, which was never released, made the database (revision {revision!r}), and no "
            "migration leads from it to this version: give Holdfast a new, empty database"
        )
    raise Unusable(
        f"a newer version has migrated the database, to revision {revision[:40]!r}: run that version, or restore a "
        "back-up from before"
    )


def _lacking(revision: str | None) -> Sequence[str]:
    """Returns the revisions after this one, oldest first."""
    if revision is None:
        return [newest_revision()]
    return revisions()[revisions().index(revision) + 1 :]


def newest_revision() -> str:
    """The revision that this version of the product brings."""
    return revisions()[-1]


@cache
def revisions() -> Sequence[str]:
    """Returns every revision, oldest first: the names of the migrations' files, which begin with a number. Cached,
    because the readiness check needs them every few seconds."""
    found = (_REVISION.match(path.name) for path in (MIGRATIONS / "versions").iterdir())
    return sorted({match[0] for match in found if match})


def _refuse_foreign(connection: Connection) -> None:
    """Raises `Unusable` for a database in which another program has a table under a name of ours."""
    found = sa.inspect(connection)
    if not found.has_table("alembic_version") and found.has_table("agents"):
        raise Unusable("it has tables of another program with names that Holdfast uses: give Holdfast its own database")


def _revision_of(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(_VERSIONS.name):
        return None
    return connection.execute(sa.select(_VERSIONS.c.version_num)).scalar_one_or_none()
