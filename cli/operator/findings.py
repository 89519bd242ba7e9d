"""The findings of `holdfast doctor`: one for each check, with the fix if there is a problem."""

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
from shared.sql.definitions.mcp_servers import ServerSecretStore
from shared.sql.definitions.tools import StoredSecretStore
from shared.sql.engine import Database, database_url
from shared.sql.runs.webhooks import EndpointSecretStore
from worker.models.provider import ModelCall
from worker.models.registry import Models


class Verdict(StrEnum):
    """The result of one check."""

    OK = "ok"
    WARN = "warn"
    """The checked part works, but an operator should look at it."""
    WRONG = "wrong"


class Finding(NamedTuple):
    """The finding of one check."""

    verdict: Verdict
    subject: str
    said: str
    fix: str = ""


def good(subject: str, said: str) -> Finding:
    """A check without a problem."""
    return Finding(Verdict.OK, subject, said)


def doubtful(subject: str, said: str, fix: str) -> Finding:
    """Something works, but `fix` would improve it."""
    return Finding(Verdict.WARN, subject, said, fix)


def wrong(subject: str, said: str, fix: str) -> Finding:
    """Something does not work until an operator applies `fix`."""
    return Finding(Verdict.WRONG, subject, said, fix)


def skew(subject: str, seconds: float) -> Finding:
    """Checks a clock that is `seconds` ahead of ours. Leases last six seconds by default, so two are too many."""
    said = f"its clock differs from this machine's by {abs(seconds):.1f} s"
    if abs(seconds) <= LARGEST_SKEW_S:
        return good(subject, said)
    return wrong(subject, said, "let both machines follow the same time server")


LARGEST_SKEW_S = 2.0
"""Seconds. SQL returns its time in whole seconds, so a smaller difference than one is invisible."""


def lines(findings: Sequence[Finding], *, as_json: bool) -> list[str]:
    """Renders the findings as text, or as JSON objects."""
    if as_json:
        return [printable_json(msgspec.json.encode(finding._asdict()).decode()) for finding in findings]
    width = max(len(finding.subject) for finding in findings)
    return [
        printable(f"{one.verdict:<5}  {one.subject:<{width}}  {one.said}" + (f"; {one.fix}" if one.fix else ""))
        for one in findings
    ]


# Model providers: which ones this environment configures and, on request, whether they answer.


async def model_findings(settings: Settings, environment: Mapping[str, str], *, call: bool) -> AsyncGenerator[Finding]:
    """Yields a finding for each configured provider. `call`: also call one model of each."""
    names = [name for name, one in PROVIDERS.items() if one.wire != BUILTIN and one.is_configured(environment)]
    if not names and not settings.builtin_models:
        fix = "give the workers the key of a provider, such as OPENAI_API_KEY; docs/models.md lists all variables"
        yield doubtful("models", "no provider is configured here", fix)
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
        return good(subject, "configured; --call also calls a model")
    handle = next((model.handle for model in MODELS if model.provider == provider), None)
    if handle is None:
        return doubtful(subject, "configured, but its models are unknown", "try one with `holdfast agents create`")
    try:
        await _ask(models, handle)
    except ModelError as error:
        return wrong(subject, f"{handle} does not answer: {error.message}", "docs/models.md has its variables")
    return good(subject, f"{handle} answers")


async def _ask(models: Models, handle: str) -> None:
    """Asks the model for one word. Raises `ModelError`."""
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


# Settings that are too open for production, and disks that are full. Processes warn of such settings when they start,
# but no operator reads that a week later.


FULL = 0.9
"""The used share of a disk from which an operator should act."""

MIB = 1 << 20


def api_key_findings(settings: Settings) -> list[Finding]:
    """Checks whether the configured keys can be guessed."""
    subject = "api keys"
    try:
        keys = ConfiguredKeys.parse(settings.api_keys.get_secret_value(), settings.api_keys_file)
    except InvalidRequest as error:
        return [wrong(subject, error.message, "docs/operations/keys.md")]
    if not keys:
        return [good(subject, "none in the settings; without stored keys the server is open, on loopback only")]
    if warnings := keys.warnings():
        return [doubtful(subject, *warning.split("; ", 1)) for warning in warnings]
    return [good(subject, "the keys in the settings are too long to be guessed")]


def opened_findings(settings: Settings) -> Iterator[Finding]:
    """Checks settings that production leaves off. `holdfast dev` turns the built-in models on by itself."""
    if settings.builtin_models:
        said = "on: any caller who may send a message decides how long a worker is busy"
        yield doubtful("built-in models", said, "unset HOLDFAST_BUILTIN_MODELS for the API and the workers")
    else:
        yield good("built-in models", "off, except in `holdfast dev`")
    if settings.callback_allow_private:
        said = "allowed: any caller who may send a message can make the API post to addresses in your network"
        fix = "unset HOLDFAST_CALLBACK_ALLOW_PRIVATE, or name the networks in HOLDFAST_REACHABLE_NETWORKS"
        yield doubtful("callbacks to private addresses", said, fix)
    else:
        yield good("callbacks to private addresses", "refused")


async def role_findings(settings: Settings, database: Database) -> list[Finding]:
    """Checks whether row-level security, the second wall between projects, applies. Raises `Unavailable`."""
    subject = "row-level security"
    if database.is_sqlite:
        return []
    if not settings.row_level_security:
        fix = "unset HOLDFAST_ROW_LEVEL_SECURITY"
        return [doubtful(subject, "off: only the stores' own filters keep projects apart", fix)]
    if await database.passes_policies():
        said = "without effect: the database's role is a superuser or has BYPASSRLS"
        fix = "ALTER ROLE … NOSUPERUSER NOBYPASSRLS, or use another role; docs/operations/postgres.md"
        return [doubtful(subject, said, fix)]
    return [good(subject, "applies to the database's role")]


def disk_findings(settings: Settings) -> Iterator[Finding]:
    """Checks the disks that processes on this machine write to."""
    scratch = Path(tempfile.gettempdir())
    more = "make room, or set TMPDIR to a folder with room"
    yield _disk("scratch disk (TMPDIR)", scratch, settings.tool_scratch_mb, more)
    if settings.package_index.get_secret_value():
        more = "make room, or set HOLDFAST_PACKAGE_DIR to a folder with room"
        yield _disk("package disk", package_rules(settings).folder, settings.package_mb, more)
    if (folder := _database_folder(settings)) is not None:
        yield _disk("database disk", folder, 1, "make room: nothing can be stored")


def _database_folder(settings: Settings) -> Path | None:
    """Returns the folder of this machine's database file; None for a database server."""
    if not settings.database_url:
        return None if settings.redis_url else settings.data_dir
    try:
        url = database_url(settings.database_url)
    except HoldfastError:
        return None
    return Path(url.database or "").absolute().parent if url.get_backend_name() == "sqlite" else None


def _disk(subject: str, folder: Path, least_mib: int, fix: str) -> Finding:
    """Checks one disk. `least_mib`: what one call, or one installation, may need."""
    place = next((one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir()), Path("/"))
    found = os.statvfs(place)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    said = f"{free / MIB:,.0f} MiB of {size / MIB:,.0f} are free at {place}"
    if free < least_mib * MIB:
        return wrong(subject, f"{said}, and {least_mib} MiB may be needed at once", fix)
    if found.f_files and not found.f_favail:
        return wrong(subject, f"no file can be made at {place}: it has no free inodes", fix)
    return doubtful(subject, said, fix) if free < (1 - FULL) * size else good(subject, said)


# The keys for agents' secrets: whether each process can decrypt the secrets of the other processes, and all stored
# secrets.


BATCH = 500

PLAIN_TEXT = "API and workers store agents' secrets as plain text; `holdfast dev` makes a key of its own"

HERE = "this command"
"""The name of `doctor`'s own settings among those of the processes."""

MAKE = "`holdfast secrets generate-key` prints a key"
SAME = "give the workers and the API processes the same HOLDFAST_ENCRYPTION_KEY, and restart the workers first"


def key_findings(settings: Settings) -> list[Finding]:
    """Checks whether a key is configured and readable."""
    subject = "encryption key"
    try:
        keys = keys_of(settings)
    except InvalidRequest as error:
        return [wrong(subject, error.message, MAKE)]
    if keys:
        return [good(subject, f"secrets are encrypted with {keys.current!r}")]
    return [doubtful(subject, PLAIN_TEXT, f"set HOLDFAST_ENCRYPTION_KEY; {MAKE}")]


async def stored_secret_findings(settings: Settings, database: Database) -> list[Finding]:
    """Checks whether these settings' keys decrypt every stored secret. Raises `Unavailable`."""
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
            fix = "add that key to HOLDFAST_ENCRYPTION_KEY; docs/operations/secrets.md"
            findings.append(wrong(subject, said, fix))
        elif looked or owners == "agents":
            findings.append(good(subject, f"those of {looked:,} {owners} can be read"))
    return findings


async def shared_key_findings(settings: Settings, redis: Redis) -> list[Finding]:
    """Checks whether all running processes have the same keys, and whether these settings have them. Raises
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
        fix = "run it with the processes' HOLDFAST_ENCRYPTION_KEY"
        return [doubtful(subject, f"each of {len(shown)} reads the secrets of the others, but {apart[0]}", fix)]
    return [good(subject, f"each of {len(shown)} reads the secrets of the others")]


def _keys(settings: Settings) -> SecretKeys:
    try:
        return keys_of(settings)
    except InvalidRequest:
        return NO_KEYS  # `key_findings` reports it


def _unreadable(processes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for reader, keys in processes.items():
        for writer, others in processes.items():
            if not can_read(keys, others):
                yield f"{reader} does not have the key {others[0]} with which {writer} encrypts"
                break
