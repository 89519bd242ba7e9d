"""`holdfast keys`: keys for the API, made where the database is. It needs no key, and no API that runs.

The new secret is all that goes to the output, so that a script can take it from there; the rest is for the terminal.
"""

import argparse
import getpass
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from secrets import token_bytes

from api.access.issuing import DEFAULT_GRACE_S, LONGEST_GRACE_S, Issued, KeyIssuer
from api.commands.processes import AddCommand, positive, production_database
from api.letta.admin import status_of
from shared.clock import SystemClock
from shared.domain.api_keys import ApiKey
from shared.domain.errors import InvalidRequest
from shared.domain.ids import IdMaker, KeyId, ProjectId
from shared.process.settings import Settings
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.access.audit import Asker, asked_by

COMMAND_LINE = "command-line"
"""Who makes a key that no other key has made."""


def add_keys_command(add: AddCommand) -> None:
    """Adds it to the parser, through its `add_parser`."""
    keys = add("keys", help="make, list, rotate and revoke keys of the API; needs HOLDFAST_DATABASE_URL")
    acts = keys.add_subparsers(required=True, metavar="act")
    create = acts.add_parser("create", help="make a key, and print its secret: it is shown once")
    create.add_argument("--project", default="default", help="whose data the key opens (default: default)")
    create.add_argument("--name", required=True, help="who will use the key")
    create.add_argument(
        "--scope",
        action="append",
        metavar="SCOPE",
        help="read, write or admin; and agent:<id> for that agent only; may be repeated (default: write)",
    )
    create.add_argument("--expires-in-days", type=positive, metavar="N", help="(default: it never expires)")
    create.set_defaults(run=_run_create)
    listing = acts.add_parser("list", help="show the keys, without their secrets")
    listing.add_argument("--project", help="of this project (default: of all)")
    listing.set_defaults(run=_run_list)
    revoke = acts.add_parser("revoke", help="end a key, within five seconds everywhere")
    revoke.add_argument("key", help="the id of the key: key-…")
    revoke.set_defaults(run=_run_revoke)
    rotate = acts.add_parser("rotate", help="give a key a new secret, and print it: it is shown once")
    rotate.add_argument("key", help="the id of the key: key-…")
    rotate.add_argument(
        "--grace",
        type=_seconds,
        default=DEFAULT_GRACE_S,
        metavar="SECONDS",
        help=f"how long the old secret goes on; 0: it ends at once (default: {DEFAULT_GRACE_S}, a day)",
    )
    rotate.set_defaults(run=_run_rotate)


def _seconds(text: str) -> int:
    number = int(text)
    if not 0 <= number <= LONGEST_GRACE_S:
        raise argparse.ArgumentTypeError(f"must be from 0 to {LONGEST_GRACE_S}")
    return number


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


async def _run_create(settings: Settings, options: argparse.Namespace) -> None:
    project = str(options.project).strip()
    if not project or not project.isprintable():
        raise InvalidRequest("--project is empty, or has a character that cannot be printed")
    days: int | None = options.expires_in_days
    async with _issuing(settings) as issuer:
        expires_at = None if days is None else issuer.clock.now() + timedelta(days=days)
        issued = await issuer.create(
            ProjectId(project), options.name, options.scope or ["write"], expires_at=expires_at, by=COMMAND_LINE
        )
    _show(issued)


async def _run_list(settings: Settings, options: argparse.Namespace) -> None:
    async with _issuing(settings) as issuer:
        keys = await issuer.keys.list_all(None if options.project is None else ProjectId(options.project))
        now = issuer.clock.now()
    for row in _table(keys, now):
        print(row)


async def _run_revoke(settings: Settings, options: argparse.Namespace) -> None:
    async with _issuing(settings) as issuer:
        key = await issuer.keys.revoke(None, KeyId(options.key), issuer.clock.now())
    print(f"holdfast keys: {key.id} of project {key.project_id} ({key.name}) is revoked")


async def _run_rotate(settings: Settings, options: argparse.Namespace) -> None:
    async with _issuing(settings) as issuer:
        issued = await issuer.rotate(None, KeyId(options.key), options.grace)
    _show(issued)
    print(f"holdfast keys: earlier secrets end in {options.grace} seconds", file=sys.stderr)


def _show(issued: Issued) -> None:
    key = issued.key
    print(
        f"holdfast keys: {key.id}, project {key.project_id}, {', '.join(key.scopes)}, "
        f"{'never expires' if key.expires_at is None else f'until {_day(key.expires_at)}'}; "
        "its secret is shown here and never again:",
        file=sys.stderr,
        flush=True,
    )
    print(issued.secret)


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
