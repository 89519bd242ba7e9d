"""The command lines of `holdfast migrate`, `prune`, `doctor`, `status`, `budgets`, `audit` and `secrets`.

An implementation is imported after the settings were read, so that a wrong setting is reported at once.
"""

from datetime import date, timedelta
from typing import Annotated

import typer

from cli.operator.start import execute, read_settings, ready_settings, require_database, require_redis
from cli.printable import MOST_DAYS, JsonOption
from shared.concurrency import SystemClock
from shared.domain.errors import InvalidRequest
from shared.domain.limits import day_of
from shared.process.importing import without_collections

AUDIT_SHOWN = 50

commands = typer.Typer()


@commands.command("migrate", epilog="Example: holdfast migrate && holdfast api")
def migrate_database(as_json: JsonOption = False) -> None:
    """Migrate the database to the schema of this version. Needs HOLDFAST_DATABASE_URL."""
    settings = ready_settings()
    require_database(settings)
    with without_collections():
        from cli.operator.database_maintenance import run_migrate
    execute(run_migrate(settings, as_json=as_json))


@commands.command(epilog="Example: holdfast prune --older-than-days 90 --dry-run")
def prune(
    older_than_days: Annotated[
        int | None, typer.Option(min=1, max=MOST_DAYS, metavar="N", help="(default: HOLDFAST_RETAIN_DAYS)")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be deleted; delete nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete logs, steps and keys of runs that ended long ago, and old records."""
    settings = ready_settings(retain_days=older_than_days)
    if not (settings.retain_days or settings.retain_audit_days or settings.retain_budget_days):
        raise InvalidRequest("runs are kept for ever: give --older-than-days N, or set HOLDFAST_RETAIN_DAYS")
    require_database(settings)
    with without_collections():
        from cli.operator.database_maintenance import run_prune
    execute(run_prune(settings, dry_run=dry_run, as_json=as_json))


@commands.command(epilog="Example: holdfast doctor --call && holdfast worker")
def doctor(
    call: Annotated[bool, typer.Option("--call", help="Also call a model of each provider.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the settings, their services and this machine; print each problem with its fix.

    Exits with 1 if there is a problem."""
    settings = ready_settings()
    with without_collections():
        from cli.operator.doctor import run_doctor
    execute(run_doctor(settings, call=call, as_json=as_json))


@commands.command(epilog="Example: holdfast status && echo well")
def status(as_json: JsonOption = False) -> None:
    """Check whether database, Redis and workers answer, and how workers isolate tools."""
    settings = ready_settings()
    require_database(settings)
    require_redis(settings)
    with without_collections():
        from cli.operator.database_maintenance import run_status
    execute(run_status(settings, as_json=as_json))


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise typer.BadParameter("write the day as 2026-01-31") from error


@commands.command(epilog="Example: holdfast budgets --day 2026-01-31")
def budgets(
    project: Annotated[str | None, typer.Option(help="Only of this project (default: all).")] = None,
    day: Annotated[str | None, typer.Option(parser=_day, metavar="YYYY-MM-DD", help="By UTC (default: today).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what agents, keys and projects used on a day, and their limits."""
    settings = ready_settings()
    require_database(settings)
    with without_collections():
        from cli.operator.database_maintenance import show_budgets
    execute(show_budgets(settings, project=project, day=day or day_of(SystemClock().now()), as_json=as_json))


@commands.command(epilog="Example: holdfast audit --action key.revoked --days 30")
def audit(
    project: Annotated[str | None, typer.Option(help="Only of this project (default: all).")] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, such as key.revoked (default: all).")] = None,
    key: Annotated[str | None, typer.Option(help="Only actions of the key with this id (default: all).")] = None,
    object_id: Annotated[
        str | None, typer.Option("--object", help="Only actions on the object with this id (default: all).")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=MOST_DAYS, metavar="N", help="Only of the last N days (default: all).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Only the newest N.")] = AUDIT_SHOWN,
    as_json: JsonOption = False,
) -> None:
    """Show who did what: keys, decisions, deletions. Needs HOLDFAST_DATABASE_URL."""
    since = None if days is None else SystemClock().now() - timedelta(days=days)
    settings = ready_settings()
    require_database(settings)
    with without_collections():
        from cli.operator.database_maintenance import AuditFilter, show_audit
    wanted = AuditFilter(action=action, key_id=key, object_id=object_id, since=since)
    execute(show_audit(settings, project=project, wanted=wanted, limit=limit, as_json=as_json))


secret_commands = typer.Typer(add_completion=False, help="Make a key for agents' secrets, or re-encrypt all of them.")
commands.add_typer(secret_commands, name="secrets")


@secret_commands.command(
    "generate-key", epilog='Example: export HOLDFAST_ENCRYPTION_KEY="$(holdfast secrets generate-key)"'
)
def generate_key() -> None:
    """Print a new key for HOLDFAST_ENCRYPTION_KEY."""
    read_settings()
    from cli.operator.database_maintenance import print_new_key

    print_new_key()


@secret_commands.command(epilog="Example: holdfast secrets rotate --dry-run")
def rotate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which keys are in use; change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Encrypt all secrets with the first key of HOLDFAST_ENCRYPTION_KEY."""
    settings = ready_settings()
    if not (settings.encryption_key.get_secret_value() or settings.encryption_key_file):
        raise InvalidRequest("HOLDFAST_ENCRYPTION_KEY is not set: `holdfast secrets generate-key` prints a key")
    require_database(settings)
    with without_collections():
        from cli.operator.database_maintenance import rotate_secrets
    execute(rotate_secrets(settings, dry_run=dry_run, as_json=as_json))
