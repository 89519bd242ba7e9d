"""`holdfast keys`: keys for the API, made where the database is. It needs no key, and no API that runs.

The new secret is all that goes to the output, so that a script can take it from there; the rest is for the terminal.
"""

import getpass
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from secrets import token_bytes
from typing import Annotated

import msgspec
import typer

from api.access.issuing import DEFAULT_GRACE_S, LONGEST_GRACE_S, Issued, KeyIssuer
from api.callbacks.signature import key_of_project, signing_key, written_secret
from api.letta.admin import status_of, wire_key
from cli.operator.processes import production_database
from cli.operator.start import operate, read_settings
from cli.options import JsonOption, days_at_most
from cli.printable import printable, printable_json
from shared.clock import SystemClock
from shared.domain.api_keys import ApiKey
from shared.domain.errors import InvalidRequest
from shared.domain.ids import IdMaker, KeyId, ProjectId
from shared.process.settings import Settings
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.access.audit import Asker, asked_by

COMMAND_LINE = "command-line"
"""Who makes a key that no other key has made."""


commands = typer.Typer(help="Make, list, rotate and revoke keys of the API. Needs HOLDFAST_DATABASE_URL.")

KeyArgument = Annotated[str, typer.Argument(help="The id of the key: key-…")]


def _seconds(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= LONGEST_GRACE_S:
        raise typer.BadParameter(f"must be from 0 to {LONGEST_GRACE_S}")
    return number


@commands.command(epilog="Example: KEY=$(holdfast keys create --name backend --scope write)")
def create(
    name: Annotated[str, typer.Option(help="Who will use the key.")],
    project: Annotated[str, typer.Option(help="Whose data the key opens.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="read, write or admin; and agent:<id> for that agent only; may be repeated (default: write)."
        ),
    ] = None,
    expires_in_days: Annotated[
        int | None, typer.Option(parser=days_at_most, metavar="N", help="(default: it never expires)")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key, and print its secret: it is shown once."""
    if not project.strip() or not project.isprintable():
        raise InvalidRequest("--project is empty, or has a character that cannot be printed")
    asked = partial(_create, name=name, project=project.strip(), scopes=scope or ["write"], days=expires_in_days)
    operate(partial(asked, as_json=as_json))


@commands.command("list", epilog="Example: holdfast keys list --project default --json")
def list_keys(
    project: Annotated[str | None, typer.Option(help="Of this project (default: of all).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the keys, without their secrets."""
    operate(partial(_list, project=project, as_json=as_json))


@commands.command(epilog="Example: holdfast keys revoke key-0b0f3a4e-93a5-4a7a-8d5c-1c5a4f6f1a2b")
def revoke(key: KeyArgument, as_json: JsonOption = False) -> None:
    """End a key, within five seconds everywhere."""
    operate(partial(_revoke, key_id=KeyId(key), as_json=as_json))


@commands.command(epilog="Example: holdfast keys rotate key-0b0f3a4e-93a5-4a7a-8d5c-1c5a4f6f1a2b --grace 3600")
def rotate(
    key: KeyArgument,
    grace: Annotated[
        int,
        typer.Option(
            parser=_seconds,
            metavar="SECONDS",
            help="How long the old secret goes on; 0: it ends at once. The default is a day.",
        ),
    ] = DEFAULT_GRACE_S,
    as_json: JsonOption = False,
) -> None:
    """Give a key a new secret, and print it: it is shown once."""
    operate(partial(_rotate, key_id=KeyId(key), grace=grace, as_json=as_json))


@commands.command("callback-secret", epilog="Example: holdfast keys callback-secret --project default")
def callback_secret(
    project: Annotated[str, typer.Option(help="Whose callbacks the secret signs.")] = "default",
    as_json: JsonOption = False,
) -> None:
    """Print the secret with which a project's receivers check callbacks. Needs HOLDFAST_CALLBACK_SECRET alone."""
    project_id = ProjectId(project.strip())
    key = key_of_project(signing_key(read_settings().callback_secret.get_secret_value()), project_id)
    if key is None:
        raise InvalidRequest("HOLDFAST_CALLBACK_SECRET is not set: callbacks are not signed")
    told = {"project": project_id, "secret": written_secret(key)}
    print(msgspec.json.encode(told).decode() if as_json else told["secret"])


@asynccontextmanager
async def _issuing(settings: Settings) -> AsyncGenerator[KeyIssuer]:
    """What makes keys, on the settings' database; what is done in the block is recorded as this user's."""
    database, clock, ids = await production_database(settings), SystemClock(), IdMaker()
    try:
        with asked_by(Asker(key_id=COMMAND_LINE, key_name=_user(), at=clock.now(), ids=ids)):
            yield KeyIssuer(keys=ApiKeyStore(database), clock=clock, ids=ids, random=token_bytes)
    finally:
        await database.aclose()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


async def _create(
    settings: Settings, *, name: str, project: str, scopes: list[str], days: int | None, as_json: bool
) -> None:
    async with _issuing(settings) as issuer:
        expires_at = None if days is None else issuer.clock.now() + timedelta(days=days)
        issued = await issuer.create(ProjectId(project), name, scopes, expires_at=expires_at, by=COMMAND_LINE)
    _show(issued, issuer.clock.now(), as_json=as_json)


async def _list(settings: Settings, *, project: str | None, as_json: bool) -> None:
    async with _issuing(settings) as issuer:
        keys = await issuer.keys.list_all(None if project is None else ProjectId(project))
        now = issuer.clock.now()
    shown = [msgspec.json.encode(wire_key(key, now)).decode() for key in keys] if as_json else _table(keys, now)
    for row in shown:
        print(printable_json(row) if as_json else printable(row))


async def _revoke(settings: Settings, *, key_id: KeyId, as_json: bool) -> None:
    async with _issuing(settings) as issuer:
        now = issuer.clock.now()
        key = await issuer.keys.revoke(None, key_id, now)
    if as_json:
        print(printable_json(msgspec.json.encode(wire_key(key, now)).decode()))
        return
    print(f"holdfast keys: {key.id} of project {key.project_id} ({printable(key.name)}) is revoked")


async def _rotate(settings: Settings, *, key_id: KeyId, grace: int, as_json: bool) -> None:
    async with _issuing(settings) as issuer:
        issued = await issuer.rotate(None, key_id, grace)
    _show(issued, issuer.clock.now(), as_json=as_json)
    print(f"holdfast keys: earlier secrets end in {grace} seconds", file=sys.stderr)


def _show(issued: Issued, now: datetime, *, as_json: bool) -> None:
    """Prints the secret alone on standard output, or, as the API answers, the key with its secret as `key`."""
    key = issued.key
    print(
        f"holdfast keys: {key.id}, project {key.project_id}, {', '.join(key.scopes)}, "
        f"{'never expires' if key.expires_at is None else f'until {_day(key.expires_at)}'}; "
        "its secret is shown here and never again:",
        file=sys.stderr,
        flush=True,
    )
    told = {**wire_key(key, now), "key": issued.secret}
    print(printable_json(msgspec.json.encode(told).decode()) if as_json else issued.secret)


def _table(keys: Sequence[ApiKey], now: datetime) -> list[str]:
    rows = [("ID", "PROJECT", "NAME", "SCOPES", "SECRET", "STATUS", "EXPIRES", "LAST USED")]
    rows += [
        (
            key.id,
            key.project_id,
            key.name,
            ",".join(key.scopes),
            f"{key.prefix}…",
            status_of(key, now),
            "never" if key.expires_at is None else _day(key.expires_at),
            "never" if key.last_used_at is None else _day(key.last_used_at),
        )
        for key in keys
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
