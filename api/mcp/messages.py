"""Messages of the protocol: what a client asks, and how it is answered or refused.

Two eras of the protocol come to one address. From 2026-07-28 on, each request says its version and what its client can
do. Before, a client began with a handshake; this server stores nothing of it, so each request of such a client stands
alone as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from starlette.responses import Response

from api.bounded_fields import as_object
from api.errors import Refusal, field_of
from api.waiting_calls import wire_waiting
from shared.process.importing import VERSION

SERVER_INFO: Final = {"name": "holdfast", "title": "Holdfast", "version": VERSION}
_SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"

TASKS: Final = "io.modelcontextprotocol/tasks"
"""The extension by which a call is answered with a task."""

RUN_ID: Final = "holdfast/runId"
"""The run of a call, in the `_meta` of its answer."""
RECEIPT: Final = "holdfast/receipt"
IDEMPOTENCY_KEY: Final = "holdfast/idempotencyKey"
"""A client's name for its call, in the request's `_meta`. A call that is sent again under it gives the first run."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021

JSON = "application/json"
SESSION_HEADER = "mcp-session-id"

RequestId = str | int


class RpcError(Exception):
    """A request that cannot be answered, in the protocol's own words."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        """Of the HTTP answer. None: the one that the protocol has for the code."""
        self.request_id: RequestId | None = None
        """The request that it answers, where that was read."""
        self.is_modern = True
        """As in `Asked`."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client."""

    id: RequestId
    method: str
    version: str
    params: Mapping[str, Any]
    is_modern: bool
    """It is of 2026-07-28 or later."""
    capabilities: Mapping[str, Any]
    """What its client can do. A client from before 2026-07-28 says it once, in the handshake; then this is empty."""
    session: str | None
    """The name that the handshake gave this client, which it sends with each request."""
    takes_streams: bool
    """Its client reads server-sent events."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's `_meta`."""
        return as_object(self.params.get("_meta")) or {}

    @property
    def takes_tasks(self) -> bool:
        """Whether its client understands an answer that is a task."""
        return self.is_modern and TASKS in (as_object(self.capabilities.get("extensions")) or {})

    @property
    def can_ask_people(self) -> bool:
        """Whether its client shows forms to a person."""
        forms = as_object(self.capabilities.get("elicitation"))
        return self.is_modern and forms is not None and (not forms or "form" in forms)

    @property
    def progress_token(self) -> RequestId | None:
        """The client wants to hear how the request gets on, under this name."""
        token = self.meta.get("progressToken")
        return token if isinstance(token, (str, int)) and not isinstance(token, bool) else None


class Told(msgspec.Struct, frozen=True):
    """A notification of a client, which gets no answer."""

    method: str
    params: Mapping[str, Any]
    session: str | None


class Rules(Protocol):
    """The protocol's rules: which versions there are, what each has, and what a request must look like."""

    def read(self, raw: Sequence[tuple[str, str]], body: bytes) -> Asked | Told:
        """The message in an HTTP request with these headers. Raises `RpcError`."""
        ...

    def negotiated(self, asked: Asked) -> str:
        """The version that a handshake ends with: the client's, or the newest one that has handshakes."""
        ...

    def versions(self) -> list[str]:
        """Every version that is served, oldest first."""
        ...

    def status_of(self, code: int, *, is_modern: bool) -> int:
        """The HTTP status of an error. Before 2026-07-28 a request that was read is answered with 200."""
        ...


_encoder = msgspec.json.Encoder()


def result_bytes(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    """The answer to a request."""
    meta = {_SERVER_INFO_KEY: SERVER_INFO, **result.get("_meta", {})}
    return _encoder.encode({"jsonrpc": "2.0", "id": request_id, "result": {**result, "_meta": meta}})


def error_body(request_id: RequestId | None, code: int, message: str, data: Any = None) -> dict[str, Any]:
    """The refusal of a request."""
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def error_bytes(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """The same as bytes."""
    return _encoder.encode(error_body(request_id, code, message, data))


def notification_bytes(method: str, params: Mapping[str, Any]) -> bytes:
    """A message of this server that gets no answer."""
    return _encoder.encode({"jsonrpc": "2.0", "method": method, "params": params})


def sse(message: bytes) -> bytes:
    """A message as an event of a stream."""
    return b"event: message\ndata: %b\n\n" % message


def answer(request_id: RequestId, result: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The HTTP answer with a result."""
    return Response(result_bytes(request_id, result), media_type=JSON, headers=headers)


_OF_STATUS = {400: INVALID_REQUEST, 404: INVALID_PARAMS, 405: INVALID_REQUEST, 409: INVALID_PARAMS}


def mcp_error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The status and the body with which this address refuses. The protocol has few codes; `data` has ours."""
    status = 400 if refusal.status == 422 else refusal.status
    code = _OF_STATUS.get(status, INTERNAL_ERROR if status >= 500 else INVALID_REQUEST)
    if refusal.flaws and refusal.flaws[0]["loc"][0] == "body":
        # The body was refused before anything looked for a request in it.
        code = PARSE_ERROR
    return status, error_body(None, code, refusal.message, data_of(refusal))


def data_of(refusal: Refusal) -> dict[str, Any]:
    """What a program decides by, beside the protocol's code."""
    waiting = {} if refusal.waiting is None else wire_waiting(refusal.waiting)
    hint = refusal.hint or waiting.get("resolve") or refusal.code.hint
    data: dict[str, Any] = {"code": refusal.code, "hint": hint, **waiting}
    field = field_of(refusal.flaws[0]["loc"]) if refusal.flaws else refusal.field
    if field is not None:
        data["field"] = field
    if refusal.run_id is not None:
        data["run_id"] = refusal.run_id
    if refusal.failure is not None:
        data |= refusal.failure._asdict()
    return data
