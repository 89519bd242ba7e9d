"""`holdfast approvals`: what waits for a person, and the decisions on it."""

from typing import Annotated, Literal

import typer

from cli.client.agents import LimitOption, agent_of, with_agents
from cli.client.decisions import arguments_of, decide
from cli.client.server import DEFAULT_URL, Record, UrlOption, segment, server_at
from cli.client.terminal import hint, print_all, print_fields, print_json
from cli.options import JsonOption
from shared.domain.errors import InvalidRequest

commands = typer.Typer(help="List and decide what waits for a person.")

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
    reason: Annotated[str | None, typer.Option(help="Of a denial; the model is told.")] = None,
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
