"""OpenAI's Chat Completions: where it is asked, and in whose name."""

from collections.abc import Callable

import httpx2

from shared.domain.errors import ModelError
from worker.models.chat_answer import ChatAnswer
from worker.models.chat_request import ChatRequest
from worker.models.provider import ModelCall, Route, WireRequest

_PATH = "/chat/completions"


class ChatWire:
    """A `DirectWire`."""

    def __init__(self, route: Route, new_call_id: Callable[[], str]) -> None:
        self.route = route
        self._request = ChatRequest(route)
        self._new_call_id = new_call_id
        # Azure's older addresses name the deployment in the path and want a version; its newer ones are like OpenAI's.
        self._names_deployment = bool(route.api_version) and not route.base_url.endswith("/v1")
        self.url = self._deployments_url() if self._names_deployment else _below(httpx2.URL(route.base_url), _PATH)

    def request(self, call: ModelCall) -> WireRequest:
        key = self.route.api_key
        headers = {"api-key": key} if self._names_deployment else {"authorization": f"Bearer {key}"}
        return WireRequest(headers, self._request.body(call))

    def request_after(self, call: ModelCall, error: ModelError) -> WireRequest | None:
        return None

    def answer(self, call: ModelCall) -> ChatAnswer:
        return ChatAnswer(call, self.route, self._new_call_id)

    def _deployments_url(self) -> httpx2.URL:
        base = httpx2.URL(self.route.base_url.removesuffix("/openai"))
        url = _below(base, f"/openai/deployments/{self.route.model}{_PATH}")
        return url.copy_merge_params({"api-version": self.route.api_version})


def _below(base: httpx2.URL, path: str) -> httpx2.URL:
    return base.copy_with(path=base.path.rstrip("/") + path)
