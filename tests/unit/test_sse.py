"""Server-sent events, however their bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models.event_streams import LONGEST_EVENT, EventStream, EventTooLong

STREAM = (
    b": a comment\nevent: one\ndata: {}\n\ndata:first\ndata: second\nid: 7\n\n\n"
    b": ping\n\nretry: 5\ndata\n\ndata: [DONE]\n\n"
)
EVENTS = [b"{}", b"first\nsecond", b"[DONE]"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.lists(st.integers(0, 140), max_size=12))
def test_events_do_not_depend_on_cuts_and_ends_of_lines(end: bytes, cuts: list[int]) -> None:
    stream = STREAM.replace(b"\n", end)
    places = [0, *sorted(cuts), len(stream)]
    events = EventStream()
    pieces = [stream[start:stop] for start, stop in pairwise(places)]
    assert [data for piece in pieces for data in events.feed(piece)] == EVENTS


def test_an_event_that_has_not_ended_is_none() -> None:
    events = EventStream()
    assert events.feed(b"data: 1\n\ndata: 2\n") == [b"1"]
    assert events.feed(b"\n") == [b"2"]


def test_an_event_without_an_end_does_not_fill_the_memory() -> None:
    events = EventStream()
    piece = b"data: " + b"x" * (LONGEST_EVENT // 4)
    with pytest.raises(EventTooLong):
        for _ in range(5):
            events.feed(piece)


def test_many_short_events_are_never_too_long() -> None:
    events = EventStream()
    piece = b"data: " + b"x" * (LONGEST_EVENT // 4) + b"\n\n"
    assert sum(len(events.feed(piece)) for _ in range(8)) == 8
