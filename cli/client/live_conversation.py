"""A conversation as a person at a terminal sees it: what everybody says and does in it, as it happens.

A thread reads the conversation's stream and prints it, above the prompt while the person is asked for a line.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import TextIOBase
from typing import TextIO, cast

from rich.console import Console
from rich.text import Text

from cli.client.follow import FIRST_WAIT_S, LONGEST_WAIT_S, PATIENCE_S, Transcript, short
from cli.client.server import Record, Server, server_at
from cli.client.terminal import console
from cli.printable import printable
from shared.domain.errors import HoldfastError, Unavailable

try:
    import readline
except ImportError:  # not every Python has it, and without it nobody knows whether the person is typing
    readline = None


class Screen(TextIOBase):
    """Standard output for two threads: one asks the person for lines, and one prints what happens meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._prompt: str | None = None
        self._held = ""
        """Text that waits: the beginning of a line at a prompt, or more while the person is typing."""
        self._is_in_line = False

    def isatty(self) -> bool:
        """Returns whether standard output is a terminal."""
        return sys.stdout.isatty()

    def console(self) -> Console:
        """Returns a console that prints here."""
        return console(cast("TextIO", self))

    def ask(self, prompt: str) -> str:
        """Returns the person's next line. Raises `EOFError` and `KeyboardInterrupt` as `input` does."""
        with self._lock:
            self._print(self._take("\n" if self._is_in_line else ""))
            self._prompt = prompt.rpartition("\n")[2]
        try:
            return input(prompt)
        finally:
            with self._lock:
                self._prompt = None
                self._print(self._take())

    def write(self, text: str, /) -> int:
        """Prints the text at once, or as whole lines above the prompt."""
        with self._lock:
            self._held += text
            if self._prompt is None:
                self._print(self._take())
                return len(text)
            lines, end, rest = self._held.rpartition("\n")
            if end and not _is_typing():
                self._held = rest
                before = "\r\x1b[K" if self.isatty() else ""
                sys.stdout.write(f"{before}{lines}\n{self._prompt}")
                sys.stdout.flush()
        return len(text)

    def _take(self, before: str = "") -> str:
        text, self._held = before + self._held, ""
        return text

    def _print(self, text: str) -> None:
        if text:
            self._is_in_line = not text.endswith("\n")
            sys.stdout.write(text)
            sys.stdout.flush()


def _is_typing() -> bool:
    return readline is None or bool(readline.get_line_buffer())


@dataclass
class Turn:
    """A turn of the conversation as far as it was shown."""

    number: int
    run_id: str
    """The run that answers it, or goes on with it after a decision."""
    is_over: bool = False
    is_waiting: bool = False
    """For decisions."""


@dataclass(kw_only=True)
class LiveConversation:
    """Follows a conversation from a cursor on."""

    url: str
    path: str
    """Of its stream."""
    screen: Screen
    after: str = "now"
    """The cursor of the last frame."""
    own: set[str] = field(default_factory=set[str])
    """Runs that were begun here."""
    turns: dict[str, Turn] = field(default_factory=dict[str, Turn])
    """By the id of each of their runs."""
    tools: dict[str, str] = field(default_factory=dict[str, str])
    """The tools for whose calls a run waits, by the ids of the calls."""
    present: Record = field(default_factory=dict[str, object])
    """What the conversation did when the reader had caught up."""
    failure: HoldfastError | None = None
    """Why nothing more can be read."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._transcript = Transcript(self.screen.console())
        self._lost_at: float | None = None
        self._wait = FIRST_WAIT_S

    def find_place(self, server: Server) -> None:
        """Finds out what the conversation does now, and where to follow it from: from here on, or from the beginning of
        the run that is at work. Raises what the server answers."""
        notes = (frame for frame in server.frames(f"{self.path}?after=now", None) if "cursor" not in frame)
        self.present = next(notes)["event_data"]
        notes.close()
        self.after = str(self.present["cursor"])
        if self.present["running"] is not None:
            turn, leg, _ = self.after.split(".")
            self.after = f"{turn}.{leg}.0"
            self.own.add(self.present["running"])  # the history shows what it was asked

    def start(self) -> None:
        """Follows the conversation from its place on."""
        # Nobody waits for the thread's end: it may be in the middle of a silence when the command ends.
        threading.Thread(target=self._read, name="conversation", daemon=True).start()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Returns when it is so. Raises why nothing more can be read."""
        with self.changed:
            self.changed.wait_for(lambda: is_so() or self.failure is not None)
            if self.failure is not None and not is_so():
                raise self.failure

    def _read(self) -> None:
        try:
            for frame in self._frames():
                with self.changed:
                    self.after = frame.get("cursor") or self.after
                    self._take(frame)
                    self.changed.notify_all()
            failure = Unavailable("the conversation is gone")
        except HoldfastError as error:
            failure = error
        with self.changed:
            self._line(f"[{failure.message}]", "dim")
            self.failure = failure
            self.changed.notify_all()

    def _frames(self) -> Iterator[Record]:
        """Yields what happens, over as many connections as it takes."""
        with server_at(self.url) as server:
            while True:
                try:
                    yield from self._of_one_connection(server)
                except Unavailable as error:
                    self._note_loss(error)
                else:
                    return
                time.sleep(self._wait)
                self._wait = min(2 * self._wait, LONGEST_WAIT_S)

    def _of_one_connection(self, server: Server) -> Iterator[Record]:
        for frame in server.frames(f"{self.path}?after={self.after}", None):
            if self._lost_at is not None:
                self._line("[the connection is back]", "dim")
            self._lost_at, self._wait = None, FIRST_WAIT_S
            yield frame

    def _note_loss(self, error: Unavailable) -> None:
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
            self._line(f"[{error.message}; resuming when it answers]", "dim")
        elif now > self._lost_at + PATIENCE_S:
            raise error

    def _take(self, frame: Record) -> None:
        data: Record = frame.get("event_data") or dict[str, object]()
        match frame.get("event_type"):
            case "run_started":
                self._begin(str(frame["run_id"]), data)
            case "run_ended":
                self._end(str(frame["run_id"]), data)
            case "approvals_resolved":
                self._resolve(str(frame["run_id"]), data["decisions"])
            case _:
                self._transcript.show(frame)

    def _begin(self, run_id: str, data: Record) -> None:
        before = self.turns.get(str(data.get("continues")))
        turn = before or Turn(int(data["turn"]), run_id)
        turn.run_id, turn.is_waiting, turn.is_over = run_id, False, False
        self.turns[run_id] = turn
        if run_id in self.own:
            return
        for message in data["input"]:
            self._line(f"» {short(_text(message))} (said elsewhere)", "bold")

    def _end(self, run_id: str, data: Record) -> None:
        self._transcript.end()
        turn = self.turns.setdefault(run_id, Turn(0, run_id))
        self.tools = {one["tool_call_id"]: one["tool_name"] for one in data["approvals"]}
        turn.is_waiting = data["status"] == "awaiting_approval"
        turn.is_over = not turn.is_waiting
        if turn.is_waiting:
            self._line(f"[{run_id} waits for a decision: /approvals]", "dim")
        elif data["status"] != "completed" or data["stop_reason"] != "end_turn":
            how = dict.fromkeys((data["status"], str(data["stop_reason"])))
            self._line(f"[{run_id}: {', '.join(how)}]", "dim")

    def _resolve(self, run_id: str, decisions: list[Record]) -> None:
        for one in decisions:
            by = f" by {one['decided_by']}" if one.get("decided_by") else ""
            tool = self.tools.get(one["tool_call_id"], one["tool_call_id"])
            self._line(f"[{tool}: {_DECIDED[one['decision']]}{by}]", "dim")
        turn = self.turns.setdefault(run_id, Turn(0, run_id))
        turn.is_waiting = False
        # If a run goes on with it, that run begins the turn again.
        turn.is_over = all(one["decision"] in ("cancelled", "expired") for one in decisions)

    def _line(self, text: str, style: str) -> None:
        self._transcript.end()
        self.screen.console().print(Text(printable(text), style=style), soft_wrap=True)


_DECIDED = {
    "approve": "approved",
    "deny": "denied",
    "tool_return": "answered with a result",
    "cancelled": "not decided, because the run was cancelled",
    "expired": "not decided in time",
}


def _text(message: Record) -> str:
    content: object = message.get("content")
    if isinstance(content, str):
        return content
    parts: list[Record] = message["content"] or []
    return "".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts)
