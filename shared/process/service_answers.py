"""Whether the services of a process answer, and facts that only these services know.

Health checks come every few seconds, without a key, and each check queries the database and Redis. So all requests
within a second share one check, and no service may take longer to answer than a probe waits.

This module also binds a server's sockets, before anything else happens: a taken port is the commonest mistake, and the
HTTP server would report it last.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from shared.concurrency import Clock
from shared.domain.errors import ErrorCode, InvalidRequest, Unavailable, error_fields

ANSWER_S = 3.0
"""Seconds that the services have to answer, in parallel. A Kubernetes probe should wait longer."""

KEPT_S = 1.0
"""Seconds for which one check answers all requests."""

Question = Callable[[], Awaitable[bool | None]]


class ServiceAnswers:
    """Checks each service at most once per second. A service is away if its check returns False or raises
    `Unavailable`. `facts` are true or false and come from a service: while it does not answer, they are None."""

    def __init__(
        self, services: Mapping[str, Question], facts: Mapping[str, Question] | None = None, *, clock: Clock
    ) -> None:
        self._services = dict(services)
        self._facts = dict(facts or {})
        self._clock = clock
        self._one_asks = asyncio.Lock()
        self._answers: dict[str, bool | None] = {}
        self._kept_until = 0.0

    async def look(self) -> Mapping[str, bool | None]:
        """The answers by name, at most `ANSWER_S` after the check began."""
        async with self._one_asks:
            if not self._answers or self._clock.monotonic() >= self._kept_until:
                self._answers = await self._ask()
                self._kept_until = self._clock.monotonic() + KEPT_S
            return self._answers

    async def _ask(self) -> dict[str, bool | None]:
        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(_in_time(question, name in self._services), name=f"ask for {name}")
                for name, question in (self._services | self._facts).items()
            }
        return {name: task.result() for name, task in asked.items()}


async def _in_time(question: Question, is_service: bool) -> bool | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await question()
    except (TimeoutError, Unavailable):
        return False if is_service else None
    return answer is not False if is_service else answer


# The reasons why a process is not ready, in the fields that every error has. A probe reads only the status. A monitor,
# or an operator at night, finds the missing service in `services`, and as a sentence in `message`.


RETRY_AFTER_S = 2
"""`Retry-After` while a service is away, in seconds."""

HINT = "Repair the services that are false in `services`, and ask again: `holdfast doctor` finds the fault."

_MISSING = {
    "database": "the database does not answer",
    "database_writes": "the database refuses writes",
    "redis": "Redis does not answer",
    "redis_writes": "Redis refuses writes or messages",
    "migrations": "the database lacks migrations of this version",
    "worker": "no worker lives",
    "queue": "the worker does not look at its queue",
}
_UNKNOWN = {
    "migrations": "whether the database has all migrations cannot be known",
    "worker": "whether a worker lives cannot be known",
}


def what_is_missing(services: Mapping[str, bool | None]) -> list[str]:
    """A clause for each service that is missing or whose state is unknown."""
    # A service that does not answer accepts no writes either: one clause is enough.
    shown = [name for name in services if not name.endswith("_writes") or services[name.removesuffix("_writes")]]
    false = [_MISSING[name] for name in shown if services[name] is False]
    return false + [_UNKNOWN[name] for name, answer in services.items() if answer is None]


def not_ready(missing: Sequence[str], *, hint: str = HINT) -> dict[str, Any]:
    """The fields of the error. `missing` are clauses."""
    return _error(ErrorCode.SERVICE_UNAVAILABLE, missing, hint)


def ends(missing: Sequence[str]) -> dict[str, Any]:
    """The fields of the error while a worker shuts down."""
    return _error(ErrorCode.SERVER_ENDING, [*missing, "the worker ends"], ErrorCode.SERVER_ENDING.hint)


def _error(code: ErrorCode, missing: Sequence[str], hint: str) -> dict[str, Any]:
    sentence = f"Not ready: {'; '.join(missing)}"
    return {"detail": sentence, **error_fields(code, sentence, hint=hint)}


_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@contextmanager
def bound_sockets(
    host: str, port: int, *, host_name: str = "--host", port_name: str = "--port"
) -> Generator[list[socket.socket]]:
    """A socket for each address of `host` for the block, bound and not yet listening. Raises `InvalidRequest`, which
    uses the two given names: `host_name` and `port_name`."""
    addresses = _addresses(host, port, host_name)
    with ExitStack() as stack:
        bound = [_bound(family, address) for family, address in addresses]
        sockets = [stack.enter_context(one) for one in bound if isinstance(one, socket.socket)]
        refusals = [one for one in bound if isinstance(one, OSError)]
        # A name may have an IPv6 address that this machine does not use. Such an address is skipped.
        final = [error for error in refusals if not sockets or error.errno not in _NOT_HERE]
        if final:
            raise InvalidRequest(_why_not(host, host_name, f"{port_name} {port}", final[0])) from final[0]
        yield sockets


def _addresses(host: str, port: int, host_name: str) -> list[tuple[int, tuple[object, ...]]]:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(
            f"{host_name} {host}: no address is known for this name; use 127.0.0.1 for this machine alone, "
            "0.0.0.0 for all of its addresses"
        ) from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bound(family: int, address: tuple[object, ...]) -> socket.socket | OSError:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted server takes its port over from connections that are still closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        return error
    return listener


def _why_not(host: str, host_name: str, port: str, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"{port} is taken on {host}: stop the program that listens there, or choose another port"
        case errno.EACCES:
            return f"{port} is for privileged users: choose one from 1024 on"
        case errno.EADDRNOTAVAIL:
            return f"{host_name} {host} is no address of this machine: use one that it has, or 0.0.0.0 for all of them"
        case _:
            return f"{host_name} {host} {port} cannot be listened on: {error.strerror}"


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Two questions that differ: a load balancer removes the process because of the first, and monitors show the
    second."""

    itself: ServiceAnswers
    """The services that every request needs. Without Redis or workers the API still stores runs, shows histories and
    cancels, so neither is among them."""
    everything: ServiceAnswers
    """The services that the whole deployment needs."""
