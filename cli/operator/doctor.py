"""The implementation of `holdfast doctor`, which checks a machine, its settings and its services.

It changes nothing, and calls a model only with `--call`, because that costs money.
"""

import os
import resource
from collections.abc import AsyncGenerator, Awaitable

import typer

from cli.operator.findings import (
    Finding,
    Verdict,
    api_key_findings,
    disk_findings,
    doubtful,
    good,
    key_findings,
    lines,
    model_findings,
    opened_findings,
    role_findings,
    shared_key_findings,
    skew,
    stored_secret_findings,
    wrong,
)
from cli.operator.processes import from_below
from cli.printable import FAILURE
from shared.concurrency import SystemClock
from shared.domain.errors import HoldfastError, InvalidRequest, Unavailable, Unusable
from shared.domain.operations import ServerMemory
from shared.process.importing import VERSION
from shared.process.settings import Settings
from shared.redis.connection import Redis, connect, try_writing
from shared.redis.log_servers import LogServers, log_servers
from shared.redis.process_presence import ServerSettings, memory_of, settings_of
from shared.sql.engine import Database
from shared.sql.migrate import require_current
from worker.tools.sandbox_choice import SandboxChoice

FILES_BESIDE_CONNECTIONS = 500
"""Files that a process opens besides its clients' connections: those to Postgres, Redis, models and tools."""

FULL = 0.8
"""The used share of a Redis server's memory from which an operator should act, as in deploy/prometheus/alerts.yml."""

LOGS_FIX = "HOLDFAST_EVENT_LOG_URL says where they are"

NOT_SET = "not set; `holdfast dev` needs none, `holdfast api` and `holdfast worker` do"


async def run_doctor(settings: Settings, *, call: bool, as_json: bool) -> None:
    """Prints the findings. Raises `typer.Exit` if one of them is a problem."""
    findings = [good("version", f"Holdfast {VERSION}"), good("settings", "all names and values are valid")]
    findings += [*key_findings(settings), *api_key_findings(settings), *opened_findings(settings)]
    findings += [finding async for finding in _database(settings)]
    findings += [finding async for finding in _redis(settings)]
    findings += [finding async for finding in model_findings(settings, os.environ, call=call)]
    findings += [await _walls(settings), _open_files(settings), *disk_findings(settings)]
    for line in lines(findings, as_json=as_json):
        print(line)
    if any(finding.verdict is Verdict.WRONG for finding in findings):
        raise typer.Exit(FAILURE)


async def _database(settings: Settings) -> AsyncGenerator[Finding]:
    subject = "database"
    if not settings.database_url:
        fix = "set HOLDFAST_DATABASE_URL=postgresql://role:password@host/database"
        yield wrong(subject, "HOLDFAST_DATABASE_URL is not set", fix) if settings.redis_url else good(subject, NOT_SET)
        return
    try:
        database = Database(settings.database_url)
    except HoldfastError as error:
        yield wrong(subject, error.message, "docs/operations/postgres.md")
        return
    try:
        # The database returns whole seconds.
        before = SystemClock().now()
        now = await database.now()
        yield good(subject, "answers")
        yield skew("database clock", (now - before).total_seconds() if abs((now - before).total_seconds()) > 1 else 0.0)
        yield await _writes(subject, database.try_writing(), "docs/operations/database-lost.md")
        migrations = await _migrations(database)
        yield migrations
        for finding in await role_findings(settings, database):
            yield finding
        if migrations.verdict is Verdict.OK:
            for finding in await stored_secret_findings(settings, database):
                yield finding
    except Unavailable as error:
        said = error.message + from_below(error)
        yield wrong(subject, said, "HOLDFAST_DATABASE_URL says where it is; docs/operations/postgres.md")
    finally:
        await database.aclose()


async def _migrations(database: Database) -> Finding:
    try:
        await require_current(database)
    except Unusable as error:
        return wrong("migrations", error.message, "docs/operations/upgrade.md")
    return good("migrations", "the database has the schema of this version")


async def _redis(settings: Settings) -> AsyncGenerator[Finding]:
    subject = "redis"
    if not settings.redis_url:
        fix = "set HOLDFAST_REDIS_URL=redis://host:6379/0"
        yield wrong(subject, "HOLDFAST_REDIS_URL is not set", fix) if settings.database_url else good(subject, NOT_SET)
        return
    try:
        redis = connect(settings.redis_url)
    except InvalidRequest as error:
        yield wrong(subject, "HOLDFAST_REDIS_URL cannot be read", error.message)
        return
    try:
        before = SystemClock().now()
        found = await settings_of(redis)
        yield good(subject, f"answers, version {found.version}")
        yield skew("redis clock", (found.now - before).total_seconds())
        for finding in _redis_settings(subject, found):
            yield finding
        yield _redis_memory(subject, await memory_of(redis))
        yield await _writes(subject, try_writing(redis), "docs/operations/redis.md")
        for finding in (*await shared_key_findings(settings, redis), *await _event_log(settings, redis)):
            yield finding
    except Unavailable as error:
        yield wrong(subject, error.message, "HOLDFAST_REDIS_URL says where it is; docs/operations/redis.md")
    finally:
        await redis.aclose(close_connection_pool=True)


async def _writes(subject: str, trial: Awaitable[None], fix: str) -> Finding:
    try:
        await trial
    except Unavailable as error:
        return wrong(f"{subject} writes", error.message, fix)
    return good(f"{subject} writes", "it accepts them")


async def _event_log(settings: Settings, redis: Redis) -> list[Finding]:
    """Checks the servers of the logs, if they are not `redis`."""
    if not settings.event_log_url:
        return []
    try:
        async with log_servers(settings.event_log_url, redis) as servers:
            return await _log_servers("event log", servers)
    except InvalidRequest as error:
        return [wrong("event log", "HOLDFAST_EVENT_LOG_URL cannot be read", error.message)]


async def _log_servers(subject: str, servers: LogServers) -> list[Finding]:
    well = await servers.are_reachable()
    findings = [good(subject, "every server answers") if well else wrong(subject, "not every server answers", LOGS_FIX)]
    for netloc, server in servers.by_netloc().items():
        findings += await _log_server(f"{subject} {netloc}", server)
    return findings


async def _log_server(name: str, server: Redis) -> list[Finding]:
    try:
        return [*_redis_settings(name, await settings_of(server)), _redis_memory(name, await memory_of(server))]
    except Unavailable as error:
        return [wrong(name, error.message, LOGS_FIX)]


def _redis_settings(server: str, found: ServerSettings) -> list[Finding]:
    """Checks whether the server keeps its data. Lost data is no error: it is rebuilt from SQL, which takes time."""
    if found.eviction is None:
        fix = "compare them with docs/operations/redis.md"
        return [doubtful(f"{server} settings", "it does not allow reading them", fix)]
    return [
        good(f"{server} eviction", "noeviction")
        if found.eviction == "noeviction"
        else wrong(
            f"{server} eviction",
            f"{found.eviction} removes keys when memory runs short",
            "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        ),
        good(f"{server} persistence", "an append-only file" if found.appends else "snapshots")
        if found.appends or found.snapshots
        else doubtful(
            f"{server} persistence",
            "none: after a restart of Redis queues and logs are rebuilt from the database",
            "appendonly yes, appendfsync everysec",
        ),
    ]


def _redis_memory(server: str, memory: ServerMemory) -> Finding:
    subject, used = f"{server} memory", memory.used or 0
    if not memory.limit:
        return doubtful(subject, "maxmemory is not set or not readable", "set it below the machine's memory")
    said = f"{used / 1e6:,.1f} MB of {memory.limit / 1e6:,.1f} MB are used"
    if used < FULL * memory.limit:
        return good(subject, said)
    return doubtful(subject, said, "raise maxmemory or lower HOLDFAST_STREAM_TTL_S; docs/operations/redis.md")


async def _walls(settings: Settings) -> Finding:
    subject = "walls around tools"
    choice = SandboxChoice(settings.sandbox, settings.tool_user, settings.tool_python, settings.tool_scratch_mb)
    try:
        walls = await choice.best_isolation()
    except InvalidRequest as error:
        return wrong(subject, error.message, "docs/tools.md")
    if walls is None:
        return doubtful(subject, "NONE: tools run as plain processes", "unset HOLDFAST_SANDBOX; docs/tools.md")
    return good(subject, f"{walls.tier} works here")


def _open_files(settings: Settings) -> Finding:
    subject = "open files"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.max_connections + FILES_BESIDE_CONNECTIONS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return good(subject, f"a process may have {soft:,}")
    fix = f"ulimit -n {needed} (the hard limit is {hard:,}), or HOLDFAST_MAX_CONNECTIONS={max(10, soft // 2)}"
    return doubtful(subject, f"a process may have {soft:,}, and HOLDFAST_MAX_CONNECTIONS asks for {needed:,}", fix)
