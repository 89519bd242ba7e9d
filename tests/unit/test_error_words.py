"""What a provider's error says, wherever it says it, and what follows from its words."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from worker.models.model_errors import status_error, stream_error

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def refused(status: int, body: Any, **headers: str) -> ModelError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status_error(status, headers, content, provider="openai_compatible", now=NOW)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503, 529])
def test_a_lock_of_the_provider_ended_the_run_where_its_sdk_tries_again(status: int) -> None:
    assert refused(status, {"error": {"message": "Try again."}}).retryable


def routed(raw: object) -> dict[str, Any]:
    metadata = {"raw": raw, "provider_name": "Together"}
    return {"error": {"message": "Provider returned error", "code": 400, "metadata": metadata}}


UPSTREAM = {"error": {"message": "The image is too small.", "type": "invalid_request_error"}}


@pytest.mark.parametrize("raw", [json.dumps(UPSTREAM), UPSTREAM, "The image is too small.", [UPSTREAM]])
def test_what_the_models_provider_said_was_lost_behind_a_router(raw: object) -> None:
    error = refused(400, routed(raw))
    assert error.message == "Provider returned error (The image is too small.)"
    assert error.error_type is ModelErrorType.BAD_REQUEST


@pytest.mark.parametrize("raw", [None, "", {}, 5, True, [], "Provider returned error"])
def test_a_router_that_passes_nothing_on_is_quoted_itself(raw: object) -> None:
    assert refused(400, routed(raw)).message == "Provider returned error"


def test_a_context_that_was_too_long_behind_a_router_was_no_overflow() -> None:
    raw = json.dumps({"error": {"message": "prompt is too long: 213462 tokens > 200000 maximum"}})
    assert refused(400, routed(raw)).error_type is ModelErrorType.CONTEXT_WINDOW


MISSING: dict[str, Any] = {"type": "missing", "loc": ["body", "messages", 0], "msg": "Field required", "input": {}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"detail": [MISSING]}, "body.messages.0: Field required"),
        ({"detail": [MISSING, {**MISSING, "loc": ["body", "model"]}]}, "Field required; body.model: Field required"),
        ({"object": "error", "message": {"detail": [MISSING]}}, "body.messages.0: Field required"),
        ({"detail": {"message": "No such thing."}}, "No such thing."),
        ({"errors": [{"message": "AiError: Bad input", "code": 5006}], "success": False}, "AiError: Bad input"),
        ({"Message": "The token is expired."}, "The token is expired."),
        ({"error": ["Model is loading"]}, "Model is loading"),
        ({"error": {"type": "x"}, "message": "Outer words."}, "Outer words."),
        ({"code": 1004, "status_msg": "login fail"}, 'no reason. {"code": 1004, "status_msg": "login fail"}'),
        (b"upstream connect error or disconnect", "upstream connect error"),
    ],
)
def test_the_words_of_an_error_were_no_reason(body: Any, words: str) -> None:
    assert words in refused(422, body).message


def test_an_error_without_a_word_says_its_status() -> None:
    assert refused(500, b"").message == "The server answers with the status 500 and no reason."


PAGE = b"""<!DOCTYPE html><html><head><title>api.example.com | 524: A timeout occurred</title><style>
body { color: red } </style></head><body><script>var secret = 1</script><h1>A timeout occurred</h1></body></html>"""


@pytest.mark.parametrize("status", [403, 502, 524, 529])
def test_a_page_was_shown_with_its_markup(status: int) -> None:
    error = refused(status, b"\n" + PAGE)
    assert error.message == "api.example.com | 524: A timeout occurred A timeout occurred"
    assert error.retryable is (status > 500)


def test_errors_in_errors_without_end_are_read_to_a_depth() -> None:
    body: Any = "Words."
    for _ in range(400):
        body = {"error": body}
    assert refused(400, body).error_type is ModelErrorType.BAD_REQUEST


AT_ONCE = (
    "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 33011. The "
    "input or output tokens must be reduced in order to run successfully."
)
IN_A_MINUTE = (
    "Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Used 29000, Requested "
    "3000. Please try again in {}. Visit https://platform.openai.com/account/rate-limits to learn more."
)


def test_a_request_that_alone_exceeds_the_tokens_of_a_minute_was_sent_again_as_it_was() -> None:
    body = {"error": {"message": AT_ONCE, "type": "tokens", "code": "rate_limit_exceeded"}}
    for error in (refused(429, body), stream_error(body["error"], provider="openai")):
        assert (error.error_type, error.retryable) == (ModelErrorType.CONTEXT_WINDOW, False)


PAUSES = {
    "20s": 20.0,
    "11.054s": 11.054,
    "250ms": 0.25,
    "1m2.5s": 62.5,
    "6m0s": 360.0,
    "58 seconds": 58.0,
    "2 minutes": 120.0,
    "a moment": None,
    "5 moons": None,
}


@pytest.mark.parametrize("said", PAUSES)
def test_a_pause_that_only_the_words_asked_for_was_not_kept(said: str) -> None:
    body = {"error": {"message": IN_A_MINUTE.format(said), "code": "rate_limit_exceeded"}}
    for error in (refused(429, body), stream_error(body["error"], provider="openai")):
        assert (error.error_type, error.retryable) == (ModelErrorType.RATE_LIMIT, True)
        assert error.retry_after == PAUSES[said]
    assert refused(429, body, **{"retry-after": "3"}).retry_after == 3.0


def test_a_pause_in_the_words_of_another_error_is_no_order() -> None:
    assert refused(400, {"error": {"message": "The prompt says: try again in 20s"}}).retry_after is None


@pytest.mark.parametrize("code", ["tool_use_failed", "output_parse_failed", "json_validate_failed"])
def test_an_answer_that_groq_could_not_read_was_not_asked_for_again(code: str) -> None:
    error = {"message": "Failed to call a function. See 'failed_generation'.", "type": "x", "code": code}
    for found in (refused(400, {"error": error}), stream_error(error, provider="groq")):
        assert (found.error_type, found.retryable) == (ModelErrorType.ERROR, True)


def test_a_page_of_markup_without_an_end_took_the_square_of_its_length() -> None:
    assert "Gone" in str(refused(503, b"<html>Gone " + b"<script>" * 100_000))
