"""Reads HTTP requests by the rules of the official package. Importing the package takes a second, so other modules
import this one late.

The package knows the versions, the methods and parameters of each, and the headers that must agree with the body.
Holdfast does not use its server: that starts tasks and channels of its own for each request, its streams do not handle
the end of a process, and it cannot answer from a run's log. `docs/architecture.md` has the comparison.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import mcp_types
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    find_duplicated_routing_header,
)
from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from api.input_limits import as_object
from api.mcp.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    SESSION_HEADER,
    ClientNotification,
    ClientRequest,
    RequestId,
    RpcError,
)

UNSAID_VERSION = "2025-03-26"
"""The version of a request without a version header, which did not exist in this version of the protocol."""

LONGEST_NAME = 200
"""The most characters of ids and tokens, which answers and notifications repeat."""

OF_TASKS = ("tasks/get", "tasks/update", "tasks/cancel")
SERVED = frozenset({"initialize", "ping", "server/discover", "tools/list", "tools/call", *OF_TASKS})

_SHOWN_FLAWS = 5


class OfficialRules:
    """Implements `messages.Rules` with the official package."""

    def read(self, raw: Sequence[tuple[str, str]], body: bytes) -> ClientRequest | ClientNotification:
        """See `Rules`."""
        headers = dict(raw)
        document = _document(body)
        if "id" not in document:
            return _notification(headers, document)
        request = _request(document)
        try:
            return _asked(raw, headers, document, request)
        except RpcError as error:
            error.request_id, error.is_modern = request.id, _is_modern(headers)
            raise

    def negotiated(self, asked: ClientRequest) -> str:
        """See `Rules`."""
        wanted = asked.params.get("protocolVersion")
        return wanted if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION

    def versions(self) -> list[str]:
        """See `Rules`."""
        return [*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS]

    def status_of(self, code: int, *, is_modern: bool) -> int:
        """See `Rules`."""
        is_of_rpc = code in (INVALID_PARAMS, METHOD_NOT_FOUND)
        return 200 if is_of_rpc and not is_modern else ERROR_CODE_HTTP_STATUS.get(code, 200)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise RpcError(PARSE_ERROR, "The body is no JSON") from None
    if isinstance(document, list):
        raise RpcError(INVALID_REQUEST, "The body is a list of messages: send each in a request of its own")
    if not isinstance(document, dict):
        raise RpcError(INVALID_REQUEST, "The body must be one JSON-RPC request or notification")
    return cast("dict[str, Any]", document)


def _notification(headers: Mapping[str, str], document: dict[str, Any]) -> ClientNotification:
    try:
        notification = mcp_types.JSONRPCNotification.model_validate(document)
    except ValidationError as error:
        raise RpcError(INVALID_REQUEST, _flaws("The body is no JSON-RPC message", error)) from None
    return ClientNotification(notification.method, notification.params or {}, _session(headers))


def _request(document: dict[str, Any]) -> mcp_types.JSONRPCRequest:
    try:
        request = mcp_types.JSONRPCRequest.model_validate(document)
    except ValidationError as error:
        raise RpcError(INVALID_REQUEST, _flaws("The body is no JSON-RPC request", error)) from None
    _refuse_long(request.id, "id")
    return request


def _asked(
    raw: Sequence[tuple[str, str]],
    headers: Mapping[str, str],
    document: dict[str, Any],
    request: mcp_types.JSONRPCRequest,
) -> ClientRequest:
    is_modern = _is_modern(headers)
    capabilities: Any = {}
    if is_modern:
        _refuse_twice(raw)
        route = classify_inbound_request(document, headers=headers)
        if isinstance(route, InboundLadderRejection):
            raise RpcError(route.code, route.message, route.data)
        capabilities = route.client_capabilities
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER, UNSAID_VERSION)
    params = request.params or {}
    if request.method not in SERVED or (request.method in OF_TASKS and not is_modern):
        raise RpcError(METHOD_NOT_FOUND, f"This server has no method {request.method[:LONGEST_NAME]!r}")
    if request.method in OF_TASKS:
        _check_task(headers, request.method, params)
    else:
        _check(request.method, version, params)
    asked = ClientRequest(
        id=request.id,
        method=request.method,
        version=version,
        params=params,
        is_modern=is_modern,
        capabilities=as_object(capabilities) or {},
        session=_session(headers),
        takes_streams=_takes_streams(headers.get("accept", "")),
    )
    if asked.progress_token is not None:
        _refuse_long(asked.progress_token, "params._meta.progressToken")
    return asked


def _is_modern(headers: Mapping[str, str]) -> bool:
    said = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return said is not None and said not in HANDSHAKE_PROTOCOL_VERSIONS


def _check(method: str, version: str, params: dict[str, Any]) -> None:
    try:
        methods.validate_client_request(method, version, params)
    except KeyError:
        raise RpcError(METHOD_NOT_FOUND, f"Version {version} of the protocol has no method {method!r}") from None
    except ValidationError as error:
        raise RpcError(INVALID_PARAMS, _flaws(f"{method} does not take these params", error)) from None


def _check_task(headers: Mapping[str, str], method: str, params: Mapping[str, Any]) -> None:
    """Checks the parameters of the extension, which the package does not know."""
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise RpcError(INVALID_PARAMS, f"{method} needs params.taskId, a text")
    named = headers.get(MCP_NAME_HEADER)
    if named is not None and decode_header_value(named) != task_id:
        raise RpcError(HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} does not match params.taskId")
    if method == "tasks/update" and not isinstance(params.get("inputResponses"), dict):
        raise RpcError(INVALID_PARAMS, "tasks/update needs params.inputResponses, an object")


def _refuse_twice(raw: Sequence[tuple[str, str]]) -> None:
    twice = find_duplicated_routing_header(raw)
    if twice is not None:
        raise RpcError(HEADER_MISMATCH, f"The header {twice} is there more than once")


def _refuse_long(name: RequestId, place: str) -> None:
    # Python refuses to convert a number with thousands of digits to text.
    length = len(name) if isinstance(name, str) else name.bit_length() / 3
    if length > LONGEST_NAME:
        raise RpcError(INVALID_REQUEST, f"{place} is too long: {LONGEST_NAME} characters are allowed")


def _session(headers: Mapping[str, str]) -> str | None:
    session = headers.get(SESSION_HEADER, "")
    return session if 0 < len(session) <= LONGEST_NAME else None


def _takes_streams(accept: str) -> bool:
    kinds = [one.partition(";")[0].strip().lower() for one in accept.split(",") if one.strip()]
    return not kinds or any(kind in ("text/event-stream", "text/*", "*/*") for kind in kinds)


_KINDS = ("int", "str")
"""Parts of a flaw's place that name a kind of value."""


def _flaws(what: str, error: ValidationError) -> str:
    found = [
        f"{'.'.join(str(key) for key in flaw['loc'] if key not in _KINDS)}: {flaw['msg']}"[:LONGEST_NAME]
        for flaw in error.errors(include_url=False, include_input=False)[:_SHOWN_FLAWS]
    ]
    return f"{what}: {'; '.join(dict.fromkeys(found))}"
