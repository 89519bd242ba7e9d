"""Every model of a process: made once, asked by handle. An SDK is imported when a handle first needs it, or by `warm`
at the worker's start, in a thread, since an import of seconds would hold up lease renewals.
"""

import asyncio
import importlib
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing

from shared.domain.errors import ModelError, ModelErrorType
from worker.models import handles
from worker.models.builtin import BuiltinModel
from worker.models.connections import Connections
from worker.models.handles import Route, Wire, route_for
from worker.models.provider import ModelCall, ModelEvent, ModelProvider
from worker.models.retries import RetryPolicy, stream_with_retries

MOST_BUILT_MODELS = 512

_WIRE_MODULES: Mapping[Wire, str] = {
    "chat": "worker.models.openai_wire",
    "responses": "worker.models.openai_wire",
    "anthropic": "worker.models.anthropic_wire",
    "google": "worker.models.google_wire",
}


class Models:
    """The models that a process can ask, with the one HTTP client that they share."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        first_event_timeout: float,
        idle_timeout: float,
        retries: int,
        clock_sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`environment` holds keys and base URLs; timeouts are in seconds (see `timeouts.py`)."""
        self._environment = environment
        self._first_event_timeout = first_event_timeout
        self._idle_timeout = idle_timeout
        self._sleep = clock_sleep
        self._policy = RetryPolicy(retries, clock_sleep, jitter)
        self._connections: Connections | None = None
        self._built: OrderedDict[Route, ModelProvider] = OrderedDict()

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """The answer as it comes, ending in `Finished`. Raises `ModelError`, its own and the provider's.

        Closing this generator, or cancelling the task that reads it, closes the connection to the provider.
        """
        model = await self._model(call.handle)
        async with aclosing(stream_with_retries(model, call, self._policy)) as events:
            async for event in events:
                yield event

    async def warm(self, handles: Iterable[str] | None = None) -> None:
        """Import what these handles need; without any, what every provider with a key in the environment needs.

        A handle that leads nowhere is left for the call that uses it to complain about.
        """
        for handle in handles if handles is not None else self.known_handles():
            try:
                await self._model(handle)
            except ModelError:
                continue

    def known_handles(self) -> list[str]:
        """Handles to show in a list; other model names of the same providers work as well."""
        return handles.known_handles(self._environment)

    async def aclose(self) -> None:
        """Close the shared client and with it every connection."""
        self._built.clear()
        if self._connections is not None:
            await self._connections.aclose()
            self._connections = None

    async def _model(self, handle: str) -> ModelProvider:
        route = route_for(handle, self._environment)
        model = self._built.get(route)
        if model is None:
            model = self._built[route] = await self._build(route)
        self._built.move_to_end(route)
        while len(self._built) > MOST_BUILT_MODELS:
            self._built.popitem(last=False)
        return model

    async def _build(self, route: Route) -> ModelProvider:
        if route.wire == "builtin":
            return BuiltinModel(route, self._sleep)
        if self._connections is None:
            self._connections = Connections()
        return await asyncio.to_thread(self._build_on_sdk, route, self._connections)

    def _build_on_sdk(self, route: Route, connections: Connections) -> ModelProvider:
        try:
            wire = importlib.import_module(_WIRE_MODULES[route.wire])
            sdk_model = importlib.import_module("worker.models.sdk_model")
        except ImportError as error:
            raise ModelError(
                ModelErrorType.BAD_REQUEST,
                f"The model {route.handle!r} needs a package that is not installed ({error}): "
                "install holdfast[anthropic,google].",
            ) from error
        return sdk_model.SdkModel(
            wire.build(route, connections.client), connections, self._first_event_timeout, self._idle_timeout
        )
