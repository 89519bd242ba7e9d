"""Which provider's rules a request is under: its path says so, as the provider's own server would see it."""

from collections.abc import Mapping
from typing import Any

from shared.provider_rules.anthropic_messages import check_anthropic
from shared.provider_rules.gemini_contents import check_gemini
from shared.provider_rules.openai_chat import check_openai_chat
from shared.provider_rules.openai_responses import check_openai_responses
from shared.provider_rules.violation import Violation

_CHECKS = {
    "/chat/completions": check_openai_chat,
    "/responses": check_openai_responses,
    "/messages": check_anthropic,
    ":generateContent": check_gemini,
    ":streamGenerateContent": check_gemini,
}


def check_request(path: str, body: Mapping[str, Any]) -> list[Violation]:
    """Every rule that a request to this URL or path breaks. Raises `ValueError` for a path that is no model call."""
    bare = path.partition("?")[0].rstrip("/")
    for ending, check in _CHECKS.items():
        if bare.endswith(ending):
            return check(body)
    raise ValueError(f"{path!r} is not a model call; known endings are {', '.join(_CHECKS)}")
