"""One run's log as the AI SDK's stream of an answer: the walk over a thread, without the thread."""

from datetime import datetime
from math import inf

from msgspec.structs import replace

from api.ai_sdk.answer_chunks import Sdk
from api.ai_sdk.chats import AnswerStream
from api.runs.thread_projection import LegInput
from shared.domain import events
from shared.domain.ids import Seq
from shared.domain.log_writer import Entries
from shared.domain.runs import Run
from shared.domain.threads import Leg


class OneAnswer:
    """The stream of an answer that has one run, which is its thread's first turn."""

    shared_as = None
    cut = None
    longest_silence_s = inf

    def __init__(self, run: Run, sdk: Sdk = 7) -> None:
        self._stream = AnswerStream(run, sdk=sdk)
        self._leg = Leg(1, 0, replace(run, turn=1))

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The frames of some entries, and whether they end the stream."""
        shown = b""
        for seq, entry in entries:
            match events.decode(entry):
                case events.RunCreated():
                    shown += self._stream.began(self._leg, LegInput((), ()))
                case events.Ended(at=at):
                    return shown + self._stream.ended(self._leg, seq, at, ()) + self._stream.over(), True
                case _:
                    shown += self._stream.of_log(self._leg).of([(seq, entry)])[0]
        return shown, False

    def silence(self, _last: Seq, _now: datetime) -> bytes:
        """Nothing: the sender sends a comment."""
        return b""

    def end_of(self, _last: Seq) -> bytes:
        """The end of a stream whose run was deleted."""
        return self._stream.over()
