"""Measures the cost of clients that open a stream and do not read it: `python -m bench.slow_readers --readers 200`.

Each slow reader opens the stream of an ended run with a long log, and lets only the kernel's buffer fill. The command
prints the growth of the API's process per reader, how long other clients wait for a new connection and an answer
meanwhile, and that the API disconnects all slow readers after HOLDFAST_READER_TIMEOUT.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, socket

import httpx
import psutil

from bench.deployments import SETTINGS, machine
from tests.kit.commands import execute
from tests.kit.free_ports import free_port
from tests.kit.product.processes import api_at, processes_in
from tests.kit.raw_http import head
from tests.kit.wait_until import wait_until

WINDOW = 4096
"""Bytes of a reader's receive buffer: a small one leaves the rest to the server."""
READER_TIMEOUT_S = 20.0
LOOK_S = 0.2


async def measure(readers: int, words: int) -> None:
    """Measures and prints the figures."""
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        async with processes_in(Path(directory), SETTINGS, execute) as processes, api_at(port) as http:
            server = await processes.dev(port, reader_timeout=READER_TIMEOUT_S)
            process = psutil.Process(server.pid)
            run_id, length = await _long_run(http, words)
            print(f"a log of {words:,} words, {length / 1e6:.1f} MB on the wire; {readers} readers that take nothing")
            await _measure_readers(port, run_id, readers, process)


async def _measure_readers(port: int, run_id: str, readers: int, process: psutil.Process) -> None:
    before = process.memory_info().rss
    request = head("GET", f"/v1/runs/{run_id}/stream?starting_after=0")
    with _sockets(readers) as sockets:
        began = time.monotonic()
        for reader in sockets:
            reader.connect(("127.0.0.1", port))
            reader.sendall(request)
        waits, most = list[float](), before
        while time.monotonic() < began + READER_TIMEOUT_S / 2:
            waits.append(await _new_connection(port))
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(LOOK_S)
        grown = (most - before) / readers / 1000
        print(
            f"memory of the process: {before / 1e6:.0f} MB before, {most / 1e6:.0f} MB at most: {grown:.0f} kB a reader"
        )
        print(f"a new connection and an answer: {max(waits) * 1000:.0f} ms at worst, of {len(waits)}")
        await wait_until(lambda: _open(process, port) <= 1, description="all to be cut off", timeout=120)
        print(f"all cut off after {time.monotonic() - began:.1f} s (HOLDFAST_READER_TIMEOUT={READER_TIMEOUT_S:g})")


@contextmanager
def _sockets(count: int) -> Generator[list[socket]]:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket()) for _ in range(count)]
        for one in opened:
            one.setsockopt(SOL_SOCKET, SO_RCVBUF, WINDOW)
        yield opened


async def _long_run(http: httpx.AsyncClient, words: int) -> tuple[str, int]:
    """Makes an ended run. Returns its id and the length of its stream."""
    agent = (await http.post("/v1/agents", json={"model": "builtin/scripted"})).json()["id"]
    script = f'{{"turns": [{{"text": "w ", "repeat": {words}}}]}}'
    asked = {"input": script, "streaming": True, "stream_tokens": True, "background": True}
    shown = (await http.post(f"/v1/agents/{agent}/messages", json=asked)).text
    return "run-" + shown.partition('"run_id":"run-')[2].partition('"')[0], len(shown)


async def _new_connection(port: int) -> float:
    """Returns the seconds from the opening of a connection to its answer."""
    began = time.monotonic()
    async with api_at(port) as http:
        (await http.get("/v1/agents/count")).raise_for_status()
    return time.monotonic() - began


def _open(process: psutil.Process, port: int) -> int:
    found = process.net_connections(kind="tcp4")
    return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port for one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--words", type=int, default=20_000)
    options = parser.parse_args()
    asyncio.run(measure(options.readers, options.words))


if __name__ == "__main__":
    main()
