"""Ports on which no process listens, for servers that are about to start."""

import functools
import itertools
import random
import socket
from collections.abc import Iterator

from tests.kit.process_number import process_number

LISTENING_PORTS = range(10_000, 32_000)
"""Linux uses ports from 32768 upwards for outgoing connections."""

PROCESSES = 16
"""The limit for the test processes of a session that take ports at the same time."""


def free_port() -> int:
    """A port of loopback on which no process listens.

    It is not one that the kernel uses for outgoing connections: one of these could take it before it is listened on, or
    while a service is down whose port it is. For the same reason the test processes of a session take theirs from
    ranges of their own, one after the other.
    """
    while True:
        port = next(_ports_of(process_number()))
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@functools.cache
def _ports_of(number: int | None) -> Iterator[int]:
    # A program outside of a session, like the bench, may run at the same time.
    ours = LISTENING_PORTS[(0 if number is None else 1 + number) % PROCESSES :: PROCESSES]
    start = random.randrange(len(ours))  # another session may take ports as well
    return itertools.cycle([*ours[start:], *ours[:start]])
