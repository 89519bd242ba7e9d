"""Whether what a process needs answers, and what only those services can tell.

Health checks ask for it every few seconds, without a key, and each look costs questions to the database and Redis. So
one look serves everybody who asks within a second, and no service is waited for for longer than a probe is patient.

The sockets of a server are bound here before anything else is done: a port that is taken is the commonest mistake, and
the HTTP server would report it last.
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
"""Seconds for the services to answer, all at once. A probe of Kubernetes should wait longer."""

KEPT_S = 1.0
"""Seconds for which one look is the answer to everybody."""

Question = Callable[[], Awaitable[bool | None]]


class ServiceAnswers:
    """Asks each service once a second at most. `services` say whether they answer: silence is False. `facts` are true
    or false of the deployment, and known by a service: while it is silent they are None."""

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
        """The answers by name, within `ANSWER_S` of the moment at which the services are asked."""
        async with self._one_asks:
            if not self._answers or self._clock.monotonic() >= self._kept_until:
                self._answers = await self._ask()
                self._kept_until = self._clock.monotonic() + KEPT_S
            return self._answers

    async def _ask(self) -> dict[str, bool | None]:
        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(_in_time(question), name=f"ask for {name}")
                for name, question in (self._services | self._facts).items()
            }
        answers = {name: task.result() for name, task in asked.items()}
        return {name: answer is True if name in self._services else answer for name, answer in answers.items()}


async def _in_time(question: Question) -> bool | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await question()
    except (TimeoutError, Unavailable):
        return None


# Why a process is not ready, in the fields that every error has.
#
# A probe reads the status alone. A monitor, and whoever is called at night, reads which service is missing in
# `services`, or in `message` as a sentence.


RETRY_AFTER_S = 2
"""Seconds that a client is asked to wait when a service of ours is away."""

HINT = "Bring back what is false in `services`, and ask again: `holdfast doctor` says what is wrong with it."

_MISSING = {
    "database": "the database does not answer",
    "redis": "Redis does not answer",
    "migrations": "the database lacks migrations of this version",
    "worker": "no worker lives",
    "queue": "the worker does not look at its queue",
}
_UNKNOWN = {
    "migrations": "whether the database has all migrations cannot be known",
    "worker": "whether a worker lives cannot be known",
}


def what_is_missing(services: Mapping[str, bool | None]) -> list[str]:
    """A part of a sentence for each service that is not there, or of which that cannot be known."""
    false = [_MISSING[name] for name, answer in services.items() if answer is False]
    return false + [_UNKNOWN[name] for name, answer in services.items() if answer is None]


def not_ready(missing: Sequence[str], *, hint: str = HINT) -> dict[str, Any]:
    """The fields of the error. `missing` are parts of a sentence."""
    return _error(ErrorCode.SERVICE_UNAVAILABLE, missing, hint)


def ends(missing: Sequence[str]) -> dict[str, Any]:
    """The fields of the error of a worker that ends."""
    return _error(ErrorCode.SERVER_ENDING, [*missing, "the worker ends"], ErrorCode.SERVER_ENDING.hint)


def _error(code: ErrorCode, missing: Sequence[str], hint: str) -> dict[str, Any]:
    sentence = f"Not ready: {'; '.join(missing)}"
    return {"detail": sentence, **error_fields(code, sentence, hint=hint)}


_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@contextmanager
def bound_sockets(
    host: str, port: int, *, host_name: str = "--host", port_name: str = "--port"
) -> Generator[list[socket.socket]]:
    """A socket for each address of `host`, bound and not yet listening, for the block. Raises `InvalidRequest`, which
    names the two as they were given: `host_name` and `port_name`."""
    addresses = _addresses(host, port, host_name)
    with ExitStack() as stack:
        bound = [_bound(family, address) for family, address in addresses]
        sockets = [stack.enter_context(one) for one in bound if isinstance(one, socket.socket)]
        refusals = [one for one in bound if isinstance(one, OSError)]
        # A name may have an IPv6 address that this machine does not use. That one can be done without.
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
        # A server that is started again at once takes its port back from the connections that are still ending.
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
    """Two questions that must not be mixed up: a balancer takes the process out for the first, and monitors
    show the second."""

    itself: ServiceAnswers
    """What this process cannot answer any request without. While Redis or the workers are away it stores runs, shows
    histories and cancels, so neither of them is among it."""
    everything: ServiceAnswers
    """What the deployment needs to work whole."""
