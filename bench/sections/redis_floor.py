"""Measures Redis alone with the writes of every token: an entry in a stream, and a message to its readers.

The requests are bytes that are made once, so that no client library is measured.
"""

import asyncio
import time

import sqlalchemy as sa

from bench.deployments import Deployment, ProcessorTimes
from bench.figures import Figure, median_and_slowest

ENTRIES, WARM_UP = 1_000, 50
BATCHES, BATCH = 400, 100
PAYLOAD = "x" * 200


async def redis_floor(deployment: Deployment) -> list[Figure]:
    """Measures single entries, each awaited; and the throughput with a hundred entries per send."""
    port = sa.make_url(deployment.redis_url).port
    (reader, writer), (seen, subscriber) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    subscriber.write(_request("SUBSCRIBE", "floor"))
    await seen.read(1 << 16)
    times: list[float] = []
    while len(times) < WARM_UP + ENTRIES:
        began = time.monotonic()
        writer.write(_entries(1))
        await seen.readuntil(PAYLOAD.encode())
        times.append(time.monotonic() - began)
        await _replies(reader, 1)
    subscriber.close()
    used, began, batch = ProcessorTimes(deployment), time.monotonic(), _entries(BATCH)
    for _ in range(BATCHES):
        writer.write(batch)
        await _replies(reader, BATCH)
    seconds, entries = time.monotonic() - began, BATCHES * BATCH
    writer.close()
    return [
        *median_and_slowest("raw Redis: entry → subscriber", times[WARM_UP:]),
        Figure(f"raw Redis: entries, {BATCH} in a send", entries / seconds, "entries/s"),
        Figure("raw Redis: its CPU per entry", used.used()["redis"] / entries * 1e6, "us"),
    ]


def _entries(count: int) -> bytes:
    one = _request("XADD", "floor", "MAXLEN", "10000", "*", "e", PAYLOAD) + _request("PUBLISH", "floor", PAYLOAD)
    return one * count


def _request(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words)


async def _replies(reader: asyncio.StreamReader, entries: int) -> None:
    """Reads the replies to this many entries: each is an id, which has two lines, and a number."""
    lines = 3 * entries
    while lines:
        lines -= (await reader.read(1 << 16)).count(b"\n")
