"""Combinations that random tests seldom produce: several failures at once, at the worst moment."""

from tests.kit.protocol.witness import KnownRun
from tests.kit.protocol.worker import LEASE_MS
from tests.kit.protocol.world import RUNS, ProtocolWorld


async def lose_redis_and_owners(world: ProtocolWorld, known: KnownRun, *, lost: int, deaths: int) -> None:
    """Every owner dies together with Redis, or with a part of a log, right after it has shown something; owners that
    take over die as well."""
    for owner in world.owners:
        owner.emit(3)
        await world.trips.let_all_pass(owner.party, 2)
    await world.check()
    await (world.lose_part_of_log(known, lost) if lost else world.flush())
    for _ in range(deaths):
        for worker in [worker for worker in world.workers if worker.jobs]:
            await world.kill(worker, late=1)
        await world.check()
        await world.pass_time(LEASE_MS + 2)
        await sweep_wholly(world)
        world.workers[0].begin("claim", RUNS)
        await world.trips.let_all_pass(world.workers[0].party, 4 * RUNS)
        await world.check()


async def sweep_wholly(world: ProtocolWorld) -> None:
    """The sweeper makes its round."""
    world.sweep()
    for _ in range(2):
        await world.trips.let_all_pass(world.strangers[2])
        await world.pass_time(LEASE_MS // 2 + 1)
    await world.trips.let_all_pass(world.strangers[2])


async def sweep_before_the_worker_notices(world: ProtocolWorld, steps: int) -> None:
    """Redis forgets all; the sweeper is some steps into its second look when the workers ask for their leases."""
    await world.flush()
    world.sweep()
    await world.trips.let_all_pass(world.strangers[2])
    await world.pass_time(LEASE_MS // 2 + 1)
    await world.trips.let_all_pass(world.strangers[2], steps)
    for worker in world.workers:
        worker.begin("renew")
        await world.trips.let_all_pass(worker.party)
        worker.begin("retake", RUNS)
        await world.trips.let_all_pass(worker.party, steps)
    await world.trips.let_all_pass(world.strangers[2])
    await world.check()
    for worker in world.workers:
        worker.begin("claim", RUNS)
        await world.trips.let_all_pass(worker.party)


async def lose_log_of_a_living_owner(world: ProtocolWorld, known: KnownRun, lost: int) -> None:
    """Redis drops the stream, or a part of it, or its end as after a failover, and the owner goes on."""
    owners = [owner for owner in world.owners if owner.run_id == known.run_id]
    for owner in owners:
        owner.emit(3)
        await world.trips.let_all_pass(owner.party)
    await world.check()
    await world.lose_part_of_log(known, lost)
    for owner in owners:
        owner.emit()
        await world.trips.let_all_pass(owner.party, 4 - lost)


async def stand_still(world: ProtocolWorld, worker: int, ms: int) -> None:
    """A process pauses just before a request while all others go on, and then sends the request, before it looks at the
    time."""
    still = world.workers[worker]
    still.party.is_frozen = True
    await world.live(ms)
    still.party.is_frozen = False
    for trip in world.trips.waiting(still.party)[:2]:
        if trip in world.trips.waiting():
            await world.trips.let_pass(trip)
