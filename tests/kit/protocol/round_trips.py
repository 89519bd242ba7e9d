"""Round trips to Redis and SQL that wait for the test: anything may happen between two of them, and during each.

The stores, the queue and the log are the real ones. Only the way to them is simulated: a request waits until the test
lets it pass, its answer may be late or get lost, and a request of a dead process may still arrive.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast

from shared.domain.errors import HoldfastError, Unavailable
from tests.kit.clocks import PlayedLoop

Service = TypeVar("Service")
Call = Callable[[], Awaitable[Any]]
Passing = Literal["whole", "answer late", "answer lost"]

MANY = 300
"""A correct party never makes this many round trips without an end."""


@dataclass(eq=False)
class Party:
    """A party that makes round trips: a process, or one of its jobs."""

    name: str
    host: "Party | None" = None
    is_frozen: bool = False
    is_dead: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether it can do anything at all."""
        return not (self.is_frozen or self.is_dead) and (self.host is None or self.host.goes_on)


@dataclass(eq=False)
class Trip:
    """A request that waits, or an answer to one."""

    party: Party
    name: str
    go: "asyncio.Future[Passing]"
    arrived: "asyncio.Future[None]"


@dataclass(eq=False)
class RoundTrips:
    """The round trips of all parties in the order of their beginning. `watch` sees each call while it happens."""

    watch: Callable[[str, Sequence[Any], Call], Awaitable[Any]]
    _waiting: list[Trip] = field(default_factory=list[Trip])
    _failures: list[BaseException] = field(default_factory=list[BaseException])

    def to(self, service: Service, party: Party) -> Service:
        """The service as this party reaches it."""
        return cast("Service", _Far(service, self, party))

    def waiting(self, party: Party | None = None) -> list[Trip]:
        """The trips that can go on: all, or those of one party and its jobs."""
        return [trip for trip in self._waiting if trip.party.goes_on and party in (None, trip.party, trip.party.host)]

    async def let_pass(self, trip: Trip, passing: Passing = "whole") -> None:
        """Lets one trip pass, and all parties go on to their next trips."""
        self._waiting.remove(trip)
        trip.go.set_result(passing)
        await trip.arrived
        await self.until_quiet()

    async def let_all_pass(self, party: Party | None = None, most: int = MANY) -> None:
        """Lets trips pass, and those that follow them, until no party waits or `most` trips have passed."""
        await self.until_quiet()
        for _ in range(most):
            waiting = self.waiting(party)
            if not waiting:
                return
            await self.let_pass(waiting[0])
        assert most < MANY, f"there is no end of {[trip.name for trip in self.waiting(party)]}"

    async def until_quiet(self) -> None:
        """Returns when all parties wait. Raises an exception of a task that was not allowed to fail."""
        await cast("PlayedLoop", asyncio.get_running_loop()).until_quiet()
        if self._failures:
            raise self._failures[0]

    def note_end(self, task: "asyncio.Task[None]") -> None:
        """Callback of all tasks: an exception outside of the domain's fails the test."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, HoldfastError):
            self._failures.append(error)

    async def make(self, party: Party, name: str, args: Sequence[Any], call: Call) -> Any:
        """One round trip."""
        trip = await self._turn(party, name)
        try:
            answer = await self.watch(name, args, call)
        except AssertionError as error:
            self._failures.append(error)
            raise
        finally:
            trip.arrived.set_result(None)
        match trip.go.result():
            case "answer late":
                (await self._turn(party, f"the answer to {name}")).arrived.set_result(None)
            case "answer lost":
                raise Unavailable(f"the answer to {name} was lost")
            case _:
                pass
        return answer

    async def _turn(self, party: Party, name: str) -> Trip:
        loop = asyncio.get_running_loop()
        trip = Trip(party, name, loop.create_future(), loop.create_future())
        self._waiting.append(trip)
        try:
            await trip.go
        except asyncio.CancelledError:
            if trip in self._waiting:
                self._waiting.remove(trip)
            trip.arrived.cancel()
            raise
        return trip


class _Far:
    """A service whose methods are round trips."""

    def __init__(self, service: object, trips: RoundTrips, party: Party) -> None:
        self._service = service
        self._trips = trips
        self._party = party

    def __copy__(self) -> "_Far":
        return _Far(self._service, self._trips, self._party)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._service, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def travelling(*args: Any, **named: Any) -> Any:
            return await self._trips.make(self._party, name, args, partial(method, *args, **named))

        return travelling
