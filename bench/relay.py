"""The lowest cost of anything between a model and its reader: `python -m bench.relay MODEL_PORT REDIS_URL`.

It is a bare ASGI application on the API's server. It forwards the model's bytes, stores and checks nothing, and answers
every other request with a constant. It writes a run without a reader to Redis as it arrives, an entry per token, and
reads it from there afterwards. It prints its port.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count
from socket import socket
from typing import Any, cast

import uvicorn
from redis.asyncio import Redis

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PAGE = 500
"""Entries per read from Redis."""
BACKLOG = 2048
JSON, EVENTS = [(b"content-type", b"application/json")], [(b"content-type", b"text/event-stream")]


class Relay:
    """The application."""

    def __init__(self, model_port: int, redis_url: str) -> None:
        self._model_port = model_port
        self._redis = cast("Any", Redis).from_url(redis_url)
        self._numbers = count()
        self._cancelled: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        match scope["path"].strip("/").split("/"):
            case ["v1", "agents", _, "messages"]:
                await self._relay(await _body(receive), receive, send)
            case ["v1", "agents", _, "messages", "async"]:
                run_id = f"run-{next(self._numbers)}"
                await self._store(run_id, await _body(receive))
                await _answer(send, {"id": run_id})
            case ["v1", "runs", run_id, "stream"]:
                after = json.loads(await _body(receive))["starting_after"]
                await self._replay(run_id, after, receive, send)
            case ["v1", "runs", run_id, "cancel"]:
                if run_id in self._cancelled:
                    self._cancelled[run_id].set()
                await _answer(send, {})
            case ["v1", "runs", _]:
                await _answer(send, {"status": "completed"})
            case _:
                await _body(receive)
                await _answer(send, {"id": "agent"})

    async def _relay(self, body: bytes, receive: Receive, send: Send) -> None:
        run_id = f"run-{next(self._numbers)}"
        cancelled = self._cancelled[run_id] = asyncio.Event()
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await _write(send, b'data: {"run_id":"%b"}\n\n' % run_id.encode())
        reader, writer = await self._ask(body)
        passing = asyncio.create_task(_pass_on(reader, send))
        waits = [asyncio.create_task(cancelled.wait()), asyncio.create_task(_gone(receive)), passing]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        writer.close()
        await _write(send, b"data: [DONE]\n\n", more=False)

    async def _store(self, run_id: str, body: bytes) -> None:
        if b"silent" in body:
            return  # the stream will stay empty
        reader, writer = await self._ask(body)
        events, left, stored = [b""], b"", 0
        while b"[DONE]" not in events[-1]:
            *events, left = (left + await reader.read(1 << 16)).split(b"\n\n")
            events = events or [b""]
            pipeline = self._redis.pipeline(transaction=False)
            for event in filter(None, events):
                stored += 1
                pipeline.xadd(run_id, {"e": event}, id=f"{stored}-0")
            await pipeline.execute()
        writer.close()

    async def _replay(self, run_id: str, after: int, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        page = await self._page(run_id, after)
        await _write(send, b'data: {"run_id":"%b"}\n\n' % run_id.encode())
        if not page:
            await _gone(receive)
            return
        while page:
            await _write(send, b"".join(b"\nid: %b\n%b\n\n" % (entry[:-2], fields[b"e"]) for entry, fields in page))
            after += len(page)
            page = await self._page(run_id, after)
        await _write(send, b"", more=False)

    async def _page(self, run_id: str, after: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return await self._redis.xrange(run_id, min=f"{after + 1}-0", count=PAGE)

    async def _ask(self, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Sends a submission's message to the model, and reads the head of the answer."""
        request = json.dumps({"messages": [{"role": "user", "content": json.loads(body)["input"]}]}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._model_port)
        writer.write(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(request), request))
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer


async def _pass_on(reader: asyncio.StreamReader, send: Send) -> None:
    left = b""
    while data := await reader.read(1 << 16):
        # Whole events, because the client would not find a token that HTTP's chunks split.
        whole, end, left = (left + data).rpartition(b"\n\n")
        if end:
            await _write(send, whole + end)
        if data.endswith(b"0\r\n\r\n"):
            return


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _answer(send: Send, answer: Any) -> None:
    body = json.dumps(answer).encode()
    headers = [*JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await _write(send, body, more=False)


async def _write(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    parser.add_argument("model_port", type=int)
    parser.add_argument("redis_url")
    options = parser.parse_args()
    # It listens before the server runs, so that a client which connects after the print only has to wait.
    listening = socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(BACKLOG)
    print(listening.getsockname()[1], flush=True)
    relay = Relay(options.model_port, options.redis_url)
    config = uvicorn.Config(
        relay, loop="uvloop", http="httptools", lifespan="off", log_config=None, access_log=False, backlog=BACKLOG
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
