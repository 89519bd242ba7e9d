"""Conformance of dialects in their streams: every log of the table, as every dialect's projection shows it.

A new dialect brings its line to `DIALECTS`: its projection, what a client reads out of its bytes, and whether its
streams can be resumed.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest

from api.letta.frames import FrameOptions, FrameStream
from api.letta.messages import STOP_REASONS, STORED_REASONS, wire_stop_reason
from api.mcp.call_fold import CallStream
from api.mcp.messages import ClientRequest
from api.openai.chat_answer import ChunkStream
from api.openai.responses_service import ResponseStream
from api.runs.streaming import Projection
from shared.domain import events
from shared.domain.ids import Seq
from shared.domain.log_writer import Entries
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.runs import Run, RunOptions
from shared.domain.tools import ClientTool
from tests.kit.ag_ui import AgUiClient
from tests.kit.ag_ui.one_leg import OneLeg
from tests.kit.product.one_answer import OneAnswer
from tests.kit.product.ui_messages import UiMessageReader
from tests.kit.project.documents import ROOT
from tests.kit.runs.stored_runs import IDS

NOW = datetime(2026, 11, 1, tzinfo=UTC)
AT = 1_700_000_000_000


ASKED = ClientRequest(
    id=1,
    method="tools/call",
    version="2026-07-28",
    params={"_meta": {"progressToken": "p"}},
    is_modern=True,
    capabilities={},
    session=None,
    takes_streams=True,
)


class Shown(NamedTuple):
    """What a client makes of a stream."""

    text: str
    is_error: bool
    is_over: bool


class Dialect(NamedTuple):
    """What a dialect brings to this suite."""

    projection: Callable[[Run], Projection]
    read: Callable[[bytes], Shown]
    is_resumable: bool


def _data(body: bytes) -> list[Any]:
    lines = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    return ["[DONE]" if line == "[DONE]" else json.loads(line) for line in lines]


def _read_letta(body: bytes) -> Shown:
    frames = _data(body)
    said = [frame for frame in frames if frame != "[DONE]"]
    text = "".join(frame["content"] for frame in said if frame["message_type"] == "assistant_message")
    return Shown(text, any(frame["message_type"] == "error_message" for frame in said), "[DONE]" in frames)


def _read_chunks(body: bytes) -> Shown:
    chunks = _data(body)
    said = [chunk for chunk in chunks if chunk != "[DONE]"]
    deltas = [choice["delta"] for chunk in said for choice in chunk.get("choices", ())]
    text = "".join(delta.get("content") or "" for delta in deltas)
    return Shown(text, any("error" in chunk for chunk in said), "[DONE]" in chunks)


def _read_events(body: bytes) -> Shown:
    told = _data(body)
    said = [event for event in told if event != "[DONE]"]
    text = "".join(event["delta"] for event in said if event["type"] == "response.output_text.delta")
    failed = any(event["type"] == "response.failed" and event["response"]["status"] == "failed" for event in said)
    return Shown(text, failed, "[DONE]" in told)


def _read_messages(body: bytes) -> Shown:
    answers = [message["result"] for message in _data(body) if "result" in message]
    said = [answer for answer in answers if answer["resultType"] == "complete"]
    # Beside what the agent said, the text says why the call has no good end, and what waits.
    texts = [answer["structuredContent"]["text"].partition("\n\n")[0] for answer in said]
    failed = any(answer["structuredContent"]["status"] == "failed" for answer in said)
    return Shown("".join(text for text in texts if not text.startswith("The agent waits")), failed, len(answers) == 1)


def _read_ag_ui(body: bytes) -> Shown:
    client = AgUiClient().read(body)
    is_error = any(one["type"] == "RUN_ERROR" for one in client.outcomes)
    # What was said before a step began again is void: a snapshot has taken it away.
    return Shown(client.text, is_error, bool(client.outcomes))


def _read_chat(body: bytes) -> Shown:
    reader = UiMessageReader(7).read(body)
    return Shown(reader.text, reader.error is not None, reader.is_done)


def _messages(run: Run) -> Projection:
    return CallStream(run, ASKED)


def _frames(run: Run) -> Projection:
    return FrameStream(run.id, FrameOptions())


def _chunks(run: Run) -> Projection:
    return ChunkStream(run, "agent-1", with_usage=True)


DIALECTS = {
    # Each reader has a fold of its own, which is fed in silence what the reader has seen.
    "ag_ui": Dialect(OneLeg, _read_ag_ui, is_resumable=False),
    # Its streams are resumed by the thread's order, from the beginning of the answer (`tests/unit/test_answer_chunks`).
    "ai_sdk": Dialect(OneAnswer, _read_chat, is_resumable=False),
    "letta": Dialect(_frames, _read_letta, is_resumable=True),
    "mcp": Dialect(_messages, _read_messages, is_resumable=False),
    "openai.chat": Dialect(_chunks, _read_chunks, is_resumable=False),
    # Clients resume by the numbers of the fold, which begins with the log for each of them.
    "openai.responses": Dialect(ResponseStream, _read_events, is_resumable=False),
}

FOUND = ToolReturn(tool_call_id="call-1", tool_name="look", status="success", text="42")
STEP, MESSAGE, AGAIN = IDS.step(), IDS.message(), IDS.message()
CALL = ToolCall("call-1", "look", "{}")
END = (events.UsageReported(AT, prompt_tokens=3, completion_tokens=5), events.Ended(AT))


def _text(text: str, message: Any = MESSAGE) -> events.TextChunk:
    return events.TextChunk(AT, STEP, message, text)


LOGS: dict[str, tuple[events.Event, ...]] = {
    "an answer": (
        events.ReasoningChunk(AT, STEP, MESSAGE, "Hm."),
        *(_text("Hello"), _text(", world")),
        *(events.Stopped(AT, "end_turn"), *END),
    ),
    "a tool": (
        events.ToolCallChunk(AT, STEP, MESSAGE, "call-1", "look", "{}"),
        events.ToolsReturned(AT, STEP, IDS.message(), [FOUND]),
        *(_text("It is 42.", AGAIN), events.Stopped(AT, "end_turn"), *END),
    ),
    "a call that waits": (
        events.ToolCalls(AT, STEP, MESSAGE, [CALL], needs_approval=True),
        *(events.Stopped(AT, "requires_approval"), *END),
    ),
    "a cancel": (_text("Hel"), events.Stopped(AT, "cancelled"), *END),
    "a failure": (
        *(_text("Hel"), events.Stopped(AT, "llm_api_error")),
        *(events.Failed(AT, "llm_server_error", "It broke.", "their words"), *END),
    ),
}
FAILS = {"a failure"}


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


@pytest.fixture
def run() -> Run:
    agent_id = IDS.agent()
    return Run(
        id=IDS.run(),
        project_id=msgspec.convert("default", Any),
        agent_id=agent_id,
        thread_id=msgspec.convert(agent_id, Any),
        options=RunOptions(client_tools=[ClientTool(name="ask", description="", parameters={})]),
        created_at=NOW,
    )


def log_of(*happened: events.Event) -> Entries:
    """A log as a reader gets it, from its first entry on."""
    return [(Seq(seq), events.encode(event)) for seq, event in enumerate((events.RunCreated(AT), *happened), start=1)]


def shown(projection: Projection, entries: Entries, *, at_once: int) -> bytes:
    """The stream of a log that comes in batches of so many entries."""
    parts: list[bytes] = []
    is_over = False
    for start in range(0, len(entries), at_once):
        body, is_over = projection.of(entries[start : start + at_once])
        parts.append(body)
    return b"".join(parts) if is_over else b"".join(parts) + projection.end_of(entries[-1][0])


def test_every_dialect_has_its_line() -> None:
    sources = (ROOT / "api").rglob("*.py")
    named = {name for source in sources for name in re.findall(r'^DIALECT = "(.+)"', source.read_text(), re.MULTILINE)}
    assert named - DIALECTS.keys() == set()


@pytest.mark.parametrize("name", LOGS)
def test_a_client_reads_the_whole_answer(dialect: Dialect, run: Run, name: str) -> None:
    log = log_of(*LOGS[name])
    read = dialect.read(shown(dialect.projection(run), log, at_once=len(log)))
    said = "".join(event.text for event in LOGS[name] if isinstance(event, events.TextChunk))
    assert read == Shown(said, is_error=name in FAILS, is_over=True)


@pytest.mark.parametrize("name", LOGS)
def test_a_client_reads_the_same_in_whatever_batches_the_log_comes(dialect: Dialect, run: Run, name: str) -> None:
    log = log_of(*LOGS[name])
    whole = dialect.read(shown(dialect.projection(run), log, at_once=len(log)))
    for at_once in range(1, len(log)):
        assert dialect.read(shown(dialect.projection(run), log, at_once=at_once)) == whole


@pytest.mark.parametrize("name", LOGS)
def test_two_readers_get_the_same_bytes(dialect: Dialect, run: Run, name: str) -> None:
    log = log_of(*LOGS[name])
    first, second = dialect.projection(run), dialect.projection(run)
    assert first.shared_as == second.shared_as
    assert shown(first, log, at_once=2) == shown(second, log, at_once=2)


@pytest.mark.parametrize("name", LOGS)
def test_a_head_and_its_tail_are_the_whole(dialect: Dialect, run: Run, name: str) -> None:
    """Wherever a reader of a stream that can be resumed was cut off, and whoever shows it the rest."""
    log = log_of(*LOGS[name])
    if not dialect.is_resumable:
        assert dialect.projection(run).shared_as is None, "it keeps state, so nobody may begin in the middle"
        return
    whole = shown(dialect.projection(run), log, at_once=1)
    for cut in range(1, len(log)):
        head, _ = dialect.projection(run).of(log[:cut])
        assert head + shown(dialect.projection(run), log[cut:], at_once=1) == whole


@pytest.mark.parametrize("reason", [*events.StopReason, "of_tomorrow"])
def test_every_reason_has_lettas_word(reason: str) -> None:
    """What a newer release has stored is shown as it is."""
    assert (reason in STOP_REASONS) is (reason in set(events.StopReason))
    stored = events.decode(events.encode(events.Stopped(AT, reason)))
    assert isinstance(stored, events.Stopped)
    shown = wire_stop_reason(stored.reason)
    assert shown is not None
    assert STORED_REASONS.get(shown, shown) == reason


def test_a_step_that_began_again_voids_what_it_had_shown(dialect: Dialect, run: Run) -> None:
    restarted = events.StepRestarted(at=AT, attempt=2, follows=Seq(2), void_message_ids=[MESSAGE])
    log = log_of(_text("Hello"), restarted, _text("Hello, world", AGAIN), events.Stopped(AT, "end_turn"), *END)
    read = dialect.read(shown(dialect.projection(run), log, at_once=1))
    assert (read.is_error, read.is_over) == (False, True)
    assert read.text.endswith("Hello, world")


def test_a_gap_is_said(dialect: Dialect, run: Run) -> None:
    log = log_of(_text("Hel"), events.Gap(AT, first_missing=Seq(3)), events.Stopped(AT, "end_turn"), *END)
    body = shown(dialect.projection(run), log, at_once=1)
    assert dialect.read(body).is_over
    assert b"gap" in body


def test_an_event_of_a_newer_release_is_no_reason_to_stop(dialect: Dialect, run: Run) -> None:
    newer = msgspec.json.encode({"type": "of_tomorrow", "at": AT, "more": [1, 2]})
    log = log_of(*LOGS["an answer"])
    log.insert(2, (Seq(2), newer))
    log = [(Seq(seq), entry) for seq, (_, entry) in enumerate(log, start=1)]
    assert dialect.read(shown(dialect.projection(run), log, at_once=1)) == Shown("Hello, world", False, True)


def test_a_stream_that_is_cut_is_not_over(dialect: Dialect, run: Run) -> None:
    """A server that ends. A client that took it for the run's end would never ask for the rest."""
    projection = dialect.projection(run)
    cut = projection.cut
    if cut is None:  # the connection breaks off
        return
    head, _ = projection.of(log_of(_text("Hel")))
    read = dialect.read(head + cut)
    assert read.is_error or not read.is_over


def test_a_log_that_lost_its_end_ends_the_stream(dialect: Dialect, run: Run) -> None:
    assert dialect.read(shown(dialect.projection(run), log_of(_text("Hel")), at_once=1)).is_over


def test_a_silence_shows_nothing_new(dialect: Dialect, run: Run) -> None:
    projection = dialect.projection(run)
    head, _ = projection.of(log_of(_text("Hel")))
    assert dialect.read(head + projection.silence(Seq(2), NOW)) == dialect.read(head)
