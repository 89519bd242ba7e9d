"""What the SDKs raise, as `ModelError`: the only place that knows both. Imported with the first SDK, never before."""

from datetime import datetime
from http import HTTPStatus

import httpx2
from pydantic_ai import exceptions as sdk

from shared.domain.errors import ModelError, ModelErrorType
from worker.models.model_errors import CONTEXT_OVERFLOW, LONGEST_DETAIL, message_in, retry_after
from worker.models.special_tokens import sound

SDK_ERRORS: tuple[type[Exception], ...] = (
    sdk.AgentRunError,
    sdk.UserError,
    httpx2.HTTPError,
    httpx2.StreamError,
    httpx2.InvalidURL,
    # What parsing an answer that no provider should send comes to: bad JSON (also pydantic's ValidationError), missing
    # fields, a number where an object belongs.
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    RecursionError,
    OSError,
)
"""Each of these, out of an SDK, means that the call failed. Cancellation is none of them."""

_Meaning = tuple[ModelErrorType, bool]
"""How the call failed, and whether another try may help."""

_BY_CLASS: tuple[tuple[type[sdk.ModelAPIError], _Meaning], ...] = (
    (sdk.ModelContextWindowExceededError, (ModelErrorType.CONTEXT_WINDOW, False)),
    (sdk.ModelRateLimitError, (ModelErrorType.RATE_LIMIT, True)),
    (sdk.ModelQuotaExceededError, (ModelErrorType.RATE_LIMIT, False)),
    (sdk.ModelAuthenticationError, (ModelErrorType.AUTHENTICATION, False)),
    (sdk.ModelRequestTimeout, (ModelErrorType.TIMEOUT, False)),
    (sdk.ModelTimeoutError, (ModelErrorType.TIMEOUT, False)),
    (sdk.ModelUnavailableError, (ModelErrorType.ERROR, True)),
    (sdk.ModelServerError, (ModelErrorType.ERROR, True)),
    (sdk.ModelConnectionError, (ModelErrorType.ERROR, True)),
    (sdk.ModelRequestRejectedError, (ModelErrorType.BAD_REQUEST, False)),
)
"""First match wins; a class stands before those it derives from."""

_NEVER_OVERFLOW = (sdk.ModelRateLimitError, sdk.ModelQuotaExceededError, sdk.ModelAuthenticationError)
"""Their texts speak of too many tokens as well, but of tokens per minute."""


def as_model_error(error: Exception, now: datetime) -> ModelError:
    """The same failure in our terms, with the provider's own words as its detail. `now` is as in `retry_after`."""
    match error:
        case sdk.ModelAPIError():
            return _from_provider(error, now)
        case sdk.UserError():
            return ModelError(ModelErrorType.BAD_REQUEST, str(error)[:LONGEST_DETAIL])
        case httpx2.TimeoutException():
            return ModelError(ModelErrorType.TIMEOUT, _named(error))
        case httpx2.TransportError() | OSError():
            return ModelError(ModelErrorType.ERROR, _named(error), retryable=True)
        case _:
            return ModelError(ModelErrorType.ERROR, f"The model's answer could not be read: {_named(error)}")


def _from_provider(error: sdk.ModelAPIError, now: datetime) -> ModelError:
    detail = _detail(error)
    status = error.status_code if isinstance(error, sdk.ModelHTTPError) else None
    error_type, retryable = _meaning(error, status)
    if not isinstance(error, _NEVER_OVERFLOW) and CONTEXT_OVERFLOW.search(f"{error.provider_error_code} {detail}"):
        error_type, retryable = ModelErrorType.CONTEXT_WINDOW, False
    return ModelError(error_type, detail, retryable=retryable, retry_after=_retry_after(error, now), status=status)


def _retry_after(error: sdk.ModelAPIError, now: datetime) -> float | None:
    """As the headers say, read as on every wire; Google says it in the body, which the SDK reads."""
    headers = error.headers if isinstance(error, sdk.ModelHTTPError) and error.headers else {}
    asked = retry_after(headers, now)
    return error.retry_after if asked is None else asked


def _meaning(error: sdk.ModelAPIError, status: int | None) -> _Meaning:
    if status == HTTPStatus.REQUEST_TIMEOUT:
        return ModelErrorType.TIMEOUT, True
    if isinstance(error, sdk.ModelTimeoutError) and error.phase in ("pool", "connect"):
        return ModelErrorType.TIMEOUT, True
    # Without a category: a stream that ended early or could not be decoded.
    none: _Meaning = (ModelErrorType.ERROR, True)
    found = next((meaning for error_class, meaning in _BY_CLASS if isinstance(error, error_class)), none)
    is_refusal = status is not None and HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    # Some SDKs know the most common statuses only.
    return (ModelErrorType.BAD_REQUEST, False) if found[0] is ModelErrorType.ERROR and is_refusal else found


def _detail(error: sdk.ModelAPIError) -> str:
    text = message_in(error.body) or error.message
    cause = error.__cause__
    if isinstance(error, sdk.ModelConnectionError) and cause is not None:
        # "Connection error." alone helps nobody; the transport's own text is further down.
        deepest = _named(cause.__cause__ or cause)
        text = deepest if text in deepest else f"{text} ({deepest})"
    return sound(text)[:LONGEST_DETAIL]


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_DETAIL]
