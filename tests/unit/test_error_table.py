"""Every error of the domain has its answer, in the wire's own words."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from structlog.testing import capture_logs

from api.application import ERROR_SHAPES
from api.errors import ERROR_ANSWERS, add_error_answers, domain_error_answer, model_error_answer
from api.letta.refusals import letta_error
from shared.domain import errors as domain
from shared.domain.approvals import WaitingCalls
from shared.domain.errors import ErrorCode
from shared.domain.ids import AgentId, ApprovalId, MessageId, RunId, ThreadId
from tests.kit.product import asgi_client


def everything_under(kind: type[domain.HoldfastError]) -> Iterator[type[domain.HoldfastError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from everything_under(child)


def test_every_error_is_in_the_table() -> None:
    ours = {kind for kind in everything_under(domain.HoldfastError) if kind.__module__ == domain.__name__}
    assert ours <= set(ERROR_ANSWERS)


async def answer_to(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """What a client gets when a route raises `error`."""
    app = FastAPI()
    add_error_answers(app, ERROR_SHAPES)

    async def fail() -> None:
        raise error

    app.add_api_route("/", fail)
    async with asgi_client(app) as client:
        answer = await client.get("/")
    return answer.status_code, answer.json(), dict(answer.headers)


CASES: list[tuple[Exception, int, Any]] = [
    (domain.NotFound("Agent with ID x not found"), 404, "Agent with ID x not found"),
    (domain.InvalidRequest("Invalid run ID format: x."), 400, "INVALID_ARGUMENT: Invalid run ID format: x."),
    (domain.WrongToolCalls(["a"], ["b"]), 400, "Invalid tool call IDs. Expected '['a']', but received '['b']'."),
    (domain.NothingToCancel("No active runs"), 409, "CONFLICT: No active runs"),
    (
        domain.StaleFence("run-1", 1, 2),
        409,
        "CONFLICT: run-1 was claimed again: this worker holds fence 1, the run has 2",
    ),
    (domain.LeaseLost(), 500, "An unknown error occurred"),
    (KeyError("secret"), 500, "An unknown error occurred"),
    (ConnectionRefusedError("10.0.0.1"), 503, "SERVICE_UNAVAILABLE: the database does not answer; try again"),
]


CODES: dict[type[domain.HoldfastError], ErrorCode] = {
    domain.BlockTooLong: ErrorCode.BLOCK_TOO_LONG,
    domain.NoPendingApproval: ErrorCode.NO_PENDING_APPROVAL,
    domain.WrongToolCalls: ErrorCode.WRONG_TOOL_CALLS,
    domain.NothingToCancel: ErrorCode.NOTHING_TO_CANCEL,
    domain.NameTaken: ErrorCode.IDEMPOTENCY_CONFLICT,
    domain.AlreadyDecided: ErrorCode.ALREADY_DECIDED,
    domain.StaleFence: ErrorCode.RUN_CHANGED,
}


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda value: str(value))
def test_a_program_knows_an_error_by_its_code(kind: type[domain.HoldfastError], code: ErrorCode) -> None:
    assert ERROR_ANSWERS[kind].code is code


@pytest.mark.parametrize(("error", "status", "detail"), CASES, ids=lambda value: type(value).__name__)
async def test_answers(error: Exception, status: int, detail: str) -> None:
    got, body, _ = await answer_to(error)
    assert (got, body["detail"]) == (status, detail)
    assert body["code"] in set(ErrorCode) and body["message"] and body["hint"]


async def test_a_pending_approval_says_how_to_resolve_it() -> None:
    error = domain.PendingApproval(
        WaitingCalls(
            run_id=RunId("run-1"),
            agent_id=AgentId("agent-1"),
            thread_id=ThreadId("agent-1"),
            message_id=MessageId("message-1"),
            tool_call_ids=["c"],
            approval_ids=[ApprovalId("approval-1")],
        )
    )

    status, body, _ = await answer_to(error)

    detail = body["detail"]
    assert status == 409
    assert (detail["code"], detail["pending_request_id"], detail["run_id"]) == (
        "PENDING_APPROVAL",
        "message-1",
        "run-1",
    )
    assert detail["message"].startswith("CONFLICT: Cannot send a new message: The agent is waiting for approval")
    assert (detail["tool_call_ids"], detail["approval_ids"]) == (["c"], ["approval-1"])
    assert "POST /v1/approvals/approval-1" in detail["resolve"]
    assert "/v1/agents/agent-1/messages" in detail["resolve"]
    assert "/v1/runs/run-1/cancel" in detail["resolve"]


async def test_a_busy_conversation_names_the_run() -> None:
    status, body, _ = await answer_to(domain.Busy(run_id="run-1"))
    assert (status, body["run_id"]) == (409, "run-1")
    assert "run-1" in body["detail"]


async def test_unavailable_says_when_to_come_back() -> None:
    status, _, headers = await answer_to(domain.Unavailable("Redis does not answer"))
    assert (status, headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize(
    ("error_type", "status"),
    [
        (domain.ModelErrorType.AUTHENTICATION, 502),
        (domain.ModelErrorType.RATE_LIMIT, 503),
        (domain.ModelErrorType.TIMEOUT, 504),
        (domain.ModelErrorType.BAD_REQUEST, 400),
        (domain.ModelErrorType.ERROR, 500),
    ],
)
async def test_a_model_error_keeps_the_providers_text(error_type: domain.ModelErrorType, status: int) -> None:
    got, body, _ = await answer_to(domain.ModelError(error_type, "their words"))
    assert got == status
    assert (body["error"]["type"], body["error"]["detail"], body["code"]) == (error_type, "their words", error_type)
    assert body["error"]["message"]


def test_a_full_context_is_a_bad_request() -> None:
    answer = model_error_answer("context_window_exceeded", "too long")
    status, body = letta_error(answer.refusal)
    assert status == 400
    assert (body["detail"], body["code"]) == ("CONTEXT_WINDOW_EXCEEDED: too long", ErrorCode.CONTEXT_WINDOW_EXCEEDED)


def test_a_statement_that_took_too_long_left_no_cause_in_the_log() -> None:
    """The driver's error has no words, and an operator could not tell it from a database that is away."""
    error = domain.Unavailable("the database does not answer; try again")
    error.__cause__ = TimeoutError()
    with capture_logs() as events:
        domain_error_answer("GET /v1/messages", error)
    assert [event["cause"] for event in events] == ["TimeoutError"]
