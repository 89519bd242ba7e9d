"""Where the addresses that callers choose lead, and where the operator's keys do not go with them."""

import base64
import json
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

import pytest

from shared.archival.archival_memory import EmbeddingClient
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.messages import AssistantMessage, ContentPart, ImageContent, Message, TextContent, UserMessage
from shared.network.addresses import AddressPolicy
from shared.network.checked_http import NetworkRules
from tests.kit.model_server.model_calls import GOOGLE, HANDLES, ask, call, history, models_on_server
from tests.kit.plain_answers import answering, ok, redirect
from worker.models.registry import Models
from worker.models.sdk_model import MOST_BYTES

HERE = NetworkRules(AddressPolicy(networks=(ip_network("127.0.0.1/32"),)))
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def _sent(messages: list[Message]) -> str:
    """The request to Gemini, which takes images as data."""
    async with models_on_server(network=HERE) as (server, models):
        await ask(models, call(GOOGLE, messages))
        return json.dumps(server.requests[0].body).replace("-", "+").replace("_", "/")


def _with_image(url: str) -> list[Message]:
    return history(UserMessage([TextContent("Look."), ImageContent(url=url)]))


@pytest.mark.parametrize(
    ("headers", "path"),
    [("content-type: image/png", "/picture"), ("content-type: binary/octet-stream", "/a.png?x"), ("a: b", "/a.png")],
)  # fmt: skip
async def test_an_image_is_fetched_from_its_address(headers: str, path: str) -> None:
    async with answering(ok(PIXEL, headers)) as (there, _), answering(redirect(there + path)) as (url, _):
        sent = await _sent(_with_image(url + path))
    assert base64.b64encode(PIXEL).decode().rstrip("=") in sent
    assert "image/png" in sent


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ok(b"<html>", "content-type: text/html"), "it is text/html"),
        (ok(b"?", "a: b"), "it is of an unknown type"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "the server answers 404"),
        (redirect("http://127.0.0.2:8000/x.png"), "127.0.0.2 is not at a public address"),
        (redirect("http://127.0.0.1:22/x.png"), "names port 22"),
        (ok(b"x" * (MOST_BYTES + 1)), f"it has more than {MOST_BYTES} bytes"),
    ],
)  # fmt: skip
async def test_what_is_no_image_to_be_had_is_said(answer: bytes, why: str) -> None:
    async with answering(answer) as (url, _):
        with pytest.raises(ModelError) as caught:
            await _sent(_with_image(f"{url}/picture?key=secret"))
    assert caught.value.error_type == ModelErrorType.BAD_REQUEST
    assert why in caught.value.message
    assert "secret" not in caught.value.message


async def test_images_of_one_request_share_a_limit() -> None:
    async with answering(ok(b"x" * (MOST_BYTES - 1))) as (url, asked):
        images: list[ContentPart] = [ImageContent(url=f"{url}/picture") for _ in range(4)]
        gone = history(UserMessage(images), AssistantMessage(text="Nice."), ("run-2", UserMessage("Yes.")))
        sent = await _sent(gone)
    assert len(asked) == 4
    assert sent.count("is no longer there") == 1


ENVIRONMENTS: Mapping[str, Any] = {
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", ""),
    "google_ai": ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", ""),
}


@pytest.mark.parametrize("handle", HANDLES)
async def test_a_key_goes_to_no_server_to_which_another_one_sends(handle: str) -> None:
    async with answering(ok(b"{}")) as (elsewhere, asked):
        moved = f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {elsewhere}/v1\r\ncontent-length: 0\r\n\r\n".encode()
        async with answering(moved) as (url, first):
            key_variable, url_variable, path = ENVIRONMENTS.get(handle.partition("/")[0], ENVIRONMENTS["openai"])
            environment = {key_variable: "secret", url_variable: url + path}
            models = Models(environment, first_event_timeout=180, idle_timeout=180, retries=0)
            with pytest.raises(ModelError):
                await ask(models, call(handle))
            await models.aclose()
            embeddings = EmbeddingClient({"OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": url + path})
            with pytest.raises(ModelError):
                await embeddings.embed("openai/text-embedding-3-small", ["x"])
            await embeddings.aclose()
    assert b"secret" in first[0]
    assert asked == []
