"""Injects each fault at its time, concurrently with others if they overlap, and repairs the deployment afterwards."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from redis.exceptions import RedisError

from bench.chaos.deployment import Deployment, Slot, say
from bench.chaos.ledger import Column, Ledger
from bench.chaos.recovery import Recoveries
from bench.chaos.schedule import Fault, FaultKind
from tests.kit.free_ports import free_port
from tests.kit.product.processes import HoldfastProcess

OVERLAP_S = 1.0
"""Seconds for which an ended fault still has effects: processes reconnect, loops wake up."""

WAITS_S = 10.0
"""How long an exclusive fault waits for the end of earlier faults, in seconds."""

WATCH_S = 0.02
WATCH_CLOSELY_S = 0.005


@dataclass
class Happened:
    """An injected fault; times are the monotonic clock's."""

    fault: Fault
    began_at: float
    ended_at: float = float("inf")


@dataclass
class Faults:
    """Injects faults into a deployment by a schedule."""

    deployment: Deployment
    recoveries: Recoveries
    ledger: Ledger
    happened: list[Happened] = field(default_factory=list[Happened])
    skipped: Counter[str] = field(default_factory=Counter[str])
    _redis_changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def play(self, schedule: Iterable[Fault], stop: asyncio.Event | None = None) -> None:
        """Injects the faults, and returns when the last one is over and repaired. After `stop` none begins."""
        began_at = time.monotonic()
        stop = stop or asyncio.Event()
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            for number, fault in enumerate(schedule):
                due_at = began_at + fault.at_s
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(0.0, due_at - time.monotonic()))
                if stop.is_set():
                    break
                if fault.is_alone and under_way:
                    await asyncio.wait(set(under_way), timeout=WAITS_S)
                    await asyncio.sleep(OVERLAP_S)
                    began_at += time.monotonic() - due_at  # later faults keep their distance
                task = group.create_task(self._cause(fault), name=f"fault {number}")
                under_way.add(task)
                task.add_done_callback(under_way.discard)

    async def watch_over(self) -> None:
        """Replaces processes that end without a fault, and reports them."""
        while True:
            await asyncio.sleep(0.5)
            for slot in [*self.deployment.workers, *self.deployment.apis]:
                if not slot.changing.locked() and not slot.is_running():
                    async with slot.changing:
                        where = slot.process.log if slot.process else slot.name
                        self.ledger.broken(Column.DIED, "-", f"{self.ledger.elapsed_s:.1f} s: {slot.name}, log {where}")
                        await slot.start()

    async def _cause(self, fault: Fault) -> None:
        acts: dict[FaultKind, Callable[[Fault], Awaitable[bool]]] = {
            FaultKind.KILL_WORKER: self._kill_worker,
            FaultKind.END_WORKER: self._end_worker,
            FaultKind.FREEZE_WORKER: self._freeze_worker,
            FaultKind.CRASH_WORKER: self._crash_worker,
            FaultKind.KILL_API: self._kill_api,
            FaultKind.END_API: self._end_api,
            FaultKind.KILL_REDIS: self._kill_redis,
            FaultKind.FREEZE_REDIS: self._freeze_redis,
            FaultKind.READONLY_REDIS: self._make_redis_read_only,
            FaultKind.FAIL_OVER_REDIS: self._fail_over_redis,
            FaultKind.KILL_MCP_SERVER: self._kill_mcp_server,
            FaultKind.END_MCP_SERVER: self._end_mcp_server,
            FaultKind.FREEZE_MCP_SERVER: self._freeze_mcp_server,
        }
        say(f"fault {fault}")
        happened = Happened(fault, time.monotonic())
        self.happened.append(happened)
        try:
            done = await acts.get(fault.kind, self._at_a_proxy)(fault)
        except (RedisError, OSError) as error:
            say(f"fault {fault.kind}: {type(error).__name__}: {error}")
            done = True
        happened.ended_at = time.monotonic()
        if not done:
            self.skipped[fault.kind] += 1
            self.happened.remove(happened)

    async def _kill_worker(self, fault: Fault) -> bool:
        async with _one_of(self.deployment.workers, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            held = await self.recoveries.held_by(slot.pid)
            began_at = time.monotonic()
            await slot.process.kill()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.recoveries.watch(fault, held, began_at, WATCH_S), name="recovery")
                group.create_task(slot.start(), name="new worker")
        return True

    async def _end_worker(self, fault: Fault) -> bool:
        async with _one_of(self.deployment.workers, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            old = slot.process
            new = await slot.started()
            held = await self.recoveries.held_by(old.pid)
            began_at = time.monotonic()
            old.ask_to_end()
            await self.recoveries.watch(fault, held, began_at, WATCH_CLOSELY_S)
            await self._has_ended(slot, old)
            slot.process = new
        return True

    async def _freeze_worker(self, fault: Fault) -> bool:
        async with _one_of(self.deployment.workers, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            held = await self.recoveries.held_by(slot.pid)
            began_at = time.monotonic()
            slot.is_suspended = True
            slot.process.suspend()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.recoveries.watch(fault, held, began_at, WATCH_S), name="recovery")
                await asyncio.sleep(fault.lasts_s)
                slot.process.resume()
                slot.is_suspended, slot.resumed_at = False, time.time()
        return True

    async def _crash_worker(self, fault: Fault) -> bool:
        """Replaces a worker with one that dies at one of its writes."""
        async with _one_of(self.deployment.workers, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            doomed = await slot.started(crash_at=fault.crash_at)
            slot.process.ask_to_end()
            await self._has_ended(slot, slot.process)
            slot.process = doomed
            with suppress(AssertionError):  # the worker has not reached the write, or has lost an answer and lives
                await doomed.ended(fault.lasts_s)
            await doomed.kill()
            await slot.start()
        return True

    async def _kill_api(self, fault: Fault) -> bool:
        async with _one_of(self.deployment.apis, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            await slot.process.kill()
            await slot.start()
        return True

    async def _end_api(self, fault: Fault) -> bool:
        async with _one_of(self.deployment.apis, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            slot.process.ask_to_end()
            await self._has_ended(slot, slot.process)
            await slot.start()
        return True

    async def _has_ended(self, slot: Slot, process: HoldfastProcess) -> None:
        try:
            status = await process.ended(30.0)
        except AssertionError:
            await process.kill()
            status = None
        if status != 0:
            detail = f"{slot.name} ended with {status} within 30 s of SIGTERM, log {process.log}"
            self.ledger.broken(Column.DIED, "-", f"{self.ledger.elapsed_s:.1f} s: {detail}")

    async def _kill_redis(self, fault: Fault) -> bool:
        async with self._redis_changing:
            await self.deployment.redis.kill()
            await asyncio.sleep(fault.lasts_s)
            await self.deployment.redis.start()
            self.deployment.redis_lost_data_at = time.time()
        return True

    async def _freeze_redis(self, fault: Fault) -> bool:
        async with self._redis_changing, self.deployment.redis.hanging():
            await asyncio.sleep(fault.lasts_s)
        return True

    async def _make_redis_read_only(self, fault: Fault) -> bool:
        async with self._redis_changing:
            redis = self.deployment.redis_client()
            await redis.replicaof("127.0.0.1", str(free_port()))
            await asyncio.sleep(fault.lasts_s)
            await redis.replicaof("NO", "ONE")
        return True

    async def _fail_over_redis(self, fault: Fault) -> bool:
        async with self._redis_changing:
            await self.deployment.fail_over(lags_s=fault.lasts_s)
        return True

    async def _kill_mcp_server(self, fault: Fault) -> bool:
        async with _one_of(self.deployment.mcp_servers, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            with slot.being_away():
                await slot.process.kill()
                await asyncio.sleep(fault.lasts_s)
                await slot.start()
        return True

    async def _end_mcp_server(self, fault: Fault) -> bool:
        async with _one_of(self.deployment.mcp_servers, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            with slot.being_away():
                await slot.process.terminate()
                await asyncio.sleep(fault.lasts_s)
                await slot.start()
        return True

    async def _freeze_mcp_server(self, fault: Fault) -> bool:
        async with _one_of(self.deployment.mcp_servers, fault.target) as slot:
            if slot is None or slot.process is None:
                return False
            await slot.freeze(fault.lasts_s)
        return True

    async def _at_a_proxy(self, fault: Fault) -> bool:
        """Injects faults of the connections to services, and faults without a duration."""
        deployment, redis, postgres = self.deployment, self.deployment.redis_proxy, self.deployment.postgres_proxy
        assert redis is not None
        assert postgres is not None
        match fault.kind:
            case FaultKind.FLUSH_REDIS:
                async with self._redis_changing:
                    await deployment.redis_client().flushall()
                    deployment.redis_lost_data_at = time.time()
            case FaultKind.CUT_SUBSCRIBERS:
                async with self._redis_changing:
                    await deployment.redis.cut_subscribers()
            case FaultKind.CUT_REDIS:
                redis.cut()
            case FaultKind.CUT_POSTGRES:
                postgres.cut()
            case FaultKind.STALL_POSTGRES:
                postgres.stall(True)
                await asyncio.sleep(fault.lasts_s)
                postgres.stall(False)
            case _:
                proxy = redis if fault.kind is FaultKind.REFUSE_REDIS else postgres
                proxy.refuse()
                await asyncio.sleep(fault.lasts_s)
                await proxy.accept()
        return True


class _Changing(Protocol):
    """A place whose process a fault changes."""

    changing: asyncio.Lock


Place = TypeVar("Place", bound=_Changing)


@asynccontextmanager
async def _one_of(slots: list[Place], target: int) -> AsyncGenerator[Place | None]:
    """Yields a slot without a current fault, preferably the targeted one; None if there is none."""
    for number in range(len(slots)):
        slot = slots[(target + number) % len(slots)]
        if not slot.changing.locked():
            async with slot.changing:
                yield slot
            return
    yield None
