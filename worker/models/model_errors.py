"""A provider's errors as `ModelError`: a response with an error status, or an error inside a stream."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, cast

import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from worker.models.provider import LONGEST_WAIT, Route
from worker.models.special_tokens import read_json, whole_characters

LONGEST_DETAIL = 2000

SHORTEST_KEY = 8
"""Characters. A shorter value is not a key but a placeholder, and may occur in any text."""

LONGEST_PAUSE = 1e9
"""Seconds. A longer pause is read as this one, for which no run waits either."""

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?")
_NUMBER_OF_UNITS = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]+)\s*")
_DURATION = re.compile(f"(?:{_NUMBER_OF_UNITS.pattern})+")
"""A duration in the form of Go, `1m30s`, or protobuf, `10s`."""

_UNIT_S: Mapping[str, float] = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}

_WEEKDAY = re.compile(r"\b(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\s*,", re.IGNORECASE)
"""Its comma belongs to an HTTP date, and separates nothing."""

_ISO_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9].*")

CONTEXT_OVERFLOW = re.compile(
    r"maximum context length|reduce the length of the messages"
    r"|context[ _](length|size|window)[ _]?(is |was |has been )?exceed|exceed\w*[ _](the )?[\w' ]*context"
    r"|context (size|window|length) is (full|(only )?\d+)|context shift is disabled"
    r"|prompt is too long|input is too long|input token count.*exceeds the maximum"
    r"|input length and .?max_tokens.? exceed"
    r"|max(imum)? (prompt|input|sequence|model|total|allowed) ?(token|length|len)"
    r"|max_(model_len|seq_len|total_tokens|num_tokens|(model_)?prompt_tokens_exceeded|prompt_tokens)"
    r"|(prompt|input|request|payload|text|sequence|messages?|conversation)( you \w+)? ?(is|are|was|were)? ?(far )?too"
    r" (long|large|many)"
    r"|too many (input )?tokens"
    r"|(token|tokens|token count|prompt|input|sequence)\b[^.]{0,80}\b(exceed\w*|longer than|larger than|greater than)"
    r"[^.]{0,60}\b(limit|maximum|max|context|window|length)"
    r"|(exceed\w*|longer than|over) [^.]{0,60}\b(token limit|context|max\w* (token|length|input)\w*)"
    r"|tokens? \+ .{0,30}must be <=|requested token count"
    r"|(token|tokens|input|prompt|context) limit (is |was |has been )?exceeded|(input|prompt) characters limit is"
    r"|(token|tokens|token count|prompt|input|sequence|request)\b[^.]{0,60}\b(beyond|more than|over) (the )?(max|limit)"
    r"|(sequence length|tokens in (your|the) \w+) exceed|request exceed\w* (the )?max\w* (size|length)"
    r"|please (shorten|truncate|reduce) (your|the) (prompt|input|message)"
    r"|token count is \d+ but the model only supports|must have less than \d+ tokens|range of input length"
    r"|context (the )?overflows|context length of only"
    r"|\b(messages|input|prompt|instructions|system)\b[^:]{0,80}: string too long",
    re.IGNORECASE | re.DOTALL,
)

_Meaning = tuple[ModelErrorType, bool]
"""How the call failed, and whether a retry may help."""

_RATE_LIMIT: _Meaning = (ModelErrorType.RATE_LIMIT, True)
_NO_CREDIT: _Meaning = (ModelErrorType.RATE_LIMIT, False)
_AUTHENTICATION: _Meaning = (ModelErrorType.AUTHENTICATION, False)
_BAD_REQUEST: _Meaning = (ModelErrorType.BAD_REQUEST, False)
_SERVER: _Meaning = (ModelErrorType.ERROR, True)
_OVERFLOW: _Meaning = (ModelErrorType.CONTEXT_WINDOW, False)

_NO_CREDIT_CODES = frozenset(
    {
        *("insufficient_quota", "billing_hard_limit_reached", "credit_balance_exhausted", "billing_error"),
        *("organization_spend_limit_exceeded", "project_spend_limit_exceeded", "organization_usage_limit_exceeded"),
    }
)
"""OpenAI's and Anthropic's codes for an account without credit: waiting does not help."""

_NO_CREDIT_WORDS = re.compile(
    r"credit balance is too low|(insufficient|not enough|out of|requires more) (credit|balance|quota|fund)s?",
    re.IGNORECASE,
)
"""For errors without such a code."""

_ZAI_NO_CREDIT_CODES = frozenset({"1113", *(str(code) for code in (*range(1308, 1312), *range(1313, 1321)))})
"""Z.ai sends an exhausted balance or plan with a 429, as it does a rate limit (docs.z.ai, "API codes")."""

_MEANING_OF_CODE: Mapping[str, _Meaning] = {
    "invalid_api_key": _AUTHENTICATION,
    "model_not_found": _BAD_REQUEST,
    "context_length_exceeded": _OVERFLOW,
}

_STATUS_OF_CODE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    **dict.fromkeys(_NO_CREDIT_CODES, 429),
    "api_error": 500,
    "server_error": 500,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
    "server_is_overloaded": 503,
    "overloaded": 503,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status for an error's code or type that providers send before a stream begins, for errors inside a stream."""


class ProviderFault(msgspec.Struct, frozen=True):
    """An error in a provider's words."""

    text: str | None
    code: str = ""
    kind: str = ""
    """The field `type`."""
    flagged: bool = False
    """A gateway's moderation has refused the user's message."""


def status_error(status: int, headers: Mapping[str, str], body: bytes, *, provider: str, now: datetime) -> ModelError:
    """The error for a response with an error status. `now` is as in `retry_after`."""
    fault = _fault_in(_decoded(body))
    text = fault.text or f"The server answers with the status {status} and no reason."
    return _model_error(fault, text, status, provider, retry_after(headers, now))


def stream_error(error: object, *, provider: str) -> ModelError:
    """The error for an error object inside a stream."""
    fault = _fault_in(error)
    status = _STATUS_OF_CODE.get(fault.code) or _STATUS_OF_CODE.get(fault.kind)
    if status is None and fault.code.isdecimal() and 400 <= int(fault.code) < 600:
        status = int(fault.code)  # gateways send the status itself as the code
    return _model_error(fault, fault.text or "An error occurred during streaming", status, provider, None)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The pause in seconds that the provider asks for; None if it asks for none, or if the value cannot be parsed.
    `now` is our time, for a provider that sends an absolute time without its own clock's time.

    Of several values the longest counts: a proxy and the server behind it may each have sent one.
    """
    clock = _moment(headers.get("date", "")) or now
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = _WEEKDAY.sub("", headers.get(name, "")).split(",")
        pauses = [pause for one in said if (pause := _pause_in(one.strip(), unit_s, clock)) is not None]
        if pauses:
            return min(max(pauses), LONGEST_PAUSE)
    return None


def _pause_in(text: str, unit_s: float, clock: datetime) -> float | None:
    """Seconds. `unit_s` is the unit, in seconds, of a number without one."""
    if _NUMBER.fullmatch(text):
        return float(text) * unit_s
    if _DURATION.fullmatch(text):
        return _duration(text)
    until = _moment(text)
    return None if until is None else max(0.0, (until - clock).total_seconds())


def _duration(text: str) -> float | None:
    parts = [(float(number), _UNIT_S.get(unit.lower())) for number, unit in _NUMBER_OF_UNITS.findall(text)]
    known = [number * unit_s for number, unit_s in parts if unit_s is not None]
    return sum(known) if len(known) == len(parts) else None


def _moment(text: str) -> datetime | None:
    try:
        is_iso = _ISO_MOMENT.fullmatch(text)
        moment = datetime.fromisoformat(text.upper()) if is_iso else parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def named(error: ModelError, route: Route, hint: str = "") -> ModelError:
    """Returns the error with the provider's name and the requested pause. Only the worker knows which of several
    servers it has called. If a server quotes the key in its error, the key is removed."""
    said = error.message if len(route.api_key) < SHORTEST_KEY else error.message.replace(route.api_key, "[key]")
    return ModelError(
        error.error_type,
        f"{said}{_asked_pause(error.retry_after)}{hint} [Asked: {route.asked}]",
        retryable=error.retryable,
        retry_after=error.retry_after,
        status=error.status,
    )


def _asked_pause(seconds: float | None) -> str:
    if seconds is None:
        return ""
    too_long = "" if seconds <= LONGEST_WAIT else f"; runs wait for {LONGEST_WAIT:g} s at most"
    return f" [It asks for a pause of {seconds:.15g} s{too_long}.]"


def message_in(body: object) -> str | None:
    """The text in a provider's error body; its place differs: `message`, or `error.message`, or a list of one such."""
    if isinstance(body, list) and body:
        return message_in(cast("list[object]", body)[0])
    if not isinstance(body, Mapping):
        return body.strip() or None if isinstance(body, str) else None
    fields = cast("Mapping[str, Any]", body)
    inner = fields.get("error")
    if isinstance(inner, Mapping | list):
        return message_in(cast("object", inner))
    message = fields.get("message") or inner or fields.get("detail")
    return message if isinstance(message, str) else None


def _model_error(fault: ProviderFault, text: str, status: int | None, provider: str, after: float | None) -> ModelError:
    text = whole_characters(text)
    error_type, retryable = _meaning(fault, text, status, provider)
    if error_type not in (ModelErrorType.RATE_LIMIT, ModelErrorType.AUTHENTICATION):
        # These errors also mention too many tokens, but tokens per minute.
        error_type, retryable = (
            _OVERFLOW if CONTEXT_OVERFLOW.search(f"{fault.code} {fault.kind} {text}") else (error_type, retryable)
        )
    return ModelError(error_type, text[:LONGEST_DETAIL], retryable=retryable, retry_after=after, status=status)


def _meaning(fault: ProviderFault, text: str, status: int | None, provider: str) -> _Meaning:
    if status == HTTPStatus.REQUEST_TIMEOUT:
        return ModelErrorType.TIMEOUT, True
    codes = (fault.code, fault.kind)
    if any(code in _NO_CREDIT_CODES for code in codes) or _NO_CREDIT_WORDS.search(text):
        return _NO_CREDIT
    if provider == "zai" and fault.code in _ZAI_NO_CREDIT_CODES:
        return _NO_CREDIT
    if fault.flagged:
        return _BAD_REQUEST
    if any("overloaded" in code.lower() or "over capacity" in code.lower() for code in codes):
        return _SERVER
    return _MEANING_OF_CODE.get(fault.code) or _meaning_of_status(status)


def _meaning_of_status(status: int | None) -> _Meaning:
    match status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return _AUTHENTICATION
        case HTTPStatus.PAYMENT_REQUIRED:
            return _NO_CREDIT
        case HTTPStatus.TOO_MANY_REQUESTS:
            return _RATE_LIMIT
        case int() if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return _BAD_REQUEST
        case _:
            # Without a status: a stream that ended early.
            return _SERVER


def _fault_in(body: object) -> ProviderFault:
    text = message_in(body)
    error = body
    while isinstance(error, Mapping) and isinstance(inner := cast("Mapping[str, Any]", error).get("error"), Mapping):
        error = cast("object", inner)
    if not isinstance(error, Mapping):
        return ProviderFault(text)
    fields = cast("Mapping[str, Any]", error)
    code, kind, metadata = fields.get("code"), fields.get("type"), fields.get("metadata")
    return ProviderFault(
        text,
        code=str(code) if isinstance(code, str | int) else "",
        kind=kind if isinstance(kind, str) else "",
        flagged=isinstance(metadata, Mapping) and ("flagged_input" in metadata or "reasons" in metadata),
    )


def _decoded(body: bytes) -> object:
    try:
        return cast("object", read_json(body))
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
