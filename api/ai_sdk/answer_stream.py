"""An answer as a reader's stream: the frames of its chunks, and the place of each in the thread."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.ai_sdk.answer_chunks import FIRST_FOLD, FOLD, FOLDS, AnswerChunks, Chunk, Sdk, Seen, answer_id_of
from api.event_stream import StreamBroken
from api.runs.thread_projection import LegInput, Present, ThreadCursor
from shared.domain.approvals import Approval
from shared.domain.events import FIRST_SEQ, Ended, RunCreated, decode
from shared.domain.ids import Seq
from shared.domain.log_writer import Entries
from shared.domain.runs import Run
from shared.domain.threads import Leg

LONGEST_SILENCE_S = 15.0
"""Proxies and clients give up a stream after 20 to 60 seconds without a byte."""

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class AnswerStream:
    """One reader's view of an answer, from the run that begins it to the last run that continues it. It keeps the
    reader's state, so it sees the answer from its beginning and is silent up to the reader's cursor."""

    wants_input = wants_history = False

    def __init__(
        self, first: Run, *, sdk: Sdk, leg: int = 0, after: ThreadCursor | None = None, seen: Seen | None = None
    ) -> None:
        """`first` is the run that begins the answer. `leg` is the place, in its turn, of the first run to show: that
        run, or, if the page has the parts in `seen`, the run that continues them. Raises `ValueError` for a run of a
        newer release."""
        self._chunks = chunks_of(first, sdk, seen)
        self._first_leg = leg
        self._after = after or ThreadCursor()
        self._views: dict[tuple[int, int], _LegView] = {}

    def starts_at(self, after: ThreadCursor) -> ThreadCursor:
        """The place before the first run to show."""
        return ThreadCursor(after.turn, self._first_leg, 0)

    def of_log(self, leg: Leg) -> "_LegView":
        """The view of one run's log."""
        return self._views.setdefault((leg.turn, leg.number), _LegView(self, leg))

    def began(self, leg: Leg, beginning: LegInput) -> bytes:
        """`start`, or the new metadata of a continued message."""
        del beginning
        chunks = [*self._chunks.begin(leg.run), *self._chunks.take(FIRST_SEQ, RunCreated(0))]
        return self.frames(chunks, ThreadCursor(leg.turn, leg.number, FIRST_SEQ))

    def ended(self, leg: Leg, seq: Seq, at: int, asked: Sequence[Approval]) -> bytes:
        """The end of the run's parts, and the approvals for which the run asks."""
        chunks = [*self._chunks.take(seq, Ended(at)), *self._chunks.asked(asked)]
        return self.frames(chunks, ThreadCursor(leg.turn, leg.number, seq))

    def resolved(self, leg: Leg, seq: Seq, asked: Sequence[Approval]) -> bytes:
        """Nothing: the run that follows the decisions shows them."""
        del leg, seq, asked
        return b""

    def caught_up(self, cursor: ThreadCursor, present: Present) -> bytes:
        """Nothing: the protocol has no such mark."""
        del cursor, present
        return b""

    def over(self) -> bytes:
        """The end of the answer, and the mark of the stream's end. They have no cursors, because they depend on whether
        a run follows."""
        return b"".join(map(_frame, self._chunks.finish())) + DONE

    def of(self, leg: Leg, entries: Entries) -> bytes:
        """The frames of some entries of a run's log. Raises `StreamBroken`."""
        shown: list[bytes] = []
        for seq, entry in entries:
            chunks = self._chunks.take(seq, decode(entry))
            shown.append(self.frames(chunks, ThreadCursor(leg.turn, leg.number, seq)))
        if self._chunks.is_contradicted:
            raise StreamBroken
        return b"".join(shown)

    def frames(self, chunks: Sequence[Chunk], place: ThreadCursor) -> bytes:
        """The frames of one entry. Only the last frame has the entry's place as its id, so no cursor lies between them.
        Empty for a place that the reader has seen."""
        if not chunks or place <= self._after:
            return b""
        *others, last = map(_frame, chunks)
        # A run that ended before it began has no place in its thread.
        marked = place.line + last if place.turn else last
        return b"".join(others) + marked if others else marked


class _LegView:
    """The view of one run's log."""

    shared_as = None
    longest_silence_s = LONGEST_SILENCE_S
    cut = None
    """Clients take any clean end of a stream for the answer's end."""

    def __init__(self, stream: AnswerStream, leg: Leg) -> None:
        self._stream, self._leg = stream, leg

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The frames of some entries. The end of a run does not end the stream."""
        return self._stream.of(self._leg, entries), False

    def silence(self, _last: Seq, _now: datetime) -> bytes:
        """Nothing: the sender sends a comment."""
        return b""

    def end_of(self, _last: Seq) -> bytes:
        """Nothing: the stream goes on after the run."""
        return b""


def chunks_of(first: Run, sdk: Sdk, seen: Seen | None = None) -> AnswerChunks:
    """The fold of the answer that begins with this run, in the run's version. Raises `ValueError` for a newer release's
    version."""
    version = first.options.echoed.get(FOLD, FIRST_FOLD)
    if version not in FOLDS:
        raise ValueError(f"run {first.id} was submitted under version {version} of the fold, which this release lacks")
    return FOLDS[version](answer_id_of(first.id), sdk, seen)


def _frame(chunk: Chunk) -> bytes:
    return b"data: %b\n\n" % _encoder.encode(chunk)
