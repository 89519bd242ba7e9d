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
from worker.models.special_tokens import excerpt_of, read_json, whole_characters

LONGEST_DETAIL = 2000

SHORTEST_KEY = 8
"""Characters. A shorter value is not a key but a placeholder, and may occur in any text."""

LONGEST_PAUSE = 1e9
"""Seconds. A longer pause is read as this one; no run waits for either."""

_ERROR_STATUS = re.compile("[45][0-9]{2}")
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
"""Its comma belongs to an HTTP date, and does not separate values."""

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

_LESS_AT_ONCE = re.compile("request too large|must be reduced in order to run", re.IGNORECASE)
"""Words about a request that exceeds the tokens of a minute alone. Waiting does not help; a shorter request does."""

_ASKED_PAUSE = re.compile(rf"(?:try again|retry) (?:in|after) (?P<pause>{_DURATION.pattern})", re.IGNORECASE)
"""A pause in the words of an error. Errors inside a stream have no headers."""

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
    # Groq's: the model wrote output that cannot be read. Asked again, it may write something else.
    **dict.fromkeys(("tool_use_failed", "output_parse_failed", "json_validate_failed"), _SERVER),
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
    said = excerpt_of(body.decode(errors="replace"))
    text = fault.text or f"The server answers with the status {status} and no reason. {said}".rstrip()
    return _model_error(fault, text, status, provider, retry_after(headers, now))


def stream_error(error: object, *, provider: str) -> ModelError:
    """The error for an error object inside a stream."""
    fault = _fault_in(error)
    status = _STATUS_OF_CODE.get(fault.code) or _STATUS_OF_CODE.get(fault.kind)
    if status is None and _ERROR_STATUS.fullmatch(fault.code):
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


_PLACES_OF_TEXT = ("message", "error", "detail", "msg", "errors", "Message")


def message_in(body: object, levels: int = 8) -> str | None:
    """The text in a provider's error body, whose place differs. For a list, the texts of its first errors."""
    if isinstance(body, str):
        return body.strip() or None
    if isinstance(body, list):
        texts = (message_in(one, levels - 1) for one in cast("list[object]", body)[:3])
        return "; ".join(filter(None, texts)) or None
    if not isinstance(body, Mapping) or not levels:
        return None
    fields = cast("Mapping[str, Any]", body)
    error, where, metadata = (fields.get(name) for name in ("error", "loc", "metadata"))
    places = ("error", *_PLACES_OF_TEXT) if isinstance(error, Mapping | list) else _PLACES_OF_TEXT
    text = next((found for name in places if (found := message_in(fields.get(name), levels - 1))), None)
    if text and isinstance(where, list):  # the field that FastAPI's servers refuse
        return f"{'.'.join(map(str, cast('list[object]', where)))}: {text}"
    # OpenRouter passes on what the model's provider has answered.
    raw = cast("Mapping[str, Any]", metadata).get("raw") if isinstance(metadata, Mapping) else None
    further = message_in(_decoded(raw.encode(errors="replace")) if isinstance(raw, str) else raw, levels - 1)
    return f"{text} ({further})" if text and further and further not in text else text or further


def corrected(meaning: _Meaning, words: str) -> _Meaning:
    """Corrects the meaning of an error by its words: a request may have been too long. Errors of limits and keys
    mention too many tokens as well, but mostly those of a minute."""
    is_limit = meaning[0] in (ModelErrorType.RATE_LIMIT, ModelErrorType.AUTHENTICATION)
    return _OVERFLOW if (_LESS_AT_ONCE if is_limit else CONTEXT_OVERFLOW).search(words) else meaning


def pause_in(error_type: ModelErrorType, text: str) -> float | None:
    """The pause in seconds that the words of an error about a limit ask for."""
    found = _ASKED_PAUSE.search(text) if error_type is ModelErrorType.RATE_LIMIT else None
    return None if found is None else _duration(found["pause"])


def _model_error(fault: ProviderFault, text: str, status: int | None, provider: str, after: float | None) -> ModelError:
    text = whole_characters(text)
    error_type, retryable = corrected(_meaning(fault, text, status, provider), f"{fault.code} {fault.kind} {text}")
    after = pause_in(error_type, text) if after is None else after
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
        case HTTPStatus.CONFLICT | HTTPStatus.TOO_EARLY:
            return _SERVER  # the providers' SDKs try again after a 409 ("lock timeout"), and RFC 8470 after a 425
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
        text = body.decode(errors="replace")
        return excerpt_of(text) if text.lstrip().startswith("<") else text
