"""What a server says reaches the terminal as text: it moves no cursor, sets no title and turns no line around."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from cli.client.runs import show_frame
from cli.client.terminal import print_all, print_fields, print_json
from cli.client.top import screen

ESCAPES = {
    "title": "\x1b]0;owned\x07",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b31m",
    "delete": "\x7f",
    "carriage return": "fine\rgone",
    "backspace": "a\x08b",
    "embedding": "\u202aa\u202bb\u202cc",
    "override": "\u202dexe.\u202egpj",
    "isolates": "\u2066a\u2067b\u2068c\u2069d",
    "marks": "\u200e\u200f\u061c",
    "separators": "a\u2028b\u2029c",
}


def harmful(text: str) -> list[str]:
    """What a terminal would act on. Line ends are the command's own."""
    codes = {*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
    return [one for one in text if ord(one) in codes - {0x0A}]


def plain_console(out: io.StringIO) -> Console:
    return Console(file=out, color_system=None, width=500, highlight=False, markup=False, emoji=False)


def operations(said: str) -> dict[str, Any]:
    counts = {"created": said, "running": said, "awaiting_approval": said}
    worker = {"name": said, "runs": said, "max_runs": said, "sandbox": said, "version": said, "seen_at": said}
    return {
        "version": said,
        "at": said,
        "services": {said: True},
        "runs": counts,
        "workers": [worker],
        "queue": {"waiting": 1, "in_flight": 1, "oldest_wait_s": 1},
        "callbacks": {"waiting": said, "failing": said},
        "ended_last_hour": {"completed": said, "failed": said, "cancelled": said},
        "queue_wait_ms": None,
        "first_token_ms": None,
        "last_hour": [],
        "api_processes": [],
        "redis": {"used_memory_bytes": 1, "max_memory_bytes": None},
        "log_servers": [{"server": said, "used_memory_bytes": 1, "max_memory_bytes": None}],
    }


@pytest.mark.parametrize("said", ESCAPES.values(), ids=ESCAPES)
def test_a_server_could_write_to_the_terminal_by_top(said: str) -> None:
    out = io.StringIO()
    plain_console(out).print(screen(operations(said)))
    assert "the oldest 1 s" in out.getvalue()
    assert harmful(out.getvalue()) == []


@pytest.mark.parametrize("said", ESCAPES.values(), ids=ESCAPES)
def test_a_server_could_write_to_the_terminal_by_logs(said: str) -> None:
    out = io.StringIO()
    frame = {"seq_id": said, "date": said, "message_type": said, said: said, "content": [said]}
    show_frame(plain_console(out), frame, as_json=False)
    assert "content=" in out.getvalue()
    assert harmful(out.getvalue()) == []


@pytest.mark.parametrize("said", ESCAPES.values(), ids=ESCAPES)
def test_json_and_tables_reach_the_terminal_as_text(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"id": said, "name": said, said: [said, {"deep": said}]}
    print_json(record)
    line = capsys.readouterr().out
    assert (harmful(line), json.loads(line)) == ([], record), "the same document, for programs"

    print_all([record], ["id", "name"], as_json=False, nothing="")
    print_fields({"created_at": said, "status": said, "parts": [said]}, ["created_at", "status", "parts"])
    assert harmful(capsys.readouterr().out) == []


def test_what_people_write_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = "größe 漢字 👩\u200d👩 שלום"
    print_json({"said": said})
    assert said in capsys.readouterr().out


def test_top_called_the_oldest_unknown_where_nothing_waits() -> None:
    out = io.StringIO()
    idle = {**operations("x"), "queue": {"waiting": 0, "in_flight": 0, "oldest_wait_s": None}}
    plain_console(out).print(screen({**idle, "api_processes": [{"readers": 1}]}))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [line for line in lines if line.endswith("0 wait; 0 at work")]
    assert [line for line in lines if line.endswith("1 process, 1 reader")]
