"""What `holdfast doctor` finds about settings that open a server further than a production should be, and about disks
that are full. Processes warn of the first at their start, where nobody looks a week later."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from api.access.callers import ConfiguredKeys
from cli.operator.findings import Finding, doubtful, good, wrong
from shared.domain.errors import HoldfastError, InvalidRequest
from shared.packages.setup import package_rules
from shared.process.settings import Settings
from shared.sql.address import database_url
from shared.sql.engine import Database

FULL = 0.9
"""The share of a disk from which on an operator should look."""

MIB = 1 << 20


def api_key_findings(settings: Settings) -> list[Finding]:
    """Whether the configured keys can be guessed."""
    subject = "api keys"
    try:
        keys = ConfiguredKeys.parse(settings.api_keys.get_secret_value(), settings.api_keys_file)
    except InvalidRequest as error:
        return [wrong(subject, error.message, "docs/operations/keys.md")]
    if not keys:
        return [good(subject, "none in the settings: a server without stored keys asks for none, on loopback alone")]
    if warnings := keys.warnings():
        return [doubtful(subject, *warning.split("; ", 1)) for warning in warnings]
    return [good(subject, "those in the settings are too long to be guessed")]


def opened_findings(settings: Settings) -> Iterator[Finding]:
    """What a production leaves closed. `holdfast dev` has the built-in models without being told to."""
    if settings.builtin_models:
        said = "on: whoever may send a message decides how long a worker is busy"
        yield doubtful("built-in models", said, "unset HOLDFAST_BUILTIN_MODELS for the API and the workers")
    else:
        yield good("built-in models", "off, but for `holdfast dev`")
    if settings.callback_allow_private:
        said = "allowed: whoever may send a message makes the API post to addresses of your network"
        fix = "unset HOLDFAST_CALLBACK_ALLOW_PRIVATE, or name the networks in HOLDFAST_REACHABLE_NETWORKS"
        yield doubtful("callbacks to private addresses", said, fix)
    else:
        yield good("callbacks to private addresses", "refused")


async def role_findings(settings: Settings, database: Database) -> list[Finding]:
    """Whether the second wall between projects holds. Raises `Unavailable`."""
    subject = "row-level security"
    if database.is_sqlite:
        return []
    if not settings.row_level_security:
        fix = "unset HOLDFAST_ROW_LEVEL_SECURITY"
        return [doubtful(subject, "switched off: the stores alone keep projects apart", fix)]
    if await database.passes_policies():
        said = "void: the database's role is a superuser or has BYPASSRLS"
        fix = "ALTER ROLE … NOSUPERUSER NOBYPASSRLS, or a role of its own; docs/operations/postgres.md"
        return [doubtful(subject, said, fix)]
    return [good(subject, "binds the database's role")]


def disk_findings(settings: Settings) -> Iterator[Finding]:
    """The disks that processes on this machine write to."""
    scratch = Path(tempfile.gettempdir())
    more = "make room, or set TMPDIR to a folder with room"
    yield _disk("scratch disk (TMPDIR)", scratch, settings.tool_scratch_mb, more)
    if settings.package_index.get_secret_value():
        more = "make room, or set HOLDFAST_PACKAGE_DIR to a folder with room"
        yield _disk("package disk", package_rules(settings).folder, settings.package_mb, more)
    if (folder := _database_folder(settings)) is not None:
        yield _disk("database disk", folder, 1, "make room: nothing can be stored")


def _database_folder(settings: Settings) -> Path | None:
    """Where the database of this machine lies; None for a database server."""
    if not settings.database_url:
        return None if settings.redis_url else settings.data_dir
    try:
        url = database_url(settings.database_url)
    except HoldfastError:
        return None
    return Path(url.database or "").absolute().parent if url.get_backend_name() == "sqlite" else None


def _disk(subject: str, folder: Path, least_mib: int, fix: str) -> Finding:
    """`least_mib`: what one call, or one installation, may take."""
    place = next((one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir()), Path("/"))
    found = os.statvfs(place)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    said = f"{free / MIB:,.0f} MiB of {size / MIB:,.0f} are free at {place}"
    if free < least_mib * MIB:
        return wrong(subject, f"{said}, and {least_mib} MiB may be needed at once", fix)
    if found.f_files and not found.f_favail:
        return wrong(subject, f"no file can be made at {place}: its inodes are used up", fix)
    return doubtful(subject, said, fix) if free < (1 - FULL) * size else good(subject, said)
