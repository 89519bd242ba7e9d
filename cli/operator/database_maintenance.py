"""The implementations of `holdfast migrate`, `prune`, `audit`, `budgets`, `status` and `secrets`."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from api.letta.admin import wire_audit_event
from cli.operator.processes import named_database, production_database, production_redis, stop_signal
from cli.printable import FAILURE, printable, printable_json
from shared.concurrency import SystemClock
from shared.domain.errors import InvalidRequest, Unavailable, Unusable
from shared.domain.ids import ProjectId
from shared.domain.limits import Amount, Budgets, Limit, dollars
from shared.domain.tools import SandboxTier
from shared.process.data_directory import keys_of
from shared.process.importing import VERSION
from shared.process.settings import Settings
from shared.redis.connection import Redis, is_reachable, try_writing
from shared.redis.process_presence import ProcessPresence, ToolPresence
from shared.redis.queue import WorkerPresence
from shared.secret_keys import PLAIN, SecretKeys, StoredSecrets, key_id_of, new_key
from shared.sql.access.audit import AuditEvent, AuditFilter, AuditLog
from shared.sql.definitions.mcp_servers import ServerSecretStore
from shared.sql.definitions.tools import StoredSecretStore
from shared.sql.engine import ANSWER_S, Database
from shared.sql.migrate import migrate
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.retention import RecordRetention, Retention, RetentionStore
from shared.sql.runs.webhooks import EndpointSecretStore

PROGRESS_S = 5.0


@contextmanager
def shown_progress(what: str) -> Generator[Callable[[int], None]]:
    """Shows the progress of long work on standard error: a bar on a terminal, otherwise a line every five seconds.
    Yields a function that takes the count so far. `what` is its text: "holdfast prune: {:,} runs so far"."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            # The total is unknown: the database would need as long again to count it first.
            task = progress.add_task(what.format(0), total=None)
            yield lambda count: progress.update(task, description=what.format(count))
        return
    said_at = time.monotonic()

    def say(count: int) -> None:
        nonlocal said_at
        if time.monotonic() > said_at + PROGRESS_S:
            said_at = time.monotonic()
            print(what.format(count), file=sys.stderr, flush=True)

    yield say


class _Report:
    """Prints how many rows of each kind were deleted, or would be: a line per kind, or one JSON object at the end."""

    def __init__(self, *, dry_run: bool, as_json: bool) -> None:
        self.dry_run = dry_run
        self._as_json = as_json
        self._before: datetime | None = None
        self._counted: dict[str, int] = {}

    def begin(self, before: datetime) -> None:
        """Announces which runs are pruned."""
        self._before = before
        if not self._as_json:
            print(f"holdfast prune: runs that ended before {before:%Y-%m-%d %H:%M} UTC", flush=True)

    def add(self, name: str, count: int) -> None:
        """Reports one kind of rows."""
        self._counted[name] = count
        if not self._as_json:
            done = "pruned" if name == "runs" else "deleted"
            print(f"{count:>12,} {name} {'would be ' if self.dry_run else ''}{done}", flush=True)

    def end(self) -> None:
        """Prints the JSON object. As text, `add` has printed every line already."""
        if self._as_json:
            report = {"dry_run": self.dry_run, "runs_ended_before": self._before, "counted": self._counted}
            print(msgspec.json.encode(report).decode(), flush=True)


async def run_migrate(settings: Settings, *, as_json: bool) -> None:
    """Migrates the database to the schema of this version, and prints its revision."""
    async with named_database(settings) as url:
        database = Database(url, answer_s=None)
        try:
            with shown_progress("holdfast migrate: migrating the database"):
                revision = await migrate(database)
        finally:
            await database.aclose()
    if as_json:
        print(msgspec.json.encode({"revision": revision}).decode())
    else:
        print(f"holdfast migrate: the database is at revision {revision}")


async def run_prune(settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    """Deletes rows that are older than the settings keep them, or only counts these rows."""
    report = _Report(dry_run=dry_run, as_json=as_json)
    database = await production_database(settings, answer_s=None if dry_run else ANSWER_S)
    stop = stop_signal()
    try:
        if settings.retain_days:
            await _prune_runs(settings, database, report, stop)
        await _prune_records(settings, database, report, stop)
        if stop.is_set():
            print("holdfast prune: interrupted; run it again to prune the rest", file=sys.stderr, flush=True)
    finally:
        report.end()
        await database.aclose()


async def _prune_records(settings: Settings, database: Database, report: _Report, stop: asyncio.Event) -> None:
    """Prunes the audit log and the accounts of budgets, whose days are settings of their own."""
    records = RecordRetention(
        audit=AuditLog(database),
        budgets=BudgetStore(database),
        clock=SystemClock(),
        audit_days=settings.retain_audit_days,
        budget_days=settings.retain_budget_days,
    )
    counted = await (records.count() if report.dry_run else records.prune(stop=stop.is_set))
    for name, count in counted.items():
        report.add(name, count)


async def _prune_runs(settings: Settings, database: Database, report: _Report, stop: asyncio.Event) -> None:
    keep = timedelta(days=settings.retain_days)
    retention = Retention(store=RetentionStore(database), clock=SystemClock(), keep=keep)
    before = retention.before
    report.begin(before)
    if not report.dry_run:
        await _prune(retention, report, stop)
        return
    async for name, count in retention.store.count(before):
        report.add(name, count)
        if stop.is_set():
            return


async def _prune(retention: Retention, report: _Report, stop: asyncio.Event) -> None:
    """Prunes until nothing is left, or until the process gets a signal to end."""
    total = Counter(runs=0)
    try:
        with shown_progress("holdfast prune: {:,} runs so far") as progress:
            await _count_pruned(retention, total, stop, progress)
    finally:
        for name, count in total.items():
            report.add(name, count)


async def _count_pruned(
    retention: Retention, total: Counter[str], stop: asyncio.Event, progress: Callable[[int], None]
) -> None:
    async with aclosing(retention.prune()) as pruning:
        async for pruned in pruning:
            total.update(pruned)
            progress(total["runs"])
            if stop.is_set():
                return


# `holdfast audit`. It reads the database directly, so it needs no key and no running API.


async def show_audit(
    settings: Settings, *, project: str | None, wanted: AuditFilter, limit: int, as_json: bool
) -> None:
    """Prints the newest `limit` entries that match."""
    database = await production_database(settings)
    try:
        events = await AuditLog(database).newest(None if project is None else ProjectId(project), wanted, limit)
    finally:
        await database.aclose()
    for event in events:
        print(
            printable_json(msgspec.json.encode(wire_audit_event(event)).decode())
            if as_json
            else printable(_shown_event(event))
        )
    if not events:
        print("holdfast audit: no entry matches", file=sys.stderr)


def _shown_event(event: AuditEvent) -> str:
    refused = "" if event.outcome == "done" else f" ({event.outcome})"
    origin = f" from {event.address}" if event.address else ""
    return (
        f"{_second(event.at)}  {event.project_id}  {event.action}{refused}  {event.object_id}  "
        f"by {event.key_id} ({event.key_name}){origin}"
    )


def _second(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


# `holdfast budgets`: the usage of each account on a day, and the amounts reserved for calls in progress.


async def show_budgets(settings: Settings, *, project: str | None, day: str, as_json: bool) -> None:
    """Prints the accounts of a day."""
    database = await production_database(settings)
    try:
        totals = await BudgetStore(database).totals(day, None if project is None else ProjectId(project))
    finally:
        await database.aclose()
    if as_json:
        for total in totals:
            print(printable_json(msgspec.json.encode(total).decode()))
        return
    if not totals:
        print(f"holdfast budgets: nothing was counted on {day}; accounts begin with the first call under a budget")
        return
    print(f"{'account':<52} {'used':>30} {'set aside':>30}  of")
    for total in totals:
        limit = _limit_of(settings.budgets, total.account)
        account, used = printable(total.account), _shown(total.used)
        print(f"{account:<52} {used:>30} {_shown(total.reserved):>30}  {_shown_limit(limit)}")


def _limit_of(budgets: Budgets, account: str) -> Limit:
    kinds = {"agent": budgets.agent, "key": budgets.key, "project": budgets.project}
    return kinds[account.partition(":")[0]]


def _shown(amount: Amount) -> str:
    return f"{amount.tokens:,} tokens, {dollars(amount.nano_usd)}"


def _shown_limit(limit: Limit) -> str:
    tokens = [] if limit.tokens is None else [f"{limit.tokens:,} tokens"]
    money = [] if limit.nano_usd is None else [dollars(limit.nano_usd)]
    return ", ".join(tokens + money) or "no limit in this command's settings"


# `holdfast status`: whether the settings' deployment works, and how its workers isolate tools.
_NODE = {
    True: "found: workers run tools in TypeScript",
    False: "not found: workers refuse tools in TypeScript",
    None: "unknown: no worker reports it",
}


@dataclass(frozen=True)
class _Status:
    """The state of the deployment."""

    version: str
    database: bool
    database_writes: bool
    redis: bool = False
    redis_writes: bool = False
    workers: bool | None = None
    """Whether at least one worker is alive. None: unknown, because Redis does not answer or refuses writes."""
    worker_count: int | None = None
    """How many workers report themselves. A live worker that has just started, or hangs, may be missing."""
    sandboxes: Sequence[SandboxTier] = ()
    node: bool | None = None


async def run_status(settings: Settings, *, as_json: bool) -> None:
    """Prints the state of the deployment. Raises `typer.Exit` if the database, Redis or every worker is away, or if one
    of the two refuses writes."""
    redis = await production_redis(settings)
    try:
        answers, problem = await _ask_database(settings)
        found = await _ask(redis, _Status(VERSION, database=answers, database_writes=not problem))
    finally:
        await redis.aclose(close_connection_pool=True)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(_lines(found, problem)))
    if not (found.database_writes and found.redis_writes and found.workers):
        raise typer.Exit(FAILURE)


async def _ask_database(settings: Settings) -> tuple[bool, str]:
    """Returns whether the database answers, and why it accepts no writes; empty if it does. Raises `Unusable`, which
    ends the command."""
    try:
        database = await production_database(settings, start_s=0)
    except Unavailable as error:
        if isinstance(error, Unusable):
            raise
        return False, error.message
    try:
        await database.try_writing()
    except Unavailable as error:
        return True, error.message
    finally:
        await database.aclose()
    return True, ""


async def _ask(redis: Redis, found: _Status) -> _Status:
    if not await is_reachable(redis):
        return found
    tools = ToolPresence(redis)
    return replace(
        found,
        redis=True,
        redis_writes=await is_reachable(redis, try_writing),
        workers=await WorkerPresence(redis).is_any_alive(),
        worker_count=len(await ProcessPresence(redis).workers()),
        sandboxes=await tools.sandboxes(),
        node=await tools.runs_javascript(),
    )


def _lines(found: _Status, problem: str) -> list[str]:
    shown = [f"holdfast   {found.version}", f"database   {problem or 'answers, and has the schema of this version'}"]
    if not found.redis:
        return [*shown, "redis      does not answer"]
    return [
        *shown,
        f"redis      {'answers' if found.redis_writes else 'refuses writes; `holdfast doctor` says why'}",
        f"workers    {_workers(found)}",
        f"walls      {_walls(found.sandboxes)}",
        f"node       {_NODE[found.node]}",
    ]


def _workers(found: _Status) -> str:
    if found.workers is None:
        return "unknown: Redis refuses writes, so no worker can show itself; `holdfast doctor` says why"
    if not found.workers:
        return "none is alive: start one with `holdfast worker`"
    return f"{found.worker_count} live" if found.worker_count else "at least one is alive"


def _walls(sandboxes: Sequence[SandboxTier]) -> str:
    if not sandboxes:
        return "unknown: no worker reports them"
    if sandboxes[-1] is SandboxTier.PROCESS:
        return "NONE for some tools: a worker runs them as plain processes (HOLDFAST_SANDBOX=process)"
    return f"{sandboxes[-1]}, the weakest of all workers" if len(sandboxes) > 1 else str(sandboxes[-1])


BATCH = 100
TRIES = 3
"""Attempts for an owner that another process changes at the same time."""


class Store(Protocol):
    """The stored secrets of one kind of owner."""

    async def some(self, after: int, limit: int) -> Sequence[StoredSecrets]: ...
    async def replace(self, before: StoredSecrets, secrets: dict[str, str]) -> bool: ...


class Rotated(NamedTuple):
    """How many owners were changed, and whether some secrets could not be decrypted."""

    changed: int = 0
    unread: bool = False


def print_new_key() -> None:
    """Prints a key for HOLDFAST_ENCRYPTION_KEY."""
    print(new_key())


async def rotate_secrets(settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    """Re-encrypts stored secrets with the first key, and prints which keys are in use. Raises `InvalidRequest`."""
    keys = keys_of(settings)
    if not keys:
        raise InvalidRequest("HOLDFAST_ENCRYPTION_KEY is not set: `holdfast secrets generate-key` prints a key")
    database = await production_database(settings)
    owners: dict[str, Store] = {
        "agents": StoredSecretStore(database),
        "webhook endpoints": EndpointSecretStore(database),
        "MCP servers": ServerSecretStore(database),
    }
    stop, rotated, in_use = stop_signal(), dict.fromkeys(owners, Rotated()), Counter[str]()
    try:
        if not dry_run:
            rotated = {nouns: await _rotate(nouns, store, keys, stop) for nouns, store in owners.items()}
        for store in owners.values():
            in_use += await _keys_in_use(store)
    finally:
        await database.aclose()
    if as_json:
        counts = {f"{nouns.lower().replace(' ', '_')}_changed": done.changed for nouns, done in rotated.items()}
        report = {"dry_run": dry_run, "current": keys.current, **counts, "secrets_by_key": in_use}
        print(printable_json(msgspec.json.encode(report).decode()))
    else:
        _say(rotated, in_use, keys, dry_run=dry_run)
    if any(done.unread for done in rotated.values()) or (in_use.keys() - {keys.current} and not dry_run):
        raise InvalidRequest(
            "not all secrets are encrypted with the first key. Run it again; for a secret that cannot be decrypted, "
            "add the named key to HOLDFAST_ENCRYPTION_KEY, or set the secret again"
        )


def _say(rotated: Mapping[str, Rotated], in_use: Mapping[str, int], keys: SecretKeys, *, dry_run: bool) -> None:
    if not dry_run:
        for nouns, done in rotated.items():
            print(f"{done.changed:>12,} {nouns} had secrets that are now encrypted with the key {keys.current!r}")
    for key_id, count in sorted(in_use.items()):
        print(f"{count:>12,} secrets are {_stored_with(key_id, keys)}", flush=True)


async def _rotate(nouns: str, store: Store, keys: SecretKeys, stop: asyncio.Event) -> Rotated:
    """Re-encrypts secrets with the first key until all are, or until `stop` is set."""
    changed, unread = 0, False
    if stop.is_set():
        return Rotated()
    with shown_progress(f"holdfast secrets rotate: {{:,}} {nouns} so far") as progress:
        async for found in _all(store):
            is_changed, is_whole = await _rotate_one(nouns.removesuffix("s"), store, keys, found)
            changed, unread = changed + is_changed, unread or not is_whole
            progress(changed)
            if stop.is_set():
                break
    if stop.is_set():
        print("holdfast secrets rotate: interrupted; run it again for the rest", file=sys.stderr, flush=True)
    return Rotated(changed, unread)


async def _all(store: Store) -> AsyncGenerator[StoredSecrets]:
    after = 0
    while batch := await store.some(after, BATCH):
        for found in batch:
            yield found
        after = batch[-1].number


async def _rotate_one(noun: str, store: Store, keys: SecretKeys, found: StoredSecrets) -> tuple[bool, bool]:
    """Returns whether it re-encrypted a secret, and whether it could decrypt all of them. It reads an owner again if
    another process changed it meanwhile; running servers encrypt the secrets that they write."""
    after, unreadable = keys.sealed_anew(found.owner_id, found.secrets)
    for error in unreadable:
        said = printable(f"holdfast secrets rotate: {noun} {found.owner_id}: {error.message}")
        print(said, file=sys.stderr, flush=True)
    if after == found.secrets:
        return False, not unreadable
    for _ in range(TRIES):
        if await store.replace(found, after):
            return True, not unreadable
        again = [one for one in await store.some(found.number - 1, 1) if one.owner_id == found.owner_id]
        if not again:
            return False, True
        [found] = again
        after, unreadable = keys.sealed_anew(found.owner_id, found.secrets)
    return False, not unreadable


async def _keys_in_use(store: Store) -> Counter[str]:
    """Counts the secrets that are encrypted with each key, by the key's id."""
    in_use: Counter[str] = Counter()
    async for found in _all(store):
        in_use.update(key_id_of(value) for value in found.secrets.values() if value)
    return in_use


def _stored_with(key_id: str, keys: SecretKeys) -> str:
    if key_id == PLAIN:
        return "not encrypted"
    known = "" if keys.has(key_id) else ", which is not configured"
    return f"encrypted with the key {key_id!r}{known}"
