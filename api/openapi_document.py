"""The OpenAPI document, with what a framework cannot know: the refusals that come from elsewhere than a route, their
bodies, and which answers are streams.

Programs are generated from the document, and requests that test us are. It says what is answered.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from api.openai.errors import speaks_openai
from shared.domain.error_codes import ErrorCode

Json = dict[str, Any]

SOMETIMES_STREAMS = {
    ("post", "/v1/agents/{agent_id}/messages"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/chat/completions/chat/completions"),
    ("post", "/v1/conversations/{conversation_id}/messages"),
}
ALWAYS_STREAMS = {
    ("get", "/v1/runs/{run_id}/stream"),
    ("post", "/v1/agents/{agent_id}/messages/stream"),
    ("post", "/v1/conversations/{conversation_id}/stream"),
    ("post", "/v1/runs/{run_id}/stream"),
}
ENDS_WITHOUT_CONTENT = {("get", "/v1/runs/{run_id}/stream")}
"""An EventSource that has everything is told so by a 204."""

STREAM: Json = {"text/event-stream": {"schema": {"description": "Server-sent events, whose `data` is JSON."}}}

REFUSALS: Mapping[str, str] = {
    "400": "The request means something that cannot be done.",
    "401": "The key is missing or not ours.",
    "403": "The key, or where the request comes from, does not allow it.",
    "404": "There is no such thing, or it is another project's.",
    "408": "The body did not arrive in time.",
    "409": "Something else is in the way: a run, an approval, other content under the same name.",
    "413": "The body is longer than this server takes.",
    "414": "The URL is longer than this server takes.",
    "415": "The form is not sent as `multipart/form-data`.",
    "422": "The request is not what this path takes.",
    "429": "Too much at once, here or at the model's provider.",
    "431": "The head is longer than this server takes.",
    "500": "A fault of ours, or of the model's provider.",
    "503": "A service behind this server is away. `Retry-After` says when to come back.",
    "502": "The model's provider refuses the key that the server has for it.",
    "504": "The model's provider did not answer in time.",
}
WITH_BODY = ("408", "413")
OF_THE_HEAD = ("414", "431")
"""What the server says before anybody knows whom the request is for."""
OF_A_MODEL = ("502", "504")
OF_A_FORM = ("415",)
READ_FORMS = {("post", "/v1/agents/import")}
NOT_OF_OPENAI = ("422",)
"""What is wrong with a body is a 400 there."""

REFUSAL: Json = {"$ref": "#/components/schemas/Refusal"}

_ERROR_FIELDS: Json = {
    "code": {"description": "What a program can decide by: docs/errors.md.", "type": "string", "enum": list(ErrorCode)},
    "message": {"description": "One sentence.", "type": "string"},
    "field": {
        "description": "The field or parameter that the error is about.",
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
        "description": "Why a request was refused.",
        "type": "object",
        "required": ["detail", *_ERROR_FIELDS],
        "properties": {
            **_ERROR_FIELDS,
            "errors": {"description": "Each flaw of a 422.", "type": "array", "items": _FLAW},
            "detail": {
                "description": "A sentence; of a run that waits for a person, an object with what it waits for.",
                "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": True}],
            },
            "run_id": {"description": "The run that is in the way.", "type": "string"},
            "trace_id": {"type": "string"},
            "examples": {"description": "Ids as they should look.", "type": "array", "items": {"type": "string"}},
        },
    },
    "ModelFailure": {
        "title": "ModelFailure",
        "description": "What became of a run whose model failed.",
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
    *SOMETIMES_STREAMS,
    ("post", "/v1/agents/{agent_id}/summarize"),
    ("post", "/v1/agents/{agent_id}/tools/{tool_name}/run"),
    ("post", "/v1/conversations/{conversation_id}/compact"),
}
"""Operations that wait for a run and answer what its model has failed with."""


def describe_truly(app: FastAPI, *, keys_are_required: bool) -> None:
    """Has the application answer with a document that is true. It is made once, when somebody asks for it."""
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
    if keys_are_required:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for method, path, operation in _operations(document):
        _describe_answers(method, path, operation)
        asks_for_key = path.startswith("/v1/") and path != "/v1/health"
        if keys_are_required and asks_for_key:
            operation["security"] = [{"key": []}]
    return document


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def _describe_answers(method: str, path: str, operation: Json) -> None:
    responses: Json = operation["responses"]
    responses.pop("422", None)
    if (method, path) in ALWAYS_STREAMS:
        responses["200"]["content"] = STREAM
    elif (method, path) in SOMETIMES_STREAMS:
        responses["200"]["content"] |= STREAM
    if (method, path) in ENDS_WITHOUT_CONTENT:
        responses["204"] = {"description": "The stream has ended, and the client has all of it."}
    for status, description in REFUSALS.items():
        if _may_be(status, method, path):
            schema = REFUSAL if status in OF_THE_HEAD else _body_of(method, path)
            content = {"application/json": {"schema": schema}}
            responses[status] = {"description": description, "content": content}


def _may_be(status: str, method: str, path: str) -> bool:
    if not path.startswith("/v1/") or path == "/v1/health":
        return status in ("403", "500", "503", *OF_THE_HEAD)
    if status in WITH_BODY:
        return method != "get"
    if status in OF_A_FORM:
        return (method, path) in READ_FORMS
    if status in OF_A_MODEL:
        return (method, path) in ENDS_RUNS
    if status in NOT_OF_OPENAI:
        return not speaks_openai(path)
    return True


def _body_of(method: str, path: str) -> Json:
    if speaks_openai(path):
        return {"$ref": "#/components/schemas/OpenAIError"}
    if (method, path) in ENDS_RUNS:
        return {"anyOf": [REFUSAL, {"$ref": "#/components/schemas/ModelFailure"}]}
    return REFUSAL
