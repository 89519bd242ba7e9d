"""A run's stream as the events of a response."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.event_stream import StreamBroken
from api.openai.response_fold import fold_of
from api.openai.response_items import Event
from shared.domain import events
from shared.domain.events import decode
from shared.domain.ids import Seq
from shared.domain.log_writer import Entries
from shared.domain.runs import Run

BEFORE_ALL = -1
"""The cursor of a new reader: the first event has the number 0."""

LONGEST_SILENCE_S = 15.0
"""Proxies and clients give up a stream after 20 to 60 seconds without a byte."""

DONE = b"data: [DONE]\n\n"
"""Open Responses requires it, and OpenAI's SDKs skip it."""

_encoder = msgspec.json.Encoder()


def event_bytes(event: Event) -> bytes:
    """One event, without an SSE `id`: clients resume by its `sequence_number`."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encoder.encode(event))


class ResponseStream:
    """A reader of a response, from the event after `starting_after`. The fold always begins with the log's first entry,
    since the last events contain the whole text."""

    shared_as = None
    longest_silence_s = LONGEST_SILENCE_S
    cut = None
    """Clients take any clean end of a stream for its last event. They resume a broken connection."""

    def __init__(self, run: Run, starting_after: int = BEFORE_ALL, kept: Sequence[events.Event] = ()) -> None:
        """`kept` as in `ResponseFold`."""
        self._fold = fold_of(run, kept)
        self._after = starting_after

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The events of some entries, and whether the last one ends the stream. Raises `StreamBroken`."""
        told = [one for seq, entry in entries for one in self._fold.take(seq, decode(entry))]
        shown = b"".join(event_bytes(one) for one in told if one["sequence_number"] > self._after)
        if self._fold.is_contradicted:
            raise StreamBroken
        if self._fold.ended is None:
            return shown, False
        if told and told[-1]["sequence_number"] < self._after:
            # The reader has not seen this end: its cursor is from events that were lost.
            shown = event_bytes(told[-1])
        return shown + DONE, True

    def silence(self, _last: Seq, _now: datetime) -> bytes:
        """No event: a comment keeps the stream alive, and these clients know no event for that."""
        return b""

    def end_of(self, _last: Seq) -> bytes:
        """The end of a stream whose log has no end, as after the run was deleted."""
        return b"".join(map(event_bytes, self._fold.lost_ending())) + DONE
