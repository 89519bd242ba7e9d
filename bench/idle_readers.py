"""A process of waiting readers: `python -m bench.idle_readers PORT READERS ID …`.

It distributes the readers evenly over the runs or conversations, opens their streams from the beginning, prints the
number of open ones when all have begun, and discards their data until it is killed.
"""

import argparse
import asyncio
import json
import resource
from contextlib import suppress

import uvloop

OPENING = 100
"""Connections that are opened concurrently."""

AGAIN_S = 1.0
"""Seconds after which a refused reader asks again: a busy machine answers some with a 503."""


class _Reader(asyncio.Protocol):
    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.is_refused = False

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self.is_refused = True
            self.has_begun.set()
        if b'"run_id"' in data:  # a conversation without runs sends where its reader is, with a null
            self.has_begun.set()


def _request(read_id: str) -> bytes:
    if read_id.startswith("conv-"):
        return f"GET /v1/conversations/{read_id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    body = json.dumps({"starting_after": 0}).encode()
    head = f"POST /v1/runs/{read_id}/stream HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def main(port: int, readers: int, ids: list[str]) -> None:
    opening = asyncio.Semaphore(OPENING)

    async def read(number: int) -> asyncio.Transport:
        async with opening:
            while True:
                loop = asyncio.get_running_loop()
                transport, reader = await loop.create_connection(_Reader, "127.0.0.1", port)
                transport.write(_request(ids[number % len(ids)]))
                await reader.has_begun.wait()
                if not reader.is_refused:
                    return transport
                transport.abort()
                await asyncio.sleep(AGAIN_S)

    opened = await asyncio.gather(*(read(number) for number in range(readers)))
    print(len(opened), flush=True)
    await asyncio.Event().wait()


def raise_open_files() -> int:
    """Raises the limit of open files to its maximum, also for children. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.idle_readers", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("readers", type=int)
    parser.add_argument("ids", nargs="+")
    given = parser.parse_args()
    raise_open_files()
    with suppress(KeyboardInterrupt):
        uvloop.run(main(given.port, given.readers, given.ids))
