"""Runs: `holdfast run` sends a message to an agent and follows its run, `holdfast logs` shows the events of a run, and
`holdfast runs` lists, shows, watches, cancels and steers runs, and settles their effects."""

import sys
from collections.abc import Generator
from enum import StrEnum
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from cli.client.agents import AgentArgument, ConversationOption, LimitOption, agent_of, conversation_of, with_agents
from cli.client.follow import CANCEL_REASON, Follower, RunStream, say_how_to_come_back, status_of
from cli.client.server import DEFAULT_URL, Record, UrlOption, segment, server_at
from cli.client.terminal import console, hint, print_all, print_fields, print_json, second
from cli.printable import INTERRUPTED, JsonOption, printable, user_name
from shared.domain.errors import InvalidRequest

commands = typer.Typer()
run_commands = typer.Typer(add_completion=False, help="List, show, watch, cancel and steer runs.")
commands.add_typer(run_commands, name="runs")

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id: run-…")]
AfterOption = Annotated[
    int, typer.Option("--starting-after", min=0, metavar="N", help="Only frames after frame N of the stream.")
]


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


COLUMNS = ("id", "agent", "status", "stop_reason", "created_at", "duration_s")
FIELDS = (
    *("id", "agent", "agent_id", "conversation_id", "status", "stop_reason", "created_at", "completed_at"),
    *("duration_s", "prompt_tokens", "completion_tokens", "error", "metadata", "callback_url", "callback_status_code"),
)


class Status(StrEnum):
    """A run's status in the API."""

    CREATED = "created"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@run_commands.command("list", epilog="Example: holdfast runs list --status running --agent first")
def list_runs(
    agent: Annotated[str | None, typer.Option(help="Only of this agent: its id or name.")] = None,
    conversation: Annotated[str | None, typer.Option(metavar="CONV", help="Only of this conversation: conv-….")] = None,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only runs with this status; may be repeated (default: all).")
    ] = None,
    stop_reason: Annotated[str | None, typer.Option(help="Only runs with this one, such as requires_approval.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="RUN", help="Only runs that this run has started.")] = None,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List runs, newest first."""
    with server_at(url) as server:
        agent_id = None if agent is None else agent_of(server, agent)["id"]
        wanted = {"agent_id": agent_id, "statuses": [one.value for one in status or []] or None}
        wanted["parent_run_id"] = parent
        found = server.pages("/v1/runs", limit, stop_reason=stop_reason, conversation_id=conversation, **wanted)
        if not as_json:
            found = ({**one, "duration_s": _seconds(one)} for one in with_agents(server, found))
        print_all(found, COLUMNS, as_json=as_json, nothing='no runs; make one with: holdfast run AGENT "text"')


@run_commands.command(epilog="Example: holdfast runs show run-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11 --json")
def show(run: RunArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Show a run: its outcome, its duration and its usage."""
    with server_at(url) as server:
        found: Record = server.get(f"/v1/runs/{segment(run)}")
        usage: Record = server.get(f"/v1/runs/{segment(run)}/usage")
        if as_json:
            print_json({**found, "usage": usage})
            return
        [found] = with_agents(server, [found])
    metadata: Record = dict(found.get("metadata") or {})
    error: Record = metadata.pop("error", None) or {}
    shown: Record = {"metadata": metadata, "error": error.get("message"), "duration_s": _seconds(found)}
    print_fields({**found, **usage, **shown}, FIELDS)


@run_commands.command(epilog="Example: holdfast runs watch run-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11 --starting-after 9")
def watch(
    run: RunArgument, starting_after: AfterOption = 0, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL
) -> None:
    """Follow a run to its end, or show one that has ended. Exits as `holdfast run` does."""
    with server_at(url) as server:
        status = status_of(Follower(server, as_json=as_json).follow(run, starting_after))
    raise typer.Exit(status)


@run_commands.command(epilog="Example: holdfast runs cancel run-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11 --reason obsolete")
def cancel(
    run: RunArgument,
    reason: Annotated[str, typer.Option(help="The reason, which the run keeps.")] = CANCEL_REASON,
    mode: Annotated[
        Literal["interrupt", "rollback"], typer.Option(help="rollback also removes the run's messages.")
    ] = "interrupt",
    wait: Annotated[float, typer.Option(min=0, max=60, help="Seconds to wait for the run to stop.")] = 10.0,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Cancel a run, and show the receipt."""
    with server_at(url) as server:
        receipt = server.post(f"/v1/runs/{segment(run)}/cancel", {"reason": reason, "mode": mode, "wait": wait})
    fields = ("run_id", "status", "cause", "mode", "reason", "requested_at", "acknowledged_at", "stopped_at")
    print_json(receipt) if as_json else print_fields(receipt, fields)


@run_commands.command(epilog='Example: holdfast runs inject run-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11 "Only in Rome"')
def inject(
    run: RunArgument,
    text: Annotated[str, typer.Argument(help="The message.")],
    if_ended: Annotated[
        Literal["refuse", "next"],
        typer.Option(help="What to do if the run ends first; next keeps the message for the agent's next run."),
    ] = "refuse",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Send a message to a running run. The model sees it in the next step."""
    with server_at(url) as server:
        answer = server.post(f"/v1/runs/{segment(run)}/inject", {"input": text, "if_ended": if_ended})
    print_json(answer) if as_json else print_fields(answer, ("run_id", "message_ids", "if_ended"))


EFFECTS = ("call_id", "name", "state", "attempt", "started_at", "settled_by", "outcome", "result")
EFFECT = (*EFFECTS, "settled_by_name", "settled_at", "idempotency_key")


@run_commands.command(epilog="Example: holdfast runs effects run-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11")
def effects(run: RunArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """List the tool calls of a run, and the state of each."""
    with server_at(url) as server:
        found: list[Record] = server.get(f"/v1/runs/{segment(run)}/effects")
        print_all(found, EFFECTS, as_json=as_json, nothing="the run has called no tool")


@run_commands.command(
    epilog='Example: holdfast runs settle run-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11 call-1 happened --result "Invoice 7"'
)
def settle(
    run: RunArgument,
    call: Annotated[str, typer.Argument(metavar="CALL", help="The call's id, as `holdfast runs effects` shows it.")],
    outcome: Annotated[Literal["happened", "did_not_happen"], typer.Argument(help="The outcome that you found.")],
    result: Annotated[str | None, typer.Option(help="The result of the call, if it happened.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Record the real outcome of a tool call whose outcome is unknown. It changes no conversation."""
    if result is not None and outcome != "happened":
        raise InvalidRequest("--result is for a call that happened: leave it out")
    body: Record = {"outcome": outcome, "settled_by": user_name("command-line")}
    body |= {} if result is None else {"result": result}
    with server_at(url) as server:
        effect = server.post(f"/v1/runs/{segment(run)}/effects/{segment(call)}", body)
    print_json(effect) if as_json else print_fields(effect, EFFECT)


def _seconds(run: Record) -> str | None:
    duration = run.get("total_duration_ns")
    return None if duration is None else f"{duration / 1e9:.1f}"
