"""`holdfast approvals`: what waits for a person, and the decisions on it."""

import getpass
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import typer

from cli.client.agents import LimitOption, agent_of, with_agents
from cli.client.server import DEFAULT_URL, Record, Server, UrlOption, segment, server_at
from cli.client.terminal import console, hint, print_all, print_fields, print_json
from cli.printable import JsonOption, printable
from shared.domain.errors import InvalidRequest

# Decisions on tool calls that wait: asked for in place, and sent.


MOST = 10_000
"""Approvals that are looked through for those of a run."""

QUESTION = "[a]pprove, [d]eny, [e]dit the arguments, or [l]ater? [l] "


def decide_in_place(server: Server, run: Record) -> str | None:
    """Asks for a decision on each call that the run waits with. The id of the run that goes on; None: somebody has yet
    to decide."""
    continued: str | None = None
    for approval in list(_of(server, run)):
        decision = _asked(approval)
        if decision is None:
            return None
        continued = decide(server, approval, decision).get("continued_by")
    return continued


def is_decided(server: Server, run: Record) -> bool:
    """Whether somebody has decided what the run waited for. The run itself does not tell: it has ended."""
    return next(_of(server, run), None) is None


def continuation_of(server: Server, run: Record) -> str | None:
    """The id of the run that goes on where this one waited. None: it did not go on."""
    decided = _of(server, run, decided=True)
    return next((one["continued_by"] for one in decided if one.get("continued_by")), None)


def _of(server: Server, run: Record, *, decided: bool = False) -> Iterator[Record]:
    found = server.pages("/v1/approvals", MOST, agent_id=run["agent_id"], decided=decided)
    return (approval for approval in found if approval["run_id"] == run["id"])


def decide(server: Server, approval: Record, decision: Record) -> Record:
    """Sends a decision on the arguments and the tool as they were shown. Gives the decided approval with the run that
    goes on."""
    body = {"decided_by": user(), "arguments_hash": approval["arguments_hash"], **decision}
    if approval.get("tool_version") is not None:
        body["tool_version"] = approval["tool_version"]
    return server.post(f"/v1/approvals/{approval['id']}", body)


def user() -> str:
    """Who decides, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "command-line"


def arguments_of(text: str) -> Record:
    """Edited arguments. Raises `InvalidRequest` for what is no object."""
    try:
        return msgspec.json.decode(text, type=Record)
    except msgspec.DecodeError as error:
        raise InvalidRequest(
            f'the arguments are no JSON object ({error}): write them as {{"name": "value"}}'
        ) from error


def _asked(approval: Record) -> Record | None:
    """The person's decision; None: later."""
    if approval.get("client_side"):
        hint(f"[{approval['tool_name']} is a tool of the program that sent the message; that program has to answer]")
        return None
    console().print(printable(f"\n{approval['tool_name']} wants to run with {approval['arguments']}"), style="magenta")
    try:
        while True:
            answer = input(QUESTION).strip().lower()[:1]
            if answer == "a":
                return {"decision": "approve"}
            if answer == "d":
                reason = input("Reason, which the model is told (may be empty): ").strip()
                return {"decision": "deny", **({"reason": reason} if reason else {})}
            if answer in ("", "l"):
                return None
            edited = _edited() if answer == "e" else None
            if edited is not None:
                return {"decision": "approve", "arguments": edited}
    except (KeyboardInterrupt, EOFError):
        return None


def _edited() -> Record | None:
    try:
        return arguments_of(input("Arguments as JSON: "))
    except InvalidRequest as error:
        hint(f"[{error.message}]")
        return None


commands = typer.Typer(help="List and decide calls that wait for a person.")

FIELDS = ("id", "status", "tool_name", "arguments", "decided_by", "decided_at", "continued_by")


@commands.command("list", epilog="Example: holdfast approvals list --agent teller")
def list_approvals(
    agent: Annotated[str | None, typer.Option(help="Of this agent: its id or name.")] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List the tool calls that wait, oldest first."""
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
    reason: Annotated[str | None, typer.Option(help="The reason for a denial; the model gets it.")] = None,
    arguments: Annotated[str | None, typer.Option(metavar="JSON", help="Approve, but with these arguments.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Approve a tool call, with other arguments if need be, or deny it."""
    if reason is not None and decision == "approve":
        raise InvalidRequest("--reason belongs to a denial: the model is told why its call was denied")
    if arguments is not None and decision == "deny":
        raise InvalidRequest("--arguments belongs to an approval: a call that is denied has none")
    body: Record = {"decision": decision}
    body |= {} if reason is None else {"reason": reason}
    body |= {} if arguments is None else {"arguments": arguments_of(arguments)}
    with server_at(url) as server:
        decided = decide(server, server.get(f"/v1/approvals/{segment(approval)}"), body)
    print_json(decided) if as_json else print_fields(decided, FIELDS)
    if not as_json and decided.get("continued_by"):
        hint(f"[the run goes on: holdfast runs watch {decided['continued_by']}]")
