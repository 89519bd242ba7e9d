"""Conformance of dialects in their errors: every kind of refusal, in every dialect of the table.

A new dialect brings its line to `CARRIES`: where its errors have what a program decides by.
"""

import json
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI

from api.ai_sdk.chats import ai_sdk_error
from api.application import ERROR_SHAPES
from api.errors import (
    ErrorShape,
    Refusal,
    RefusalAnswer,
    add_error_answers,
    input_refusal,
    model_error_answer,
    refused,
    shape_of,
)
from api.letta.refusals import letta_error
from api.mcp.messages import mcp_error
from api.openai.chat_request import openai_error
from api.openai.response_object import responses_error
from shared.domain.approvals import WaitingCalls
from shared.domain.errors import ErrorCode
from shared.domain.ids import AgentId, ApprovalId, MessageId, RunId, ThreadId

WAITING = WaitingCalls(
    run_id=RunId("run-1"),
    agent_id=AgentId("agent-1"),
    thread_id=ThreadId("agent-1"),
    message_id=MessageId("message-1"),
    tool_call_ids=["c"],
    approval_ids=[ApprovalId("approval-1")],
)
FLAW: dict[str, Any] = {
    "type": "missing",
    "loc": ("body", "messages", 0, "content"),
    "msg": "Field required",
    "input": {},
}


class Carried(NamedTuple):
    """Where a dialect's error says what every dialect's says."""

    path: str
    """A path of the dialect."""
    inside: str
    """The object of the body that has the fields; empty: the body itself."""
    field: str
    """The name under which it has the field that is wrong."""
    of_flaws: int
    """The status for a body that is wrong."""
    of_conflicts: int = 409
    """The status for what does not fit the present state."""

    details: str = ""
    """The object beside the message that has the other fields; empty: they stand beside it."""

    def said(self, body: dict[str, Any]) -> dict[str, Any]:
        """The fields of the error."""
        error = body[self.inside] if self.inside else body
        return {**error, **error[self.details]} if self.details else error


TEXTS: dict[ErrorShape, str] = {ai_sdk_error: "/ai-sdk/agent-1/chat"}
"""The dialects whose errors are a sentence for the user of a page, each with a path."""

CARRIES: dict[ErrorShape, Carried] = {
    letta_error: Carried("/v1/agents", inside="", field="field", of_flaws=422),
    openai_error: Carried("/v1/chat/completions", inside="error", field="param", of_flaws=400),
    # OpenAI's SDKs send again what a 409 has refused.
    responses_error: Carried("/openai/v1/responses", inside="error", field="param", of_flaws=400, of_conflicts=400),
    mcp_error: Carried("/mcp", inside="error", field="field", of_flaws=400, details="data"),
}

ANSWERS: dict[str, RefusalAnswer] = {
    "plain": refused(403, ErrorCode.FORBIDDEN, "FORBIDDEN: not this key", field="agent_id"),
    "in the way": refused(409, ErrorCode.CONVERSATION_BUSY, "run-1 is active", run_id="run-1"),
    "waits": RefusalAnswer(
        Refusal(
            status=409,
            code=ErrorCode.PENDING_APPROVAL,
            message="It waits",
            detail="CONFLICT: It waits",
            waiting=WAITING,
        )
    ),
    "away": refused(503, ErrorCode.SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE: away", headers={"Retry-After": "2"}),
    "flaws": input_refusal([FLAW]),
    "unknown field": input_refusal([FLAW], ErrorCode.UNKNOWN_FIELD),
    "model": model_error_answer("llm_rate_limit", "their words"),
    "too long": model_error_answer("context_window_exceeded", "8,000 tokens are too many"),
}


async def _sent(answer: RefusalAnswer, path: str) -> httpx.Response:
    app = FastAPI()
    add_error_answers(app, ERROR_SHAPES)
    app.add_api_route(path, lambda: answer)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://holdfast") as http:
        return await http.get(path)


def test_every_dialect_has_a_line_here() -> None:
    assert set(CARRIES) | set(TEXTS) == set(ERROR_SHAPES.values())


@pytest.mark.parametrize("shape", CARRIES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_refusal_says_the_same_in_every_dialect(shape: ErrorShape, kind: str) -> None:
    carried, answer = CARRIES[shape], ANSWERS[kind]
    refusal = answer.refusal

    sent = await _sent(answer, carried.path)

    body = sent.json()
    assert sent.headers["content-type"] == "application/json"
    expected = carried.of_conflicts if refusal.status == 409 else refusal.status
    assert sent.status_code == (carried.of_flaws if refusal.flaws else expected)
    said = carried.said(body)
    assert said["code"], "a program decides by it"
    assert said["hint"], "a person reads it"
    assert said["message"].startswith(refusal.message)
    if refusal.field is not None:
        assert said[carried.field] == refusal.field
    if refusal.flaws:
        assert "content" in said[carried.field]
    if refusal.run_id is not None:
        assert refusal.run_id in json.dumps(body)
    if refusal.waiting is not None:
        assert "POST /v1/approvals/approval-1" in json.dumps(body), "it says how to go on"
    if refusal.failure is not None:
        assert str(refusal.failure.detail) in json.dumps(body)


@pytest.mark.parametrize("shape", TEXTS, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_refusal_as_a_text_is_the_sentence_and_the_code_is_in_a_header(shape: ErrorShape, kind: str) -> None:
    sent = await _sent(ANSWERS[kind], TEXTS[shape])
    refusal = ANSWERS[kind].refusal
    assert sent.headers["content-type"].startswith("text/plain")
    assert (sent.status_code, sent.text) == (refusal.status, refusal.message)
    assert sent.headers["x-holdfast-error"] == refusal.code.upper()
    if kind == "away":
        assert sent.headers["retry-after"] == "2"


@pytest.mark.parametrize("shape", CARRIES, ids=lambda shape: shape.__name__)
async def test_the_headers_of_a_refusal_are_the_same_in_every_dialect(shape: ErrorShape) -> None:
    path = CARRIES[shape].path
    assert (await _sent(ANSWERS["away"], path)).headers["retry-after"] == "2"
    assert (await _sent(ANSWERS["model"], path)).headers["x-should-retry"] == "false"


def test_a_path_belongs_to_the_dialect_with_the_longest_beginning() -> None:
    assert shape_of(ERROR_SHAPES, "/v1/chat/completions/nowhere") is openai_error
    assert shape_of(ERROR_SHAPES, "/openai/v1/chat/completions") is openai_error
    assert shape_of(ERROR_SHAPES, "/v1/chats") is letta_error
    assert shape_of(ERROR_SHAPES, "/v1/responses/resp_1") is responses_error
    assert shape_of(ERROR_SHAPES, "/") is letta_error
