"""A worker's own port: its liveness, its readiness, which depends on readable secrets, too, and its metrics.

A supervisor detects from outside what no log line can report: a worker whose event loop hangs does not answer here. The
port needs no key, and its answers contain only numbers about runs. It is for the machine, the cluster and Prometheus,
never for callers.

One request per connection, GET and HEAD only: a connection costs a few kilobytes, and at most `REQUEST_S`.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog

from shared.concurrency import background, repeating
from shared.domain.errors import ErrorCode, Unavailable, error_fields
from shared.process.context import ProcessContext
from shared.process.service_answers import ServiceAnswers, bound_sockets, ends, not_ready, what_is_missing
from shared.process.settings import Settings
from shared.redis.connection import try_writing
from shared.redis.process_presence import ProcessPresence
from shared.secret_keys import SecretKeys, can_read
from shared.sql.definitions.tools import StoredSecretStore
from shared.telemetry.metrics import CONTENT_TYPE
from worker.queue.queue_worker import QueueWorker

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


# Whether a worker can decrypt the secrets of agents. With another key, or no key, it fails each run that needs one.
#
# Such a worker continues with the runs that need no secret, but it is not ready: a rollout without the key stops at the
# first new worker, while the old workers still run.


LOOK_EVERY_S = 15.0

AGENTS_AT_MOST = 1000
"""The newest agents, whose secrets are tried in a few milliseconds. `holdfast doctor` tries those of all agents."""

FIX = "give every worker and API process the same HOLDFAST_ENCRYPTION_KEY"


class ReadableSecrets:
    """Checks stored secrets, and the keys with which API processes encrypt."""

    def __init__(self, keys: SecretKeys, store: StoredSecretStore, presence: ProcessPresence) -> None:
        self._keys = keys
        self._store = store
        self._presence = presence
        self.problem = "not looked at yet"
        """Why secrets cannot be read, and the fix; empty if the last check found no problem."""

    async def look(self) -> None:
        """Checks, and logs a new problem. Raises `Unavailable`."""
        found = await self._stored() or await self._encrypted_next()
        if found and found != self.problem:
            log.warning("secrets_cannot_be_read", reason=found)
        self.problem = found

    async def _stored(self) -> str:
        for agent in await self._store.newest(AGENTS_AT_MOST):
            if (problem := self._keys.problem_with(agent.owner_id, agent.secrets)) is not None:
                return f"an agent's secret cannot be read: {problem.reason}; {FIX}"
        return ""

    async def _encrypted_next(self) -> str:
        # Redis has the encrypting keys. If Redis is unavailable, the stored secrets were still checked.
        with suppress(Unavailable):
            for api in await self._presence.api_processes():
                if not can_read(self._keys.fingerprints, keys := api.secret_keys or []):
                    return f"the API encrypts secrets with a key that is not here, {keys[0]}; {FIX}"
        return ""


@asynccontextmanager
async def readable_secrets(process: ProcessContext) -> AsyncGenerator[ReadableSecrets]:
    """Checks repeatedly within the block."""
    found = ReadableSecrets(process.secret_keys, StoredSecretStore(process.database), ProcessPresence(process.redis))
    async with repeating(found.look, every_s=LOOK_EVERY_S, name="try to read secrets"):
        yield found


# The port and its answers.


CONNECTIONS = 32
"""Concurrent connections. More wait in the kernel's queue."""

HEAD_BYTES = 8192
REQUEST_S = 10.0
"""Time limit of one connection in seconds, from its beginning to its last byte."""

LOOK_S = 5.0
"""The worker polls the queue at least once a second. If it has not done so for this many seconds, it claims nothing."""

NO_ROOM_S = 0.2

READ_SECRETS = "See `secrets`, which says what this worker cannot read, and docs/operations/secrets.md."
JSON = "application/json"


class Readiness:
    """Whether this worker claims runs now."""

    def __init__(self, *, services: ServiceAnswers, queue_worker: QueueWorker, secrets: ReadableSecrets) -> None:
        self._services = services
        self._queue_worker = queue_worker
        self._secrets = secrets

    async def look(self) -> tuple[bool, bytes]:
        """Returns whether the worker is ready, and JSON that names the missing parts."""
        answers = await self._services.look()
        worker = self._queue_worker
        # Never cached: a request after SIGTERM must not get an earlier answer.
        services = {**answers, "queue": worker.looked_s_ago() < LOOK_S}
        is_ready = all(services.values()) and not worker.is_draining and not self._secrets.problem
        said = {
            "status": "ready" if is_ready else "not ready",
            "services": services,
            "draining": worker.is_draining,
            "runs": worker.run_count,
            "secrets": self._secrets.problem or "can be read",
        }
        why = {} if is_ready else self._why_not(services)
        return is_ready, msgspec.json.encode(said | why)

    def _why_not(self, services: Mapping[str, bool | None]) -> dict[str, Any]:
        missing = what_is_missing(services)
        if self._secrets.problem:
            missing.append(f"the secrets of agents: {self._secrets.problem}")
        if self._queue_worker.is_draining:
            return ends(missing)
        return not_ready(missing, hint=READ_SECRETS) if self._secrets.problem else not_ready(missing)


@dataclass(frozen=True)
class HealthAnswer:
    """The answer to one request."""

    status: str
    content_type: str
    body: bytes
    headers: str = ""

    def as_bytes(self, *, has_body: bool) -> bytes:
        head = (
            f"HTTP/1.1 {self.status}\r\ncontent-type: {self.content_type}\r\ncontent-length: {len(self.body)}\r\n"
            f"cache-control: no-store\r\nconnection: close\r\n{self.headers}\r\n"
        )
        return head.encode("ascii") + (self.body if has_body else b"")


class HealthPort:
    """Answers on bound sockets. `exposition` returns the metrics in Prometheus' text format."""

    def __init__(self, readiness: Readiness, exposition: Callable[[], bytes]) -> None:
        self._readiness = readiness
        self._exposition = exposition
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def serve(self, listening: socket.socket) -> None:
        """Answers until it is cancelled, which closes its connections. The socket must listen already and must not
        block; its owner closes it."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                await self._places.acquire()
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as error:
                    log.warning("health_connection_not_accepted", error=error.strerror)
                    self._places.release()
                    await asyncio.sleep(NO_ROOM_S)  # the process has no descriptor left, so the connection waits
                    continue
                group.create_task(self._serve_one(accepted), name="connection of the health port")

    async def _serve_one(self, accepted: socket.socket) -> None:
        # A client that breaks off, sends too much or nothing at all gets no answer.
        broken = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        try:
            with accepted, contextlib.suppress(*broken):
                async with asyncio.timeout(REQUEST_S), _streams(accepted) as (reader, writer):
                    head = await reader.readuntil(b"\r\n\r\n")
                    answer = await self._answer(head)
                    writer.write(answer.as_bytes(has_body=not head.startswith(b"HEAD ")))
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._places.release()

    async def _answer(self, head: bytes) -> HealthAnswer:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            said = _refusal(ErrorCode.METHOD_NOT_ALLOWED, "this port takes GET and HEAD")
            return HealthAnswer("405 Method Not Allowed", JSON, said, "allow: GET, HEAD\r\n")
        match path:
            case b"/healthz":
                return HealthAnswer("200 OK", JSON, b'{"status":"ok"}')
            case b"/readyz":
                is_ready, said = await self._readiness.look()
                return HealthAnswer("200 OK" if is_ready else "503 Service Unavailable", JSON, said)
            case b"/metrics":
                return HealthAnswer("200 OK", CONTENT_TYPE, self._exposition())
            case _:
                hint = "Ask for one of these: the API has all other paths."
                said = _refusal(ErrorCode.PATH_NOT_FOUND, "this port has /healthz, /readyz and /metrics", hint)
                return HealthAnswer("404 Not Found", JSON, said)


def _refusal(code: ErrorCode, sentence: str, hint: str = "") -> bytes:
    return msgspec.json.encode({"detail": sentence, **error_fields(code, sentence, hint=hint)})


@asynccontextmanager
async def _streams(accepted: socket.socket) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(sock=accepted, limit=HEAD_BYTES)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@contextmanager
def health_sockets(settings: Settings) -> Generator[list[socket.socket]]:
    """Binds the port of the settings for the block, without listening; nothing if the settings name none. Raises
    `InvalidRequest` if the port is not available."""
    if not settings.worker_port:
        yield []
        return
    host, port = settings.worker_host, settings.worker_port
    with bound_sockets(host, port, host_name="HOLDFAST_WORKER_HOST", port_name="HOLDFAST_WORKER_PORT") as sockets:
        yield sockets


@asynccontextmanager
async def health_port(
    process: ProcessContext, queue_worker: QueueWorker, secrets: ReadableSecrets, sockets: Sequence[socket.socket]
) -> AsyncGenerator[None]:
    """Answers on the sockets for as long as the block lasts."""
    database, writes = process.database, partial(try_writing, process.redis)
    asked = {"database": database.greet, "database_writes": database.try_writing}
    asked |= {"redis": process.has_redis, "redis_writes": writes}
    services = ServiceAnswers(asked, clock=process.clock)
    readiness = Readiness(services=services, queue_worker=queue_worker, secrets=secrets)
    port = HealthPort(readiness, process.metrics.exposition)
    async with AsyncExitStack() as stack:
        for one in sockets:
            one.setblocking(False)
            one.listen(CONNECTIONS)
            await stack.enter_async_context(background(port.serve(one), name="health port"))
        yield
