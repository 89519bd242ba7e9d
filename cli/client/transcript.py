"""A run's frames as text: what the agent says goes to standard output as it comes, tools and notes stand on lines of
their own."""

from typing import cast

from rich.console import Console
from rich.text import Text

from cli.client.server import Record
from cli.printable import printable

LONGEST = 400
"""Characters of arguments and results that a line shows; `holdfast logs RUN --json` has all of them."""


class Transcript:
    """What was shown so far of one run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kind = ""
        self._call: str | None = None

    def show(self, frame: Record) -> None:
        """Shows a frame."""
        match frame.get("message_type"):
            case "assistant_message":
                self._piece("said", str(frame.get("content") or ""))
            case "reasoning_message":
                self._piece("thought", str(frame.get("reasoning") or ""), "dim italic")
            case "tool_call_message" | "approval_request_message" as kind:
                for call in _calls(frame):
                    self._show_call(call, waits=kind == "approval_request_message")
            case "tool_return_message":
                self._line(f"← {frame.get('status')}: {_short(str(frame.get('tool_return')))}", "dim")
            case "user_message":
                self._line(f"» {_short(str(frame.get('content')))}", "bold")
            case "error_message":
                self._line(f"error: {frame.get('message')} {frame.get('detail') or ''}".rstrip(), "red")
            case "event_message":
                self._note(frame)
            case _:
                pass

    def end(self) -> None:
        """Ends the line that is being written."""
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
            # As it was said: the console would make spaces of tabs, also in a file.
            self._console.file.write(printable(text))
            self._console.file.flush()

    def _show_call(self, call: Record, *, waits: bool) -> None:
        """A call comes whole, or in pieces of which the first has the name."""
        if call.get("tool_call_id") != self._call or self._kind != "call":
            self.end()
            self._kind, self._call = "call", call.get("tool_call_id")
            mark = "?" if waits else "→"
            self._console.print(Text(printable(f"{mark} {call.get('name')} "), style="cyan"), end="")
        self._console.print(Text(printable(_short(str(call.get("arguments") or "")))), end="", soft_wrap=True)

    def _note(self, frame: Record) -> None:
        match frame.get("event_type"):
            case "step_restarted":
                self._line(
                    "[the worker was lost; another one begins this step anew, and what was shown is void]", "yellow"
                )
            case "gap":
                data: Record = frame.get("event_data") or dict[str, object]()
                self._line(f"[frames {data.get('first_missing')} to {data.get('last_missing')} are gone]", "yellow")
            case "log_continued":
                self._line("[the stream goes on under new numbers]", "yellow")
            case _:
                pass

    def _line(self, text: str, style: str) -> None:
        self.end()
        self._console.print(Text(printable(text), style=style), soft_wrap=True)


def _calls(frame: Record) -> list[Record]:
    found: object = frame.get("tool_calls") or frame.get("tool_call")
    return cast("list[Record]", found) if isinstance(found, list) else [cast("Record", found or {})]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
