"""The models that the operator's own servers list: gateways, Ollama, vLLM, LM Studio.

The client requests OpenAI's `GET /models` from all servers at once, at most once per interval and within limits of time
and size. If a server does not answer, the list has the well-known models of its provider, with a note. The client sends
no request to a provider's default address, because the models of hosted providers are well known.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import httpx2
import msgspec
import structlog

from shared.concurrency import Clock
from shared.domain.model_servers import Provider, origin_of
from shared.domain.models import DEFAULT_LIMIT, OPENAI_PROXY, PROVIDERS, KnownModel, answer_limit_of, split_handle
from shared.network.checked_http import NetworkRules, operators_client

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

KEPT_S = 60.0
"""Seconds for which an answer is cached, including that of a silent server."""
ANSWER_S = 2.0
LONGEST_ANSWER = 4_000_000
"""Bytes. A router's list of 400 models has one million."""
MOST_MODELS = 2_000

_HOSTED = frozenset(provider.default_url for provider in PROVIDERS.values() if provider.needs_key)


class _Silent(Exception):
    """The server returned no list; the text has the reason, without keys."""


class _Server(NamedTuple):
    """A server with a list of models."""

    configured: str
    """The provider whose variables name the server."""
    listed_as: str
    """The provider in the handles of the listed models."""
    base_url: str
    key: str | None


class FoundModels(NamedTuple):
    """The servers' answers."""

    models: tuple[KnownModel, ...] = ()
    answered: frozenset[str] = frozenset()
    """Providers whose well-known models are left out, because their server has answered."""
    notes: tuple[str, ...] = ()
    """A sentence for each server that returned no list."""


class ServerModels:
    """Asks the servers in the environment for their models, and caches the answers."""

    def __init__(self, environment: Mapping[str, str], network: NetworkRules, clock: Clock) -> None:
        self._servers = tuple(_servers_in(environment))
        self._network = network
        self._clock = clock
        self._http: httpx2.AsyncClient | None = None
        self._asking = asyncio.Lock()
        self._found = FoundModels()
        self._asked_at: float | None = None

    async def found(self) -> FoundModels:
        """The servers' models, at most `KEPT_S` old. Concurrent callers share one request."""
        if not self._servers:
            return self._found
        async with self._asking:
            if self._asked_at is None or self._clock.monotonic() - self._asked_at >= KEPT_S:
                self._found = await self._ask_all()
                self._asked_at = self._clock.monotonic()
            return self._found

    async def aclose(self) -> None:
        """Closes every connection."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _ask_all(self) -> FoundModels:
        async with asyncio.TaskGroup() as tasks:
            asked = [
                (server, tasks.create_task(self._models_or_note(server), name=f"models of {server.configured}"))
                for server in self._servers
            ]
        models: list[KnownModel] = []
        answered, notes = set[str](), list[str]()
        for server, task in asked:
            said = task.result()
            if isinstance(said, str):
                log.warning("models_not_listed", provider=server.configured, reason=said)
                notes.append(f"the models of {server.configured} are not listed: {said}")
            else:
                models += said
                answered.add(server.configured)
        return FoundModels(tuple(models), frozenset(answered), tuple(notes))

    async def _models_or_note(self, server: _Server) -> list[KnownModel] | str:
        try:
            async with asyncio.timeout(ANSWER_S):
                content = await self._content(server)
        except (TimeoutError, httpx2.TimeoutException):
            return f"{origin_of(server.base_url)} gave no answer within {ANSWER_S:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            return f"{origin_of(server.base_url)} cannot be reached ({type(error).__name__})"
        except _Silent as error:
            return f"{origin_of(server.base_url)} {error}"
        try:
            return list(_models_in(msgspec.json.decode(content), server.listed_as))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return f"{origin_of(server.base_url)} answers with something else than a list of models"

    async def _content(self, server: _Server) -> bytes:
        if self._http is None:
            # Created at the first use: its TLS context takes 20 ms.
            self._http = operators_client(self._network, timeout_s=ANSWER_S)
        headers = {"authorization": f"Bearer {server.key}"} if server.key else {}
        content = bytearray()
        async with self._http.stream("GET", f"{server.base_url}/models", headers=headers) as answer:
            if not answer.is_success:
                raise _Silent(f"answers with status {answer.status_code}")
            async for chunk in answer.aiter_bytes():
                content += chunk
                if len(content) > LONGEST_ANSWER:
                    raise _Silent(f"answers with more than {LONGEST_ANSWER} bytes")
        return bytes(content)


def _servers_in(environment: Mapping[str, str]) -> Iterator[_Server]:
    """Each server once, under the first provider whose variables name it."""
    known = set[str]()
    for name, provider in PROVIDERS.items():
        # A gateway may serve its models over Chat Completions only, as this handle means.
        listed_as = OPENAI_PROXY if name == "openai" else name
        base_url = provider.base_url(environment)
        if base_url is None or base_url in known or not _is_own_server(provider, environment):
            continue
        if PROVIDERS[listed_as].is_configured(environment):
            known.add(base_url)
            yield _Server(name, listed_as, base_url, provider.key(environment))


def _is_own_server(provider: Provider, environment: Mapping[str, str]) -> bool:
    """Whether the environment names another server than the provider's own service. Azure lists the models that it
    could deploy, not the deployed ones."""
    if provider.wire != "chat" or provider.api_version(environment):
        return False
    is_named = any(environment.get(address.url_variable) for address in provider.addresses)
    return is_named and provider.base_url(environment) not in _HOSTED


def _models_in(answer: object, provider: str) -> Iterator[KnownModel]:
    """The models of a list in the form of OpenAI's servers, or of Together's, which has no envelope."""
    entries: object = cast("dict[str, Any]", answer).get("data") if isinstance(answer, dict) else answer
    if not isinstance(entries, list):
        raise msgspec.DecodeError("no list of models")
    seen = set[str]()
    for one in cast("list[object]", entries)[:MOST_MODELS]:
        entry = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        name: object = entry.get("id")
        if not isinstance(name, str) or name in seen or not _can_be_asked(f"{provider}/{name}"):
            continue
        seen.add(name)
        handle = f"{provider}/{name}"
        yield KnownModel(provider, name, answer_limit_of(handle) or DEFAULT_LIMIT, _window_in(entry))


def _can_be_asked(handle: str) -> bool:
    """Whether an agent could use the handle. Models that just embed are known by their names alone."""
    try:
        split_handle(handle)
    except ValueError:
        return False
    return "embed" not in handle.lower() and handle.isprintable()


def _window_in(entry: Mapping[str, Any]) -> int | None:
    """The context window that the server reports. vLLM and gateways report it, each in its own field."""
    for name in ("max_model_len", "context_length", "context_window"):
        window = entry.get(name)
        if isinstance(window, int) and 0 < window < 2**31:
            return window
    return None
