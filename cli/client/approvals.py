"""`holdfast approvals`: lists tool calls that wait for approval, and sends decisions on them."""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import msgspec
import typer

from cli.client.agents import LimitOption, agent_of, with_agents
from cli.client.server import DEFAULT_URL, Record, Server, UrlOption, segment, server_at
from cli.client.terminal import console, hint, print_all, print_fields, print_json
from cli.printable import JsonOption, printable, user_name
from shared.domain.errors import InvalidRequest

MOST = 10_000
"""The most approvals of one run that the command reads."""

QUESTION = "[a]pprove, [d]eny, [e]dit the arguments, or [l]ater? [l] "


Ask = Callable[[str], str]
"""Asks the person for a line, as `input` does."""


def decide_in_place(server: Server, run: Record, ask: Ask = input) -> str | None:
    """Asks for a decision on each waiting call of the run. Returns the id of the continuation; None: decisions are
    missing."""
    continued: str | None = None
    for approval in list(_of(server, run)):
        decision = _asked(approval, ask)
        if decision is None:
            return None
        continued = decide(server, approval, decision).get("continued_by")
    return continued


def is_decided(server: Server, run: Record) -> bool:
    """Returns whether the run's calls were decided. The run's status does not show that, because the run has ended."""
    return next(_of(server, run), None) is None


def continuation_of(server: Server, run: Record) -> str | None:
    """Returns the id of the run that continues this one; None: there is none."""
    decided = _of(server, run, decided=True)
    return next((one["continued_by"] for one in decided if one.get("continued_by")), None)


def _of(server: Server, run: Record, *, decided: bool = False) -> Iterator[Record]:
    # A key of single agents has to name the agent too.
    return server.pages("/v1/approvals", MOST, agent_id=run["agent_id"], run_id=run["id"], decided=decided)


def decide(server: Server, approval: Record, decision: Record) -> Record:
    """Sends a decision, which is valid for the arguments and the tool as shown. Returns the decided approval, with the
    continuation."""
    body = {"decided_by": user_name("command-line"), "arguments_hash": approval["arguments_hash"], **decision}
    if approval.get("tool_version") is not None:
        body["tool_version"] = approval["tool_version"]
    return server.post(f"/v1/approvals/{approval['id']}", body)


def arguments_of(text: str) -> Record:
    """Parses edited arguments. Raises `InvalidRequest` unless they are a JSON object."""
    try:
        return msgspec.json.decode(text, type=Record)
    except msgspec.DecodeError as error:
        raise InvalidRequest(
            f'the arguments are not a JSON object ({error}): write them as {{"name": "value"}}'
        ) from error


def _asked(approval: Record, ask: Ask) -> Record | None:
    """Asks for one decision. None: later."""
    if approval.get("client_side"):
        hint(f"[{approval['tool_name']} runs in the program that sent the message; that program has to answer]")
        return None
    console().print(printable(f"\n{approval['tool_name']} wants to run with {approval['arguments']}"), style="magenta")
    try:
        while True:
            answer = ask(QUESTION).strip().lower()[:1]
            if answer == "a":
                return {"decision": "approve"}
            if answer == "d":
                reason = ask("Reason, which the model sees (may be empty): ").strip()
                return {"decision": "deny", **({"reason": reason} if reason else {})}
            if answer in ("", "l"):
                return None
            edited = _edited(ask) if answer == "e" else None
            if edited is not None:
                return {"decision": "approve", "arguments": edited}
    except (KeyboardInterrupt, EOFError):
        return None


def _edited(ask: Ask) -> Record | None:
    try:
        return arguments_of(ask("Arguments as JSON: "))
    except InvalidRequest as error:
        hint(f"[{error.message}]")
        return None


commands = typer.Typer(add_completion=False, help="List and decide tool calls that wait for approval.")

FIELDS = ("id", "status", "tool_name", "arguments", "decided_by", "decided_at", "continued_by")


@commands.command("list", epilog="Example: holdfast approvals list --agent teller")
def list_approvals(
    agent: Annotated[str | None, typer.Option(help="Only of this agent: its id or name.")] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List the waiting tool calls, oldest first."""
    with server_at(url) as server:
        agent_id = None if agent is None else agent_of(server, agent)["id"]
        columns = ("id", "agent", "tool_name", "arguments", "asked_at", "expires_at")
        found = server.pages("/v1/approvals", limit, agent_id=agent_id)
        found = found if as_json else with_agents(server, found)
        print_all(found, columns, as_json=as_json, nothing="nothing waits for a decision")


@commands.command("decide", epilog='Example: holdfast approvals decide approval-… deny --reason "too much"')
def decide_one(
    approval: Annotated[str, typer.Argument(metavar="APPROVAL", help="The approval's id: approval-…")],
    decision: Annotated[Literal["approve", "deny"], typer.Argument(help="approve or deny.")],
    reason: Annotated[str | None, typer.Option(help="The reason for a denial; the model sees it.")] = None,
    arguments: Annotated[str | None, typer.Option(metavar="JSON", help="Approve with these arguments instead.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Approve a tool call, with changed arguments if you want, or deny it."""
    if reason is not None and decision == "approve":
        raise InvalidRequest("--reason is for a denial: leave it out, or deny the call")
    if arguments is not None and decision == "deny":
        raise InvalidRequest("--arguments is for an approval: leave it out, or approve the call")
    body: Record = {"decision": decision}
    body |= {} if reason is None else {"reason": reason}
    body |= {} if arguments is None else {"arguments": arguments_of(arguments)}
    with server_at(url) as server:
        decided = decide(server, server.get(f"/v1/approvals/{segment(approval)}"), body)
    print_json(decided) if as_json else print_fields(decided | body, FIELDS)  # with the arguments that will run
    if not as_json and decided.get("continued_by"):
        hint(f"[the run goes on: holdfast runs watch {decided['continued_by']}]")
