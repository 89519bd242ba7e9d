"""What chance seldom puts together: several things that go wrong at once, right where it hurts."""

from typing import Any, cast

from shared.redis import keys
from tests.kit.protocol_witness import KnownRun
from tests.kit.protocol_worker import LEASE_MS
from tests.kit.protocol_world import RUNS, ProtocolWorld


async def lose_redis_and_owners(world: ProtocolWorld, *, deaths: int) -> None:
    """Every owner has shown all that it reserved when it dies together with Redis; those who take over die as well."""
    for worker, job, owner in world.owners():
        if not owner.over:
            for number in (1, 0, 3):
                owner.emit(number)
                await worker.or_give_up(job, owner.send())
    await world.flush()
    for _ in range(deaths):
        for worker in [worker for worker in world.workers if worker.jobs]:
            await world.kill(worker)
        await world.check()
        world.pass_time(LEASE_MS + 2)
        await world.sweep()
        await world.dispatch_unowned()
        await world.deliver_dispatches()
        taker = world.workers[0]
        await taker.claim(RUNS)
        for _ in ("the run", "its log"):
            for job in list(taker.jobs.values()):
                await taker.begin(job)
        await world.check()


async def sweep_before_the_worker_notices(world: ProtocolWorld) -> None:
    """Redis forgets everything; runs are dispatched again, and then their workers ask for their leases."""
    await world.flush()
    await world.sweep()
    await world.dispatch_unowned()
    holders = [worker for worker in world.workers if worker.jobs and not worker.frozen]
    for worker in holders:
        await worker.renew()
        for job in list(worker.jobs.values()):
            while job.unsure and job.job_id in worker.jobs:
                await worker.retake(job)
    await world.deliver_dispatches()


async def evict_log(world: ProtocolWorld, known: KnownRun) -> None:
    """Redis needs room and drops the stream; it still knows whose it was. The owner goes on."""
    if await cast("Any", world.around.redis).delete(keys.events(known.run_id)):
        known.redis_lost_data = True
    for worker, job, owner in world.owners():
        if owner.known is known and not owner.over:
            owner.emit(1)
            await worker.or_give_up(job, owner.send())


async def lose_all_but_mark(world: ProtocolWorld, known: KnownRun) -> None:
    """A failover to a replica that had the beginning of the log and none of its events. The owner goes on."""
    await world.lose_end_of_log(known, 10_000)
    for worker, job, owner in world.owners():
        if owner.known is known and not owner.over:
            owner.emit(1)
            await worker.or_give_up(job, owner.send())
