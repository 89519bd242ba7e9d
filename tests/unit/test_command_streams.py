"""What commands make of a server's answers: every frame once, whatever is in it and however it comes."""

import json
from collections.abc import Callable, Iterator
from io import StringIO

import httpx2
import pytest
from rich.console import Console

from cli.client.agents import Conversation
from cli.client.approvals import continuation_of, is_decided
from cli.client.follow import RunStream, Transcript
from cli.client.server import Record, Server, segment, server_at
from cli.client.terminal import print_json
from cli.client.top import screen
from cli.main import main
from cli.printable import printable
from shared.domain.errors import InvalidRequest

RUN = "run-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11"
AGENT = "agent-2f1c6b1e-8a54-4a39-9d5e-0a8f4f3f2b11"
BREAKS = "one\u2028two\u2029three\x85four\x0bfive\x0csix\x1c"


def server(answer: Callable[[httpx2.Request], httpx2.Response]) -> Server:
    return Server(httpx2.Client(base_url="http://server", transport=httpx2.MockTransport(answer)))


def stream(frames: list[Record], *, is_whole: bool = True) -> httpx2.Response:
    lines = [b"data: " + json.dumps(frame, ensure_ascii=False).encode() + b"\n\n" for frame in frames]
    return httpx2.Response(200, content=b"".join([*lines, b"data: [DONE]\n\n"] if is_whole else lines))


def frames(count: int, text: str = "word") -> list[Record]:
    return [{"message_type": "assistant_message", "seq_id": n, "content": text} for n in range(1, count + 1)]


def test_a_line_separator_in_a_text_stopped_everybody_who_followed() -> None:
    sent = frames(3, BREAKS)
    assert list(RunStream(server(lambda _: stream(sent)), RUN).frames()) == sent


def test_a_frame_may_come_in_pieces() -> None:
    sent = frames(2, "ü" * 10)

    def pieces() -> Iterator[bytes]:
        yield from (bytes([one]) for one in stream(sent).content)

    assert list(server(lambda _: httpx2.Response(200, content=pieces())).frames("/stream", {})) == sent


def test_the_log_of_an_ended_run_ended_where_its_connection_did() -> None:
    sent = frames(300)

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json={"status": "completed"})
        after = json.loads(request.content)["starting_after"]
        return stream(sent[after : after + 200], is_whole=after > 0)

    assert list(RunStream(server(answer), RUN).present()) == sent


STATUS, PING, TEXT = ("run_status", 1), ("ping", 1), ("assistant_message", 2)


@pytest.mark.parametrize(
    ("sent", "hints"),
    [([STATUS], 0), ([STATUS, PING], 1), ([STATUS, *[PING] * 5], 1), ([STATUS, TEXT, PING, PING], 0), ([PING] * 3, 0)],
)
def test_a_run_that_no_worker_had_begun_showed_nothing(
    sent: list[tuple[str, int]], hints: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person who had started an API and no worker waited before an empty screen."""
    log = [{"message_type": kind, "seq_id": number} for kind, number in sent]
    shown = list(RunStream(server(lambda _: stream(log)), RUN).frames())
    assert shown == [frame for frame in log if frame["message_type"] != "ping"]
    assert capsys.readouterr().err.count(f"[no word yet: `holdfast runs show {RUN}` says") == hints


def test_a_message_whose_answer_was_lost_was_sent_as_another_one() -> None:
    keys: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx2.RemoteProtocolError("the server is gone")
        return stream([{"run_id": RUN}])

    assert Conversation(server(answer), AGENT).submit("Hello") == RUN
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_deployment_without_redis_and_database_was_no_screen() -> None:
    nothing = {"waiting": None, "oldest_wait_s": None, "in_flight": None}
    memory = {"embedded": False, "used_memory_bytes": None, "max_memory_bytes": None}
    parts = ("runs", "ended_last_hour", "queue_wait_ms", "first_token_ms", "callbacks", "last_hour")
    found: Record = {"version": "1", "at": "2026-01-01T00:00:00Z", "services": {"redis": False}, "queue": nothing}
    found |= {"redis": memory, "api_processes": None, "workers": None, **dict.fromkeys(parts)}
    shown = Console(file=StringIO(), width=100)
    shown.print(screen(found))
    assert isinstance(shown.file, StringIO)
    text = shown.file.getvalue()
    assert text.count("unknown") == 7
    assert "no worker is alive" not in text


def test_the_memory_of_a_server_that_keeps_logs_was_on_no_screen() -> None:
    nothing = {"waiting": None, "oldest_wait_s": None, "in_flight": None}
    memory = {"used_memory_bytes": 2_500_000, "max_memory_bytes": None}
    parts = ("runs", "ended_last_hour", "queue_wait_ms", "first_token_ms", "callbacks", "last_hour", "workers")
    found: Record = {"version": "1", "at": "2026-01-01T00:00:00Z", "services": {"redis": True}, "queue": nothing}
    found |= {"redis": {"embedded": False, **memory}, "api_processes": None, **dict.fromkeys(parts)}
    found["log_servers"] = [{"server": "node-1:6379", **memory}]
    shown = Console(file=StringIO(), width=100)
    shown.print(screen(found))
    assert isinstance(shown.file, StringIO)
    assert "node-1:6379: 2.5 MB of no limit" in shown.file.getvalue()


def test_what_an_agent_said_was_changed_on_its_way_to_the_terminal() -> None:
    said = "all:\n\tmake :key: 10\u00a0000\u202fkm [bold]x[/bold]"
    shown = Console(file=StringIO(), highlight=False, markup=False, emoji=False, width=20)
    Transcript(shown).show({"message_type": "assistant_message", "content": said})
    assert isinstance(shown.file, StringIO)
    assert shown.file.getvalue() == said


def test_control_characters_are_left_out() -> None:
    assert printable("a\x1b[31mb\x9b2Jc\rd\u2028e\u200df") == "a[31mb2Jc d e\u200df"


def test_json_moves_no_cursor_and_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": f"\x9b2J{BREAKS}"})
    line = capsys.readouterr().out
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"text": f"\x9b2J{BREAKS}"}
    assert "\x9b" not in line


def test_the_decisions_of_a_run_were_searched_among_ten_thousand_of_its_agent() -> None:
    """A hundred requests, and further decisions were not found at all."""
    asked: list[dict[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(dict(request.url.params))
        return httpx2.Response(200, json=[{"run_id": RUN, "continued_by": "run-2"}])

    run = {"id": RUN, "agent_id": AGENT}
    assert (continuation_of(server(answer), run), is_decided(server(answer), run)) == ("run-2", False)
    # A key of single agents has to name the agent.
    named = {"agent_id": AGENT, "run_id": RUN, "limit": "100"}
    assert asked == [{**named, "decided": "true"}, {**named, "decided": "false"}]


@pytest.mark.parametrize("url", ["http://[::1", "http://host:80a", "http://a..b", "ftp://host", "host", ""])
def test_no_address_is_said_in_a_line(url: str) -> None:
    with pytest.raises(InvalidRequest), server_at(url) as found:
        found.get("/v1/runs")


@pytest.mark.parametrize("given", ["", "\udcff"])
def test_no_id_is_said_in_a_line(given: str) -> None:
    with pytest.raises(InvalidRequest):
        segment(given)
    assert segment("a/b?c#d\n") == "a%2Fb%3Fc%23d%0A"


@pytest.mark.parametrize(
    "arguments", [["audit", "--days", "800000"], ["keys", "create", "--expires-in-days", "9999999"]]
)
def test_days_beyond_the_calendar_were_a_traceback(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *(["--name", "x"] if arguments[0] == "keys" else [])])
    assert ended.value.code == 2
    assert "should be less than or equal to 36500" in capsys.readouterr().err
