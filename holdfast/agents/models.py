"""The worker's models, for clients of OpenAI's API: the keys stay in the worker, and a run's token replaces them.

The worker listens on a Unix socket. Most clients accept only an HTTP address, so a thread of this process forwards a
port of the loopback interface to the socket.
"""

import asyncio
import contextlib
import functools
import os
import socket
import threading
from dataclasses import asdict, dataclass

PIECE = 65536
"""Bytes."""


MOST_TOKENS = 10**12


@dataclass(frozen=True)
class Usage:
    """Tokens of one model call, as its provider counts them."""

    input_tokens: int = 0
    """All tokens of the prompt, cached or not."""
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the prompt that was read from the provider's cache."""
    reasoning_tokens: int = 0
    """The part of the output that is reasoning."""

    def __post_init__(self) -> None:
        for name, tokens in asdict(self).items():
            if not isinstance(tokens, int) or not 0 <= tokens <= MOST_TOKENS:
                raise ValueError(f"{name} of a Usage is a number of tokens, not {tokens!r:.100}")


class Models:
    """The address and the key with which a run calls the worker's models."""

    def __init__(self, socket_path: str, api_key: str) -> None:
        self.socket = socket_path
        """The worker's Unix socket, for clients that accept one."""
        self.api_key = api_key
        """A key for this run only. It expires when the run ends."""

    @property
    def base_url(self) -> str:
        """The address for clients of OpenAI's API. It exists as long as this process."""
        with _FORWARDING:
            return f"http://127.0.0.1:{_forwarded(self.socket)}/v1"

    def take_all(self) -> None:
        """Makes the worker's models the default of clients that read OpenAI's variables."""
        os.environ.update(OPENAI_BASE_URL=self.base_url, OPENAI_API_BASE=self.base_url, OPENAI_API_KEY=self.api_key)


_FORWARDING = threading.Lock()

FORWARDER = "models of the worker"
"""The name of the forwarding thread."""


@functools.cache
def _forwarded(path: str) -> int:
    """Returns the number of a port that is forwarded to the Unix socket as long as this process lives."""
    listening = socket.create_server(("127.0.0.1", 0))
    # It has a loop of its own: a body may block its own loop while it waits for an answer.
    threading.Thread(target=lambda: asyncio.run(_forward(listening, path)), name=FORWARDER, daemon=True).start()
    return int(listening.getsockname()[1])


async def _forward(listening: socket.socket, path: str) -> None:
    async def forward_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, requests), _copy(answers, writer))

    server = await asyncio.start_server(forward_one, sock=listening)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies until one side hangs up, and then ends the other side's stream."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
    writer.close()
