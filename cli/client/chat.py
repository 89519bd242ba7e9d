"""`holdfast chat`: a conversation in a terminal. The server keeps all of it, so a person can leave and come back."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import TextIOBase
from typing import Annotated, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text

from cli.client.agents import AgentArgument, Conversation, ConversationOption, agent_of, conversation_of
from cli.client.approvals import decide_in_place
from cli.client.follow import (
    CANCEL_REASON,
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    PATIENCE_S,
    Transcript,
    cancels,
    say_how_to_come_back,
    short,
)
from cli.client.server import DEFAULT_URL, Record, Server, UrlOption, server_at
from cli.client.terminal import console, hint, is_interactive
from cli.printable import printable
from shared.domain.errors import HoldfastError, Unavailable

# A conversation as a person at a terminal sees it: all messages and calls in it, as they happen.
#
# A thread reads the conversation's stream and prints it, above the prompt while the person is asked for a line.


try:
    import readline
except ImportError:  # not every Python has it; without it, the screen cannot tell whether the person is typing
    readline = None


class Screen(TextIOBase):
    """Standard output for two threads: one asks the person for lines, and the other one prints events meanwhile."""

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
    """The run that answers the turn, or continues it after a decision."""
    is_over: bool = False
    is_waiting: bool = False
    """The turn waits for decisions."""


@dataclass(kw_only=True)
class LiveConversation:
    """Follows a conversation from a cursor on."""

    url: str
    path: str
    """The path of the conversation's stream."""
    screen: Screen
    after: str = "now"
    """The cursor of the last frame."""
    own: set[str] = field(default_factory=set[str])
    """Runs that this command began."""
    turns: dict[str, Turn] = field(default_factory=dict[str, Turn])
    """The turns, by the id of each of their runs."""
    tools: dict[str, str] = field(default_factory=dict[str, str])
    """The tools for whose calls a run waits, by the ids of the calls."""
    present: Record = field(default_factory=dict[str, object])
    """The conversation's state when the reader had caught up."""
    failure: HoldfastError | None = None
    """Why the stream has ended."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._transcript = Transcript(self.screen.console())
        self._lost_at: float | None = None
        self._wait = FIRST_WAIT_S

    def find_place(self, server: Server) -> None:
        """Finds the conversation's present state, and the place to follow it from: now, or the beginning of the active
        run. Raises the server's errors."""
        notes = (frame for frame in server.frames(f"{self.path}?after=now", None) if "cursor" not in frame)
        self.present = next(notes)["event_data"]
        notes.close()
        self.after = str(self.present["cursor"])
        if self.present["running"] is not None:
            turn, leg, _ = self.after.split(".")
            self.after = f"{turn}.{leg}.0"
            self.own.add(self.present["running"])  # the history shows the run's messages

    def start(self) -> None:
        """Follows the conversation from this place on."""
        # The command does not wait for the thread's end: the thread may be in the middle of a silence then.
        threading.Thread(target=self._read, name="conversation", daemon=True).start()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Returns when `is_so` returns true. Raises `failure` if the stream has ended."""
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
        """Yields the conversation's frames, over as many connections as needed."""
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
        # If another run continues the turn, that run begins it again.
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


commands = typer.Typer(add_completion=False)

HELP = "[/cancel cancels all unfinished runs, /approvals asks for decisions again, /history shows more, /quit leaves]"
LONG_HISTORY = 200


class Chat:
    """One conversation: sends the person's messages, shows all messages in it, asks for decisions."""

    def __init__(self, server: Server, conversation: Conversation, url: str) -> None:
        self._server = server
        self._conversation = conversation
        self.screen = Screen()
        self._live = LiveConversation(url=url, path=conversation.events, screen=self.screen)
        self._console = self.screen.console()

    def show_history(self, count: int) -> None:
        """Prints the last messages, oldest first."""
        for message in self._conversation.history(count):
            content = message.get("content")
            if isinstance(content, str):
                mark, style = ("» ", "bold") if message["message_type"] == "user_message" else ("", "")
                self._console.print(Text(printable(mark + content), style=style), soft_wrap=True)

    def begin(self, history: int) -> bool:
        """Shows the history and follows unfinished runs, then asks for decisions. False: the person left a run."""
        self._live.find_place(self._server)
        if history:
            self.show_history(history)
        present = self._live.present
        unfinished = (*filter(None, [present["running"]]), *present["queued"])
        for run_id in unfinished:
            hint(f"[{run_id} is not finished; following it]")
        # From here on a thread prints, so the earlier messages are on the screen already.
        self._live.start()
        return all(self._follow(run_id) for run_id in unfinished) and self.ask()

    def ask(self) -> bool:
        """Asks for the decisions that the agent waits for. False: the person left the continuation."""
        waiting = self._conversation.waiting_approvals()
        if not waiting:
            return True
        self._live.tools = {waiting[0]["tool_call_id"]: waiting[0]["tool_name"]}
        run = self._server.get(f"/v1/runs/{waiting[0]['run_id']}")
        continued = decide_in_place(self._server, run, self.screen.ask)
        return continued is None or self._follow(continued)

    def say(self, text: str) -> bool:
        """Sends a message and shows the answer. False: the person left the run."""
        # The stream may show the run before the answer to the submission has named it.
        with self._live.changed:
            run_id = self._conversation.submit(text)
            self._live.own.add(run_id)
        return self._follow(run_id)

    def _follow(self, run_id: str) -> bool:
        """Returns when the run's turn is over, or waits for a decision that the person puts off. False: the person left
        the run."""
        turns = self._live.turns
        while True:
            try:
                self._live.wait_for(lambda: run_id in turns and (turns[run_id].is_over or turns[run_id].is_waiting))
            except KeyboardInterrupt:
                current = turns[run_id].run_id if run_id in turns else run_id
                if not cancels(self._server, current, self.screen.ask):
                    say_how_to_come_back(current)
                    return False
            else:
                return turns[run_id].is_over or not is_interactive() or self.ask()

    def obey(self, command: str) -> bool:
        """Executes a line that begins with a slash. False: the chat ends."""
        match command:
            case "/quit" | "/exit":
                return False
            case "/cancel":
                for run_id, status in self._conversation.cancel(CANCEL_REASON).items():
                    hint(f"[{run_id}: {status}]")
            case "/approvals":
                return self.ask()
            case "/history":
                self.show_history(LONG_HISTORY)
            case _:
                hint(HELP)
        return True


@commands.command(epilog="Example: holdfast chat first")
def chat(
    agent: AgentArgument,
    history: Annotated[int, typer.Option(min=0, max=1000, metavar="N", help="Show the last N messages.")] = 10,
    conversation: ConversationOption = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Talk with an agent. Ctrl-C asks whether to cancel an answer or to leave it; /quit leaves.

    It shows an answer in progress from its beginning, and asks for decisions that the agent waits for."""
    with server_at(url) as server:
        found = agent_of(server, agent)
        talk = Chat(server, conversation_of(server, found, conversation), url)
        hint(f"[{found['name']}, {found['id']}; /help]")
        goes_on = _goes_on(talk.begin, history)
        while goes_on:
            try:
                line = talk.screen.ask("» ").strip()
            except (EOFError, KeyboardInterrupt):
                break
            except UnicodeDecodeError:
                hint("[the line was not sent: it is not UTF-8]")
                continue
            goes_on = not line or _goes_on(talk.obey if line.startswith("/") else talk.say, line)


def _goes_on(act: Callable[..., bool], *given: str | int) -> bool:
    """Returns whether the conversation goes on. It shows a refusal of the server, which does not end the chat."""
    try:
        return act(*given)
    except HoldfastError as error:
        hint(f"[{error.message}]")
        return True
