"""Maps errors to HTTP. A route, a check or a middleware raises an error or makes a `Refusal`, in words of no dialect.
One table maps each error to a status, and the request's path selects the dialect that renders the answer."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from api.request_log import HEADER as REQUEST_ID
from api.request_log import request_id
from shared.domain import errors as domain
from shared.domain.approvals import WaitingCalls
from shared.domain.errors import ErrorCode, code_of, error_fields
from shared.domain.ids import UUID4_PATTERN, is_id
from shared.domain.limits import LimitReached
from shared.process.service_answers import RETRY_AFTER_S
from shared.sql.engine import DATABASE_ERRORS, as_ours

_FLAWS_IN_SENTENCE = 10
_PREFIX = re.compile(r"[A-Z_]{4,}: ")
MOST_FLAWS = 20
"""The most flaws of one request that an answer shows: a body has room for a hundred thousand."""


class Failure(NamedTuple):
    """The error of a failed run that a request waited for."""

    error_type: str
    detail: str | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request is refused."""

    status: int
    code: ErrorCode
    message: str
    """A sentence."""
    detail: str | None = None
    """The sentence after a word in capitals, or in the framework's words, where older programs expect that."""
    field: str | None = None
    hint: str = ""
    """The advice to the client. Empty: the text for the error code."""
    run_id: str | None = None
    """The run that prevents the request, or that goes on."""
    waiting: WaitingCalls | None = None
    """The calls that need decisions first."""
    flaws: Sequence[Mapping[str, Any]] = ()
    """Validation errors as pydantic reports them."""
    failure: Failure | None = None


ErrorShape = Callable[[Refusal], tuple[int, dict[str, Any] | str]]
"""Renders a refusal in a dialect: the status and the body of the answer. A plain text is for a person, so the code is
then in the header `ERROR_HEADER`."""

ERROR_HEADER = "x-holdfast-error"
"""The header of a refusal in plain text: its code, in capitals."""


ErrorShapes = Mapping[str, ErrorShape]
"""The error shapes of the API's dialects, by path prefix. The longest match wins."""

SHAPES = "error_shapes"
"""The attribute of an application's state that holds its `ErrorShapes`."""


def shape_of(shapes: ErrorShapes, path: str) -> ErrorShape:
    """The shape of errors for a request to this path; that of `/` for the target of `OPTIONS *`, which is no path."""
    return shapes[max((one for one in shapes if path.startswith(one)), key=len, default="/")]


class RefusalAnswer(Response):
    """The answer to a refused request. It is rendered while it is sent, in the dialect of the request's path."""

    def __init__(self, refusal: Refusal, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status_code=refusal.status)
        del self.headers["content-length"]
        self.refusal = refusal
        self.more = headers or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body = shape_of(getattr(scope["app"].state, SHAPES), scope["path"])(self.refusal)
        headers = {**self.headers, **self.more}
        if isinstance(body, str):
            coded = {**headers, ERROR_HEADER: self.refusal.code.upper()}
            answer = PlainTextResponse(body, status, coded, background=self.background)
        else:
            answer = JSONResponse(body, status, headers, background=self.background)
        await answer(scope, receive, send)


def plain_body(
    code: ErrorCode, detail: object, message: str = "", *, field: str | None = None, hint: str = "", **more: object
) -> dict[str, Any]:
    """The body of an error where no dialect has its own form: `detail`, and the fields of every error. `message` is the
    sentence if `detail` is not one. `more` are further fields."""
    sentence = message or without_prefix(str(detail))
    return {"detail": detail, **error_fields(code, sentence, field=field, hint=hint), **more}


def without_prefix(detail: str) -> str:
    """The sentence of a detail without its leading word in capitals."""
    return _PREFIX.sub("", detail, count=1)


def sentence_of(found: Sequence[Mapping[str, Any]]) -> str:
    """The first ten flaws of a request in one sentence, each after its place."""
    said = ((field_of(one["loc"]), text_of(one)) for one in found[:_FLAWS_IN_SENTENCE])
    return "; ".join(f"{place}: {text}" if place else text for place, text in said)


def field_of(loc: Sequence[Any]) -> str | None:
    """A place that pydantic reports, as programs write it: `messages[0].role` in the body, `query.limit` elsewhere.
    None: the whole body."""
    place = place_of(loc[1:] if loc and loc[0] == "body" else loc, "")
    return showable(place.removeprefix(".")) or None


def place_of(keys: Sequence[Any], whole: str) -> str:
    """A place inside `whole` as programs write it: `agents[0].name`."""
    return whole + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def text_of(flaw: Mapping[str, Any]) -> str:
    """The text of a flaw."""
    return showable(str(flaw["msg"]).removeprefix("Value error, ").replace(UUID4_PATTERN, "{uuid4}"))


def showable(text: str) -> str:
    """The text without lone surrogates, which JSON in UTF-8 cannot contain."""
    return text.encode(errors="backslashreplace").decode()


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LONGEST_PATH, LONGEST_METHOD = 200, 20
"""Characters of a request's path and method that a sentence repeats."""

Headers = Mapping[str, str] | None

SHOULD_RETRY = "x-should-retry"
"""The header by which Letta's SDKs decide whether to retry. Without it they retry every 409, 429 and 5xx."""


class ErrorAnswer(NamedTuple):
    """The answer for an error: a status, a code, and a prefix of the sentence where older programs expect one.
    `passes`: the same request may succeed a moment later."""

    status: int
    code: ErrorCode
    prefix: str = ""
    passes: bool = False


LONGEST_DETAIL = 4000
"""Characters. An error may repeat a part of the request, which may be megabytes."""


UNKNOWN = "An unknown error occurred"
"""The only text that a client gets for an internal error."""

_INVALID, _CONFLICT, _AWAY = "INVALID_ARGUMENT", "CONFLICT", "SERVICE_UNAVAILABLE"
_NEVER_HERE = ErrorAnswer(500, ErrorCode.INTERNAL_ERROR)
"""Errors that end a run inside a worker. If a route raises one, that is an internal error."""

ERROR_ANSWERS: dict[type[domain.HoldfastError], ErrorAnswer] = {
    domain.HoldfastError: _NEVER_HERE,
    domain.NotFound: ErrorAnswer(404, ErrorCode.NOT_FOUND),
    domain.DeletedRun: ErrorAnswer(404, ErrorCode.NOT_FOUND),
    domain.UnknownModel: ErrorAnswer(404, ErrorCode.MODEL_NOT_FOUND),
    domain.UnknownHandle: ErrorAnswer(404, ErrorCode.NOT_FOUND),
    domain.InvalidRequest: ErrorAnswer(400, ErrorCode.INVALID_ARGUMENT, _INVALID),
    domain.UnknownPrevious: ErrorAnswer(400, ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND),
    domain.InvalidCursor: ErrorAnswer(422, ErrorCode.INVALID_ARGUMENT, _INVALID),
    domain.BlockTooLong: ErrorAnswer(422, ErrorCode.BLOCK_TOO_LONG, _INVALID),
    domain.InvalidToolSource: ErrorAnswer(400, ErrorCode.INVALID_TOOL_SOURCE, _INVALID),
    domain.UnknownTools: ErrorAnswer(400, ErrorCode.TOOLS_NOT_FOUND),
    domain.NoPendingApproval: ErrorAnswer(400, ErrorCode.NO_PENDING_APPROVAL),
    domain.WrongToolCalls: ErrorAnswer(400, ErrorCode.WRONG_TOOL_CALLS),
    domain.Conflict: ErrorAnswer(409, ErrorCode.CONFLICT, _CONFLICT),
    domain.NothingToCancel: ErrorAnswer(409, ErrorCode.NOTHING_TO_CANCEL, _CONFLICT),
    domain.PendingApproval: ErrorAnswer(409, ErrorCode.PENDING_APPROVAL, _CONFLICT),
    domain.AlreadyDecided: ErrorAnswer(409, ErrorCode.ALREADY_DECIDED, _CONFLICT),
    domain.NameTaken: ErrorAnswer(409, ErrorCode.IDEMPOTENCY_CONFLICT),
    domain.HistoryWentOn: ErrorAnswer(409, ErrorCode.CONFLICT, _CONFLICT),
    domain.DecidedOtherwise: ErrorAnswer(409, ErrorCode.CONFLICT, _CONFLICT),
    domain.Busy: ErrorAnswer(409, ErrorCode.CONVERSATION_BUSY, passes=True),
    LimitReached: ErrorAnswer(429, ErrorCode.RATE_LIMITED, "RATE_LIMITED", passes=True),
    domain.LifecycleError: ErrorAnswer(409, ErrorCode.RUN_CHANGED, _CONFLICT, passes=True),
    domain.IllegalTransition: ErrorAnswer(409, ErrorCode.RUN_CHANGED, _CONFLICT, passes=True),
    domain.StaleFence: ErrorAnswer(409, ErrorCode.RUN_CHANGED, _CONFLICT, passes=True),
    domain.RunInterrupted: _NEVER_HERE,
    domain.CancelRequested: _NEVER_HERE,
    domain.LeaseLost: _NEVER_HERE,
    domain.MoreInput: _NEVER_HERE,
    domain.LogClosed: _NEVER_HERE,
    domain.QuarantineRequired: _NEVER_HERE,
    domain.OtherVersion: _NEVER_HERE,
    domain.RunTimeout: _NEVER_HERE,
    domain.BudgetExceeded: _NEVER_HERE,
    domain.ShutdownRequested: _NEVER_HERE,
    domain.ModelError: _NEVER_HERE,  # `model_error_answer` decides by its type
    domain.McpServerUnavailable: ErrorAnswer(502, ErrorCode.MCP_SERVER_UNAVAILABLE, "MCP_SERVER_UNAVAILABLE"),
    domain.McpSignInNeeded: ErrorAnswer(502, ErrorCode.MCP_SIGN_IN_NEEDED, "MCP_SIGN_IN_NEEDED"),
    domain.UnreadableSecret: _NEVER_HERE,
    domain.Unavailable: ErrorAnswer(503, ErrorCode.SERVICE_UNAVAILABLE, _AWAY, passes=True),
    domain.Unusable: ErrorAnswer(503, ErrorCode.SERVICE_UNAVAILABLE, _AWAY, passes=True),
}

_MODEL_STATUS: Mapping[str, int] = {
    # A 401 or a 429 would concern the caller's own key, not the provider's.
    domain.ModelErrorType.AUTHENTICATION: 502,
    domain.ModelErrorType.RATE_LIMIT: 503,
    domain.ModelErrorType.TIMEOUT: 504,
    domain.ModelErrorType.BAD_REQUEST: 400,
    domain.ModelErrorType.ERROR: 500,
}


def model_error_answer(error_type: str, detail: str | None, message: str | None = None) -> RefusalAnswer:
    """The answer for a run that failed with this error type. A type that is not a model's is a 500.

    The worker has already retried the model. A client that sent the message again would start another run.
    """
    headers = {SHOULD_RETRY: "false"}
    said = message or domain.MODEL_ERROR_MESSAGES.get(error_type, "An error occurred with the LLM request.")
    code = code_of(error_type)
    if error_type in (domain.ModelErrorType.CONTEXT_WINDOW, domain.ModelErrorType.INSTRUCTIONS):
        sentence = f"{said} {detail}" if detail and detail not in said else said
        whole = f"CONTEXT_WINDOW_EXCEEDED: {detail or message}"
        return RefusalAnswer(Refusal(status=400, code=code, message=sentence, detail=whole), headers)
    status, failure = _MODEL_STATUS.get(error_type, 500), Failure(error_type, detail)
    return RefusalAnswer(Refusal(status=status, code=code, message=said, failure=failure), headers)


def add_error_answers(app: FastAPI, shapes: ErrorShapes) -> None:
    """Registers the table and the dialects' error shapes with the application."""
    setattr(app.state, SHAPES, shapes)
    app.add_exception_handler(domain.HoldfastError, answer_domain_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    for foreign in DATABASE_ERRORS:
        app.add_exception_handler(foreign, _answer_database_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(HTTPStatus.METHOD_NOT_ALLOWED, _answer_wrong_method)
    app.add_exception_handler(Exception, _answer_unknown_error)


async def answer_domain_error(request: Request, error: Exception) -> RefusalAnswer:
    """The answer to a request that ended in a domain error."""
    return domain_error_answer(f"{request.method} {request.url.path}", error)


def domain_error_answer(asked: str, error: Exception) -> RefusalAnswer:
    """The answer for a domain error. `asked` is the method and the path, for the log."""
    if isinstance(error, domain.ModelError):
        return model_error_answer(error.error_type, error.message)
    kind = next(kind for kind in type(error).__mro__ if kind in ERROR_ANSWERS)
    answer = ERROR_ANSWERS[kind]
    is_anothers = answer.status == HTTPStatus.BAD_GATEWAY
    if answer.status == 503:
        log.warning("request_unavailable", request=asked, reason=str(error), cause=_cause(error))
    elif answer.status >= 500 and not is_anothers:
        log.error("request_failed", request=asked, exc_info=error)
    # The other server may have acted on the request.
    headers = {SHOULD_RETRY: "true"} if answer.passes else {SHOULD_RETRY: "false"} if is_anothers else {}
    if answer.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, LimitReached):
        headers["Retry-After"] = str(error.retry_after_s)
    return RefusalAnswer(_refusal_of(answer, error), headers)


def _refusal_of(answer: ErrorAnswer, error: Exception) -> Refusal:
    if answer is _NEVER_HERE or not isinstance(error, domain.HoldfastError):
        return Refusal(status=answer.status, code=answer.code, message=UNKNOWN)
    hint = "GET /v1/models lists models that can be named." if isinstance(error, domain.UnknownHandle) else ""
    return Refusal(
        status=answer.status,
        code=answer.code,
        message=_shortened(error.message),
        detail=_shortened(f"{answer.prefix}: {error.message}") if answer.prefix else None,
        field=error.field,
        hint=hint,
        run_id=error.run_id if isinstance(error, domain.Busy | domain.NameTaken) else None,
        waiting=error.waiting if isinstance(error, domain.PendingApproval) else None,
    )


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_DETAIL else text[:LONGEST_DETAIL] + "…"


def _cause(error: BaseException) -> str:
    """The service's own message, without a traceback: during an outage every request logs it."""
    cause = error.__cause__
    return " ".join((str(cause) or type(cause).__name__ if cause else "no cause").split())[:200]


async def _answer_database_error(request: Request, error: Exception) -> RefusalAnswer:
    ours = as_ours(error)
    if ours is None:
        return await _answer_unknown_error(request, error)
    ours.__cause__ = error
    return await answer_domain_error(request, ours)


async def _answer_unknown_error(request: Request, error: Exception) -> RefusalAnswer:
    log.error("request_failed", request=f"{request.method} {request.url.path}", exc_info=error)
    # This answer passes no middleware.
    refusal = Refusal(status=500, code=ErrorCode.INTERNAL_ERROR, message=UNKNOWN)
    # Starlette raises the error again after the answer, and the server then closes the connection. The header announces
    # that to the client.
    return RefusalAnswer(refusal, {"Connection": "close", REQUEST_ID: request_id()})


async def _answer_wrong_method(request: Request, error: Exception) -> RefusalAnswer:
    # A path may have several routes, and the first one knows only its own methods.
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = (route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    allowed = {method for methods in found for method in methods}
    takes = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
    sentence = f"{request.url.path[:LONGEST_PATH]} does not take {request.method[:LONGEST_METHOD]}, but {takes}"
    return refused(405, ErrorCode.METHOD_NOT_ALLOWED, "Method Not Allowed", sentence, headers={"Allow": takes})


class Refused(HTTPException):
    """Raised by a check before a route to refuse the request."""

    def __init__(
        self, status: int, code: ErrorCode, detail: str, *, field: str | None = None, headers: Headers = None
    ) -> None:
        super().__init__(status, detail, headers)
        self.code = code
        self.field = field

    def answer(self) -> RefusalAnswer:
        """The answer to the request."""
        return refused(self.status_code, self.code, self.detail, field=self.field, headers=self.headers)


def refused(
    status: int,
    code: ErrorCode,
    detail: str,
    message: str = "",
    *,
    field: str | None = None,
    headers: Headers = None,
    run_id: str | None = None,
) -> RefusalAnswer:
    """The answer to a refused request. `message` is the sentence if `detail` is not one."""
    said = message or without_prefix(detail)
    refusal = Refusal(status=status, code=code, message=said, detail=detail, field=field, run_id=run_id)
    return RefusalAnswer(refusal, headers)


_OF_STATUS = {404: ErrorCode.PATH_NOT_FOUND, 413: ErrorCode.BODY_TOO_LARGE, 415: ErrorCode.UNSUPPORTED_MEDIA_TYPE}
"""Codes for the framework's refusals. Its only other refusal, of an unreadable form, is a 400."""


async def _answer_http_exception(request: Request, error: Exception) -> RefusalAnswer:
    if isinstance(error, Refused):
        return error.answer()
    found = cast("HTTPException", error)
    status = found.status_code
    if found.detail.startswith("NOT_FOUND: "):
        return refused(status, ErrorCode.NOT_FOUND, found.detail, headers=found.headers)
    at_all = ErrorCode.INTERNAL_ERROR if status >= 500 else ErrorCode.INVALID_ARGUMENT
    code = _OF_STATUS.get(status, at_all)
    is_path = code is ErrorCode.PATH_NOT_FOUND
    sentence = f"There is no path {request.url.path[:LONGEST_PATH]} on this server" if is_path else ""
    if isinstance(error.__cause__, UnicodeDecodeError):
        if (answer := _refusal_of_encoding(request)) is not None:
            return answer
        sentence = f"The body is not valid UTF-8: {error.__cause__.reason} at byte {error.__cause__.start}"
    return refused(status, code, found.detail, sentence, headers=found.headers)


def _refusal_of_encoding(request: Request) -> RefusalAnswer | None:
    """The answer to a body that cannot be read because it is compressed."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() == "identity":
        return None
    said = f"The API reads no body with Content-Encoding {encoding[:LONGEST_PATH]!r}: send it without compression"
    return refused(415, ErrorCode.UNSUPPORTED_MEDIA_TYPE, said, field="header.Content-Encoding")


async def _answer_validation_error(request: Request, error: Exception) -> RefusalAnswer:
    flaws = list(_readable(cast("RequestValidationError", error).errors()))
    is_unread = any(flaw["type"] == "json_invalid" for flaw in flaws)
    return (_refusal_of_encoding(request) if is_unread else None) or input_refusal(flaws)


_KIND = re.compile(r"str|(?:list|dict)\[.*")
"""A part of a flaw's place that names one of the kinds of values that a field accepts."""


def _readable(found: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The framework's flaws, with their places in the request, and with the reason for a body that is not JSON."""
    places = [tuple[str | int, ...](flaw["loc"]) for flaw in found]
    inside = {loc[:place] for loc in places for place, key in enumerate(loc[:-1]) if _is_kind(key)}
    for flaw, loc in zip(found, places, strict=True):
        if flaw["type"] == "json_invalid":
            said = f"The body is not valid JSON: {flaw['ctx']['error']} at character {loc[-1]}"
            yield {**flaw, "loc": loc[:1], "msg": said}
        elif loc == ("body",) and isinstance(flaw.get("input"), bytes):
            yield {**flaw, "msg": "The body was not read as JSON: send the header Content-Type: application/json"}
        elif not (_is_kind(loc[-1]) and loc[:-1] in inside):
            # Otherwise the value is of the field's other kind, and another flaw names the error inside of it.
            yield {**flaw, "loc": tuple(key for key in loc if not _is_kind(key))}


def _is_kind(key: str | int) -> bool:
    return isinstance(key, str) and _KIND.fullmatch(key) is not None


def input_refusal(found: Sequence[Mapping[str, Any]], code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> RefusalAnswer:
    """The answer to a request in which pydantic, or an earlier check, has found these flaws."""
    return RefusalAnswer(Refusal(status=422, code=code, message=sentence_of(found), flaws=found))


# The calls that wait for decisions, in the form that all answers share: refusals, refused runs and parked runs.


BY_A_PERSON = '{"decision": "approve"} or {"decision": "deny"}'
BY_THE_CLIENT = '{"decision": "tool_return", "tool_return": "…"} or {"decision": "deny"}'
"""Bodies of a decision on one call, by the tool's kind: the client runs its own tools, so it cannot approve them."""


def wire_waiting(waiting: WaitingCalls) -> dict[str, Any]:
    """The names of the waiting calls, and the requests that decide them."""
    return {
        "pending_request_id": waiting.message_id,
        "run_id": waiting.run_id,
        "tool_call_ids": waiting.tool_call_ids,
        "approval_ids": waiting.approval_ids,
        "resolve": _how_to_resolve(waiting),
    }


def _how_to_resolve(waiting: WaitingCalls) -> str:
    """The requests as text, with bodies that can be sent unchanged."""
    of_people = [approval_id for approval_id in waiting.approval_ids if approval_id not in waiting.client_side]
    one = [
        f"{_paths(ids)} with {bodies}"
        for ids, bodies in ((of_people, BY_A_PERSON), (waiting.client_side, BY_THE_CLIENT))
        if ids
    ]
    in_conversation = is_id(waiting.thread_id, "conv")
    history = f"conversations/{waiting.thread_id}" if in_conversation else f"agents/{waiting.agent_id}"
    items = [
        {"type": "tool", "tool_call_id": call_id, "tool_return": "…", "status": "success"}
        if approval_id in waiting.client_side
        else {"type": "approval", "tool_call_id": call_id, "approve": True}
        for call_id, approval_id in zip(waiting.tool_call_ids, waiting.approval_ids, strict=True)
    ]
    together = json.dumps({"messages": [{"type": "approval", "approvals": items}]}, ensure_ascii=False)
    return (
        f"{'; '.join(one)}; all of them at once by POST /v1/{history}/messages with {together}; "
        f"or POST /v1/runs/{waiting.run_id}/cancel"
    )


def _paths(approval_ids: Sequence[str]) -> str:
    return " or ".join(f"POST /v1/approvals/{approval_id}" for approval_id in approval_ids)
