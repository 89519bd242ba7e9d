"""Asking embedding models, over OpenAI's wire: what Holdfast's chat models are reached by leads to these as well.

The client goes where the environment's base URLs say, with one pool of connections for the process. It tries once: what
it could not embed is not lost, and whoever asked decides when to ask again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

import httpx2
import msgspec

from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.model_providers import PROVIDERS, can_embed, split_handle
from shared.domain.model_servers import without_credentials
from shared.domain.vectors import Vector, unit_vector
from shared.network.checked_http import PUBLIC_ONLY, NetworkRules, operators_client

ANSWER_S = 10.0
"""Seconds for one answer. A client waits for it, so it is shorter than a chat model's."""
TEXTS_PER_CALL = 32
LONGEST_INPUT = 24_000
"""Characters of a text that are embedded, about 6,000 tokens of English: models take 8,191."""
MOST_DIMENSIONS = 16_000
"""pgvector stores no longer vector."""
_ERROR_CHARS = 500
_GOOGLE_PATH = "/v1beta/openai"
"""Where Google's server speaks OpenAI's wire."""

_TYPES: Mapping[int, ModelErrorType] = {
    HTTPStatus.UNAUTHORIZED: ModelErrorType.AUTHENTICATION,
    HTTPStatus.FORBIDDEN: ModelErrorType.AUTHENTICATION,
    HTTPStatus.REQUEST_TIMEOUT: ModelErrorType.TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS: ModelErrorType.RATE_LIMIT,
    HTTPStatus.BAD_REQUEST: ModelErrorType.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ModelErrorType.BAD_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY: ModelErrorType.BAD_REQUEST,
}
"""What is no request's own fault is an `ERROR`, a 404 too: a server may get the model later."""


class _Entry(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Entry]


class _Server(NamedTuple):
    """Where a handle leads."""

    model: str
    base_url: str
    key: str | None


class EmbeddingClient:
    """The embedding models that a process can ask."""

    def __init__(
        self, environment: Mapping[str, str], network: NetworkRules = PUBLIC_ONLY, *, answer_s: float = ANSWER_S
    ) -> None:
        self._environment = environment
        self._network = network
        self._answer_s = answer_s
        self._http: httpx2.AsyncClient | None = None

    async def embed(self, handle: str, texts: Sequence[str]) -> list[Vector]:
        """The vectors of up to `TEXTS_PER_CALL` texts, in order. Raises `ModelError`."""
        server = self._server(handle)
        if self._http is None:
            # Made at the first use: its TLS context costs 20 ms, and most deployments embed nothing.
            self._http = operators_client(self._network, timeout_s=self._answer_s)
        body = {"model": server.model, "input": [text[:LONGEST_INPUT] for text in texts]}
        headers = {"authorization": f"Bearer {server.key}"} if server.key else {}
        try:
            async with asyncio.timeout(self._answer_s):
                answer = await self._http.post(f"{server.base_url}/embeddings", json=body, headers=headers)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise _failed(ModelErrorType.TIMEOUT, f"no answer within {self._answer_s:g} s", server) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise _failed(ModelErrorType.ERROR, f"{type(error).__name__}: {error}", server) from error
        if not answer.is_success:
            said = f"status {answer.status_code}: {answer.text[:_ERROR_CHARS]}"
            raise _failed(_TYPES.get(answer.status_code, ModelErrorType.ERROR), said, server)
        return _vectors_in(answer.content, len(texts), server)

    async def aclose(self) -> None:
        """Closes every connection."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _server(self, handle: str) -> _Server:
        if not can_embed(handle):
            raise ModelError(
                ModelErrorType.BAD_REQUEST, f"The embedding model {handle!r} cannot be asked over OpenAI's wire."
            )
        name, model = split_handle(handle)
        provider = PROVIDERS[name]
        key, base_url = provider.key(self._environment), provider.base_url(self._environment)
        if provider.needs_key and key is None:
            [variable] = provider.addresses[0].key_variables
            said = f"The embedding model {handle!r} needs a key: set {variable}."
            raise ModelError(ModelErrorType.AUTHENTICATION, said)
        if base_url is None:
            variable = provider.addresses[0].url_variable
            raise ModelError(ModelErrorType.ERROR, f"The embedding model {handle!r} needs an address: set {variable}.")
        return _Server(model, base_url + _GOOGLE_PATH if provider.wire == "google" else base_url, key)


def _vectors_in(content: bytes, count: int, server: _Server) -> list[Vector]:
    try:
        entries = sorted(msgspec.json.decode(content, type=_Answer).data, key=lambda entry: entry.index)
        vectors = [unit_vector(entry.embedding) for entry in entries]
    except (msgspec.DecodeError, ValueError) as error:
        raise _failed(ModelErrorType.ERROR, f"no embeddings in the answer: {error}", server) from error
    lengths = {len(vector) for vector in vectors}
    if [entry.index for entry in entries] != list(range(count)) or len(lengths) != 1 or max(lengths) > MOST_DIMENSIONS:
        said = f"{len(vectors)} embeddings of {sorted(lengths)} numbers for {count} texts"
        raise _failed(ModelErrorType.ERROR, said, server)
    return vectors


def _failed(error_type: ModelErrorType, said: str, server: _Server) -> ModelError:
    return ModelError(error_type, f"{said} [The server that was asked: {without_credentials(server.base_url)}]")
