"""Finds the model for a handle such as `openrouter/meta-llama/llama-3`: the route (server, protocol, key) and the model
itself.

Everything comes from the process's environment. If a handle has no route, the error names the missing variable, before
anything is imported or sent. A model is built once and looked up by handle. An SDK is imported in a thread when a
handle first needs it, because an import of a second would delay every other run. Most handles need none.

The price of a call comes from the operator's own table first, because prices change and contracts differ, and then from
the published prices of `genai-prices`. A model on the operator's own server costs nothing unless the table says so. A
model without a known price has no price; it never counts as free.
"""

import asyncio
import importlib
import random
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from shared.domain.errors import InvalidRequest, ModelError, ModelErrorType
from shared.domain.limits import NANO
from shared.domain.messages import FILES
from shared.domain.model_servers import Wire
from shared.domain.models import (
    BUILTIN_IS_OFF,
    CODE,
    MODELS,
    OPENAI_PROXY,
    PROVIDERS,
    claude_model,
    family_of,
    is_builtin,
    offered,
    split_handle,
    takes_effort,
    takes_format,
)
from shared.domain.runs import Usage
from shared.network.checked_http import PUBLIC_ONLY, NetworkRules
from worker.models.anthropic import AnthropicWire
from worker.models.builtin import BuiltinModel
from worker.models.chat import ChatWire
from worker.models.connections import Connections
from worker.models.http_model import HttpModel, ProviderProtocol
from worker.models.provider import (
    TOOL_CHOICE,
    ModelCall,
    ModelEvent,
    ModelProvider,
    RetryPolicy,
    Route,
    stream_with_retries,
)
from worker.models.tool_schema import schema_of

NO_KEY = "none"
"""Sent to a server that needs no key, because the SDKs demand one."""


def route_for(handle: str, environment: Mapping[str, str]) -> Route:
    """Returns the route of the handle. Raises `ModelError` if there is none."""
    try:
        name, model = split_handle(handle)
    except ValueError as error:
        raise ModelError(ModelErrorType.BAD_REQUEST, f"The model cannot be asked: {error}.") from error
    provider = PROVIDERS[name]
    key, base_url = provider.key(environment), provider.base_url(environment)
    if provider.needs_key and key is None:
        variable = provider.addresses[0].key_variables[0]
        raise ModelError(
            ModelErrorType.AUTHENTICATION, f"The model {handle!r} needs a key: set {variable} for the workers."
        )
    if provider.addresses and base_url is None:
        variable = provider.addresses[0].url_variable
        raise ModelError(ModelErrorType.BAD_REQUEST, f"The model {handle!r} needs a server's address: set {variable}.")
    wire = "responses" if name == "openai" and family_of(handle).uses_responses else provider.wire
    return Route(handle, name, model, wire, key or NO_KEY, base_url or "", provider.api_version(environment))


# The options that each protocol supports if a run demands them. A missing option is refused by name.


def refuse_what_is_not_taken(call: ModelCall, route: Route) -> None:
    """Raises `ModelError`, which names the option and the model, if the run demands an option that the model does not
    support."""
    for name in call.demanded:
        refuses = _REFUSES.get(name)
        if refuses is not None and (why := refuses(call, route)) is not None:
            raise ModelError(
                ModelErrorType.BAD_REQUEST,
                f"{name}: the model {call.handle!r} {why}. Leave it out, or choose another model.",
            )


def _temperature(call: ModelCall, route: Route) -> str | None:
    temperature = call.options.temperature
    if route.wire == "anthropic" and temperature is not None and temperature > 1:
        return "takes temperatures up to 1"
    return None if temperature is None else _sampling(call, route)


def _top_p(call: ModelCall, route: Route) -> str | None:
    if route.wire == "anthropic" and call.demanded_option("temperature") is not None:
        return "takes either a temperature or top_p"
    return None if call.options.top_p is None else _sampling(call, route)


def _sampling(call: ModelCall, route: Route) -> str | None:
    family = family_of(call.handle)
    match route.wire:
        case "chat" | "responses":
            return None if family.takes_temperature else _LACKS
        case "anthropic":
            if not claude_model(route.model).takes_temperature:
                return _LACKS
            return "does not take it while it reasons" if call.options.reasoning and family.can_think else None
        case "google" | "builtin":  # the built-in models draw no samples, so these options need no support
            return None


def _effort(call: ModelCall, route: Route) -> str | None:
    effort, family = call.options.reasoning_effort, family_of(call.handle)
    if effort is None:
        return None
    if call.options.reasoning is (effort == "none"):
        return f"is asked with reasoning switched {'on' if call.options.reasoning else 'off'}"
    if effort == "none":
        return None if not family.can_think or _can_stop_reasoning(route) else "cannot be kept from reasoning"
    match route.wire:
        case "chat":  # models that OpenAI itself serves over this protocol do not reason
            takes = family.can_think and route.provider != "openai"
        case "responses":
            takes = family.can_think
        case "anthropic":
            takes = takes_effort(route.model)
        case "google":
            takes = family.can_think and effort in _GEMINIS_EFFORTS
        case "builtin":
            takes = False
    return None if takes else _LACKS


def _can_stop_reasoning(route: Route) -> bool:
    match route.wire:
        case "chat" | "responses":  # the server gets the value unchanged
            return not family_of(route.handle).always_thinks
        case "anthropic":
            return claude_model(route.model).without_thinking != "least"
        case "google":
            return "2.5-flash" in route.model
        case "builtin":
            return False


def _verbosity(call: ModelCall, route: Route) -> str | None:
    takes = route.wire in ("chat", "responses") and family_of(call.handle).takes_verbosity
    return None if takes or call.options.verbosity is None else _LACKS


def _format(call: ModelCall, route: Route) -> str | None:
    chosen = call.options.response_format
    if chosen is None or chosen.get("type") == "text":  # every model answers in text
        return None
    match route.wire:
        case "chat" | "responses":
            return None
        case "anthropic":
            takes = takes_format(route.model) and schema_of(chosen) is not None
        case "google" if call.tools and _TAKES_NO_TOOLS_BESIDE.match(route.model):
            return "does not take it beside tools"
        case "google" | "builtin":
            takes = chosen.get("type") == "json_object" or schema_of(chosen) is not None
    return None if takes else _LACKS


def _parallel(call: ModelCall, route: Route) -> str | None:
    if call.options.parallel_tool_calls or not call.tools:
        return None
    takes = route.wire != "google" and family_of(call.handle).takes_parallel_tool_calls
    return None if takes and PROVIDERS[route.provider].quirks.takes_parallel_tool_calls else _LACKS


def _forced_call(call: ModelCall, route: Route) -> str | None:
    takes = PROVIDERS[route.provider].quirks.takes_forced_calls
    if route.wire == "anthropic":
        takes = takes and claude_model(route.model).takes_forced_calls
    return None if takes else "cannot be made to call a tool"


def _files(call: ModelCall, route: Route) -> str | None:
    match route.wire:
        case "chat":
            takes = PROVIDERS[route.provider].quirks.takes_files
        case "responses" | "anthropic" | "google":
            takes = True
        case "builtin":
            takes = False
    return None if takes else "takes no files; send their text, or their pages as images"


_LACKS = "does not take it"
_GEMINIS_EFFORTS = ("minimal", "low", "medium", "high")
_TAKES_NO_TOOLS_BESIDE = re.compile("gemini-[12]")

_REFUSES: Mapping[str, Callable[[ModelCall, Route], str | None]] = {
    "temperature": _temperature,
    "top_p": _top_p,
    "reasoning_effort": _effort,
    "verbosity": _verbosity,
    "response_format": _format,
    "parallel_tool_calls": _parallel,
    TOOL_CHOICE: _forced_call,
    FILES: _files,
}
"""By option: a function that returns why a model does not take it, or None. Every model takes all other options."""


MOST_BUILT_MODELS = 512

_WIRE_MODULES: Mapping[Wire, str] = {"responses": "worker.models.responses_wire", "google": "worker.models.google_wire"}

_EXTRAS: Mapping[Wire, str] = {"google": "[google]"}
"""The extra of `pip install .` that a protocol needs. The others need none."""


class Models:
    """The models that a process can ask, with the one HTTP client that they share."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        first_event_timeout: float,
        idle_timeout: float,
        retries: int,
        builtin_models: bool = False,
        network: NetworkRules = PUBLIC_ONLY,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock_sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        new_call_id: Callable[[], str] = lambda: f"call_{uuid4().hex}",
        importing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`environment` holds keys and base URLs; timeouts are in seconds (see `SilenceLimit`). An SDK is imported in a
        block of `importing`.

        `builtin_models`: whether `builtin/…` may be called; these models follow the message and need no provider.
        """
        self._environment = environment
        self._builtin_models = builtin_models
        self._first_event_timeout = first_event_timeout
        self._idle_timeout = idle_timeout
        self._network = network
        self._now = now
        self._sleep = clock_sleep
        self._new_call_id = new_call_id
        self._importing = importing
        self._policy = RetryPolicy(retries, clock_sleep, jitter)
        self._connections: Connections | None = None
        self._built: OrderedDict[str, ModelProvider] = OrderedDict()

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """Yields the answer as it arrives, ending in `Finished`. Raises `ModelError`, our own or the provider's.

        Closing this generator, or cancelling the task that reads it, closes the connection to the provider.
        """
        if call.demanded:
            refuse_what_is_not_taken(call, self.route(call.handle))
        model = await self.model_for(call.handle)
        async with aclosing(stream_with_retries(model, call, self._policy)) as events:
            async for event in events:
                yield event

    def route(self, handle: str) -> Route:
        """Returns the route of the handle. Raises `ModelError` if there is none, or if it is a built-in model and these
        are off."""
        route = route_for(handle, self._environment)
        if route.provider == CODE:
            raise ModelError(
                ModelErrorType.BAD_REQUEST, f"{handle!r} is an agent of a worker's own code, and no model."
            )
        if route.wire == "builtin" and not self._builtin_models:
            raise ModelError(ModelErrorType.BAD_REQUEST, f"The model {handle!r} cannot be used. {BUILTIN_IS_OFF}")
        return route

    def known_handles(self) -> list[str]:
        """The handles of known models whose providers are set up."""
        environment, builtin = self._environment, self._builtin_models
        return [one.handle for one in MODELS if offered(one.provider, environment, builtin=builtin)]

    async def aclose(self) -> None:
        """Closes the shared client and all of its connections."""
        self._built.clear()
        if self._connections is not None:
            await self._connections.aclose()
            self._connections = None

    async def model_for(self, handle: str) -> ModelProvider:
        """Returns the model of a handle. Builds it, with its imports, at the first call. Raises `ModelError` as `route`
        does, or if a package is missing."""
        model = self._built.get(handle)
        if model is None:
            model = self._built[handle] = await self._build(self.route(handle))
        self._built.move_to_end(handle)
        while len(self._built) > MOST_BUILT_MODELS:
            self._built.popitem(last=False)
        return model

    async def _build(self, route: Route) -> ModelProvider:
        if route.wire == "builtin":
            return BuiltinModel(route.model, self._sleep, self._first_event_timeout, self._idle_timeout)
        if self._connections is None:
            self._connections = Connections(self._network)
        if route.wire == "chat":
            return self._direct(ChatWire(route, self._new_call_id), self._connections)
        if route.wire == "anthropic":
            return self._direct(AnthropicWire(route, self._new_call_id), self._connections)
        return await asyncio.to_thread(self._build_on_sdk, route, self._connections)

    def _direct(self, wire: ProviderProtocol, connections: Connections) -> ModelProvider:
        return HttpModel(wire, connections.client, self._first_event_timeout, self._idle_timeout, self._now)

    def _build_on_sdk(self, route: Route, connections: Connections) -> ModelProvider:
        try:
            with self._importing():
                wire = importlib.import_module(_WIRE_MODULES[route.wire])
                sdk_model = importlib.import_module("worker.models.sdk_model")
        except ImportError as error:
            extra = _EXTRAS.get(route.wire, "")
            raise ModelError(
                ModelErrorType.BAD_REQUEST,
                f"The model {route.handle!r} needs a Python package that this worker does not have ({error}). "
                f"In a checkout of Holdfast, `pip install -e '.{extra}' -c constraints.txt` into the worker's "
                "environment brings it; the image that the Dockerfile makes has every provider's package.",
            ) from error
        return sdk_model.SdkModel(
            wire.build(route, connections.client),
            route,
            connections,
            self._first_event_timeout,
            self._idle_timeout,
            self._new_call_id,
            self._now,
        )


PER = 1_000_000
"""The number of tokens to which a price of the table applies, as in providers' price lists."""

OWN_SERVERS = ("builtin", "ollama", "lmstudio", "lmstudio_openai", "vllm")
"""Providers whose models run on the operator's machines."""

PUBLISHED_AS: Mapping[str, str] = {"google_ai": "google", "gemini": "google", "xai": "x-ai"}
"""The name of a provider in `genai-prices`, if it differs."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens. Cached input costs as much as input, unless the table says otherwise."""

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        given = (self.input, self.output, self.cached_input or 0, self.cache_write or 0)
        if not all(0 <= price < PER for price in given):
            raise ValueError("a price is in US dollars for a million tokens, and not below zero")

    def nano_usd(self, usage: Usage) -> int:
        """The price of a call, in thousand-millionths of a dollar, rounded up."""
        cached = 0 if self.cached_input is None else usage.cached_input_tokens
        written = 0 if self.cache_write is None else usage.cache_write_tokens
        plain = max(usage.prompt_tokens - cached - written, 0)
        dollars = plain * self.input + usage.completion_tokens * self.output
        dollars += cached * (self.cached_input or 0) + written * (self.cache_write or 0)
        return -int(-dollars * NANO // PER)


class Prices:
    """The prices of a worker. `own` are the operator's, by handle or by `provider/*`."""

    def __init__(self, own: Mapping[str, Price]) -> None:
        self._own = own
        self._published: Any = None

    @classmethod
    def read(cls, file: Path | None) -> "Prices":
        """The prices with the operator's table, a JSON file. Raises `InvalidRequest` if it cannot be read."""
        if file is None:
            return cls({})
        try:
            own = msgspec.json.decode(file.read_bytes(), type=dict[str, Price])
            for handle in own:
                if not is_builtin(handle):
                    split_handle(handle)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidRequest(
                f"HOLDFAST_PRICES_FILE: {file}: {reason}. Write it as "
                '{"openai/gpt-6-luna": {"input": 0.1, "output": 0.5}, "ollama/*": {…}}, US dollars per million tokens'
            ) from error
        return cls(own)

    def nano_usd(self, handle: str, usage: Usage) -> int | None:
        """Returns the price of the call, in thousand-millionths of a dollar; None if the model's price is unknown."""
        provider, model = handle.split("/", 1)
        own = self._own.get(handle) or self._own.get(f"{provider}/*")
        if own is not None:
            return own.nano_usd(usage)
        if provider in OWN_SERVERS:
            return 0
        return self._by_published_price(provider, model, usage)

    def _by_published_price(self, provider: str, model: str, usage: Usage) -> int | None:
        if PROVIDERS[provider].wire == "builtin" or provider in ("openai_compatible", OPENAI_PROXY):
            return None
        if self._published is None:
            self._published = importlib.import_module("genai_prices")
        published = self._published
        used = published.Usage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        try:
            price = published.calc_price(used, model_ref=model, provider_id=PUBLISHED_AS.get(provider, provider))
        except (LookupError, ValueError):
            return None
        return -int(-price.total_price * NANO // 1)
