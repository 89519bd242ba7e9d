"""The OpenAPI document, with additions that FastAPI cannot know: the refusals of middlewares, the bodies of errors, and
which answers are streams.

Clients are generated from the document, and so are the fuzzer's requests. It must match the real answers.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Literal, NamedTuple

from fastapi import FastAPI
from pydantic import TypeAdapter

from api.access.authentication import SIGN_IN_RETURN, needs_key
from api.access.route_rules import CHAT
from api.request_log import MCP, is_of_api
from shared.domain.errors import ErrorCode

Json = dict[str, Any]

SOMETIMES_STREAMS = {
    ("post", "/v1/agents/{agent_id}/messages"),
    *(("post", path) for path in CHAT),
    ("post", "/v1/conversations/{conversation_id}/messages"),
    ("post", MCP),
    *(("post", f"{base}/v1/responses") for base in ("", "/openai")),
    *(("get", f"{base}/v1/responses/{{response_id}}") for base in ("", "/openai")),
}
BROWSERS_STREAM = ("get", "/v1/runs/{run_id}/stream")
"""The request of an EventSource. A 204 stops an EventSource that has read everything."""

AI_SDK = "/ai-sdk/"
"""The beginning of the paths whose errors are texts for the users of pages."""

AI_SDK_CHAT = ("post", "/ai-sdk/{agent_id}/chat")
AI_SDK_STREAM = ("get", "/ai-sdk/{agent_id}/chat/{chat_id}/stream")

READINESS = "/readyz"
"""The readiness check. Its 503 and its 200 have one body: the services that answer and those that are away."""

TYPES = "api.answers.operations"
"""The module with the types of answers. Only the document needs them, so a process starts without building them."""
REF = "#/components/schemas/{model}"
FRAMES_OF_MCP = "Server-sent events: the `data` of each is one of these as JSON; the last event is the answer."
FRAMES = "Server-sent events: the `data` of each is one of these as JSON; the last `data` is the text `[DONE]`."
FRAMES_OF_SIGN_IN = "Server-sent events: the `data` of each is one of these as JSON. `success` or `error` is the last."
FRAMES_OF_AG_UI = (
    "Server-sent events: the `data` of each is one of these as JSON. `RUN_FINISHED` or `RUN_ERROR` ends a run."
)
SIGN_IN = ("/v1/mcp-servers/connect/{mcp_server_id}", "/v1/tools/mcp/servers/connect")

KEY, STREAM_TOKEN, PAGE_TOKEN = "key", "stream_token", "page_token"
SECURITY_SCHEMES: Json = {
    KEY: {"type": "http", "scheme": "bearer", "description": "A key of this server: docs/operations/keys.md."},
    STREAM_TOKEN: {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "For one run's stream: POST /v1/runs/{run_id}/stream-token makes one.",
    },
    PAGE_TOKEN: {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "For one conversation: POST /v1/agents/{agent_id}/page-token makes one. It may also be sent in "
        "place of a key.",
    },
}
SERVERS = [
    {"url": "/", "description": "The server of this document"},
    {"url": "http://127.0.0.1:8283", "description": "`make dev`"},
]

REFUSALS: Mapping[str, str] = {
    "400": "The request is well-formed, but cannot be fulfilled.",
    "401": "The key is missing or unknown.",
    "403": "The key, or the origin of the request, does not permit it.",
    "404": "The object does not exist, or belongs to another project.",
    "408": "The body did not arrive in time.",
    "409": "The present state prevents it: a run, an approval, other content under the same name.",
    "413": "The body is longer than this server accepts.",
    "414": "The URL is longer than this server accepts.",
    "415": "The form is not sent as `multipart/form-data`.",
    "422": "The request does not have the form that this path requires.",
    "429": "Too many requests, at this server or at the model's provider.",
    "431": "The head is longer than this server accepts.",
    "500": "An error of this server, or of the model's provider.",
    "501": "The request uses a part of Letta's API that this server lacks.",
    "503": "A service behind this server is away. `Retry-After` has the seconds until the next try.",
    "502": "The model's provider refuses the server's key.",
    "504": "The model's provider did not answer in time.",
}
BODY_NOT_IN_TIME = "408"
OF_THE_HEAD = ("414", "431")
"""Statuses that the server sends before it knows the requested path."""
OF_A_MODEL = ("502", "504")
OF_A_FORM = ("415",)
READ_FORMS = {("post", "/v1/agents/import")}
OF_A_MANAGER = ("501",)
NAME_MANAGERS = {("post", "/v1/groups"), ("patch", "/v1/groups/{group_id}"), AI_SDK_CHAT}
NOT_OF_OPENAI = ("422",)
"""Statuses that OpenAI's paths never send: invalid bodies are a 400 there."""

REFUSAL: Json = {"$ref": "#/components/schemas/Refusal"}
TEXT = "text/plain"
SENTENCE: Json = {"type": "string", "description": "A sentence for the user; `x-holdfast-error` has the code."}

_ERROR_FIELDS: Json = {
    "code": {"description": "The code for programs: docs/errors.md.", "type": "string", "enum": list(ErrorCode)},
    "message": {"description": "One sentence.", "type": "string"},
    "field": {
        "description": "The field or parameter with the error.",
        "anyOf": [{"type": "string"}, {"type": "null"}],
    },
    "hint": {"description": "What to do.", "type": "string"},
}
_FLAW: Json = {
    "type": "object",
    "required": ["field", "message", "type"],
    "properties": {
        "field": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "message": {"type": "string"},
        "type": {"type": "string"},
    },
}

SCHEMAS: Mapping[str, Json] = {
    "Refusal": {
        "title": "Refusal",
        "description": "The reason for a refusal.",
        "type": "object",
        "required": ["detail", *_ERROR_FIELDS],
        "properties": {
            **_ERROR_FIELDS,
            "errors": {"description": "Flaws of a 422.", "type": "array", "items": _FLAW},
            "more_errors": {"description": "The number of further flaws.", "type": "integer"},
            "detail": {
                "description": "A sentence; if a run waits for a person, an object with the waiting calls.",
                "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": True}],
            },
            "run_id": {"description": "The run that prevents the request.", "type": "string"},
            "trace_id": {"type": "string"},
            "examples": {"description": "Well-formed ids.", "type": "array", "items": {"type": "string"}},
        },
    },
    "ModelFailure": {
        "title": "ModelFailure",
        "description": "The state of a run whose model failed.",
        "type": "object",
        "required": ["error", *_ERROR_FIELDS],
        "properties": {
            **_ERROR_FIELDS,
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {
                    "type": {"type": "string"},
                    "message": {"type": "string"},
                    "detail": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            },
        },
    },
    "OpenAIError": {
        "title": "OpenAIError",
        "description": "An error as OpenAI's clients read it.",
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "code": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "hint": {"type": "string"},
                },
            }
        },
    },
}
ENDS_RUNS = {
    *(one for one in SOMETIMES_STREAMS if "responses" not in one[1] and one[1] != MCP),
    ("post", "/v1/agents/{agent_id}/generate"),
    ("post", "/v1/agents/{agent_id}/summarize"),
    ("post", "/v1/agents/{agent_id}/tools/{tool_name}/run"),
    ("post", "/v1/conversations/{conversation_id}/compact"),
}
"""Operations that wait for a run and return the error of its model."""


def describe_truly(app: FastAPI, *, keys_are_required: bool) -> None:
    """Makes the application serve a document that matches its answers. It is built at the first request for it."""
    generated = app.openapi

    def described() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(generated(), keys_are_required=keys_are_required)
        return app.openapi_schema

    app.openapi = described


def _completed(document: Json, *, keys_are_required: bool) -> Json:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(SCHEMAS)
    types = AnswerTypes.of(import_module(TYPES).OPERATIONS)
    schemas.update(types.schemas)
    components["securitySchemes"] = SECURITY_SCHEMES
    document["servers"] = SERVERS
    for method, path, operation in _operations(document):
        if (method, path) in types.names:
            operation["operationId"] = types.names[method, path]
            _describe_answers(method, path, operation, types)
        if needs_key(path):
            ways = [KEY, *_tokens_of(method, path, operation)]
            # An empty requirement means that requests need no key.
            operation["security"] = [*({} for _ in range(not keys_are_required)), *({way: []} for way in ways)]
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return document


def _tokens_of(method: str, path: str, operation: Json) -> list[str]:
    """The tokens that an operation accepts in its query in place of a key."""
    if (method, path) == BROWSERS_STREAM:
        return [STREAM_TOKEN]
    return [PAGE_TOKEN] if any(one["name"] == "token" for one in operation.get("parameters", ())) else []


class AnswerTypes(NamedTuple):
    """The names and answer types of operations, as schemas."""

    names: Mapping[tuple[str, str], str]
    answers: Mapping[tuple[str, str], Json]
    frames: Mapping[tuple[str, str], Json]
    schemas: Json
    """Schemas to which the other schemas refer."""

    @classmethod
    def of(cls, operations: Mapping[tuple[str, str], Any]) -> "AnswerTypes":
        """Builds the schemas of these operations' types."""
        adapters: list[tuple[tuple[str, str, str], Literal["serialization"], TypeAdapter[Any]]] = []
        for (method, path), operation in operations.items():
            for kind, type_ in (("answer", operation.answer), ("frame", operation.frame)):
                if type_ is not None:
                    adapters.append(((method, path, kind), "serialization", TypeAdapter(type_)))
        made, whole = TypeAdapter.json_schemas(adapters, ref_template=REF)
        _drop_titles(whole)

        def all_of(wanted: str) -> dict[tuple[str, str], Json]:
            return {(method, path): schema for ((method, path, kind), _), schema in made.items() if kind == wanted}

        names = {place: operation.name for place, operation in operations.items()}
        return cls(names, all_of("answer"), all_of("frame"), whole["$defs"])


def _drop_titles(whole: Json) -> None:
    """Removes the titles of properties, which only repeat their names."""
    for schema in whole["$defs"].values():
        for inside in schema.get("properties", {}).values():
            inside.pop("title", None)


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def _describe_answers(method: str, path: str, operation: Json, types: AnswerTypes) -> None:
    responses: Json = operation["responses"]
    responses.pop("422", None)
    answer, frame = types.answers.get((method, path)), types.frames.get((method, path))
    if answer is not None or frame is not None:
        content = {} if answer is None else {"application/json": {"schema": answer}}
        stream = {} if frame is None else {"text/event-stream": {"schema": {"description": _frames_of(path), **frame}}}
        responses["200"]["content"] = content | stream
    if (method, path) == BROWSERS_STREAM:
        responses["204"] = {"description": "The stream has ended, and the client has all of it."}
    if (method, path) == AI_SDK_STREAM:
        responses["204"] = {"description": "No answer is at work, and none is after the cursor."}
    for status, description in REFUSALS.items():
        if path == READINESS and status == "503":
            responses[status] = {"description": description, "content": responses["200"]["content"]}
        elif _may_be(status, method, path):
            schema = REFUSAL if status in OF_THE_HEAD else _body_of(method, path)
            kind = TEXT if schema is SENTENCE else "application/json"
            responses[status] = {"description": description, "content": {kind: {"schema": schema}}}


def _frames_of(path: str) -> str:
    if path == MCP:
        return FRAMES_OF_MCP
    if path.startswith("/ag-ui/"):
        return FRAMES_OF_AG_UI
    return FRAMES_OF_SIGN_IN if path in SIGN_IN else FRAMES


def _may_be(status: str, method: str, path: str) -> bool:
    if path == SIGN_IN_RETURN:
        return status in ("400", "403", "404", "409", "422", "500", "503", *OF_THE_HEAD)
    if not is_of_api(path):
        return status in ("403", "422", "500", "503", *OF_THE_HEAD)
    if status == BODY_NOT_IN_TIME:
        return method != "get"
    if status in OF_A_FORM:
        return (method, path) in READ_FORMS
    if status in OF_A_MANAGER:
        return (method, path) in NAME_MANAGERS
    if status in OF_A_MODEL:
        return (method, path) in ENDS_RUNS
    if status in NOT_OF_OPENAI:
        return path != MCP and not _speaks_openai(path)
    return True


def _speaks_openai(path: str) -> bool:
    return path.startswith(("/v1/chat/", "/v1/responses", "/openai/"))


def _body_of(method: str, path: str) -> Json:
    if path == MCP:
        return {"$ref": "#/components/schemas/McpMessage"}
    if path.startswith(AI_SDK):
        return SENTENCE
    if _speaks_openai(path):
        return {"$ref": "#/components/schemas/OpenAIError"}
    if (method, path) in ENDS_RUNS:
        return {"anyOf": [REFUSAL, {"$ref": "#/components/schemas/ModelFailure"}]}
    return REFUSAL
