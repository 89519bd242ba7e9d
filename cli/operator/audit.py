"""`holdfast audit`: who did what, read where the database is; it needs no key, and no API that runs."""

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

import msgspec
import typer

from api.letta.admin import wire_audit_event
from cli.operator.processes import production_database
from cli.operator.start import operate
from cli.options import JsonOption, days_at_most, positive
from cli.printable import printable, printable_json
from shared.clock import SystemClock
from shared.domain.ids import ProjectId
from shared.process.settings import Settings
from shared.sql.access.audit import AuditEvent, AuditFilter, AuditLog

SHOWN = 50


commands = typer.Typer()


@commands.command(epilog="Example: holdfast audit --action key.revoked --days 30")
def audit(
    project: Annotated[str | None, typer.Option(help="Of this project (default: all).")] = None,
    action: Annotated[str | None, typer.Option(help="Such as key.revoked (default: all).")] = None,
    key: Annotated[str | None, typer.Option(help="The id of the key that was used (default: all).")] = None,
    object_id: Annotated[
        str | None, typer.Option("--object", help="The id of what it was done to (default: all).")
    ] = None,
    days: Annotated[
        int | None, typer.Option(parser=days_at_most, metavar="N", help="Of the last N days (default: all).")
    ] = None,
    limit: Annotated[int, typer.Option(parser=positive, metavar="N", help="The newest N.")] = SHOWN,
    as_json: JsonOption = False,
) -> None:
    """Show who did what: keys, decisions, deletions. Needs HOLDFAST_DATABASE_URL."""
    since = None if days is None else SystemClock().now() - timedelta(days=days)
    wanted = AuditFilter(action=action, key_id=key, object_id=object_id, since=since)
    operate(partial(_show, project=project, wanted=wanted, limit=limit, as_json=as_json))


async def _show(settings: Settings, *, project: str | None, wanted: AuditFilter, limit: int, as_json: bool) -> None:
    database = await production_database(settings)
    try:
        events = await AuditLog(database).newest(None if project is None else ProjectId(project), wanted, limit)
    finally:
        await database.aclose()
    for event in events:
        print(
            printable_json(msgspec.json.encode(wire_audit_event(event)).decode())
            if as_json
            else printable(_shown(event))
        )
    if not events:
        print("holdfast audit: nothing was recorded that fits", file=sys.stderr)


def _shown(event: AuditEvent) -> str:
    refused = "" if event.outcome == "done" else f" ({event.outcome})"
    origin = f" from {event.address}" if event.address else ""
    return (
        f"{_second(event.at)}  {event.project_id}  {event.action}{refused}  {event.object_id}  "
        f"by {event.key_id} ({event.key_name}){origin}"
    )


def _second(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
