"""`holdfast top`: one live screen about a deployment. It renders the answers of `GET /v1/admin/operations`."""

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.client.server import DEFAULT_URL, Record, Server, UrlOption, server_at
from cli.client.terminal import console, print_json, second
from cli.printable import JsonOption, printable
from shared.domain.errors import Unavailable

commands = typer.Typer(add_completion=False)

PATH = "/v1/admin/operations"
UNKNOWN = "unknown"
BARS = " ▁▂▃▄▅▆▇█"


@commands.command(epilog="Example: holdfast top --once --json")
def top(
    once: Annotated[bool, typer.Option("--once", help="Show the screen once and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two updates.")] = 2.0,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Watch a deployment: its services, queue, workers, runs and callbacks. Needs a key with the scope admin.

    With --json, it prints one object per update. Ctrl-C ends it."""
    with server_at(url) as server:
        found: Record = server.get(PATH)
        shown = console()
        if once:
            print_json(found) if as_json else shown.print(screen(found))
            return
        try:
            if as_json:
                _print_each(server, found, interval)
            with Live(screen(found), console=shown, screen=shown.is_terminal, auto_refresh=False) as live:
                _show_each(server, live, interval)
        except KeyboardInterrupt:
            return


def _print_each(server: Server, found: Record, interval: float) -> None:
    while True:
        print_json(found)
        time.sleep(interval)
        found = server.get(PATH)


def _show_each(server: Server, live: Live, interval: float) -> None:
    """Updates the screen until Ctrl-C. It shows the error of a server that does not answer, and tries again."""
    while True:
        time.sleep(interval)
        try:
            live.update(screen(server.get(PATH)), refresh=True)
        except Unavailable as error:
            live.update(Text(printable(error.message), style="red"), refresh=True)


def screen(found: Record) -> RenderableType:
    """Renders one answer."""
    return Group(_services(found), Text(), _counts(found), Text(), _workers(found["workers"]), Text(), _hour(found))


def _services(found: Record) -> Text:
    line = Text(f"holdfast {printable(str(found['version']))}   {second(str(found['at']))}   ", style="bold")
    services: Record = found["services"]
    for name, is_well in services.items():
        if is_well is None:
            line.append(f"? {printable(name)}  ", style="yellow")
        else:
            line.append(f"{'●' if is_well else '○'} {printable(name)}  ", style="green" if is_well else "red")
    return line


def _counts(found: Record) -> Table:
    queue, redis = found["queue"], found["redis"]
    table = Table(box=None, show_header=False, pad_edge=False)
    oldest = f", the oldest {_number(queue['oldest_wait_s'], ' s')}" if queue["waiting"] else ""
    table.add_row("queue", f"{_number(queue['waiting'])} wait{oldest}; {_number(queue['in_flight'])} at work")
    table.add_row(
        "runs", _filled("{created} wait, {running} run, {awaiting_approval} wait for an approval", found["runs"])
    )
    table.add_row(
        "last hour", _filled("{completed} completed, {failed} failed, {cancelled} cancelled", found["ended_last_hour"])
    )
    table.add_row("queue wait", _percentiles(found["queue_wait_ms"]))
    table.add_row("first token", _percentiles(found["first_token_ms"]))
    table.add_row("callbacks", _filled("{waiting} wait, {failing} have failed before", found["callbacks"]))
    table.add_row("redis", _memory(redis))
    log_servers: list[Record] = found.get("log_servers") or []
    for server in log_servers:
        table.add_row("logs", Text(f"{printable(str(server['server']))}: {_memory(server)}"))
    table.add_row("api", _apis(found["api_processes"]))
    return table


def _filled(text: str, of: Record | None) -> str:
    """Fills the text with the figures of one service. They are None while that service does not answer."""
    return UNKNOWN if of is None else printable(text.format(**of))


def _apis(processes: Sequence[Record] | None) -> str:
    if processes is None:
        return UNKNOWN
    readers = sum(int(process["readers"] or 0) for process in processes)
    return f"{_counted(len(processes), 'process', 'es')}, {_counted(readers, 'reader', 's')}"


def _counted(count: int, noun: str, plural: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def _workers(workers: Sequence[Record] | None) -> RenderableType:
    if workers is None:
        return Text("workers are unknown: Redis does not answer", style="red")
    if not workers:
        return Text("no worker is alive: start one with `holdfast worker`", style="yellow")
    table = Table("WORKER", "RUNS", "OF", "WALLS", "VERSION", "SEEN", box=None, pad_edge=False, header_style="bold")
    for worker in workers:
        cells = (worker[name] for name in ("name", "runs", "max_runs", "sandbox", "version"))
        table.add_row(*(Text(printable(str(one))) for one in cells), second(str(worker["seen_at"])))
    return table


def _hour(found: Record) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    minutes: list[Record] = found["last_hour"] or []
    for name in ("submitted", "completed", "failed"):
        table.add_row(name, bars([float(minute[name] or 0) for minute in minutes]))
    return table


def bars(values: Sequence[float]) -> str:
    """Draws a bar for each value; the highest is full."""
    highest = max(values, default=0) or 1
    return "".join(BARS[round(value / highest * (len(BARS) - 1))] for value in values)


def _percentiles(found: Record | None) -> str:
    if found is None or found.get("p50") is None:
        return "no runs in the last hour"
    return ", ".join(f"{name} {_number(found[name], ' ms')}" for name in ("p50", "p95", "p99"))


def _number(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:,.0f}{unit}"


def _memory(redis: Record) -> str:
    if redis.get("embedded"):
        return "embedded, in the server's own process"
    used, most = redis["used_memory_bytes"], redis["max_memory_bytes"]
    if used is None:
        return "does not answer"
    return f"{used / 1e6:,.1f} MB of {f'{most / 1e6:,.1f} MB' if most else 'no limit'}"
