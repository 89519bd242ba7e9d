"""`holdfast agents`: list, show, make and delete agents; and who is meant by a name."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from cli.client.server import DEFAULT_URL, Record, Server, UrlOption, segment, server_at
from cli.client.terminal import hint, is_interactive, print_all, print_fields, print_json
from cli.options import JsonOption, positive
from cli.printable import printable
from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import is_id

commands = typer.Typer(help="List, show, make and delete agents.")

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id, or its name if one has it.")]
LimitOption = Annotated[int, typer.Option(parser=positive, metavar="N", help="The newest N.")]
MOST_NAMES = 100
"""Agents that a list asks the server for. Further ones are shown by their ids."""

SHOWN = (
    *("id", "name", "model", "description", "tags", "created_at"),
    *("last_run_completion", "last_stop_reason", "system", "tools", "memory"),
)


def agent_of(server: Server, name: str) -> Record:
    """The agent with this id or name. Raises `NotFound`, and `InvalidRequest` where several have the name."""
    if is_id(name, "agent"):
        return server.get(f"/v1/agents/{name}")
    found: list[Record] = server.get("/v1/agents", name=name, limit=2)
    if not found:
        raise NotFound(f"no agent is called {name[:100]!r}: `holdfast agents list` shows all of them")
    if len(found) > 1:
        raise InvalidRequest(f"several agents are called {name[:100]!r}: give the id of one, agent-…")
    return found[0]


def with_agents(server: Server, records: Iterable[Record]) -> Iterator[Record]:
    """The records with the names of their agents as `agent`: for people, who know an agent by its name."""
    names: dict[str, str] = {}
    for record in records:
        agent_id = str(record["agent_id"])
        if agent_id not in names:
            names[agent_id] = _name_of(server, agent_id) if len(names) < MOST_NAMES else agent_id
        yield {**record, "agent": names[agent_id]}


def _name_of(server: Server, agent_id: str) -> str:
    try:
        return str(server.get(f"/v1/agents/{segment(agent_id)}")["name"])
    except NotFound:
        return agent_id  # it was deleted


@commands.command("list", epilog="Example: holdfast agents list --limit 10")
def list_agents(
    name: Annotated[str | None, typer.Option(help="Only agents of this name.")] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List the agents, newest first."""
    with server_at(url) as server:
        found = server.pages("/v1/agents", limit, name=name)
        columns = ("id", "name", "model", "created_at")
        print_all(found, columns, as_json=as_json, nothing="no agents; make one: holdfast agents create NAME")


@commands.command(epilog="Example: holdfast agents show first")
def show(agent: AgentArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Show an agent: its model, its instructions, its tools and its memory."""
    with server_at(url) as server:
        found = agent_of(server, agent)
    if as_json:
        print_json(found)
        return
    tools: list[Record] = found["tools"]
    blocks: list[Record] = found["memory"]["blocks"]
    shown: Record = {"tools": [tool["name"] for tool in tools] or None}
    shown["memory"] = {str(block["label"]): block["value"] for block in blocks} or None
    print_fields(found | shown, SHOWN)


@commands.command(epilog="Example: holdfast agents create first --model builtin/slow")
def create(
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    model: Annotated[
        str | None, typer.Option(help="Such as openai/gpt-5-mini (default: the server's default model).")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Its instructions.")] = None,
    tool: Annotated[list[str] | None, typer.Option(help="The name of a tool; may be repeated.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Make an agent, and print its id."""
    given = {"name": name, "model": model, "system": system, "tools": tool or None}
    with server_at(url) as server:
        made = server.post("/v1/agents", {field: value for field, value in given.items() if value is not None})
    print_json(made) if as_json else print(printable(str(made["id"])))
    if not as_json:
        hint(f"[talk with it: holdfast chat {made['id']}]")


@commands.command(epilog="Example: holdfast agents delete first --yes")
def delete(
    agent: AgentArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Delete an agent, with its conversations and their messages."""
    with server_at(url) as server:
        found = agent_of(server, agent)
        name = printable(found["name"])
        if not yes and not is_interactive():
            raise InvalidRequest("nobody can be asked here whether to delete it: say --yes")
        if not yes and not typer.confirm(
            f"Delete {printable(found['name'])} ({found['id']}) with all of its messages?"
        ):
            raise typer.Exit(2)
        server.delete(f"/v1/agents/{found['id']}")
    if as_json:
        print_json({"id": found["id"], "deleted": True})
    else:
        print(printable(f"holdfast agents: {found['id']} ({name}) is deleted"))
