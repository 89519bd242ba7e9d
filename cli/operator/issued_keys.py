"""The implementation of `holdfast keys`. It works on the database directly, so it needs no key and no running API.

Standard output gets the new secret alone, so that a script can read it. All other lines go to standard error.
"""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from secrets import token_bytes

import msgspec

from api.access.accepted_keys import Issued, KeyIssuer
from api.callbacks.outboxes import key_of_project, signing_key, written_secret
from api.letta.admin import status_of, wire_key
from cli.operator.processes import production_database
from cli.printable import printable, printable_json, user_name
from shared.concurrency import SystemClock
from shared.domain.api_keys import ApiKey
from shared.domain.errors import InvalidRequest
from shared.domain.ids import IdMaker, KeyId, ProjectId
from shared.process.settings import Settings
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.access.audit import Asker, asked_by

COMMAND_LINE = "command-line"
"""The creator of keys that the command line makes."""


def callback_secret_of(settings: Settings, project_id: ProjectId, *, as_json: bool) -> str:
    """Returns the secret with which a project's receivers verify callbacks."""
    key = key_of_project(signing_key(settings.callback_secret.get_secret_value()), project_id)
    if key is None:
        raise InvalidRequest("HOLDFAST_CALLBACK_SECRET is not set: callbacks are not signed")
    report = {"project": project_id, "secret": written_secret(key)}
    return msgspec.json.encode(report).decode() if as_json else report["secret"]


@asynccontextmanager
async def _issuing(settings: Settings) -> AsyncGenerator[KeyIssuer]:
    """Yields an issuer on the settings' database. The audit log records this user for the acts of the block."""
    database, clock, ids = await production_database(settings), SystemClock(), IdMaker()
    try:
        with asked_by(Asker(key_id=COMMAND_LINE, key_name=user_name("unknown"), at=clock.now(), ids=ids)):
            yield KeyIssuer(keys=ApiKeyStore(database), clock=clock, ids=ids, random=token_bytes)
    finally:
        await database.aclose()


async def create_key(
    settings: Settings, project: ProjectId, name: str, *, scopes: list[str], lasts: timedelta | None, as_json: bool
) -> None:
    """Makes a key, and prints its secret. `lasts`: the time until it expires; None: never."""
    async with _issuing(settings) as issuer:
        expires_at = None if lasts is None else issuer.clock.now() + lasts
        issued = await issuer.create(project, name, scopes, expires_at=expires_at, by=COMMAND_LINE)
    _show(issued, issuer.clock.now(), as_json=as_json)


async def show_keys(settings: Settings, *, project: str | None, as_json: bool) -> None:
    """Prints the keys, without their secrets."""
    async with _issuing(settings) as issuer:
        keys = await issuer.keys.list_all(None if project is None else ProjectId(project))
        now = issuer.clock.now()
    shown = [msgspec.json.encode(wire_key(key, now)).decode() for key in keys] if as_json else _table(keys, now)
    for row in shown:
        print(printable_json(row) if as_json else printable(row))


async def revoke_key(settings: Settings, *, key_id: KeyId, as_json: bool) -> None:
    """Revokes a key."""
    async with _issuing(settings) as issuer:
        now = issuer.clock.now()
        key = await issuer.keys.revoke(None, key_id, now)
    if as_json:
        print(printable_json(msgspec.json.encode(wire_key(key, now)).decode()))
        return
    print(f"holdfast keys: {key.id} of project {key.project_id} ({printable(key.name)}) is revoked")


async def rotate_key(settings: Settings, *, key_id: KeyId, grace: int, as_json: bool) -> None:
    """Gives a key a new secret, and prints it. `grace`: seconds for which the old secret stays valid."""
    async with _issuing(settings) as issuer:
        issued = await issuer.rotate(None, key_id, grace)
    _show(issued, issuer.clock.now(), as_json=as_json)
    print(f"holdfast keys: earlier secrets expire in {grace} seconds", file=sys.stderr)


def _show(issued: Issued, now: datetime, *, as_json: bool) -> None:
    """Prints the secret alone on standard output, or as JSON the API's answer: the key, with its secret as `key`."""
    key = issued.key
    print(
        f"holdfast keys: {key.id}, project {key.project_id}, {', '.join(key.scopes)}, "
        f"{'never expires' if key.expires_at is None else f'until {_day(key.expires_at)}'}; "
        "its secret is shown here and never again:",
        file=sys.stderr,
        flush=True,
    )
    report = {**wire_key(key, now), "key": issued.secret}
    print(printable_json(msgspec.json.encode(report).decode()) if as_json else issued.secret)


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
