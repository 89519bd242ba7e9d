"""Migrations, with alembic: they bring a database to the shape of `tables.py`. `holdfast migrate` and `holdfast dev`
call it."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from shared.sql.engine import Database

MIGRATIONS = Path(__file__).parent / "migrations"


async def migrate(database: Database) -> str:
    """Applies every migration that the database lacks; gives the revision that it has then."""
    config = _config()
    async with database.migrating() as connection:
        await connection.run_sync(_upgrade, config)
    return newest_revision()


async def is_current(database: Database) -> bool:
    """Whether the database has the shape that this version needs. Raises `Unavailable`."""
    async with database.read() as connection:
        return await connection.run_sync(_revision_of) == newest_revision()


def newest_revision() -> str:
    """The revision that this version of the product brings."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _upgrade(connection: Connection, config: Config) -> None:
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision_of(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return MigrationContext.configure(connection).get_current_revision()
