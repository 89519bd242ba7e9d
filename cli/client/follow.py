"""Follows runs to their end or until Ctrl-C, for a person at a terminal, whom it asks for decisions, or a script."""

import time
from collections.abc import Generator
from contextlib import closing
from typing import cast

from rich.console import Console
from rich.text import Text

from cli.client.approvals import Ask, continuation_of, decide_in_place, is_decided
from cli.client.server import Record, Server, Silence, segment
from cli.client.terminal import console, hint, is_interactive, print_json
from cli.printable import FAILURE, INTERRUPTED, OK, RUN_CANCELLED, RUN_FAILED, WAITS_FOR_APPROVAL, printable
from shared.domain.errors import HoldfastError, Unavailable

# A run's frames as text: the agent's words are printed as they arrive, tool calls and notes on lines of their own.


LONGEST = 400
"""Characters of arguments and results in a line; `holdfast logs RUN --json` prints all of them."""


class Transcript:
    """Prints the frames of one run as text."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kind = ""
        self._call: str | None = None

    def show(self, frame: Record) -> None:
        """Prints a frame."""
        match frame.get("message_type"):
            case "assistant_message":
                self._piece("said", str(frame.get("content") or ""))
            case "reasoning_message":
                self._piece("thought", str(frame.get("reasoning") or ""), "dim italic")
            case "tool_call_message" | "approval_request_message" as kind:
                for call in _calls(frame):
                    self._show_call(call, waits=kind == "approval_request_message")
            case "tool_return_message":
                self._line(f"← {frame.get('status')}: {short(str(frame.get('tool_return')))}", "dim")
            case "user_message":
                self._line(f"» {short(str(frame.get('content')))}", "bold")
            case "error_message":
                self._line(f"error: {frame.get('message')} {frame.get('detail') or ''}".rstrip(), "red")
            case "event_message":
                self._note(frame)
            case _:
                pass

    def end(self) -> None:
        """Ends the current line."""
        if self._kind:
            self._console.print()
        self._kind, self._call = "", None

    def _piece(self, kind: str, text: str, style: str = "") -> None:
        if kind != self._kind:
            self.end()
            self._kind = kind
        if style:
            self._console.print(Text(printable(text), style=style), end="", soft_wrap=True)
        else:
            # The text goes past the console, which would replace tabs with spaces, also in a file.
            self._console.file.write(printable(text))
            self._console.file.flush()

    def _show_call(self, call: Record, *, waits: bool) -> None:
        """Prints a call, which arrives whole or in pieces. The first piece has the name."""
        if call.get("tool_call_id") != self._call or self._kind != "call":
            self.end()
            self._kind, self._call = "call", call.get("tool_call_id")
            mark = "?" if waits else "→"
            self._console.print(Text(printable(f"{mark} {call.get('name')} "), style="cyan"), end="")
        self._console.print(Text(printable(short(str(call.get("arguments") or "")))), end="", soft_wrap=True)

    def _note(self, frame: Record) -> None:
        data: Record = frame.get("event_data") or dict[str, object]()
        match frame.get("event_type"):
            case "child_run_started":
                self._line(f"[it has started {data.get('run_id')} of {data.get('agent_id')}]", "dim")
            case "child_run_waits":
                self._line(f"[{data.get('run_id')} waits for a decision: holdfast approvals list]", "yellow")
            case "step_restarted":
                self._line(
                    "[the worker was lost; another one restarts this step, so ignore its output above]", "yellow"
                )
            case "gap":
                self._line(f"[frames {data.get('first_missing')} to {data.get('last_missing')} are lost]", "yellow")
            case "log_continued":
                self._line("[the stream goes on with new frame numbers]", "yellow")
            case _:
                pass

    def _line(self, text: str, style: str) -> None:
        self.end()
        self._console.print(Text(printable(text), style=style), soft_wrap=True)


def _calls(frame: Record) -> list[Record]:
    found: object = frame.get("tool_calls") or frame.get("tool_call")
    return cast("list[Record]", found) if isinstance(found, list) else [cast("Record", found or {})]


def short(text: str) -> str:
    """Returns the beginning of a long text, and its length."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


# One run's stream, from any frame to its end. It survives broken connections, server restarts and lost workers.


SILENCE_S = 3.0
"""Seconds of silence after which the stored frames have all arrived."""

PAST_PER_S = 100
"""Frames per second of waiting. Stored frames arrive faster, new ones slower: no model generates so fast."""

ENDED = ("completed", "failed", "cancelled")

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 5.0
PATIENCE_S = 900.0
"""Seconds to wait for a server that does not answer: time for a deploy or a restart of the machine."""


class RunStream:
    """A run's frames after number `after`, each once and in order."""

    def __init__(self, server: Server, run_id: str, after: int = 0) -> None:
        self.run_id = run_id
        self.after = after
        """The number of the last frame."""
        self._pings = 0
        self._server = server

    def frames(self) -> Generator[Record]:
        """Yields the frames to the end of the log, without pings. Raises `Unavailable` after `PATIENCE_S` without an
        answer."""
        lost_at: float | None = None
        wait = FIRST_WAIT_S
        while True:
            try:
                for frame in self._server.frames(self._path, {"starting_after": self.after}):
                    lost_at, wait = None, FIRST_WAIT_S
                    yield from self._of_log(frame)
            except Unavailable as error:
                lost_at = self._lost_since(lost_at, error)
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_S)
            else:
                return

    def present(self) -> Generator[Record, None, bool]:
        """Yields the frames that the log has now, and returns whether the run has ended. The stream of a running run
        does not mark its newest frame, so the rate tells: stored frames arrive by the thousand, new ones one by one.
        Raises `Unavailable`."""
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
        """Yields frames while they arrive fast. Only the time spent waiting for frames counts, because the consumer may
        be slow."""
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
            self._pings += 1
            if (self._pings, self.after) == (1, 1):  # in 20 s the log has nothing but its first event
                hint(f"[no word yet: `holdfast runs show {self.run_id}` says whether a worker has begun the run]")
            return
        self.after = max(self.after, int(frame.get("seq_id") or 0))
        yield frame

    def _lost_since(self, lost_at: float | None, error: Unavailable) -> float:
        now = time.monotonic()
        if lost_at is None:
            hint(f"[{error.message}; resuming after frame {self.after} when it answers]")
            return now
        if now > lost_at + PATIENCE_S:
            raise Unavailable(
                f"{error.message}. Resume later: holdfast runs watch {self.run_id} --starting-after {self.after}"
            )
        return lost_at


CANCEL_REASON = "cancelled at the command line"


class Follower:
    """Shows runs in progress, asks for decisions, and cancels or detaches on Ctrl-C."""

    def __init__(self, server: Server, *, as_json: bool = False) -> None:
        self._server = server
        self._as_json = as_json
        self._may_ask = is_interactive() and not as_json
        self._transcript = Transcript(console())

    def follow(self, run_id: str, after: int = 0) -> Record | None:
        """Returns the ended run, or its last continuation if the person made decisions here. None: the person left the
        run, which continues."""
        while True:
            run = self._to_its_end(RunStream(self._server, run_id, after))
            if run is None or not waits(run):
                break
            if is_decided(self._server, run):
                run = self._decided(run)
                break
            if not self._may_ask:
                break
            continuation = decide_in_place(self._server, run)
            if continuation is None:
                break
            run_id, after = continuation, 0
        if run is not None and self._as_json:
            print_json(run)
        elif run is not None:
            self._say_how_it_ended(run)
        return run

    def _decided(self, run: Record) -> Record:
        """Adds `continued_by`, the id of the continuation, if there is one. The API reports a decided run as waiting
        for ever."""
        continuation = continuation_of(self._server, run)
        if continuation is not None:
            hint(f"[its calls were decided; it goes on: holdfast runs watch {continuation}]")
        return {**run, "continued_by": continuation}

    def _to_its_end(self, stream: RunStream) -> Record | None:
        while True:
            try:
                for frame in stream.frames():
                    self._show(frame)
                self._transcript.end()
                found: Record = self._server.get(f"/v1/runs/{stream.run_id}")
            except KeyboardInterrupt:
                self._transcript.end()
                if not (self._may_ask and cancels(self._server, stream.run_id)):
                    say_how_to_come_back(stream.run_id, stream.after)
                    return None
            else:
                return found

    def _show(self, frame: Record) -> None:
        if self._as_json:
            print_json(frame)
        else:
            self._transcript.show(frame)

    def _say_how_it_ended(self, run: Record) -> None:
        run_id = run["id"]
        match status_of(run):
            case 0:
                pass
            case 5:
                hint(f"[{run_id} waits for a decision: holdfast approvals list; holdfast approvals decide ID approve]")
            case _:
                how = dict.fromkeys((run["status"], str(run.get("stop_reason"))))
                hint(f"[{run_id}: {', '.join(how)}]")


def waits(run: Record) -> bool:
    """Returns whether the run waits for a decision. Its status is "completed", and does not change with a decision."""
    return run.get("stop_reason") == "requires_approval" and "continued_by" not in run


def status_of(run: Record | None) -> int:
    """Returns the exit status of a command that followed this run; None: the person left it."""
    if run is None:
        return INTERRUPTED
    if waits(run):
        return WAITS_FOR_APPROVAL
    return {"completed": OK, "failed": RUN_FAILED, "cancelled": RUN_CANCELLED}.get(run["status"], FAILURE)


def cancels(server: Server, run_id: str, ask: Ask = input) -> bool:
    """Asks whether to cancel the run, and requests it. False: detach, as another Ctrl-C does."""
    try:
        answer = ask("\n[d]etach and let the run go on, or [c]ancel it? [d] ")
        if not answer.strip().lower().startswith("c"):
            return False
        server.post(f"/v1/runs/{run_id}/cancel", {"reason": CANCEL_REASON})
    except (KeyboardInterrupt, EOFError):
        return False
    except HoldfastError as error:
        hint(f"[the run was not cancelled: {error.message}]")
        return False
    return True


def say_how_to_come_back(run_id: str, after: int = 0) -> None:
    """Prints how to follow or cancel the run later."""
    place = f" --starting-after {after}" if after else ""
    hint(f"[the run goes on: holdfast runs watch {run_id}{place}; to end it: holdfast runs cancel {run_id}]")
