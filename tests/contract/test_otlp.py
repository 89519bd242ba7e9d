"""Spans over OTLP: what a receiver gets, which traces it gets, and what happens when it is away."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog

from shared.process.context import tracer_of
from shared.process.settings import Settings
from shared.telemetry.tracer import Tracer, trace_id_of
from tests.kit.commands import HOLDFAST, execute
from tests.kit.free_ports import free_port
from tests.kit.trace_receiver import TraceReceiver
from tests.kit.wait_until import wait_until
from tests.unit.test_command_line import refused

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NOT_SAMPLED = SAMPLED.removesuffix("01") + "00"


@pytest.fixture
async def receiver() -> AsyncIterator[TraceReceiver]:
    async with TraceReceiver() as receiving:
        yield receiving


PATIENT_S = 120.0
"""A busy machine must not take the last spans away."""


def traced(receiver: TraceReceiver, **settings: Any) -> AbstractAsyncContextManager[Tracer]:
    """A tracer that exports to the receiver."""
    chosen = Settings(otlp_endpoint=receiver.url, **settings)
    return tracer_of(chosen, service="holdfast-test", instance="test-1", flush_s=PATIENT_S)


async def test_a_span_arrives_with_what_it_says(receiver: TraceReceiver) -> None:
    async with traced(receiver) as tracer:
        attributes = {"holdfast.run.id": "run-1", "holdfast.run.continues": None}
        root = tracer.begin("submit", parent=None, kind="server", attributes=attributes, at_ms=1000)
        child = tracer.begin("chat x", parent=root.traceparent, kind="client", links=[SAMPLED], at_ms=1001.5)
        child.set({"gen_ai.usage.input_tokens": 7, "gen_ai.response.finish_reasons": ["stop"]})
        child.fail("timeout")
        child.end(at_ms=1002)
        root.end(at_ms=1003)
    submit, chat = receiver.one("submit"), receiver.one("chat x")
    assert (submit.kind, submit.parent_id, submit.attributes) == ("server", "", {"holdfast.run.id": "run-1"})
    assert (chat.kind, chat.parent_id, chat.trace_id) == ("client", submit.span_id, submit.trace_id)
    assert (chat.began_at, chat.ended_at, submit.ended_at) == (1_001_500_000, 1_002_000_000, 1_003_000_000)
    assert chat.links == (trace_id_of(SAMPLED),)
    assert chat.has_failed and not submit.has_failed
    assert chat.attributes == {
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.response.finish_reasons": ["stop"],
        "error.type": "timeout",
    }
    assert submit.service == "holdfast-test"
    assert submit.resource["service.instance.id"] == "test-1"
    assert receiver.requests[0].path == "/v1/traces"


async def test_an_error_that_leaves_the_block_is_named_and_its_text_is_not(receiver: TraceReceiver) -> None:
    async with traced(receiver) as tracer:
        with pytest.raises(ValueError, match="secret"), tracer.begin("submit", parent=None):
            raise ValueError("a secret of somebody")
    span = receiver.one("submit")
    assert span.has_failed
    assert span.attributes == {"error.type": "ValueError"}
    assert not any(b"secret" in request.content for request in receiver.requests)


async def test_who_asks_says_whether_it_is_traced(receiver: TraceReceiver) -> None:
    """A trace that came from outside is exported if its flags say so, whatever part of our own is."""
    async with traced(receiver, trace_sample=0.0) as tracer:
        tracer.begin("theirs", parent=SAMPLED).end()
        ours = tracer.begin("ours", parent=None)
        ours.end()
        tracer.begin("child of ours", parent=ours.traceparent).end()
    assert [span.name for span in receiver.spans] == ["theirs"]
    assert receiver.one("theirs").trace_id == trace_id_of(SAMPLED)
    async with traced(receiver, trace_sample=1.0) as tracer:
        left_out = tracer.begin("left out", parent=NOT_SAMPLED)
        left_out.end()
    assert left_out.traceparent is not None
    assert left_out.traceparent.endswith("-00"), "those who come after us must leave it out, too"
    assert len(receiver.spans) == 1


@pytest.mark.parametrize("endpoint", ["{url}/", "{url}/v1/traces"])
async def test_the_address_may_be_that_of_the_receiver_or_of_its_traces(receiver: TraceReceiver, endpoint: str) -> None:
    settings = Settings(otlp_endpoint=endpoint.format(url=receiver.url))
    async with tracer_of(settings, service="holdfast-test", instance="test-1", flush_s=PATIENT_S) as tracer:
        tracer.begin("submit", parent=None).end()
    assert receiver.requests[0].path == "/v1/traces"


async def test_a_receiver_that_fails_is_said_once(receiver: TraceReceiver) -> None:
    receiver.answer = 400
    with structlog.testing.capture_logs() as logged:
        async with traced(receiver) as tracer:
            for number in range(1, 3):
                # More than fit into a batch, so that one is sent at once.
                for _ in range(600):
                    tracer.begin("submit", parent=None).end()
                await wait_until(lambda number=number: len(receiver.requests) >= number, description="a batch")
            receiver.answer = 200
    events = [line["event"] for line in logged]
    assert events == ["traces_not_exported", "traces_exported_again"]
    assert logged[0]["endpoint"] == receiver.url


async def test_a_receiver_that_never_answers_does_not_hold_a_process_that_ends(receiver: TraceReceiver) -> None:
    receiver.answer = 0
    settings = Settings(otlp_endpoint=receiver.url)
    async with tracer_of(settings, service="holdfast-test", instance="test-1") as tracer:
        tracer.begin("submit", parent=None).end()
    assert receiver.spans == []


async def test_an_endpoint_without_the_extra_is_a_mistake(tmp_path: Path) -> None:
    program = f"import sys; sys.modules['opentelemetry.sdk'] = None; {HOLDFAST}"
    said = await refused(
        tmp_path,
        ["dev", "--data-dir", str(tmp_path / "data"), "--port", str(free_port())],
        {"HOLDFAST_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        start=lambda command: execute(command, program),
    )
    assert "install the extra `otel`, or unset the variable" in said
