"""One model behind pydantic-ai, asked through `direct.model_request_stream` and nothing else of it.

Imported with the first SDK, never before. What differs from wire to wire is in `responses_wire.py` and
`google_wire.py`.
"""

import warnings
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from pydantic_ai import UsageExtractionFailedWarning, direct
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from shared.concurrency import beside
from shared.domain.errors import ModelError, ModelErrorType
from worker.models.answer_events import AnswerEvents
from worker.models.call_ids import CallIds
from worker.models.connections import Connections, OpenCall
from worker.models.fetched_images import with_fetched_images
from worker.models.foreign_errors import SDK_ERRORS, as_model_error
from worker.models.history_mapping import map_history
from worker.models.model_errors import named
from worker.models.provider import ModelCall, ModelEvent, Route, SilenceLimit
from worker.models.sdk_history import sdk_messages

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class WireModel:
    """A built SDK model and what this wire wants to know of a call."""

    model: Model
    settings: Callable[[ModelCall], ModelSettings]
    results_as_objects: bool = False
    """Whether a tool's result is an object on this wire; on the others it is text."""
    errors: tuple[type[Exception], ...] = ()
    """Root exceptions of this wire's SDK, beyond those of pydantic-ai."""
    takes_images_as_data: bool = False
    """Whether the provider fetches no image itself."""
    hint_if_not_found: str = ""
    """What to try when the server does not know the path."""


class SdkModel:
    """A `ModelProvider` for one handle."""

    def __init__(
        self,
        wire: WireModel,
        route: Route,
        connections: Connections,
        first_event_timeout: float,
        idle_timeout: float,
        new_call_id: Callable[[], str],
        now: Callable[[], datetime],
    ) -> None:
        """Every error names the provider and the server's address."""
        # What an answer leaves out of its usage is estimated. The SDK would say so past the logs, in foreign words.
        warnings.filterwarnings("ignore", category=UsageExtractionFailedWarning)
        self._wire = wire
        self._route = route
        self._connections = connections
        self._first_event_timeout = first_event_timeout
        self._idle_timeout = idle_timeout
        self._new_call_id = new_call_id
        self._now = now

    async def stream(self, call: ModelCall) -> AsyncGenerator[ModelEvent]:
        """One attempt. The connection is closed when this generator ends, is closed or is cancelled."""
        # Outside the `except` below: a mistake of ours in the mapping must not look like one of the provider.
        messages = await beside(partial(self._messages, call), call.weight())
        limit = SilenceLimit(self._first_event_timeout, self._idle_timeout)
        if self._wire.takes_images_as_data:
            messages = await limit.wait(with_fetched_images(messages, self._connections.images))
        async with (
            self._connections.call(limit.bytes_seen) as connection,
            aclosing(self._answer(call, messages, connection, limit)) as events,
        ):
            try:
                async for event in events:
                    yield event
            except ModelError as error:
                raise self._named(error) from error
            except (*SDK_ERRORS, *self._wire.errors) as error:
                raise self._named(as_model_error(error, self._now())) from error

    async def _answer(
        self, call: ModelCall, messages: list[ModelMessage], connection: OpenCall, limit: SilenceLimit
    ) -> AsyncGenerator[ModelEvent]:
        """The answer, with the SDK's own exceptions."""
        answer = AnswerEvents(call, CallIds(call, self._new_call_id))
        async with AsyncExitStack() as stack:
            response = await limit.wait(stack.enter_async_context(self._request(call, messages, connection)))
            events = aiter(response)
            if isinstance(response_events := cast("object", events), AsyncGenerator):
                stack.push_async_callback(cast("AsyncGenerator[object]", response_events).aclose)
            # The limit is on each single wait: a scope around the loop would stay open across our own yields.
            while (event := await limit.wait(anext(events, None))) is not None and not connection.is_garbled:
                limit.event_seen()
                for ours in answer.translate(event):
                    yield ours
            if connection.is_garbled:
                raise ModelError(ModelErrorType.ERROR, "The model's stream held an event that is not JSON.")
            for ours in answer.finish(response, connection.end):
                yield ours

    def _named(self, error: ModelError) -> ModelError:
        """The error with whoever failed, and with what may help."""
        hint = f" {self._wire.hint_if_not_found}" if error.status == HTTPStatus.NOT_FOUND else ""
        return named(error, self._route, hint.rstrip())

    def _messages(self, call: ModelCall) -> list[ModelMessage]:
        turns = map_history(call, provider_name=self._wire.model.system)
        messages = sdk_messages(turns, results_as_objects=self._wire.results_as_objects)
        return [*messages, ModelResponse(parts=[TextPart(call.beginning)])] if call.beginning else messages

    def _request(
        self, call: ModelCall, messages: list[ModelMessage], connection: OpenCall
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        settings = self._wire.settings(call)
        if call.must_call and call.tools:
            settings["tool_choice"] = "required"
        settings["extra_headers"] = connection.header
        return direct.model_request_stream(
            self._wire.model, messages, model_settings=settings, model_request_parameters=_parameters(call)
        )


def _parameters(call: ModelCall) -> ModelRequestParameters:
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters or _NO_PARAMETERS,
            strict=None,
        )
        for tool in call.tools
    ]
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="text",
        allow_text_output=True,
        instruction_parts=[InstructionPart(content=call.system)] if call.system else [],
    )
