"""`holdfast agents`; and how all commands find an agent by id or name, and send messages to one of its histories."""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated
from uuid import uuid4

import typer
from msgspec import to_builtins

from cli.client.server import DEFAULT_URL, ConnectionLost, Record, Server, UrlOption, segment, server_at
from cli.client.terminal import confirm, hint, print_all, print_deleted, print_fields, print_json
from cli.command_table import load
from cli.printable import FAILURE, INTERRUPTED, JsonOption, printable
from shared.domain.errors import InvalidRequest, NotFound, Unavailable
from shared.domain.ids import is_id

commands = typer.Typer(add_completion=False, help="List, show, make and delete agents; check and replay your own code.")

OF_OWN_CODE = "cli.operator.code_agents"
"""Imports the worker's modules, which take a second."""

AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="The agent's id, or a name that no other agent has.")
]
LimitOption = Annotated[int, typer.Option(min=1, metavar="N", help="Only the first N rows.")]
MOST_NAMES = 100
"""Agents whose names a list requests from the server. It shows the ids of further agents."""

SHOWN = (
    *("id", "name", "model", "description", "tags", "created_at"),
    *("last_run_completion", "last_stop_reason", "sleep_time", "system", "tools", "memory"),
)


def agent_of(server: Server, name: str) -> Record:
    """Returns the agent with this id or name. Raises `NotFound`, and `InvalidRequest` if several have the name."""
    if is_id(name, "agent"):
        return server.get(f"/v1/agents/{name}")
    found: list[Record] = server.get("/v1/agents", name=name, limit=2)
    if not found:
        raise NotFound(f"no agent is called {name[:100]!r}: `holdfast agents list` shows all of them")
    if len(found) > 1:
        raise InvalidRequest(f"several agents are called {name[:100]!r}: give the id of one, agent-…")
    return found[0]


def with_agents(server: Server, records: Iterable[Record]) -> Iterator[Record]:
    """Adds each record's agent's name as `agent`, because people know an agent by its name."""
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
    code: Annotated[bool, typer.Option("--code", help="Agents of own code that workers have, and versions.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List the agents, newest first; with --code, those of your own code, with their workers."""
    with server_at(url) as server:
        if code:
            _list_code_agents(server, as_json=as_json)
            return
        found = server.pages("/v1/agents", limit, name=name)
        columns = ("id", "name", "model", "created_at")
        print_all(found, columns, as_json=as_json, nothing="no agents; make one with: holdfast agents create NAME")


def _list_code_agents(server: Server, *, as_json: bool) -> None:
    found: list[Record] = server.get("/v1/code-agents")
    rows = [
        {**one, **version, "version": version["version"] or "-"}
        for one in found
        for version in one["versions"] or [{"version": None, "last_seen_at": None}]
    ]
    columns = ("name", "version", "workers", "framework", "last_seen_at", "description")
    nothing = "no agents of own code; start a worker with: holdfast worker --agents MODULE"
    print_all(found if as_json else rows, columns, as_json=as_json, nothing=nothing)


@commands.command(epilog="Example: holdfast agents show first")
def show(agent: AgentArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Show an agent: its model, instructions, tools, memory, and the agents that work in the background for it."""
    with server_at(url) as server:
        found = agent_of(server, agent)
        sleep_time = None if as_json else list(_sleep_time_of(server, found))
    if as_json:
        print_json(found)
        return
    tools: list[Record] = found["tools"]
    blocks: list[Record] = found["memory"]["blocks"]
    shown: Record = {"tools": [tool["name"] for tool in tools] or None, "sleep_time": sleep_time or None}
    shown["memory"] = {str(block["label"]): block["value"] for block in blocks} or None
    print_fields(found | shown, SHOWN)


def _sleep_time_of(server: Server, agent: Record) -> Iterator[str]:
    """Yields the agents that think about this agent's turns, with their last runs, and those about whose turns it
    thinks."""
    for group in server.get(f"/v1/agents/{agent['id']}/groups"):
        if group["manager_agent_id"] != agent["id"]:
            manager = str(group["manager_agent_id"])
            yield f"works in the background for {_name_of(server, manager)} ({manager})"
            continue
        for sleeper in map(str, group["agent_ids"]):
            last: list[Record] = server.get("/v1/runs", agent_id=sleeper, limit=1)
            thought = f"last thought at {last[0]['created_at']}, {last[0]['id']}" if last else "has not thought yet"
            yield f"{_name_of(server, sleeper)} ({sleeper}) {thought}"


@commands.command(epilog="Example: holdfast agents create first --model builtin/slow")
def create(
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    model: Annotated[
        str | None, typer.Option(help="Such as openai/gpt-6-luna (default: the server's default model).")
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
        if not yes:
            confirm(f"Delete {found['name']} ({found['id']}) with all of its messages?")
        server.delete(f"/v1/agents/{found['id']}")
    print_deleted("agents", found, found["name"], as_json=as_json)


ModuleOption = Annotated[
    str | None,
    typer.Option("--against", metavar="MODULE", envvar="HOLDFAST_AGENTS", help="The module with the changed code."),
]
PythonOption = Annotated[
    str,
    typer.Option(
        "--agents-python", metavar="PATH", envvar="HOLDFAST_AGENTS_PYTHON", help="The Python that imports the module."
    ),
]
EnvFileOption = Annotated[
    str,
    typer.Option(
        "--agents-env-file",
        metavar="PATH",
        envvar="HOLDFAST_AGENTS_ENV_FILE",
        help="A file with NAME=value lines for its environment.",
    ),
]


@commands.command(epilog="Example: holdfast agents check myproject.agents")
def check(
    module: Annotated[str, typer.Argument(metavar="MODULE", help="A Python module with agents of your own.")],
    agents_python: PythonOption = "",
    agents_env_file: EnvFileOption = "",
    as_json: JsonOption = False,
) -> None:
    """Import a module of agents as a worker would, and print its agents and their faults."""
    found: Record = load(OF_OWN_CODE).checked(module, agents_python, agents_env_file)
    if as_json:
        print_json(found)
    else:
        columns = ("name", "version", "framework", "on_change", "description")
        if found["agents"]:
            print_all(found["agents"], columns, as_json=False, nothing="")
        if found["traceback"]:
            hint(str(found["traceback"]).rstrip())
        said = [f"unfit: {reason}" for reason in found["reasons"]] or ["fit: a worker can have it"]
        said += [f"warning: {warning}" for warning in found["warnings"]]
        print("\n".join(map(printable, said)))
    if not found["fit"]:
        raise typer.Exit(FAILURE)


@commands.command(epilog="Example: holdfast agents replay run-1f0c --against myproject.agents")
def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    against: ModuleOption = None,
    agents_python: PythonOption = "",
    agents_env_file: EnvFileOption = "",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Execute the code of a run against its journal, which changes nothing: print where changed code makes another
    call."""
    module = (against or "").strip()
    if not module or "," in module:
        raise InvalidRequest("name the module with the code of the run: --against MODULE")
    with server_at(url) as server:
        recorded: Record = server.get(f"/v1/runs/{segment(run)}/replay")
    report = load(OF_OWN_CODE).replayed(recorded, module, agents_python, agents_env_file)
    if as_json:
        print_json(to_builtins(report))
    else:
        print(
            printable(f"{report.end}: {report.said} ({report.replayed} of {report.recorded} recorded calls replayed)")
        )
        for slot in report.left:
            print(printable(f"not asked for: {slot}"))
        for slot in report.instructions_changed:
            print(printable(f"other instructions, the recorded answer holds: {slot}"))
    if report.end not in ("end_of_record", "returned"):
        raise typer.Exit(FAILURE)


ConversationOption = Annotated[
    str | None,
    typer.Option(metavar="CONV", help="A conversation, conv-…; `new` begins one (default: the agent's own history)."),
]
PAUSES_S = (0.5, 2.0)
"""Seconds before each further attempt to send a message whose answer was lost."""


@dataclass(frozen=True)
class Conversation:
    """A history of an agent. `id` is None for the agent's default one."""

    server: Server
    agent_id: str
    id: str | None = None

    def submit(self, text: str, *, if_busy: str | None = None) -> str:
        """Sends a message and returns the id of its run, which goes on even if this process ends. Raises `typer.Exit`
        if the person interrupts the sending."""
        body: Record = {"input": text, "background": True, "stream_tokens": True, "if_busy": if_busy}
        path = f"/v1/agents/{self.agent_id}/messages/stream"
        if self.id:
            # By default a busy conversation refuses a message, but an agent's default history queues it.
            path, body = f"{self._path}/messages", {**body, "if_busy": if_busy or "enqueue"}
        key = str(uuid4())
        try:
            for pause in PAUSES_S:
                try:
                    return self._run_of(path, body, key)
                except ConnectionLost:
                    time.sleep(pause)
            return self._run_of(path, body, key)
        except KeyboardInterrupt:
            look = f"holdfast runs list --agent {self.agent_id}"
            hint(f"[interrupted before the server answered: if it has the message, {look} shows the run]")
            raise typer.Exit(INTERRUPTED) from None

    def _run_of(self, path: str, body: Record, key: str) -> str:
        with closing(self.server.frames(path, body, key=key)) as frames:
            for frame in frames:
                return str(frame["run_id"])
        raise Unavailable("the server named no run for this message: `holdfast runs list` shows whether it has one")

    def history(self, count: int) -> list[Record]:
        """Returns the last `count` messages of the user and the agent, oldest first."""
        path, said = f"{self._path}/messages", ["user_message", "assistant_message"]
        found: list[Record] = self.server.get(
            path, agent_id=self.agent_id, limit=count, order="desc", include_return_message_types=said
        )
        return found[::-1] if self.id else found  # an agent's own history is listed oldest first

    @property
    def events(self) -> str:
        """The path of the conversation's events."""
        return f"/v1/conversations/{segment(self.id or self.agent_id)}/events"

    def waiting_approvals(self) -> list[Record]:
        """Returns the oldest tool call that waits for a decision, or an empty list."""
        path, conversation_id = "/v1/approvals", self.id or "default"
        return self.server.get(path, agent_id=self.agent_id, conversation_id=conversation_id, limit=1)

    def cancel(self, reason: str) -> dict[str, str]:
        """Cancels the waiting and running runs. Returns the outcome of each by its run's id."""
        return self.server.post(f"{self._path}/cancel?agent_id={self.agent_id}", {"reason": reason})

    @property
    def _path(self) -> str:
        return f"/v1/conversations/{segment(self.id or 'default')}"


def conversation_of(server: Server, agent: Record, given: str | None) -> Conversation:
    """Returns the conversation that an option names. Raises `NotFound`, and `InvalidRequest` for another agent's."""
    agent_id = str(agent["id"])
    if given is None or given == "default":
        return Conversation(server, agent_id)
    if given == "new":
        made: Record = server.post(f"/v1/conversations?agent_id={agent_id}")
        hint(f"[{made['id']} is new; come back to it with --conversation {made['id']}]")
        return Conversation(server, agent_id, str(made["id"]))
    found: Record = server.get(f"/v1/conversations/{segment(given)}")
    if found["agent_id"] != agent_id:
        raise InvalidRequest(f"{given} is a conversation of {found['agent_id']}, not of {agent_id}")
    return Conversation(server, agent_id, given)
