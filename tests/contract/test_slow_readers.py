"""A client that opens a stream and reads nothing costs a buffer, and only for a while."""

import asyncio
import zlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, socket

import httpx
import pytest
from arq.connections import ArqRedis

from api.runs.reader import LogEnds, RunReader
from api.runs.streaming import FRAMES_AT_ONCE
from shared.domain.events import StatusChanged, encode
from shared.domain.ids import Seq
from shared.domain.log_writer import LogTail, of_bytes
from shared.domain.runs import Run
from shared.redis.event_log import MAX_BYTES, EventFeed, EventLog
from shared.redis.log_servers import OneLogServer
from shared.sql.runs.steps import BLOCK_ENTRIES, FIRST_BLOCKS
from tests.kit.free_ports import free_port
from tests.kit.product.processes import api_at, processes_in
from tests.kit.raw_http import RawConnection, head, raw_connection
from tests.kit.runs.stored_runs import NOW, Stores, stored_runs
from tests.kit.services.told_again import told_while_awake
from tests.kit.wait_until import HANGS_S, wait_until

ENTRY = encode(StatusChanged(1, "running"))
LARGE = encode(StatusChanged(1, "x" * 40_000))
KERNELS_BYTES = 5_000_000
WORDS = 20_000
WORD = "w" * 48
"""Of an answer, as long as the builtin model takes it: in frames more than the 4 MB that the kernel may take off a
process's hands. What it has taken counts as sent, and nobody who reads none of it is cut off."""


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def sizes(reader: RunReader, run: Run) -> list[int]:
    """How many bytes each batch of a log has."""
    return [sum(len(entry) for _, entry in batch) async for batch in reader.follow(run, Seq(1), quiet_s=0.1) if batch]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_reader_that_took_nothing_kept_a_thousand_entries_of_any_size(
    stores: Stores, redis: ArqRedis, is_stored: bool
) -> None:
    log = EventLog(redis, ttl_s=3600)
    reader = RunReader(
        runs=stores.runs,
        events=stores.events,
        event_log=log,
        feed=EventFeed(OneLogServer(redis)),
        log_ends=LogEnds(stores.runs),
    )
    run = await stores.claimed()
    tail = LogTail(Seq(2), [LARGE] * 20)
    await log.open(run.id, run.fence)
    await log.append(run.id, run.fence, tail, needs=Seq(0))
    if is_stored:
        run = (await stores.settle(run, tail=tail)).run
        assert sum(found := await sizes(reader, run)) > 20 * len(LARGE)
    else:
        found: list[int] = []
        async for batch in reader.follow(run, Seq(1), quiet_s=5):
            found.append(sum(len(entry) for _, entry in batch))
            if sum(found) == 20 * len(LARGE):
                break
    assert max(found) <= MAX_BYTES


def test_an_entry_that_is_larger_than_a_page_is_a_page() -> None:
    entries = [(Seq(number), b"x" * 10) for number in range(5)]
    assert of_bytes(entries, 25) == entries[:2]
    assert of_bytes(entries, 1) == entries[:1]
    assert of_bytes(entries, 50) == entries


async def test_a_page_of_a_long_log_unpacked_sixty_four_blocks(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page of a thousand entries, of every reader: others waited for most of a minute."""
    run = await stores.claimed()
    blocks = 3 * FIRST_BLOCKS
    for number in range(blocks):
        tail = LogTail(Seq(2 + number * BLOCK_ENTRIES), [ENTRY] * BLOCK_ENTRIES)
        await stores.checkpoints.record_events(run, tail, NOW)
    unpack, unpacked = zlib.decompress, list[int]()

    def counting(data: bytes) -> bytes:
        unpacked.append(len(data))
        return unpack(data)

    monkeypatch.setattr(zlib, "decompress", counting)
    page = await stores.events.read(run.id, Seq(BLOCK_ENTRIES + 100))
    assert [seq for seq, _ in page] == list(range(BLOCK_ENTRIES + 101, 2 * BLOCK_ENTRIES + 101))
    assert len(unpacked) <= 2
    everything = await stores.events.read(run.id, Seq(1), None)
    assert len(everything) == blocks * BLOCK_ENTRIES


async def test_a_thousand_frames_were_made_at_once_for_who_is_behind(tmp_path: Path) -> None:
    port = free_port()
    async with processes_in(tmp_path, {}) as processes, api_at(port) as http:
        await processes.dev(port)
        run_id = await streamed_run(http, 1000)
        async with raw_connection(port) as connection:
            await connection.send(head("GET", f"/v1/runs/{run_id}/stream?starting_after=0"))
            frames = [body.count(b"\ndata: ") async for body in chunks(connection)]
    assert sum(frames) > 1000
    assert max(frames) <= FRAMES_AT_ONCE


async def streamed_run(http: httpx.AsyncClient, words: int, word: str = "w") -> str:
    """The id of a run that has ended, with a frame for each word."""
    agent = (await http.post("/v1/agents", json={"model": "builtin/scripted"})).json()["id"]
    script = f'{{"turns": [{{"text": "{word} ", "repeat": {words}}}]}}'
    asked = {"input": script, "streaming": True, "stream_tokens": True, "background": True}
    shown = (await http.post(f"/v1/agents/{agent}/messages", json=asked)).text
    return "run-" + shown.partition('"run_id":"run-')[2].partition('"')[0]


async def chunks(connection: RawConnection) -> AsyncGenerator[bytes]:
    """The pieces of an answer as they were sent."""
    async with asyncio.timeout(HANGS_S):
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        while length := int(await connection.reader.readline(), 16):
            yield await connection.reader.readexactly(length)
            await connection.reader.readline()


@told_while_awake
async def test_a_client_that_reads_nothing_held_its_stream_for_ever(tmp_path: Path) -> None:
    """As an operator runs it: the setting reaches the server, and who reads notices nothing."""
    port = free_port()
    async with processes_in(tmp_path, {}) as processes, api_at(port) as http:
        server = await processes.dev(port, reader_timeout=1.0)
        request = head("GET", f"/v1/runs/{await streamed_run(http, WORDS, WORD)}/stream?starting_after=0")
        with socket() as silent:
            silent.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", port))
            silent.sendall(request)
            async with raw_connection(port) as reading:
                await reading.send(request)
                whole = b"".join([body async for body in chunks(reading)])
                assert whole.endswith(b"data: [DONE]\n\n")
                assert len(whole) > KERNELS_BYTES
            said = "stream_client_cut_off"
            await wait_until(lambda: said in server.log.read_text(), description="the silent client to be cut off")
        assert server.log.read_text().count(said) == 1


async def test_the_setting_of_connections_never_reached_the_server(tmp_path: Path) -> None:
    """It was 1,000, whatever HOLDFAST_MAX_CONNECTIONS said."""
    port = free_port()
    async with processes_in(tmp_path, {}) as processes, AsyncExitStack() as stack:
        await processes.dev(port, max_connections=10)
        opened = [await stack.enter_async_context(raw_connection(port)) for _ in range(12)]
        await opened[-1].send(head("GET", "/healthz"))
        assert (await opened[-1].answer()).status == 503
