"""`holdfast run`: sends a message to an agent, and follows its run."""

import sys
from typing import Annotated

import typer

from cli.client.agents import AgentArgument, ConversationOption, agent_of, conversation_of
from cli.client.follow import Follower, say_how_to_come_back, status_of
from cli.client.server import DEFAULT_URL, UrlOption, server_at
from cli.client.terminal import hint, print_json
from cli.printable import JsonOption, printable
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
