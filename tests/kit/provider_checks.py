"""Whether the real providers would have accepted what the model server was sent."""

from typing import Any

from shared.provider_rules.request import check_request
from tests.kit.model_server.server import ReceivedRequest

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


def broken_rules(request: ReceivedRequest) -> list[Any]:
    """The provider's rules that a request breaks; none, for one that it would accept."""
    return list(check_request(PATHS[request.wire], request.body))
