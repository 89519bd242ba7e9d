"""Alembic, which applies migrations. Only a process that must apply a migration imports this module; other processes do
not load Alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection, migrations: Path, target: str) -> None:
    """Brings the database to the revision `target`, in the transaction of the connection."""
    config = Config()
    config.set_main_option("script_location", str(migrations))
    config.attributes["connection"] = connection
    command.upgrade(config, target)
