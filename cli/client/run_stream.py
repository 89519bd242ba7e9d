"""One run's stream, from any number to its end: over broken connections, restarts of the server, and lost workers."""

import time
from collections.abc import Generator
from contextlib import closing

from cli.client.server import Record, Server, Silence, segment
from cli.client.terminal import hint
from shared.domain.errors import Unavailable

SILENCE_S = 3.0
"""What comes after so long a silence is the future."""

PAST_PER_S = 100
"""Frames per second of waiting. What is stored comes faster, and no model speaks so fast."""

ENDED = ("completed", "failed", "cancelled")

LONGEST_WAIT_S = 5.0
PATIENCE_S = 900.0
"""So long a server may be away: a deploy, a restart of the machine."""


class RunStream:
    """A run's frames behind `after`, each once and in order."""

    def __init__(self, server: Server, run_id: str, after: int = 0) -> None:
        self.run_id = run_id
        self.after = after
        """The number of the last frame."""
        self._server = server

    def frames(self) -> Generator[Record]:
        """The frames to the end of the log, without pings. Raises `Unavailable` after a quarter of an hour without an
        answer."""
        lost_at: float | None = None
        wait = 0.25
        while True:
            try:
                for frame in self._server.frames(self._path, {"starting_after": self.after}):
                    lost_at, wait = None, 0.25
                    yield from self._of_log(frame)
            except Unavailable as error:
                lost_at = self._lost_since(lost_at, error)
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_S)
            else:
                return

    def present(self) -> Generator[Record, None, bool]:
        """What the log has now; whether that is all of it. A run that goes on has no last frame that could be asked
        for, but its past comes by the thousand, and its future one by one. Raises `Unavailable`."""
        if self._server.get(f"/v1/runs/{segment(self.run_id)}")["status"] in ENDED:
            yield from self.frames()
            return True
        body = {"starting_after": self.after}
        try:
            with closing(self._server.frames(self._path, body, silence_s=SILENCE_S)) as found:
                return (yield from self._past(found))
        except Silence:
            return False

    def _past(self, found: Generator[Record]) -> Generator[Record, None, bool]:
        """What comes fast. What counts is the waiting for frames: whoever reads them may be slow."""
        waited, count, asked_at = 0.0, 0, time.monotonic()
        for frame in found:
            waited, count = waited + time.monotonic() - asked_at, count + 1
            yield from self._of_log(frame)
            if waited > 1 and count < PAST_PER_S:
                return False
            if waited > 1:
                waited, count = 0.0, 0
            asked_at = time.monotonic()
        return True

    @property
    def _path(self) -> str:
        return f"/v1/runs/{segment(self.run_id)}/stream"

    def _of_log(self, frame: Record) -> Generator[Record]:
        if frame.get("message_type") == "ping":
            return
        self.after = max(self.after, int(frame.get("seq_id") or 0))
        yield frame

    def _lost_since(self, lost_at: float | None, error: Unavailable) -> float:
        now = time.monotonic()
        if lost_at is None:
            hint(f"[{error.message}; going on behind frame {self.after} when it answers]")
            return now
        if now > lost_at + PATIENCE_S:
            raise Unavailable(
                f"{error.message}. Go on later: holdfast runs watch {self.run_id} --starting-after {self.after}"
            )
        return lost_at
