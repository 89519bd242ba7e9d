"""A Redis Cluster of three nodes that belongs to the tests: its slots may be moved."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, cast

from redis.crc import key_slot
from redis.exceptions import RedisError

from shared.redis.connection import connect
from tests.kit.free_ports import free_port
from tests.kit.wait_until import wait_until

NODES = 3
SLOTS = 16384
WHOLE = {"cluster_state": "ok", "cluster_known_nodes": str(NODES), "cluster_slots_ok": str(SLOTS)}


class PrivateCluster:
    """Three nodes with a third of the slots each, on loopback. They keep no connection to an event loop, so that tests
    may share them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ports = [free_port() for _ in range(NODES)]
        # Without one of its own, a node's port for the other nodes is 10,000 above, which may be none.
        self._bus_ports = {port: free_port() for port in self.ports}
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self._processes: list[Popen[bytes]] = []

    async def start(self) -> None:
        """Returns when all nodes know that the cluster is whole."""
        for number, port in enumerate(self.ports):
            self._start_node(port)
            async with _node(port) as node:
                await wait_until(lambda node=node: _answers(node), description="a node of the cluster to answer")
                slots = SLOTS * number // NODES, SLOTS * (number + 1) // NODES - 1
                await node.execute_command("CLUSTER ADDSLOTSRANGE", *slots)
                # Else two nodes may take the same number for the newest.
                await node.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        async with _node(self.ports[0]) as first:
            for port in self.ports[1:]:
                await first.execute_command("CLUSTER MEET", "127.0.0.1", port, self._bus_ports[port])
        await wait_until(self._is_whole, description="the cluster to be whole")

    def end(self) -> None:
        """Ends the nodes; everything in them is lost."""
        for process in self._processes:
            process.kill()
            process.wait()

    async def empty(self) -> None:
        """Deletes everything in it."""
        for port in self.ports:
            async with _node(port) as node:
                await node.flushdb()

    async def port_of(self, key: str) -> int:
        """The node of the key's slot."""
        async with _node(self.ports[0]) as node:
            ranges: Any = await node.execute_command("CLUSTER SLOTS")
        slot = key_slot(key.encode())
        return next(int(held[1]) for first, last, held, *_ in ranges if first <= slot <= last)

    async def move_slot_of(self, key: str) -> None:
        """Moves the key's slot, with all its data, to another node, as `redis-cli --cluster reshard` does."""
        slot, from_port = key_slot(key.encode()), await self.port_of(key)
        to_port = next(port for port in self.ports if port != from_port)
        async with _node(from_port) as source, _node(to_port) as target:
            source_id, target_id = await _name(source), await _name(target)
            await target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source_id)
            await source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target_id)
            while found := await source.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
                await source.execute_command("MIGRATE", "127.0.0.1", to_port, "", 0, 5000, "KEYS", *found)
            for node in [target, source]:
                await node.execute_command("CLUSTER SETSLOT", slot, "NODE", target_id)
        await wait_until(lambda: self._all_know(key, to_port), description="all nodes to know where the slot is")

    async def _all_know(self, key: str, port: int) -> bool:
        known: list[bool] = []
        for asked in self.ports:
            async with _node(asked) as node:
                slot, ranges = key_slot(key.encode()), await node.execute_command("CLUSTER SLOTS")
            known += [int(held[1]) == port for first, last, held, *_ in ranges if first <= slot <= last]
        return known == [True] * NODES

    def _start_node(self, port: int) -> None:
        folder = self._directory / str(port)
        folder.mkdir()
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        cluster = ["--cluster-enabled", "yes", "--cluster-port", str(self._bus_ports[port])]
        self._processes.append(Popen(["redis-server", *settings, *cluster], stdout=DEVNULL, stderr=DEVNULL))

    async def _is_whole(self) -> bool:
        for port in self.ports:
            async with _node(port) as node:
                told: Any = await node.execute_command("CLUSTER INFO")
            if not told.items() >= WHOLE.items():
                return False
        return True


@asynccontextmanager
async def _node(port: int) -> AsyncGenerator[Any]:
    client = connect(f"redis://127.0.0.1:{port}/0")
    try:
        yield cast("Any", client)
    finally:
        await client.aclose(close_connection_pool=True)


async def _answers(node: Any) -> bool:
    try:
        return bool(await node.ping())
    except (RedisError, OSError):
        return False


async def _name(node: Any) -> str:
    return (await node.execute_command("CLUSTER MYID")).decode()
