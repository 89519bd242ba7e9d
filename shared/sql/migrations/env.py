"""Gives alembic the connection of the migration's caller, so that the migration runs in the caller's transaction."""

from alembic import context

from shared.sql.run_tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
context.run_migrations()
