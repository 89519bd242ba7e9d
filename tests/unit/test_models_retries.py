"""When a failed call is tried again, and after how long."""

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import estimate_tokens
from tests.kit.runs.definitions import NOW
from worker.models.model_errors import status_error
from worker.models.provider import RetryPolicy


async def _sleep(_seconds: float) -> None: ...


def _policy(jitter: float = 0.0, retries: int = 10) -> RetryPolicy:
    return RetryPolicy(retries, _sleep, lambda: jitter)


def _error(*, retryable: bool = True, retry_after: float | None = None) -> ModelError:
    return ModelError(ModelErrorType.ERROR, "no", retryable=retryable, retry_after=retry_after)


def test_waits_double_and_are_capped() -> None:
    waits = [_policy().wait_before(attempt, _error()) for attempt in (1, 2, 3, 4, 9)]
    assert waits == [0.5, 1, 2, 4, 60]


def test_a_run_failed_after_four_seconds_because_its_server_loaded_the_model_for_half_a_minute() -> None:
    """llama.cpp's server answers so from its start on. An Ollama that cannot load one says it with a 500."""
    body = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
    loading, failed = (status_error(status, {}, body, provider="vllm", now=NOW) for status in (503, 500))
    assert [_policy().wait_before(attempt, loading) for attempt in (1, 2, 3, 4)] == [10, 20, 40, 60]
    assert _policy().wait_before(1, failed) == 0.5
    asked = status_error(503, {"retry-after": "3"}, body, provider="vllm", now=NOW)
    assert _policy().wait_before(1, asked) == 3


def test_what_the_provider_asks_for_comes_first() -> None:
    assert _policy().wait_before(5, _error(retry_after=0.05)) == 0.05
    assert _policy(jitter=1).wait_before(1, _error(retry_after=8)) == 10
    assert _policy(jitter=1).wait_before(1, _error(retry_after=60)) == 60
    assert _policy().wait_before(1, _error(retry_after=60.5)) is None


def test_when_it_is_final() -> None:
    assert _policy().wait_before(1, _error(retryable=False)) is None
    assert _policy(retries=2).wait_before(2, _error()) is not None
    assert _policy(retries=2).wait_before(3, _error()) is None
    assert _policy(retries=0).wait_before(1, _error()) is None


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("four", 1), ("fives", 2), ("x" * 400, 100)])
def test_tokens_are_about_a_quarter_of_the_characters(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens
