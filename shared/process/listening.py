"""The sockets that a server listens on. They are bound before anything else is done, because a port that is taken is
the commonest mistake of all, and the HTTP server would tell of it last."""

import errno
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from shared.domain.errors import InvalidRequest

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
