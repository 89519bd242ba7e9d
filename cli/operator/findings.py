"""What `holdfast doctor` has found: a line for each thing that it looked at, with the fix where something is amiss."""

import os
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from api.access.callers import ConfiguredKeys
from cli.printable import printable, printable_json
from shared.concurrency import SystemClock
from shared.domain.errors import HoldfastError, InvalidRequest, ModelError
from shared.domain.ids import AgentId, IdMaker, ThreadId
from shared.domain.messages import Message, UserMessage
from shared.domain.models import BUILTIN, MODELS, PROVIDERS
from shared.network.checked_http import NetworkRules
from shared.packages.environments import package_rules
from shared.process.data_directory import keys_of
from shared.process.settings import Settings
from shared.redis.connection import Redis
from shared.redis.process_presence import ProcessPresence
from shared.secret_keys import NO_KEYS, SecretKeys, can_read
from shared.sql.access.webhooks import EndpointSecretStore
from shared.sql.definitions.mcp_servers import ServerSecretStore
from shared.sql.definitions.tools import StoredSecretStore
from shared.sql.engine import Database, database_url
from worker.models.provider import ModelCall
from worker.models.registry import Models


class Verdict(StrEnum):
    """How something is."""

    OK = "ok"
    WARN = "warn"
    """It works, and there is a reason to look at it."""
    WRONG = "wrong"


class Finding(NamedTuple):
    """One thing that was looked at."""

    verdict: Verdict
    subject: str
    said: str
    fix: str = ""


def good(subject: str, said: str) -> Finding:
    """It is as it should be."""
    return Finding(Verdict.OK, subject, said)


def doubtful(subject: str, said: str, fix: str) -> Finding:
    """It works; `fix` says what would be better."""
    return Finding(Verdict.WARN, subject, said, fix)


def wrong(subject: str, said: str, fix: str) -> Finding:
    """It does not work until somebody does what `fix` says."""
    return Finding(Verdict.WRONG, subject, said, fix)


def skew(subject: str, seconds: float) -> Finding:
    """A clock that is ahead of ours by so many seconds. Leases last six seconds by default, so two are too many."""
    said = f"its clock differs from this machine's by {abs(seconds):.1f} s"
    if abs(seconds) <= LARGEST_SKEW_S:
        return good(subject, said)
    return wrong(subject, said, "let both machines follow the same time server")


LARGEST_SKEW_S = 2.0
"""Seconds. SQL tells its time to the second, so less than one cannot be seen."""


def lines(findings: Sequence[Finding], *, as_json: bool) -> list[str]:
    """The findings as text, or as JSON objects."""
    if as_json:
        return [printable_json(msgspec.json.encode(finding._asdict()).decode()) for finding in findings]
    width = max(len(finding.subject) for finding in findings)
    return [
        printable(f"{one.verdict:<5}  {one.subject:<{width}}  {one.said}" + (f"; {one.fix}" if one.fix else ""))
        for one in findings
    ]


# Which model providers a process with this environment can ask; and, on request, whether they answer.


async def model_findings(settings: Settings, environment: Mapping[str, str], *, call: bool) -> AsyncGenerator[Finding]:
    """A finding for each provider that is set up. `call`: ask one model of each."""
    names = [name for name, one in PROVIDERS.items() if name != BUILTIN and one.is_configured(environment)]
    if not names and not settings.builtin_models:
        fix = "give the workers the key of a provider, such as OPENAI_API_KEY; docs/models.md lists all variables"
        yield doubtful("models", "no provider is set up here", fix)
    models = Models(
        environment,
        first_event_timeout=settings.first_event_timeout,
        idle_timeout=settings.idle_timeout,
        retries=0,
        network=NetworkRules.of(settings.reachable_networks, settings.ca_file),
    )
    try:
        for name in names:
            yield await _finding(models, name, call=call)
    finally:
        await models.aclose()


async def _finding(models: Models, provider: str, *, call: bool) -> Finding:
    subject = f"models of {provider}"
    if not call:
        return good(subject, "has what it needs to be asked; --call asks it")
    handle = next((model.handle for model in MODELS if model.provider == provider), None)
    if handle is None:
        return doubtful(subject, "is set up, and no model of it is known here", "try one with `holdfast agents create`")
    try:
        await _ask(models, handle)
    except ModelError as error:
        return wrong(subject, f"{handle} does not answer: {error.message}", "docs/models.md has its variables")
    return good(subject, f"{handle} answers")


async def _ask(models: Models, handle: str) -> None:
    """Asks for a word. Raises `ModelError`."""
    question = Message(
        id=IdMaker().message(),
        agent_id=AgentId(""),
        thread_id=ThreadId(""),
        conversation_id=None,
        run_id=None,
        step_id=None,
        created_at=SystemClock().now(),
        body=UserMessage("Say the word ready."),
    )
    call = ModelCall(handle=handle, system="Answer with one word.", history=[question])
    async with aclosing(models.stream(call)) as events:
        async for _ in events:
            pass


# What `holdfast doctor` finds about settings that open a server further than a production should be, and about disks
# that are full. Processes warn of the first at their start, where nobody looks a week later.


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


# What `holdfast doctor` finds about the keys for agents' secrets: whether each process reads what the others encrypt,
# and whether what is stored can be read.


BATCH = 500

PLAIN_TEXT = "an API and its workers store the secrets of agents as plain text; `holdfast dev` makes a key of its own"

HERE = "this command"
"""Stands for the settings that `doctor` was started with."""

MAKE = "`holdfast secrets generate-key` prints a key"
SAME = "give the workers and the API processes the same HOLDFAST_ENCRYPTION_KEY, and restart the workers first"


def key_findings(settings: Settings) -> list[Finding]:
    """Whether there is a key, and it can be read."""
    subject = "encryption key"
    try:
        keys = keys_of(settings)
    except InvalidRequest as error:
        return [wrong(subject, error.message, MAKE)]
    if keys:
        return [good(subject, f"secrets are encrypted with {keys.current!r}")]
    return [doubtful(subject, PLAIN_TEXT, f"set HOLDFAST_ENCRYPTION_KEY; {MAKE}")]


async def stored_secret_findings(settings: Settings, database: Database) -> list[Finding]:
    """Whether the keys of these settings read every secret that is stored. Raises `Unavailable`."""
    keys = _keys(settings)
    kinds = [
        ("stored secrets", "agents", StoredSecretStore(database)),
        ("webhook secrets", "webhook endpoints", EndpointSecretStore(database)),
        ("MCP secrets", "MCP servers", ServerSecretStore(database)),
    ]
    findings = list[Finding]()
    for subject, owners, store in kinds:
        looked, problems, after = 0, list[str](), 0
        while batch := await store.some(after, BATCH):
            found = [keys.problem_with(one.owner_id, one.secrets) for one in batch]
            problems += [problem.reason for problem in found if problem is not None]
            looked, after = looked + len(batch), batch[-1].number
        if problems:
            said = f"those of {len(problems):,} of {looked:,} {owners} cannot be read: {problems[0]}"
            fix = "HOLDFAST_ENCRYPTION_KEY needs the key that is named; docs/operations/secrets.md"
            findings.append(wrong(subject, said, fix))
        elif looked or owners == "agents":
            findings.append(good(subject, f"those of {looked:,} {owners} can be read"))
    return findings


async def shared_key_findings(settings: Settings, redis: Redis) -> list[Finding]:
    """Whether the processes that live have the same keys as one another, and as these settings. Raises
    `Unavailable`."""
    presence = ProcessPresence(redis)
    living = [*await presence.workers(), *await presence.api_processes()]
    shown = {one.name: one.secret_keys for one in living if one.secret_keys is not None}
    if not shown:
        return []
    subject = "encryption keys of processes"
    if apart := list(_unreadable(shown)):
        return [wrong(subject, apart[0] + (f", and {len(apart) - 1} more" if apart[1:] else ""), SAME)]
    here = {HERE: _keys(settings).fingerprints}
    if apart := list(_unreadable({**shown, **here})):
        fix = "start it with the HOLDFAST_ENCRYPTION_KEY of the processes"
        return [doubtful(subject, f"each of {len(shown)} reads what the others encrypt, but {apart[0]}", fix)]
    return [good(subject, f"each of {len(shown)} reads what the others encrypt")]


def _keys(settings: Settings) -> SecretKeys:
    try:
        return keys_of(settings)
    except InvalidRequest:
        return NO_KEYS  # which is a finding of its own


def _unreadable(processes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for reader, keys in processes.items():
        for writer, others in processes.items():
            if not can_read(keys, others):
                yield f"{reader} does not have the key {others[0]} with which {writer} encrypts"
                break
