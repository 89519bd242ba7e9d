"""A model that writes the time into its tokens, as a process of its own: `python -m bench.model` prints its port.

The last message of a request says what to play, as JSON: `{"tokens": 150, "per_second": 30}`, `{"silent": true}` or
`{"call": "wait"}`. Each token is `@<nanoseconds of the monotonic clock>`, taken when it is written: the clock is the
machine's, so whoever reads the token knows how long it took.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FOREVER_S = 3600.0


async def serve() -> None:
    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].split("\r\n", 1)[0])
            await answer(json.loads(await reader.readexactly(length)), writer)
    writer.close()


async def answer(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    wanted = wish(request["messages"])
    writer.write(HEAD)
    if wanted.get("silent"):
        await asyncio.sleep(FOREVER_S)
    if "call" in wanted:
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": wanted["call"], "arguments": "{}"}}
        send(writer, {"tool_calls": [call]})
    for due in pace(wanted):
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        send(writer, {"content": f"@{time.monotonic_ns()} "})
        await writer.drain()
    send(writer, {}, finish="tool_calls" if "call" in wanted else "stop")
    chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def wish(messages: list[dict[str, Any]]) -> dict[str, Any]:
    last = messages[-1]
    return json.loads(last["content"]) if last["role"] == "user" else {"tokens": 1}


def pace(wanted: dict[str, Any]) -> Iterator[float]:
    """When each token is due, by the monotonic clock."""
    rate, start = wanted.get("per_second"), time.monotonic()
    for number in range(wanted.get("tokens", 0)):
        yield start + number / rate if rate else 0.0


def send(writer: asyncio.StreamWriter, delta: dict[str, Any], *, finish: str | None = None) -> None:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    body = {"id": "chat-1", "object": "chat.completion.chunk", "created": 0, "model": "bench", "choices": [choice]}
    chunk(writer, b"data: " + json.dumps(body).encode() + b"\n\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve())
