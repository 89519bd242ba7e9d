"""Lease, fence and log alone, under everything that can come between two round trips.

The real table of leases, publisher, sweeper, stores and scripts, on a Redis inside this process and on SQLite. The test
plays the time, and the order in which round trips are made. Each example is one interleaving of three workers, a
sweeper, the API and readers, with frozen, killed and late workers and a Redis that forgets. What must hold is in
`world.py` and `witness.py`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest
from arq.connections import ArqRedis
from fakeredis import FakeServer
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from shared.redis.embedded import connect_embedded
from shared.sql.runs.listing import delete_histories
from tests.kit.clocks import FrozenClock, PlayedLoop, embedded_redis_follows
from tests.kit.protocol.disasters import (
    lose_log_of_a_living_owner,
    lose_redis_and_owners,
    stand_still,
    sweep_before_the_worker_notices,
    sweep_wholly,
)
from tests.kit.protocol.owner import Order, Surroundings
from tests.kit.protocol.round_trips import Passing, RoundTrips
from tests.kit.protocol.witness import KnownRun, Witness
from tests.kit.protocol.worker import LEASE_MS
from tests.kit.protocol.world import RUNS, WORKERS, ProtocolWorld
from tests.kit.runs.stored_runs import AGENT, Stores, stored_runs
from tests.kit.tiers import halved

PARTS = 4
"""The examples are tried in so many tests, which can run side by side. Each has a seed of its own."""
EXAMPLES = 25
STEPS = 60

which = st.integers(0, 11)
few = st.integers(0, 4)
workers = st.integers(0, WORKERS - 1)
passings: st.SearchStrategy[Passing] = st.sampled_from(["whole", "whole", "whole", "answer late", "answer lost"])
orders: st.SearchStrategy[Order] = st.sampled_from(
    ["checkpoint", "checkpoint", "record_intent", "take_new_fence", "park", "settle", "settle", "hand over"]
)


class Protocol(RuleBasedStateMachine):
    """One interleaving."""

    runner: asyncio.Runner
    redis: ArqRedis
    stores: Stores
    witness: Witness
    clock: FrozenClock
    numbers: Iterator[int]
    world: ProtocolWorld
    redis_is_sound = True
    in_step = False
    """Stays so when a step has failed: then there is nothing to come to rest."""

    @initialize(redis_is_sound=st.booleans(), stores_first=st.sampled_from([False, False, True]))
    def begin(self, redis_is_sound: bool, stores_first: bool) -> None:
        self.redis_is_sound = redis_is_sound
        self.clock.reset()
        self._step(self._begin(stores_first))

    async def _begin(self, stores_first: bool) -> None:
        async with self.stores.database.write() as connection:
            # An example that failed has left runs that a sweeper would find.
            await delete_histories(connection, "agent_id", AGENT.id)
        trips = RoundTrips(self.witness.watch)
        around = Surroundings(
            self.redis, self.stores, self.witness, self.clock, trips, self.numbers, stores_first=stores_first
        )
        self.world = ProtocolWorld(around)
        await self.world.flush()
        around.losses = 0
        await self.world.live(LEASE_MS // 3)

    @rule(ms=st.sampled_from([0, 300, LEASE_MS // 3, LEASE_MS]))
    def live(self, ms: int) -> None:
        self._step(self.world.live(ms))

    @rule(ms=st.sampled_from([1, 300, LEASE_MS // 3, LEASE_MS - 1, LEASE_MS + 1, 3 * LEASE_MS]))
    def do_nothing(self, ms: int) -> None:
        self._step(self.world.pass_time(ms))

    @precondition(lambda self: bool(self.world.trips.waiting()))
    @rule(trip=which, passing=passings, more=few)
    def make_a_round_trip(self, trip: int, passing: Passing, more: int) -> None:
        self._step(self.world.let_pass(trip, passing, more))

    @precondition(lambda self: len(self.world.active) < RUNS)
    @rule(thread=which, dispatch=st.booleans())
    def submit(self, thread: int, dispatch: bool) -> None:
        self._step(self.world.submit(thread, dispatch=dispatch))

    @rule(doing=st.sampled_from(["dispatch", "sweep", "sweep wholly"]), run=which, passing=passings, more=few)
    def dispatch(self, doing: str, run: int, passing: Passing, more: int) -> None:
        world = self.world
        match doing:
            case "dispatch":
                self._step(world.dispatch(self._run(run)))
            case "sweep":
                self._step(world.act(world.strangers[2], world.sweep, passing, more))
            case _:
                self._step(sweep_wholly(world))

    @rule(worker=workers, doing=st.sampled_from(["claim", "renew", "retake"]), passing=passings, more=few)
    def lease(self, worker: int, doing: str, passing: Passing, more: int) -> None:
        leasing = self.world.workers[worker]
        if leasing.party.goes_on:
            self._step(self.world.act(leasing.party, lambda: leasing.begin(doing, 2), passing, more))

    @precondition(lambda self: bool(self.world.owners))
    @rule(owner=which, number=few, passing=passings, more=few)
    def show(self, owner: int, number: int, passing: Passing, more: int) -> None:
        showing = self.world.owners[owner % len(self.world.owners)]
        self._step(self.world.act(showing.party, lambda: showing.emit(number), passing, more))

    @precondition(lambda self: bool(self.world.owners))
    @rule(owner=which, order=orders, passing=passings, more=few)
    def order(self, owner: int, order: Order, passing: Passing, more: int) -> None:
        told = self.world.owners[owner % len(self.world.owners)]
        self._step(self.world.act(told.party, lambda: told.tell(order), passing, more))

    @rule(doing=st.sampled_from(["request", "take", "take"]), run=which, passing=passings, more=few)
    def cancel(self, doing: str, run: int, passing: Passing, more: int) -> None:
        world, known = self.world, self._run(run)
        if doing == "request":
            self._step(world.request_cancel(known))
        else:
            party = world.strangers[run % 2]
            self._step(world.act(party, lambda: world.take_orphaned(known, party), passing, more))

    @rule(worker=workers, doing=st.sampled_from(["kill", "freeze", "wake", "hear", "stand still"]), more=few)
    def befall(self, worker: int, doing: str, more: int) -> None:
        befallen = self.world.workers[worker]
        match doing:
            case "kill":
                self._step(self.world.kill(befallen, late=more // 2))
            case "freeze" | "wake":
                befallen.party.is_frozen = doing == "freeze"
            case "hear":
                befallen.hear_of_losses()
                self._step(self.world.trips.until_quiet())
            case _:
                self._step(stand_still(self.world, worker, (300, LEASE_MS, 2 * LEASE_MS)[more % 3]))

    @precondition(lambda self: not self.redis_is_sound)
    @rule(how=st.sampled_from(["all", "queue", "replicate", "replicate", "fail over", "fail over"]), run=which)
    def lose(self, how: str, run: int) -> None:
        match how:
            case "all":
                self._step(self.world.flush())
            case "queue":
                self._step(self.world.lose_queue(self._run(run)))
            case "replicate":
                self._step(self.world.replicate())
            case _:
                self._step(self.world.fail_over())

    @precondition(lambda self: not self.redis_is_sound)
    @rule(what=st.sampled_from(["owners too", "swept first", "log", "log"]), run=which, number=few)
    def meet_disaster(self, what: str, run: int, number: int) -> None:
        match what:
            case "owners too":
                self._step(lose_redis_and_owners(self.world, self._run(run), lost=number, deaths=1 + run % 2))
            case "swept first":
                self._step(sweep_before_the_worker_notices(self.world, number))
            case _:
                self._step(lose_log_of_a_living_owner(self.world, self._run(run), number))

    @rule(run=which, cursor=which, limit=st.integers(1, 9))
    def read(self, run: int, cursor: int, limit: int) -> None:
        self._step(self.world.read(self._run(run), cursor, limit))

    def teardown(self) -> None:
        try:
            if not self.in_step:
                self.runner.run(self.world.come_to_rest())
        finally:
            # Whoever is left could not be cancelled later: it waits for a time that nobody plays.
            self.runner.run(self.world.bury())

    def _run(self, number: int) -> KnownRun:
        return self.world.active[number % len(self.world.active)]

    def _step(self, work: Coroutine[Any, Any, Any]) -> None:
        self.in_step = True
        self.runner.run(self._checked(work))
        self.in_step = False

    async def _checked(self, work: Coroutine[Any, Any, Any]) -> None:
        await work
        if self.world:
            await self.world.check()


@contextmanager
def _parts(sqlite_url: str) -> Generator[dict[str, Any]]:
    """What the examples of one test share; a machine has them by these names."""
    clock = FrozenClock()
    with (
        asyncio.Runner(loop_factory=lambda: PlayedLoop(clock)) as runner,
        embedded_redis_follows(clock),
        ExitStack() as stack,
    ):
        opening = stored_runs(sqlite_url)
        stores = runner.run(opening.__aenter__())
        stack.callback(lambda: runner.run(opening.__aexit__(None, None, None)))
        redis = connect_embedded(FakeServer())
        stack.callback(lambda: runner.run(redis.aclose(close_connection_pool=True)))
        witness = Witness(sqlite_url.removeprefix("sqlite:///"), redis)
        stack.callback(witness.close)
        yield {
            "runner": runner,
            "redis": redis,
            "stores": stores,
            "witness": witness,
            "clock": clock,
            "numbers": count(),
        }


@pytest.fixture
def numbers_of_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps Hypothesis from trying the numbers that it finds in the modules loaded so far: which examples a seed gives
    would depend on the tests before, and one that fails in a whole run would pass by itself."""

    def draw_none(*_: object, **_named: object) -> None:
        """As if it had found no number that fits."""

    monkeypatch.setattr(HypothesisProvider, "_maybe_draw_constant", draw_none)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("numbers_of_no_module")
@pytest.mark.parametrize("part", halved(PARTS))
def test_every_interleaving_keeps_one_owner_and_one_log(sqlite_url: str, part: int) -> None:
    with _parts(sqlite_url) as parts:
        machine: Callable[[], RuleBasedStateMachine] = seed(part)(type("Machine", (Protocol,), parts))
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            ),
        )


def test_two_workers_held_one_run_when_a_failover_brought_a_forgotten_lease_back(sqlite_url: str) -> None:
    """The one whose lease is back had not noticed that it was gone, and the other had it from a newer dispatch. Nothing
    tells the first one, until it writes."""

    async def play(world: ProtocolWorld) -> None:
        older, newer, sweeper = world.workers[0], world.workers[1], world.strangers[2]
        await world.submit(0, dispatch=True)
        older.begin("claim")
        await world.trips.let_all_pass(older.party)
        await world.pass_time(1)
        await world.replicate()
        await world.flush()
        world.sweep()
        await world.trips.let_all_pass(sweeper)
        await world.pass_time(LEASE_MS // 2 + 1)
        await world.trips.let_all_pass(sweeper)
        newer.begin("claim")
        await world.trips.let_all_pass(newer.party)
        await world.fail_over()
        for worker in (older, newer):
            worker.begin("renew")
            await world.trips.let_all_pass(worker.party)
        newer.begin("retake")
        await world.trips.let_all_pass(newer.party)
        await world.check()
        assert len(older.sure()) == len(newer.sure()) == 1

        for worker in (newer, older):
            for owner in worker.jobs.values():
                owner.emit()
            await world.trips.let_all_pass(worker.party)
        assert (older.believed(), len(newer.sure())) == ([], 1)
        await world.come_to_rest()

    async def play_and_bury(around: Surroundings) -> None:
        world = ProtocolWorld(around)
        try:
            await play(world)
        finally:
            await world.bury()

    with _parts(sqlite_url) as parts:
        runner: asyncio.Runner = parts.pop("runner")
        runner.run(play_and_bury(Surroundings(trips=RoundTrips(parts["witness"].watch), **parts)))
