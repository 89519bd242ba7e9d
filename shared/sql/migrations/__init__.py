"""Migrations of the database, applied in order by `holdfast migrate`, and the policies that they give their tables."""

from alembic import op

_SETTING = "current_setting('holdfast.project', true)"
_SEES_ALL = f"(SELECT coalesce({_SETTING}, '') = '')"
"""Evaluated once per statement, because it is a subquery."""

OF_PROJECT = f"project_id = (SELECT {_SETTING})"
"""The condition for a table with a column for the project."""


def protect(*tables: str, is_shown: str = OF_PROJECT) -> None:
    """Creates the policies of row-level security, the second barrier between projects: on Postgres, only a session of
    the row's project sees the row. A change here would not reach the tables of earlier migrations.

    A session names in `holdfast.project` the project whose rows it may see and write. A session without it sees all
    rows, as workers do. The policies also apply to the tables' owner, which is the role of most servers. `is_shown` is
    the condition for a row: one without a project column is visible with its parent row.
    """
    if op.get_context().dialect.name == "postgresql":
        for table in tables:
            op.execute(f"CREATE POLICY of_project ON {table} USING ({_SEES_ALL} OR {is_shown})")
            op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
