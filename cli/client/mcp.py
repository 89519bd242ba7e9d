"""`holdfast mcp`: the MCP servers of a project, and the tools that the project has of them."""

import os
import shlex
from typing import Annotated, Any

import typer

from cli.client.server import DEFAULT_URL, Record, Server, UrlOption, segment, server_at
from cli.client.terminal import hint, is_interactive, print_all, print_fields, print_json
from cli.printable import JsonOption, printable
from shared.domain.errors import InvalidRequest, NotFound, Unavailable
from shared.domain.ids import is_id

commands = typer.Typer(add_completion=False, help="List, show, add, refresh, delete MCP servers, and sign in at them.")

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="The server's id, or its name.")]

SHOWN = (
    *("id", "server_name", "mcp_server_type", "server_url", "command", "args", "auth_header", "auth_token"),
    *("custom_headers", "env", "refreshed_at", "problem", "sign_in", "tools"),
)


def mcp_server_of(server: Server, name: str) -> Record:
    """Returns the MCP server with this id or name. Raises `NotFound`."""
    if is_id(name, "mcp_server"):
        return server.get(f"/v1/mcp-servers/{name}")
    found: list[Record] = server.get("/v1/mcp-servers")
    for one in found:
        if one["server_name"] == name:
            return one
    raise NotFound(f"no MCP server is called {name[:100]!r}: `holdfast mcp list` shows all of them")


def _tools_of(server: Server, found: Record) -> list[Record]:
    return server.get(f"/v1/mcp-servers/{segment(str(found['id']))}/tools")


@commands.command("list", epilog="Example: holdfast mcp list")
def list_servers(as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """List the MCP servers, oldest first. `problem` says why a server's tools are missing."""
    with server_at(url) as server:
        found: list[Record] = server.get("/v1/mcp-servers")
    shown = found if as_json else [{**one, "name": one["server_name"], "at": _place(one)} for one in found]
    columns = ("id", "name", "at", "problem")
    print_all(shown, columns, as_json=as_json, nothing="no MCP servers; add one with: holdfast mcp add NAME URL")


def _place(found: Record) -> str:
    return str(found.get("server_url") or shlex.join([str(found.get("command")), *(found.get("args") or [])]))


@commands.command(epilog="Example: holdfast mcp show buses")
def show(server: ServerArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Show an MCP server and its tools. A tool whose calls wait for approval is marked."""
    with server_at(url) as asked:
        found = mcp_server_of(asked, server)
        tools = _tools_of(asked, found)
    if as_json:
        print_json(found | {"tools": tools})
        return
    shown = [f"{tool['name']}{' (asks first)' if tool['default_requires_approval'] else ''}" for tool in tools]
    sign_in: dict[str, Any] = found["sign_in"] or {}
    print_fields(found | {"tools": shown or None, "sign_in": sign_in.get("state")}, SHOWN)


@commands.command(epilog="Example: holdfast mcp add buses https://buses.example/mcp --token-env TOKEN")
def add(
    name: Annotated[str, typer.Argument(help="The server's name, unique in the project.")],
    server_url: Annotated[str | None, typer.Argument(metavar="URL", help="Where the server answers.")] = None,
    sse: Annotated[bool, typer.Option("--sse", help="The server speaks the protocol's first version, by SSE.")] = False,
    command: Annotated[
        str | None, typer.Option(help="Instead of URL: a command line that the operator allows.")
    ] = None,
    token_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that has the server's token.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Add an MCP server, take its tools over, and print its id."""
    config = _config(server_url, command, token_env, sse=sse)
    with server_at(url) as server:
        made = server.post("/v1/mcp-servers", {"server_name": name, "config": config})
        tools = _tools_of(server, made)
    print_json(made | {"tools": tools}) if as_json else print(printable(str(made["id"])))
    if as_json:
        return
    if made["problem"]:
        hint(f"[no tools yet; read them with holdfast mcp refresh {made['id']}: {made['problem']}]")
    else:
        hint(f"[its tools: {', '.join(str(tool['name']) for tool in tools) or 'none'}]")


def _config(server_url: str | None, command: str | None, token_env: str | None, *, sse: bool) -> dict[str, Any]:
    if (server_url is None) is (command is None):
        raise InvalidRequest("give the server's URL, or --command for a server that is started here")
    if command is not None:
        if sse or token_env is not None:
            raise InvalidRequest("--sse and --token-env are for servers with a URL: leave them out")
        words = _words(command)
        return {"mcp_server_type": "stdio", "command": words[0], "args": words[1:]}
    config: dict[str, Any] = {"mcp_server_type": "sse" if sse else "streamable_http", "server_url": server_url}
    if token_env is not None:
        token = os.environ.get(token_env)
        if not token:
            raise InvalidRequest(f"--token-env names {token_env[:100]!r}, which is not set: export it with the token")
        config["auth_token"] = token
    return config


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidRequest(f"--command is no command line ({error}): quote it as a shell needs it") from error
    if not words:
        raise InvalidRequest("--command is empty: give the command line that starts the server")
    return words


@commands.command("sign-in", epilog="Example: holdfast mcp sign-in notes")
def sign_in(server: ServerArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Sign in at an MCP server (OAuth): print the address to open in a browser, and wait until that is done."""
    with server_at(url) as asked:
        found = mcp_server_of(asked, server)
        last = _signed_in(asked, found, as_json=as_json)
    name = found["server_name"]
    if last["event"] == "error":
        raise InvalidRequest(str(last["message"]))
    if last["event"] != "success":
        raise Unavailable(f"the server ended the stream. The sign-in goes on: see `holdfast mcp show {name}`")
    if not as_json:
        tools = ", ".join(str(tool["name"]) for tool in last["tools"]) or "none"
        print(printable(f"holdfast mcp: signed in at {name}; its tools: {tools}"))


def _signed_in(asked: Server, found: Record, *, as_json: bool) -> Record:
    """Returns the last event of the sign-in."""
    last: Record = {"event": ""}
    for last in asked.events(f"/v1/mcp-servers/connect/{segment(str(found['id']))}"):
        if as_json:
            print_json(last)
        elif last["event"] == "authorization_url":
            hint("Open this in a browser and sign in:")
            print(printable(str(last["url"])), flush=True)
    return last


@commands.command(epilog="Example: holdfast mcp refresh buses")
def refresh(server: ServerArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Read a server's tools anew: add, change and delete the project's own ones accordingly."""
    with server_at(url) as asked:
        found = mcp_server_of(asked, server)
        changes: Record = asked.patch(f"/v1/mcp-servers/{segment(str(found['id']))}/refresh")
    if as_json:
        print_json(changes)
        return
    for done in ("added", "updated", "deleted"):
        names: list[str] = changes[done]
        if names:
            print(printable(f"{done}: {', '.join(names)}"))
    for skipped in changes["skipped"]:
        print(printable(f"skipped: {skipped['name']}: {skipped['reason']}"))
    if not any(changes.values()):
        hint("[nothing has changed]")


@commands.command(epilog="Example: holdfast mcp delete buses --yes")
def delete(
    server: ServerArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Delete an MCP server with its tools, and take them from all agents."""
    with server_at(url) as asked:
        found = mcp_server_of(asked, server)
        name = printable(found["server_name"])
        if not yes and not is_interactive():
            raise InvalidRequest("this is no terminal, so the command cannot ask whether to delete it: give --yes")
        if not yes and not typer.confirm(f"Delete {name} ({found['id']}), and take its tools from all agents?"):
            raise typer.Exit(2)
        asked.delete(f"/v1/mcp-servers/{segment(str(found['id']))}")
    if as_json:
        print_json({"id": found["id"], "deleted": True})
    else:
        print(printable(f"holdfast mcp: {found['id']} ({name}) is deleted"))
