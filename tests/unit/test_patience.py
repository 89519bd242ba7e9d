"""Stores that repeat their own methods while the database is unavailable: callers call a method once."""

from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from shared.concurrency import PAUSE_S, Patience, SystemClock
from shared.domain.errors import NotFound, Unavailable
from tests.kit.wait_until import HANGS_S

LONG = Patience(HANGS_S, SystemClock())


@dataclass(frozen=True)
class Notes:
    """A store whose first `failures` calls lose their answer."""

    failures: int
    calls: list[str] = field(default_factory=list[str])

    async def write(self, text: str, *, again: bool = False) -> str:
        return self._answer(f"write {text}, {again}", text)

    async def read(self, text: str) -> str:
        return self._answer(f"read {text}", text)

    async def refuse(self) -> None:
        self.calls.append("refuse")
        raise NotFound("there is no such note")

    def _answer(self, called: str, text: str) -> str:
        self.calls.append(called)
        if len(self.calls) <= self.failures:
            raise Unavailable("the answer was lost")
        return text


async def test_a_write_is_repeated_and_learns_that_it_may_have_been_stored() -> None:
    notes = LONG.applied_to(Notes(failures=2), Notes.write)
    assert await notes.write("a") == "a"
    assert notes.calls == ["write a, False", "write a, True", "write a, True"]


async def test_a_method_without_the_argument_is_repeated_as_it_was() -> None:
    notes = LONG.applied_to(Notes(failures=1), Notes.read)
    assert await notes.read("a") == "a"
    assert notes.calls == ["read a", "read a"]


async def test_only_the_named_methods_are_repeated() -> None:
    notes = LONG.applied_to(Notes(failures=1), Notes.write)
    with pytest.raises(Unavailable):
        await notes.read("a")
    assert notes.calls == ["read a"]


async def test_the_store_itself_stays_as_it_was() -> None:
    notes = Notes(failures=1)
    LONG.applied_to(notes, Notes.read)
    with pytest.raises(Unavailable):
        await notes.read("a")


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_write_that_was_repeated_wrote_a_line_for_each_try(failures: int) -> None:
    with capture_logs() as logged:
        await LONG.applied_to(Notes(failures), Notes.read).read("a")
    assert [line["event"] for line in logged] == ["retried_while_unavailable"]


async def test_a_patience_ends() -> None:
    notes = Patience(PAUSE_S, SystemClock()).applied_to(Notes(failures=99), Notes.read)
    with pytest.raises(Unavailable):
        await notes.read("a")
    assert notes.calls == ["read a"], "another try would come when the time is over"


async def test_other_errors_are_raised_at_once() -> None:
    notes = LONG.applied_to(Notes(failures=0), Notes.refuse)
    with pytest.raises(NotFound):
        await notes.refuse()
    assert notes.calls == ["refuse"]
