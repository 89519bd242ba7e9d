"""A run's log as the chunks of a chat completion that is streamed: a pure fold, which does no I/O."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from api.event_stream import KEEP_ALIVE
from api.openai.chat_answer import BETWEEN_TEXTS, ChatOutcome, Owned, completion_head, is_void
from api.openai.errors import interrupted
from shared.domain import events
from shared.domain.errors import ErrorCode
from shared.domain.events import decode
from shared.domain.ids import MessageId, Seq
from shared.domain.log_writer import Entries
from shared.domain.runs import Run


class ChatChunks:
    """Turns one run's events into chunks. With `with_usage` the last one has the tokens, and no choice."""

    def __init__(self, run: Run, model: str, *, with_usage: bool) -> None:
        self._head = completion_head(run, model, "chat.completion.chunk") | ({"usage": None} if with_usage else {})
        self._with_usage = with_usage
        self._outcome = ChatOutcome(run)
        self._text = _ShownText()

    def of(self, seq: Seq, event: events.Event | events.Unknown) -> Iterator[dict[str, Any]]:
        """The chunks of the next event of the log, with its number; most have none."""
        self._outcome.take(seq, event)
        match event:
            case events.RunCreated():
                yield self._chunk({"role": "assistant", "content": ""})
            case events.TextChunk() if event.text:
                if text := self._text.more(seq, event):
                    yield self._chunk({"content": text})
            case events.StepRestarted() | events.LogContinued():
                self._text.take_back(event)
            case events.Ended():
                yield from self._ending()
            case _:
                pass

    @property
    def is_over(self) -> bool:
        """Whether the end of the log was among the events."""
        return self._outcome.is_over

    def lost_ending(self) -> Iterator[dict[str, Any]]:
        """What is to be said when the log is over and had no end, as that of a run that was deleted meanwhile."""
        if not self._outcome.is_over:
            yield from self._ending()

    def _ending(self) -> Iterator[dict[str, Any]]:
        outcome = self._outcome
        if outcome.error is not None:
            yield outcome.error
            return
        if calls := outcome.tool_calls:
            yield self._chunk({"tool_calls": [{"index": number, **call} for number, call in enumerate(calls)]})
        if outcome.refusal is not None:
            yield self._chunk({"refusal": outcome.refusal})
        yield self._chunk({}, **outcome.ending())
        if self._with_usage:
            yield {**self._head, "choices": [], "usage": outcome.usage()}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, **ending: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **ending}
        return {**self._head, "choices": [choice]}


LONGEST_SILENCE_S = 4.0
"""Voice clients give a stream up after five or ten seconds without a byte (LiveKit's), and ask once more."""

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def chunk_bytes(chunk: object) -> bytes:
    """One chunk, or an error in its place. Without a number: OpenAI's streams cannot be resumed."""
    return b"data: %b\n\n" % _encoder.encode(chunk)


class ChunkStream:
    """A run's stream as chunks. What a chunk says depends on those before it, so each reader has a fold of its own."""

    shared_as = None
    longest_silence_s = LONGEST_SILENCE_S

    def __init__(self, run: Run, model: str, *, with_usage: bool) -> None:
        self._run_id = run.id
        self._chunks = ChatChunks(run, model, with_usage=with_usage)

    @property
    def cut(self) -> bytes:
        """An error, as this stream cannot be resumed."""
        error = interrupted("This server is ending, and the run goes on", ErrorCode.SERVER_ENDING, self._run_id)
        return chunk_bytes(error) + DONE

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The chunks of some entries, and whether the last one ends the stream."""
        shown = b"".join(chunk_bytes(chunk) for seq, entry in entries for chunk in self._chunks.of(seq, decode(entry)))
        if self._chunks.is_over:
            return shown + DONE, True
        # Reasoning is not shown, and a voice client gives up after seconds without a byte.
        return shown or KEEP_ALIVE, False

    def silence(self, _last: Seq, _now: datetime) -> bytes:
        """Nothing: a comment is a sign of life as well. The agent thinks, or its tools work."""
        return b""

    def end_of(self, _last: Seq) -> bytes:
        """What ends the stream of a run whose log had no end, as that of a run that was deleted meanwhile."""
        return b"".join(map(chunk_bytes, self._chunks.lost_ending())) + DONE


class _ShownText:
    """The text that was shown, of which nothing can be taken back.

    When a step begins again, or an answer goes on from before its last words, a model mostly says the same again: that
    is not shown twice. Where it says something else, that follows behind an empty line.
    """

    def __init__(self) -> None:
        self._message: MessageId | None = None
        self._part: int | None = None
        self._is_first = True
        self._was_first = True
        """Whether there was no text before the message in hand."""
        self._of_message = ""
        """The text of the message in hand, as far as it counts, with what parts it from the one before."""
        self._pieces: list[tuple[Seq, int]] = []
        """Its pieces: the number of each, and the characters of the text up to its end."""
        self._void = ""
        """All that was shown of the message, of which the end is void and not yet said again; empty when nothing is."""

    def more(self, seq: Seq, chunk: events.TextChunk) -> str:
        """What of it is to be shown now."""
        text = chunk.text
        if chunk.message_id != self._message:
            self._message, self._was_first = chunk.message_id, self._is_first
            self._of_message, self._pieces = "", []
            text = text if self._is_first else BETWEEN_TEXTS + text
        elif chunk.part != self._part:
            text = BETWEEN_TEXTS + text
        self._part, self._is_first = chunk.part, False
        self._of_message += text
        self._pieces.append((seq, len(self._of_message)))
        return self._not_shown_yet() if self._void else text

    def take_back(self, told: Owned) -> None:
        """A new owner goes on: some of the message in hand does not count."""
        if self._message is None:
            return
        kept = [piece for piece in self._pieces if not is_void(piece[0], self._message, told)]
        if len(kept) == len(self._pieces):
            return
        # While it catches up, more is shown than was said again.
        self._void = self._void or self._of_message
        self._pieces, self._of_message = kept, self._of_message[: kept[-1][1]] if kept else ""
        if not kept:
            self._message, self._is_first = None, self._was_first

    def _not_shown_yet(self) -> str:
        if self._void.startswith(self._of_message):
            if len(self._void) == len(self._of_message):
                self._void = ""
            return ""
        void, self._void = self._void, ""
        if self._of_message.startswith(void):
            return self._of_message[len(void) :]
        return BETWEEN_TEXTS + self._of_message.removeprefix(BETWEEN_TEXTS)
