"""Secrets that a worker must keep from its tools, planted as text that can be recognised wherever it turns up.

Each secret is `planted-<where>-<token>`. A listener counts its connections; no tool may connect to it.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from tests.kit.jail.keeper import FOLDER, METADATA_ADDRESS
from tests.kit.wait_until import after

LISTENERS = ("tcp", "metadata", "socket", "abstract", "udp")
INSTEAD_ADDRESS = "127.169.254.169"
"""The address to use if only root could give the jail the other one."""
IPC_CREAT = 0o1000
SHARED_KEY = 0x7731
ESTABLISHED = 1
"""Of the states of a connection in the kernel."""


def secret(place: str, token: str) -> str:
    return f"planted-{place}-{token}"


class Plants:
    """The planted secrets and listeners. `visits` counts the connections to each listener."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._metadata = ""
        self.visits: dict[str, int] = dict.fromkeys(LISTENERS, 0)
        self.targets: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def planted(self) -> AsyncGenerator[None]:
        file = FOLDER / "worker.env"
        file.write_text(f"HOLDFAST_API_KEYS={secret('file', self._token)}\n")
        file.chmod(0o600)
        kept = FOLDER / "holdfast.db"
        kept.write_text(secret("descriptor", self._token))
        os.set_inheritable(os.open(kept, os.O_RDWR), True)
        self._share()
        path, abstract = FOLDER / "control.sock", f"\0holdfast-{self._token}"
        async with contextlib.AsyncExitStack() as stack:
            port = await self._listen(stack)
            allowed = await asyncio.start_server(stay, "127.0.0.1", 0)
            stack.callback(allowed.close)
            for place, address in (("socket", str(path)), ("abstract", abstract)):
                server = await asyncio.start_unix_server(self._answer(place), address)
                stack.callback(server.close)
            self.targets = {
                "worker": os.getpid(),
                "folder": str(FOLDER),
                "file": str(file),
                "port": port,
                "allowed": allowed.sockets[0].getsockname()[1],
                "metadata": self._metadata,
                "socket": str(path),
                "abstract": abstract,
                "shared_key": SHARED_KEY,
                "prefix": sys.prefix,
                "base_prefix": sys.base_prefix,
                "checkout": str(Path.cwd()),
            }
            yield

    async def _listen(self, stack: contextlib.AsyncExitStack) -> int:
        """On one port of every address of this machine that there is."""
        first = await asyncio.start_server(self._answer("tcp"), "127.0.0.1", 0)
        stack.callback(first.close)
        port = int(first.sockets[0].getsockname()[1])
        for place, address in (("tcp", "::1"), ("metadata", METADATA_ADDRESS), ("metadata", INSTEAD_ADDRESS)):
            with contextlib.suppress(OSError):
                server = await asyncio.start_server(self._answer(place), address, port)
                stack.callback(server.close)
                if place == "metadata":
                    self._metadata = self._metadata or address
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", port))
        asyncio.get_running_loop().add_reader(datagrams, self._receive, datagrams)
        return port

    def _receive(self, datagrams: socket.socket) -> None:
        datagrams.recv(100)
        self.visits["udp"] += 1

    def _answer(self, place: str) -> Any:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.visits[place] += 1
            with contextlib.suppress(ConnectionError):
                writer.write(f"+PONG {secret(place, self._token)}\r\n".encode())
                await writer.drain()
            writer.close()

        return answer

    def _share(self) -> None:
        """A System V segment of the worker's, and a file where shared memory lies."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        segment = libc.shmget(SHARED_KEY, 4096, IPC_CREAT | 0o600)
        if segment < 0:
            raise OSError(ctypes.get_errno(), "shmget")
        ctypes.memmove(libc.shmat(segment, None, 0), text := secret("shared", self._token).encode(), len(text))
        shared = Path("/dev/shm/holdfast")
        shared.write_text(secret("shared", self._token))
        shared.chmod(0o600)


async def stay(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The one service that tools with a network may reach. It reads little, sends nothing, and sees who disconnects."""
    connection = writer.get_extra_info("socket")
    while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED:
        await after(0.02)
    writer.transport.abort()


def segments() -> list[str]:
    """System V objects in the worker's sight, as the kernel lists them, without the planted one."""
    lines = [
        f"{kind}: {line.strip()}"
        for kind in ("shm", "sem", "msg")
        for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
    ]
    return [line for line in lines if line.split()[1] != str(SHARED_KEY)]
