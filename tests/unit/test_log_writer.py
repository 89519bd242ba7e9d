"""Numbers that belong to fences, and what one owner of a log knows of SQL and Redis. No I/O: a table and its edges."""

import pytest

from shared.domain.errors import LogClosed
from shared.domain.events import Gap, LogContinued, StatusChanged, StepRestarted, decode, encode
from shared.domain.ids import Fence, Seq
from shared.domain.log_writer import (
    KEPT_FOR_END,
    KEPT_FREE,
    NUMBERS_PER_FENCE,
    LogTail,
    LogWriter,
    consecutive,
    continues,
    first_seq_of,
    unbroken,
)

FIRST, SECOND = Fence(1), Fence(2)
MILLION = 1_000_000
A, B, C, D = (encode(StatusChanged(number, "running")) for number in range(4))
OPENING = encode(StepRestarted(at=0, attempt=2, follows=Seq(5)))


def first_owner(*entries: bytes) -> LogWriter:
    """The run's first owner, who has emitted some entries."""
    writer = LogWriter(FIRST)
    writer.begin(Seq(1), None)
    for entry in entries:
        writer.emit(entry)
    return writer


def second_owner(*entries: bytes) -> LogWriter:
    """An owner that goes on behind number 5."""
    writer = LogWriter(SECOND)
    writer.begin(Seq(5), OPENING)
    for entry in entries:
        writer.emit(entry)
    return writer


def emitted(writer: LogWriter, entry: bytes) -> Seq:
    """The number that an entry is given."""
    writer.emit(entry)
    return writer.last


def nearly_at(fence: Fence, left: int) -> LogWriter:
    """A writer that may give `left` more numbers of its fence; what it gave before is stored and sent."""
    writer = LogWriter(fence)
    writer.begin(Seq(1), OPENING if fence > 1 else None)
    upto = first_seq_of(Fence(fence + 1)) - left
    for _ in range(upto - writer.last):
        writer.emit(b"")
    writer.was_stored(writer.last)
    writer.was_sent(writer.last)
    return writer


@pytest.mark.parametrize(
    ("fence", "first"), [(1, 2), (2, MILLION + 1), (3, 2 * MILLION + 1), (1000, 999 * MILLION + 1)]
)
def test_a_number_belongs_to_a_fence(fence: int, first: int) -> None:
    """A first owner counts from 2: number 1 is the run itself, and nobody stores it."""
    assert MILLION == NUMBERS_PER_FENCE
    assert first_seq_of(Fence(fence)) == first
    writer = LogWriter(Fence(fence))
    writer.begin(Seq(7), OPENING if fence > 1 else None)
    numbers = [emitted(writer, entry) for entry in (A, B)]
    opens = 1 if fence > 1 else 0
    assert numbers == [first + opens, first + opens + 1]
    assert writer.to_send().first == writer.to_store().first == first


def test_no_two_fences_have_a_number_in_common() -> None:
    for fence in range(1, 50):
        last_of_fence = fence * NUMBERS_PER_FENCE
        assert first_seq_of(Fence(fence)) <= last_of_fence < first_seq_of(Fence(fence + 1))


def test_a_first_owner_says_nothing_before_its_first_event() -> None:
    assert first_owner(A, B).to_send() == LogTail(Seq(2), [A, B])


def test_the_first_event_of_a_later_owner_names_what_it_follows() -> None:
    writer = second_owner(A)
    assert writer.follows == 5
    assert writer.to_send() == writer.to_store() == LogTail(Seq(MILLION + 1), [OPENING, A])


def test_the_opening_comes_first_also_when_others_were_emitted_before_it() -> None:
    """A cancel was announced while the log was being adopted."""
    writer = LogWriter(SECOND)
    assert emitted(writer, A) == MILLION + 2
    assert (list(writer.to_send().entries), list(writer.to_store().entries)) == ([], [])
    writer.begin(Seq(5), OPENING)
    assert emitted(writer, B) == MILLION + 3
    assert writer.to_send() == LogTail(Seq(MILLION + 1), [OPENING, A, B])


@pytest.mark.parametrize("fence", [FIRST, SECOND])
def test_nothing_is_sent_or_stored_before_it_is_known_what_the_log_holds(fence: Fence) -> None:
    writer = LogWriter(fence)
    writer.emit(A)
    assert not writer.to_send().entries
    assert not writer.to_store().entries


def test_what_was_stored_and_what_was_sent_are_two_things() -> None:
    writer = first_owner(A, B, C)
    writer.was_sent(Seq(3))
    assert writer.to_send() == LogTail(Seq(4), [C])
    assert writer.to_store() == LogTail(Seq(2), [A, B, C])
    writer.was_stored(Seq(4))
    assert writer.to_store() == LogTail(Seq(5), [])
    assert writer.to_send() == LogTail(Seq(4), [C])
    assert not writer.is_sent
    writer.was_sent(Seq(4))
    assert writer.is_sent
    assert writer.last == 4
    assert emitted(writer, D) == 5
    assert writer.to_send() == writer.to_store() == LogTail(Seq(5), [D])


def test_an_answer_that_comes_late_takes_nothing_back() -> None:
    writer = first_owner(A, B, C)
    writer.was_stored(Seq(4))
    writer.was_stored(Seq(2))
    writer.was_sent(Seq(4))
    writer.was_sent(Seq(3))
    assert writer.is_sent
    assert not writer.to_store().entries


def test_a_redis_that_lost_data_gets_again_what_sql_lacks() -> None:
    writer = first_owner(A, B, C)
    writer.was_sent(Seq(4))
    writer.was_stored(Seq(2))
    writer.redis_lost_data()
    assert writer.to_send() == LogTail(Seq(3), [B, C])


def test_a_redis_that_lost_data_does_not_count_as_having_what_it_never_had() -> None:
    writer = first_owner(A, B, C)
    writer.was_stored(Seq(4))
    writer.redis_lost_data()
    assert writer.to_send() == LogTail(Seq(2), [A, B, C])


def test_an_owner_that_stores_first_shows_only_what_sql_has() -> None:
    writer = LogWriter(FIRST, stores_first=True)
    writer.begin(Seq(1), None)
    writer.emit(A)
    writer.emit(B)
    assert not writer.to_send().entries
    writer.was_stored(Seq(2))
    assert writer.to_send() == LogTail(Seq(2), [A])
    assert not writer.is_sent


@pytest.mark.parametrize(
    ("stored", "first", "needs"),
    [
        (1, 2, 0),  # the log's beginning
        (1, 3, 2),  # SQL lacks number 2: only Redis can show it
        (3, 4, 0),  # SQL has all that is before
        (3, 3, 0),
        (3, 5, 4),
    ],
)
def test_redis_must_have_what_sql_lacks_before_it_gets_more(stored: int, first: int, needs: int) -> None:
    writer = first_owner(A, B, C, D)
    writer.was_stored(Seq(stored))
    assert writer.needed_before(LogTail(Seq(first), [])) == needs


def test_redis_needs_nothing_before_the_first_event_of_a_later_owner() -> None:
    """What a former owner has left is in SQL before this one begins."""
    writer = second_owner(A, B)
    assert writer.needed_before(LogTail(Seq(MILLION + 1), [])) == 0
    assert writer.needed_before(LogTail(Seq(MILLION + 2), [])) == MILLION + 1


def test_nothing_is_emitted_while_the_end_is_being_stored() -> None:
    """It took a number of the end."""
    writer = first_owner(A)
    writer.close()
    with pytest.raises(LogClosed):
        writer.emit(B)
    assert writer.last == 2


def test_the_end_is_sent_behind_what_was_emitted() -> None:
    writer = first_owner(A)
    writer.close()
    writer.end(LogTail(Seq(2), [A, B, C]))
    assert writer.to_send() == LogTail(Seq(2), [A, B, C])
    assert not writer.to_store().entries
    assert writer.is_closed


def test_the_end_is_sent_once_when_a_part_of_it_was_sent_before() -> None:
    writer = first_owner(A)
    writer.was_sent(Seq(2))
    writer.end(LogTail(Seq(2), [A, B, C]))
    assert writer.to_send() == LogTail(Seq(3), [B, C])


@pytest.mark.parametrize("fence", [FIRST, SECOND])
def test_an_owner_near_the_end_of_its_million_wants_a_new_fence(fence: Fence) -> None:
    writer = nearly_at(fence, KEPT_FREE)
    assert not writer.is_nearly_full
    writer.emit(A)
    assert writer.is_nearly_full


def test_a_new_fence_goes_on_behind_the_last_number() -> None:
    writer = nearly_at(FIRST, KEPT_FREE)
    writer.emit(A)
    last = writer.last
    writer.continue_under(SECOND, last, at=7)
    assert (writer.fence, writer.follows) == (SECOND, last)
    first, entries = writer.to_send()
    assert first == MILLION + 1
    assert [decode(entry) for entry in entries] == [LogContinued(7, last)]
    assert writer.to_store() == writer.to_send()
    writer.emit(B)
    assert writer.last == MILLION + 2
    assert not writer.is_nearly_full
    assert continues(last, first, entries[0])


def test_what_is_emitted_while_a_new_fence_is_taken_gets_a_number_of_it() -> None:
    """It was neither stored nor sent: the new fence began with an empty list."""
    writer = nearly_at(FIRST, KEPT_FREE)
    stored = writer.last
    writer.emit(B)
    writer.continue_under(SECOND, stored, at=7)
    assert [decode(entry) for entry in writer.to_send().entries] == [LogContinued(7, stored), decode(B)]
    assert writer.last == MILLION + 2


def test_a_new_fence_leaves_to_sql_what_redis_lacks_of_the_old_one() -> None:
    writer = first_owner(A, B, C)
    writer.was_sent(Seq(2))
    writer.continue_under(SECOND, writer.last, at=7)
    assert writer.to_send().first == MILLION + 1
    assert writer.needed_before(writer.to_send()) == 0


@pytest.mark.parametrize("fence", [FIRST, SECOND])
def test_an_owner_that_gets_no_new_fence_gives_no_number_of_the_next_one(fence: Fence) -> None:
    """SQL was away for a million events: what is left is for the end of the log."""
    writer = nearly_at(fence, KEPT_FOR_END + 1)
    writer.emit(A)
    with pytest.raises(LogClosed):
        writer.emit(B)
    assert writer.last == first_seq_of(Fence(fence + 1)) - KEPT_FOR_END
    writer.end(LogTail(Seq(writer.last + 1), [C, D]))
    assert writer.last < first_seq_of(Fence(fence + 1))
    assert list(writer.to_send().entries) == [A, C, D]


@pytest.mark.parametrize(
    ("last", "seq", "entry", "does"),
    [
        (5, 6, A, True),
        (5, 7, A, False),
        (5, 5, A, False),
        (5, MILLION + 1, A, False),
        (5, MILLION + 1, OPENING, True),
        (4, MILLION + 1, OPENING, False),  # the reader lacks number 5
        (8, MILLION + 1, OPENING, True),  # what it has seen behind 5 is void
        (MILLION + 1, MILLION + 1, OPENING, False),
        (5, MILLION + 1, encode(LogContinued(0, Seq(5))), True),
        (5, MILLION + 1, b'{"type":"restarted","at":0,"attempt":2}', False),
        (5, 50, encode(Gap(0, Seq(6))), True),
        (4, 50, encode(Gap(0, Seq(6))), False),
        (5, 6, b'{"type":"of a newer release"}', True),
        (5, 7, b'{"type":"of a newer release","follows":5}', False),
    ],
)
def test_what_continues_a_log(last: int, seq: int, entry: bytes, does: bool) -> None:
    assert continues(Seq(last), Seq(seq), entry) is does


def test_a_log_is_read_up_to_its_first_hole() -> None:
    log = [(Seq(2), A), (Seq(3), B), (Seq(MILLION + 1), encode(LogContinued(0, Seq(3)))), (Seq(MILLION + 2), C)]
    assert unbroken(Seq(1), log) == log
    assert unbroken(Seq(1), [*log[:3], (Seq(MILLION + 3), D)]) == log[:3]
    assert unbroken(Seq(0), log) == []


def test_a_log_is_cut_where_it_jumps() -> None:
    assert list(consecutive([])) == []
    log = [(Seq(2), A), (Seq(3), B), (Seq(MILLION + 1), C), (Seq(MILLION + 2), D)]
    assert list(consecutive(log)) == [LogTail(Seq(2), [A, B]), LogTail(Seq(MILLION + 1), [C, D])]


@pytest.mark.parametrize(("behind", "first", "left"), [(0, 2, 2), (1, 2, 2), (2, 3, 1), (3, 4, 0), (9, 4, 0)])
def test_what_is_behind_a_number(behind: int, first: int, left: int) -> None:
    entries = [A, B]
    assert LogTail(Seq(2), entries).behind(Seq(behind)) == LogTail(Seq(first), entries[2 - left :])
