"""Whether a provider would have accepted a request. The path determines the provider's rules, as for a server."""

from collections.abc import Mapping
from typing import Any

from tests.kit.model_server.server import ReceivedRequest
from tests.kit.provider_rules.anthropic_messages import check_anthropic
from tests.kit.provider_rules.gemini_contents import check_gemini
from tests.kit.provider_rules.openai_chat import check_openai_chat
from tests.kit.provider_rules.openai_responses import check_openai_responses
from tests.kit.provider_rules.violation import Violation

_CHECKS = {
    "/chat/completions": check_openai_chat,
    "/responses": check_openai_responses,
    "/messages": check_anthropic,
    ":generateContent": check_gemini,
    ":streamGenerateContent": check_gemini,
}

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "google": "/v1beta/models/some:streamGenerateContent",
}

ONE_OF_EACH_WIRE = (
    "openai/gpt-4o-mini",
    "openai/gpt-5",
    "anthropic/claude-haiku-4-5-20251001",
    "google_ai/gemini-2.5-flash",
)


def check_request(path: str, body: Mapping[str, Any]) -> list[Violation]:
    """Every rule that a request to this URL or path breaks. Raises `ValueError` for a path that is not a model call."""
    bare = path.partition("?")[0].rstrip("/")
    for ending, check in _CHECKS.items():
        if bare.endswith(ending):
            return check(body)
    raise ValueError(f"{path!r} is not a model call; known endings are {', '.join(_CHECKS)}")


def broken_rules(request: ReceivedRequest) -> list[Violation]:
    """The provider's rules that a request to the model server breaks; none, for one that it would accept."""
    return check_request(PATHS[request.wire], request.body)
