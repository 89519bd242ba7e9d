"""Anthropic's Messages: where they are asked."""

from collections.abc import Callable

import httpx2

from shared.domain.errors import ModelError
from worker.models.anthropic_answer import AnthropicAnswer
from worker.models.anthropic_request import AnthropicRequest
from worker.models.provider import ModelCall, Route, WireRequest


class AnthropicWire:
    """A `DirectWire`."""

    def __init__(self, route: Route, new_call_id: Callable[[], str]) -> None:
        self.route = route
        base = httpx2.URL(route.base_url)
        self.url = base.copy_with(path=base.path.rstrip("/") + "/v1/messages")
        self._request = AnthropicRequest(route)
        self._new_call_id = new_call_id

    def request(self, call: ModelCall) -> WireRequest:
        return self._request.first(call)

    def request_after(self, call: ModelCall, error: ModelError) -> WireRequest | None:
        return self._request.after(call, error)

    def answer(self, call: ModelCall) -> AnthropicAnswer:
        return AnthropicAnswer(call, self.route, self._new_call_id)
