"""Where alembic gets its connection: from whoever asked for the migration, so that its transaction is theirs."""

from alembic import context

from shared.sql.run_tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
context.run_migrations()
