"""On Postgres, rows are shown to their project's sessions only: row-level security, the second wall between projects.

A session says in `holdfast.project` whose rows it may see and write. One that says nothing sees all of them, as workers
do, and as processes of the release before, which know nothing of it. The policies also hold for the tables' owner, as
whom most servers run.

A row without a project of its own is shown with the row that it belongs to. The tables without texts have no policy.
Below one, Postgres would not use the index of words: it does not know that a comparison of words tells nobody what it
compares; a search is joined with the passages, which have a policy. And the places of deleted rows are cleared away
together, by whoever deletes next, for all projects. API keys are looked up before anybody knows whose they are.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OWNED = (
    "agents", "approvals", "archives", "audit_events", "blocks", "budget_totals", "callbacks", "conversations",
    "passages", "runs", "steps", "tools",
)  # fmt: skip
"""Tables with a column for the project."""

PARENTS = {
    "agent_archives": ("agents", "id", "agent_id"),
    "agent_blocks": ("agents", "id", "agent_id"),
    "agent_tags": ("agents", "id", "agent_id"),
    "agent_tools": ("agents", "id", "agent_id"),
    "event_blocks": ("runs", "id", "run_id"),
    "injected_messages": ("runs", "id", "run_id"),
    "messages": ("agents", "id", "agent_id"),
    "passage_tags": ("passages", "number", "passage_number"),
    "passage_vectors": ("passages", "number", "number"),
    "run_inputs": ("runs", "id", "run_id"),
    "submission_keys": ("runs", "id", "run_id"),
    "tool_intents": ("runs", "id", "run_id"),
}
"""Of the others: the table of the row that they belong to, its column, and theirs. That table's own policy decides."""

SETTING = "current_setting('holdfast.project', true)"
SEES_ALL = f"(SELECT coalesce({SETTING}, '') = '')"
"""Asked once per statement, because it stands in a query of its own."""


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in OWNED:
        _protect(table, f"project_id = (SELECT {SETTING})")
    for table, (parent, key, column) in PARENTS.items():
        _protect(table, f"EXISTS (SELECT FROM {parent} WHERE {parent}.{key} = {table}.{column})")


def downgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in (*OWNED, *PARENTS):
        op.execute(f"DROP POLICY of_project ON {table}")
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY")


def _protect(table: str, is_shown: str) -> None:
    op.execute(f"CREATE POLICY of_project ON {table} USING ({SEES_ALL} OR {is_shown})")
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
