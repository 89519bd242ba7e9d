"""What a zygote does for calls that have a network: the socket of each call's proxy, and how programs find it.

Loaded by path into an interpreter that has nothing but the standard library. The zygote's network is its own, with
nothing but a loopback device. A socket made here belongs to it, also in the hands of the worker, to whom it is sent.
"""

from __future__ import annotations

import asyncio.selector_events
import http.client
import socket
import ssl
import urllib.request

WAITING = 16
"""Connections that nobody has accepted yet."""
RECEIVE_BYTES = 64 << 10
"""Of each connection, in the kernel's memory, which no limit of the call's counts."""
MODULES = (http.client, ssl, urllib.request)
"""For the calls, which are forks of the zygote."""

asyncio.selector_events.__dict__["_HAS_SENDMSG"] = False  # it sends long texts so where it can, and the walls refuse it


def listening() -> socket.socket:
    """A socket for one call's proxy, on a port of its own. Raises `OSError`."""
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
    """Variables by which HTTP clients find the proxy, and whom to trust. `certificates`: the path of a file."""
    proxy = f"http://127.0.0.1:{port}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    trusted = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    return {
        **dict.fromkeys((*names, *(name.upper() for name in names)), proxy),
        **dict.fromkeys(trusted, certificates),
    }
