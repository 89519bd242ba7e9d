"""The network of a zygote's calls: makes the listening socket of each call's proxy, and the variables that name it.

It is loaded by path into an interpreter that has only the standard library. The zygote has its own network namespace
with only a loopback device. A socket that is made here belongs to it, even after it was sent to the worker.
"""

from __future__ import annotations

import asyncio.selector_events
import http.client
import socket
import ssl
import urllib.request

WAITING = 16
"""The backlog of connections that the worker has not accepted yet."""
RECEIVE_BYTES = 64 << 10
"""Each connection's buffer in the kernel's memory, which the call's limits do not count."""
MODULES = (http.client, ssl, urllib.request)
"""Loaded for the calls, which are forks of the zygote."""

asyncio.selector_events.__dict__["_HAS_SENDMSG"] = False  # asyncio would use it, and seccomp refuses it


def listening() -> socket.socket:
    """Makes the listening socket of one call's proxy, on a free port. Raises `OSError`."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        made.bind(("127.0.0.1", 0))
        made.listen(WAITING)
    except OSError:
        made.close()
        raise
    return made


def environment(port: int, certificates: str) -> dict[str, str]:
    """Returns the variables that give HTTP clients the proxy and the certificates to trust, by the path of a file."""
    proxy = f"http://127.0.0.1:{port}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    trusted = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    return {**dict.fromkeys((*names, *(name.upper() for name in names)), proxy), **dict.fromkeys(trusted, certificates)}
