"""Messages of the protocol: clients' requests, results and errors.

One address serves two eras of the protocol. From 2026-07-28 on, each request contains its version and its client's
capabilities. Earlier clients begin with a handshake. This server stores nothing of a handshake, so the requests of
earlier clients are independent of each other, too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from starlette.responses import Response

from api.errors import Refusal, field_of, wire_waiting
from api.input_limits import as_object
from shared.process.importing import VERSION

SERVER_INFO: Final = {"name": "holdfast", "title": "Holdfast", "version": VERSION}
_SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"

TASKS: Final = "io.modelcontextprotocol/tasks"
"""The extension that answers a call with a task."""

RUN_ID: Final = "holdfast/runId"
"""The id of a call's run, in the `_meta` of its answer."""
RECEIPT: Final = "holdfast/receipt"

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
    """The protocol's error for a request."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        """The HTTP status. None: the protocol's status for the code."""
        self.request_id: RequestId | None = None
        """The id of the refused request, if it was read."""
        self.is_modern = True
        """As in `ClientRequest`."""


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client."""

    id: RequestId
    method: str
    version: str
    params: Mapping[str, Any]
    is_modern: bool
    """The request is of 2026-07-28 or later."""
    capabilities: Mapping[str, Any]
    """The client's capabilities. Empty for a client from before 2026-07-28, which sends them only in the handshake."""
    session: str | None
    """The name that the handshake gave this client. The client sends it with each request."""
    takes_streams: bool
    """The client accepts server-sent events."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's `_meta`."""
        return as_object(self.params.get("_meta")) or {}

    @property
    def takes_tasks(self) -> bool:
        """Whether the client understands a task as the answer."""
        return self.is_modern and TASKS in (as_object(self.capabilities.get("extensions")) or {})

    @property
    def can_ask_people(self) -> bool:
        """Whether the client shows forms to a person."""
        forms = as_object(self.capabilities.get("elicitation"))
        return self.is_modern and forms is not None and (not forms or "form" in forms)

    @property
    def progress_token(self) -> RequestId | None:
        """The client's name for progress notifications about the request; None if the client wants none."""
        token = self.meta.get("progressToken")
        return token if isinstance(token, (str, int)) and not isinstance(token, bool) else None


class ClientNotification(msgspec.Struct, frozen=True):
    """A notification of a client. It gets no answer."""

    method: str
    params: Mapping[str, Any]
    session: str | None


class Rules(Protocol):
    """The protocol's rules: its versions, their methods, and the form of requests."""

    def read(self, raw: Sequence[tuple[str, str]], body: bytes) -> ClientRequest | ClientNotification:
        """Reads the message in an HTTP request with these headers. Raises `RpcError`."""
        ...

    def negotiated(self, asked: ClientRequest) -> str:
        """Returns the version that a handshake agrees on: the client's, or the newest one with handshakes."""
        ...

    def versions(self) -> list[str]:
        """Returns every version that the server supports, oldest first."""
        ...

    def status_of(self, code: int, *, is_modern: bool) -> int:
        """Returns the HTTP status of an error. Before 2026-07-28 it is 200 for a request that was read."""
        ...


_encoder = msgspec.json.Encoder()


def result_bytes(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    """Encodes the result of a request."""
    meta = {_SERVER_INFO_KEY: SERVER_INFO, **result.get("_meta", {})}
    return _encoder.encode({"jsonrpc": "2.0", "id": request_id, "result": {**result, "_meta": meta}})


def error_body(request_id: RequestId | None, code: int, message: str, data: Any = None) -> dict[str, Any]:
    """The error of a request."""
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def error_bytes(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Encodes the error of a request."""
    return _encoder.encode(error_body(request_id, code, message, data))


def notification_bytes(method: str, params: Mapping[str, Any]) -> bytes:
    """Encodes a notification of this server."""
    return _encoder.encode({"jsonrpc": "2.0", "method": method, "params": params})


def sse(message: bytes) -> bytes:
    """A message as an event of a stream."""
    return b"event: message\ndata: %b\n\n" % message


def answer(request_id: RequestId, result: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The HTTP response with a result."""
    return Response(result_bytes(request_id, result), media_type=JSON, headers=headers)


_OF_STATUS = {400: INVALID_REQUEST, 404: INVALID_PARAMS, 405: INVALID_REQUEST, 409: INVALID_PARAMS}


def mcp_error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The status and the body of a refusal at this address. The protocol has few codes; `data` contains our code."""
    status = 400 if refusal.status == 422 else refusal.status
    code = _OF_STATUS.get(status, INTERNAL_ERROR if status >= 500 else INVALID_REQUEST)
    if refusal.flaws and refusal.flaws[0]["loc"][0] == "body":
        # A check refused the body before the API looked for a request in it.
        code = PARSE_ERROR
    return status, error_body(None, code, refusal.message, data_of(refusal))


def data_of(refusal: Refusal) -> dict[str, Any]:
    """The details for programs, beyond the protocol's code."""
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
