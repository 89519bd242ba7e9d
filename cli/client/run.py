"""`holdfast run` sends a message to an agent and follows its run; `holdfast logs` shows the events of a run, as text or
as JSON lines."""

import sys
from collections.abc import Generator
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cli.client.agents import AgentArgument, ConversationOption, agent_of, conversation_of
from cli.client.follow import Follower, RunStream, say_how_to_come_back, status_of
from cli.client.runs import AfterOption, RunArgument
from cli.client.server import DEFAULT_URL, Record, UrlOption, server_at
from cli.client.terminal import console, hint, print_json, second
from cli.printable import INTERRUPTED, JsonOption, printable
from shared.domain.errors import InvalidRequest

commands = typer.Typer()


@commands.command(epilog='Example: holdfast run first "What is on my list today?"')
def run(
    agent: AgentArgument,
    text: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    detach: Annotated[bool, typer.Option("--detach", help="Do not follow the run; print its id.")] = False,
    if_busy: Annotated[
        str | None, typer.Option(help="enqueue, reject, interrupt, rollback or inject (docs/steering.md).")
    ] = None,
    conversation: ConversationOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Send a message to an agent, and follow the run.

    Ctrl-C asks whether to cancel the run or to let it go on. Exits with 3 if the run failed, 4 if it was cancelled, 5
    if it waits for an approval, 130 if you left it."""
    given = _standard_input() if text == "-" else text
    if not given.strip():
        raise InvalidRequest("the message is empty: give a text, or - to read standard input")
    with server_at(url) as server:
        history = conversation_of(server, agent_of(server, agent), conversation)
        run_id = history.submit(given, if_busy=if_busy)
        if detach:
            print_json(server.get(f"/v1/runs/{run_id}")) if as_json else print(printable(run_id))
            say_how_to_come_back(run_id)
            return
        if not as_json:
            hint(f"[{run_id}]")
        status = status_of(Follower(server, as_json=as_json).follow(run_id))
    raise typer.Exit(status)


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the message on standard input is not UTF-8: convert it first") from error


_HEAD = frozenset({"id", "message_type", "date", "run_id", "seq_id", "otid", "step_id", "name", "sender_id", "is_err"})


@commands.command(epilog="Example: holdfast logs run-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11 --follow --json")
def logs(
    run: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the run to its end.")] = False,
    starting_after: AfterOption = 0,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show the events of a run, one line each."""
    shown = console()
    with server_at(url) as server:
        stream = RunStream(server, run, starting_after)
        try:
            for frame in stream.frames() if follow else _present(stream):
                show_frame(shown, frame, as_json=as_json)
        except KeyboardInterrupt:
            say_how_to_come_back(run, stream.after)
            raise typer.Exit(INTERRUPTED) from None


def _present(stream: RunStream) -> Generator[Record]:
    is_all = yield from stream.present()
    if not is_all:
        hint(f"[the run goes on: holdfast logs {stream.run_id} --follow --starting-after {stream.after}]")


def show_frame(shown: Console, frame: Record, *, as_json: bool) -> None:
    """Prints one frame of a log, as a line of text or as JSON."""
    if as_json:
        print_json(frame)
        return
    facts = {name: value for name, value in frame.items() if name not in _HEAD and value is not None}
    number = printable(str(frame.get("seq_id", "")))
    line = Text(f"{number:>7}  {second(str(frame.get('date') or '')):<19}  ", style="dim")
    line.append(f"{printable(str(frame.get('message_type')))}  ", style="cyan")
    line.append(printable(" ".join(f"{name}={value!r}" for name, value in facts.items())))
    shown.print(line, soft_wrap=True)
