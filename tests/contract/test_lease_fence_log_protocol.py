"""Lease, fence and log alone, under everything that can come between two round trips.

The real classes and scripts, on a Redis inside this process whose time the test plays, and the real stores on SQLite.
Each example is one interleaving of three workers, a sweeper, the API and readers, with frozen, killed and late
workers and a Redis that forgets. What must hold is in `protocol_world.py`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any, get_args

import pytest
from arq.connections import ArqRedis
from fakeredis import FakeServer
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from shared.redis.embedded import connect_embedded
from tests.kit.clocks import FrozenClock, embedded_redis_follows
from tests.kit.protocol_disasters import (
    evict_log,
    lose_all_but_mark,
    lose_redis_and_owners,
    sweep_before_the_worker_notices,
)
from tests.kit.protocol_owner import Owner, SqlWrite
from tests.kit.protocol_witness import KnownRun, Witness
from tests.kit.protocol_worker import LEASE_MS, Job, Late, ProtocolWorker, Surroundings
from tests.kit.protocol_world import RUNS, ProtocolWorld
from tests.kit.runs.stored_runs import Stores, stored_runs

PARTS = 4
"""The examples are tried in so many tests, which can run side by side. Each has a seed of its own."""
EXAMPLES = 75
STEPS = 80

SKEWS_MS = (-30_000, 0, 59_000)
"""How wrong the clock of one who dispatches may be: late by anything, early by less than the score's slack."""

which = st.integers(0, 11)
few = st.integers(1, 4)
workers = st.integers(0, 2)
delays = st.sampled_from([0, 0, 0, 0, 0, 3, 900, LEASE_MS + 100])


LOSSES = (
    "all",
    "all, late",
    "all, dispatched",
    "all, swept",
    "replicate",
    "replicate",
    "fail over",
    "end of log",
    "queue",
)
DISASTERS = ("owners too", "swept first", "evicted", "all but mark")
RINGING = (
    "submit",
    "submit_undispatched",
    "dispatch",
    "sweep",
    "dispatch_unowned",
    "lose_dispatch",
    "deliver_dispatches",
)
WHILE_IT_RUNS: tuple[SqlWrite, ...] = ("record", "record", "record_log", "record_intents", "acknowledge_cancel")


def has_jobs(machine: Any) -> bool:
    return bool(machine.world.jobs())


def has_owners(machine: Any) -> bool:
    return bool(machine.world.owners())


def has_zombies(machine: Any) -> bool:
    return bool(machine.world.around.zombies)


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

    @initialize(redis_is_sound=st.booleans(), skew=st.sampled_from(SKEWS_MS))
    def begin(self, redis_is_sound: bool, skew: int) -> None:
        self.redis_is_sound = redis_is_sound
        self.clock.reset()
        self.clock.enqueuer_ahead_ms = skew
        self.world = ProtocolWorld(Surroundings(self.redis, self.stores, self.witness, self.clock, self.numbers))
        self._step(self.world.flush())
        self.world.around.losses = 0
        self._step(self.world.live(LEASE_MS // 3))

    @rule(ms=st.sampled_from([0, 300, 300, LEASE_MS // 3, LEASE_MS]))
    def live(self, ms: int) -> None:
        self._step(self.world.live(ms))

    @rule(ms=st.sampled_from([1, 300, LEASE_MS // 3, LEASE_MS - 1, LEASE_MS + 1, 3 * LEASE_MS]))
    def do_nothing(self, ms: int) -> None:
        self.world.pass_time(ms)
        self._step(self.world.check())

    @rule(
        doing=st.sampled_from(
            [
                "submit",
                "submit_undispatched",
                "dispatch",
                "sweep",
                "dispatch_unowned",
                "lose_dispatch",
                "deliver_dispatches",
            ]
        ),
        run=which,
    )
    def dispatch(self, doing: str, run: int) -> None:
        world = self.world
        match doing:
            case "submit" | "submit_undispatched" if len(world.active) < RUNS:
                self._step(world.submit(dispatch=doing == "submit"))
            case "dispatch":
                self._step(world.dispatch(self._run(run)))
            case "sweep":
                self._step(world.sweep())
            case "dispatch_unowned" | "lose_dispatch":
                self._step(world.dispatch_unowned(lose_dispatch=doing == "lose_dispatch"))
            case "deliver_dispatches":
                self._step(world.deliver_dispatches())
            case _:
                pass

    @rule(
        worker=workers,
        doing=st.sampled_from(["claim", "claim", "renew", "renew", "retake", "retake"]),
        there=delays,
        back=delays,
    )
    def lease(self, worker: int, doing: str, there: int, back: int) -> None:
        leasing = self.world.workers[worker]
        forgotten = [job for job in leasing.jobs.values() if job.unsure]
        if leasing.frozen:
            return
        if doing == "claim":
            self._step(leasing.claim(2, there_ms=there, back_ms=back))
        elif doing == "renew":
            self._step(leasing.renew(there_ms=there, back_ms=back))
        elif forgotten:
            self._step(leasing.retake(forgotten[0]))

    @precondition(has_jobs)
    @rule(job=which)
    def begin_job(self, job: int) -> None:
        worker, held = self._job(job)
        self._step(worker.begin(held))

    @precondition(has_owners)
    @rule(owner=which, number=few, reply_lost=st.booleans())
    def send_events(self, owner: int, number: int, reply_lost: bool) -> None:
        worker, held, sender = self._owner(owner)
        sender.emit(0 if sender.over else number)
        self._step(worker.or_give_up(held, sender.send(reply_lost=reply_lost)))

    @precondition(has_owners)
    @rule(owner=which, kind=st.sampled_from(WHILE_IT_RUNS))
    def store(self, owner: int, kind: SqlWrite) -> None:
        worker, held, writer = self._owner(owner)
        self._step(worker.or_give_up(held, writer.write(kind)))

    @precondition(has_owners)
    @rule(owner=which, kind=st.sampled_from(["settle", "settle", "park", "close", "close", "hand over"]), rounds=few)
    def end(self, owner: int, kind: str, rounds: int) -> None:
        worker, held, ending = self._owner(owner)
        if kind == "hand over":
            self._step(worker.hand_over(held, rounds=rounds - 1))
        elif kind == "close":
            if ending.over:
                self._step(worker.close(held))
        else:
            self._step(worker.or_give_up(held, ending.write("park" if kind == "park" else "settle")))

    @rule(doing=st.sampled_from(["request", "take lost", "take lost", "take any", "go on", "go on"]), run=which)
    def cancel(self, doing: str, run: int) -> None:
        world = self.world
        if doing == "request":
            self._step(world.request_cancel(self._run(run)))
        elif doing == "go on":
            if world.takers:
                self._step(world.go_on_taking(world.takers[run % len(world.takers)]))
        else:
            self._step(world.take_unowned(self._run(run), also_waiting=doing == "take any"))

    @rule(worker=workers, doing=st.sampled_from(["kill", "freeze", "freeze", "wake", "wake"]))
    def befall(self, worker: int, doing: str) -> None:
        befallen = self.world.workers[worker]
        if doing == "kill":
            self._step(self.world.kill(befallen))
        elif doing == "wake":
            self._step(befallen.wake())
        else:
            befallen.frozen = True

    @precondition(has_jobs)
    @rule(job=which, ms=st.sampled_from([300, LEASE_MS, LEASE_MS, 2 * LEASE_MS]), then=st.sampled_from(get_args(Late)))
    def stand_still(self, job: int, ms: int, then: Late) -> None:
        worker, held = self._job(job)
        self._step(self.world.stand_still(worker, held, ms, then))

    @precondition(lambda self: not self.redis_is_sound)
    @rule(how=st.sampled_from(LOSSES), run=which, number=few)
    def lose(self, how: str, run: int, number: int) -> None:
        world = self.world
        match how:
            case "all":
                self._step(world.flush())
            case "all, dispatched" | "all, swept" | "queue":
                # What comes next, and is seldom enough what chance puts here.
                self._step(world.lose_queue(self._run(run)) if how == "queue" else world.flush())
                self._step(world.sweep() if how == "all, swept" else world.dispatch(self._run(run)))
                self._step(world.dispatch_unowned())
                self._step(world.deliver_dispatches())
                for worker in [worker for worker in world.workers if not worker.frozen][:number]:
                    self._step(worker.claim(1))
            case "all, late":
                self._step(world.flush())
                for owner in [owner for owner in world.around.zombies if owner.is_open]:
                    owner.emit(0 if owner.over else 1)
                    self._step(owner.restore())
            case "replicate":
                self._step(world.replicate())
            case "fail over":
                self._step(world.fail_over())
            case _:
                self._step(world.lose_end_of_log(self._run(run), number))

    @precondition(lambda self: not self.redis_is_sound)
    @rule(what=st.sampled_from(DISASTERS), run=which, deaths=st.integers(1, 3))
    def meet_disaster(self, what: str, run: int, deaths: int) -> None:
        world = self.world
        match what:
            case "owners too":
                self._step(lose_redis_and_owners(world, deaths=deaths))
            case "swept first":
                self._step(sweep_before_the_worker_notices(world))
            case "evicted":
                self._step(evict_log(world, self._run(run)))
            case _:
                self._step(lose_all_but_mark(world, self._run(run)))

    @precondition(has_zombies)
    @rule(zombie=which, kind=st.sampled_from([*WHILE_IT_RUNS, "park", "settle", "reserve", "leave"]))
    def zombie_stores(self, zombie: int, kind: SqlWrite) -> None:
        owner = self._zombie(zombie)
        if owner.is_open or kind == "record_intents":
            self._step(owner.write(kind))

    @precondition(has_zombies)
    @rule(zombie=which, how=st.sampled_from(["open", "send", "restore"]), number=few)
    def zombie_sends(self, zombie: int, how: str, number: int) -> None:
        owner = self._zombie(zombie)
        if how == "open":
            self._step(owner.open())
        elif owner.is_open:
            owner.emit(0 if owner.over else number)
            self._step(owner.send() if how == "send" else owner.restore())

    @rule(run=which, after=st.integers(1, 9), limit=st.integers(1, 9))
    def read(self, run: int, after: int, limit: int) -> None:
        self._step(self.world.read(self._run(run), after, limit))

    def teardown(self) -> None:
        if not self.in_step:
            self.runner.run(self.world.come_to_rest())

    def _run(self, number: int) -> KnownRun:
        return self.world.active[number % len(self.world.active)]

    def _zombie(self, number: int) -> Owner:
        zombies = self.world.around.zombies
        return zombies[number % len(zombies)]

    def _job(self, number: int) -> tuple[ProtocolWorker, Job]:
        jobs = self.world.jobs()
        return jobs[number % len(jobs)]

    def _owner(self, number: int) -> tuple[ProtocolWorker, Job, Owner]:
        owners = self.world.owners()
        return owners[number % len(owners)]

    def _step(self, work: Coroutine[Any, Any, Any]) -> None:
        self.in_step = True
        self.runner.run(self._checked(work))
        self.in_step = False

    async def _checked(self, work: Coroutine[Any, Any, Any]) -> None:
        await work
        await self.world.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_interleaving_keeps_one_owner_and_one_log(sqlite_url: str, part: int) -> None:
    clock = FrozenClock()
    with asyncio.Runner() as runner, embedded_redis_follows(clock), contextlib.ExitStack() as stack:
        opening = stored_runs(sqlite_url)
        stores = runner.run(opening.__aenter__())
        stack.callback(lambda: runner.run(opening.__aexit__(None, None, None)))
        witness = Witness(sqlite_url.removeprefix("sqlite:///"))
        stack.callback(witness.close)
        redis = connect_embedded(FakeServer())
        stack.callback(lambda: runner.run(redis.aclose(close_connection_pool=True)))
        parts = {
            "runner": runner,
            "redis": redis,
            "stores": stores,
            "witness": witness,
            "clock": clock,
            "numbers": count(),
        }
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
