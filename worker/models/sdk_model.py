"""One model behind pydantic-ai, asked through `direct.model_request_stream` and nothing else of it.

Imported with the first SDK, never before. What differs from wire to wire is in `responses_wire.py` and
`google_wire.py`.
"""

import base64
import json
import mimetypes
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai import UsageExtractionFailedWarning, direct
from pydantic_ai import messages as sdk
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from shared.concurrency import beside
from shared.domain.errors import ModelError, ModelErrorType
from shared.domain.model_servers import without_credentials
from shared.network.addresses import ForbiddenAddress
from shared.network.checked_http import CallersHttp, TooLarge, Unreachable
from worker.models.answer_events import AnswerEvents
from worker.models.answer_parts import CallIds
from worker.models.connections import Connections, OpenCall
from worker.models.foreign_errors import SDK_ERRORS, as_model_error
from worker.models.history_mapping import (
    Answered,
    AnswerPart,
    Asked,
    Called,
    Image,
    ImageLink,
    Prompt,
    Reasoned,
    Result,
    Said,
    Turn,
    map_history,
)
from worker.models.model_errors import LONGEST_DETAIL, named
from worker.models.provider import ModelCall, ModelEvent, Route, SilenceLimit

# Turns as pydantic-ai's messages, for the wires that are asked through it. Imported with the first SDK.


def sdk_messages(turns: Sequence[Turn], *, results_as_objects: bool) -> list[sdk.ModelMessage]:
    """The messages of one request. `results_as_objects`: a tool's result is an object on this wire, and else text."""
    return [_asked(turn, results_as_objects) if isinstance(turn, Asked) else _answered(turn) for turn in turns]


def _asked(turn: Asked, results_as_objects: bool) -> sdk.ModelRequest:
    return sdk.ModelRequest(
        parts=[
            sdk.UserPromptPart(_content(part)) if isinstance(part, Prompt) else _result(part, results_as_objects)
            for part in turn.parts
        ]
    )


def _content(prompt: Prompt) -> str | list[sdk.UserContent]:
    if isinstance(prompt.content, str):
        return prompt.content
    return [part if isinstance(part, str) else _image(part) for part in prompt.content]


def _image(image: Image) -> sdk.ImageUrl | sdk.BinaryContent:
    if isinstance(image, ImageLink):
        return sdk.ImageUrl(image.url)
    return sdk.BinaryContent(base64.b64decode(image.base64), media_type=image.media_type)


def _result(result: Result, as_object: bool) -> sdk.ToolReturnPart[Any]:
    content: Any = result.envelope if as_object else json.dumps(result.envelope, ensure_ascii=False)
    if result.images:
        content = [content, *(_image(image) for image in result.images)]
    return sdk.ToolReturnPart(result.tool_name, content, result.call_id)


def _answered(turn: Answered) -> sdk.ModelResponse:
    """The answer as its provider gave it, if it was kept, with calls that every provider takes."""
    kept = None if turn.kept is None else _kept(turn.kept)
    if kept is None:
        return sdk.ModelResponse(parts=[_part(part) for part in turn.parts])
    calls = iter([part for part in turn.parts if isinstance(part, Called)])
    return replace(
        kept,
        parts=[
            replace(part, tool_call_id=call.id, args=_arguments(part, call))
            if isinstance(part, sdk.ToolCallPart) and (call := next(calls, None)) is not None
            else part
            for part in kept.parts
        ],
    )


def _arguments(part: sdk.ToolCallPart, call: Called) -> str | dict[str, Any]:
    return part.args if isinstance(part.args, dict) else call.arguments


def _kept(stored: str) -> sdk.ModelResponse | None:
    try:
        [answer] = sdk.ModelMessagesTypeAdapter.validate_json(stored)
    except ValueError:
        return None
    return answer if isinstance(answer, sdk.ModelResponse) else None


def _part(part: AnswerPart) -> sdk.ModelResponsePart:
    match part:
        case Said(text=text):
            return sdk.TextPart(text)
        case Reasoned(text=text, id=name, signature=signature):
            return sdk.ThinkingPart(text, id=name, signature=signature)
        case Called(id=call_id, name=name, arguments=arguments):
            return sdk.ToolCallPart(name, arguments, call_id)


# Images that a message names by their address, fetched for a provider that takes them as data only.
#
# The address is a caller's: it is asked as such, and takes as much of the process's memory as a request could bring.


MOST_BYTES = 20_000_000
"""Of one image: a whole request to Gemini may not have more."""
MOST_BYTES_TOGETHER = 60_000_000
SAYING_NOTHING = ("", "application/octet-stream", "binary/octet-stream")
"""Media types that a server gives for anything, so that the address has to say what it is."""


class _NoImage(Exception):
    """What is there is not an image."""


async def with_fetched_images(messages: Sequence[sdk.ModelMessage], http: CallersHttp) -> list[sdk.ModelMessage]:
    """The messages with every image as data.

    Raises `ModelError` when an image of the last message cannot be fetched. One of an earlier message may have gone
    from its address since: a note takes its place, so that the conversation goes on.
    """
    fetch = _ImageFetch(http)
    fetched: list[sdk.ModelMessage] = []
    for message in messages:
        if isinstance(message, sdk.ModelRequest):
            is_last = message is messages[-1]
            parts = [await _with_images(part, fetch, may_be_gone=not is_last) for part in message.parts]
            fetched.append(replace(message, parts=parts))
        else:
            fetched.append(message)
    return fetched


async def _with_images(part: sdk.ModelRequestPart, fetch: "_ImageFetch", *, may_be_gone: bool) -> sdk.ModelRequestPart:
    if not isinstance(part, sdk.UserPromptPart | sdk.ToolReturnPart):
        return part
    content = cast("object", part.content)
    if not isinstance(content, list):
        return part
    shown: list[Any] = []
    for one in cast("list[Any]", content):
        shown.append(await fetch.image(one, may_be_gone=may_be_gone) if isinstance(one, sdk.ImageUrl) else one)
    return replace(part, content=shown)


class _ImageFetch:
    """The images of one request to a provider, with the bytes that are left for them."""

    def __init__(self, http: CallersHttp) -> None:
        self._http = http
        self._bytes_left = MOST_BYTES_TOGETHER

    async def image(self, image: sdk.ImageUrl, *, may_be_gone: bool) -> sdk.BinaryContent | str:
        """The image as data, or the note that takes its place."""
        shown = without_credentials(image.url)
        try:
            return await self._fetched(image.url)
        except (ForbiddenAddress, Unreachable, TooLarge, _NoImage) as error:
            if may_be_gone:
                return f"[The image at {shown} is no longer there.]"
            why = str(error)[:LONGEST_DETAIL]
            raise ModelError(
                ModelErrorType.BAD_REQUEST,
                f"There is no image to be had at {shown} ({why}). This provider takes images as data: send it as "
                "base64, or under a public address.",
            ) from error

    async def _fetched(self, url: str) -> sdk.BinaryContent:
        found = await self._http.get(url, max_bytes=min(MOST_BYTES, self._bytes_left))
        if not 200 <= found.status_code < 300:
            raise _NoImage(f"the server answers {found.status_code}")
        media_type = found.media_type
        if media_type in SAYING_NOTHING:
            media_type = mimetypes.guess_type(urlsplit(url).path)[0] or "of an unknown type"
        if not media_type.startswith("image/"):
            raise _NoImage(f"it is {media_type}")
        self._bytes_left -= len(found.content)
        return sdk.BinaryContent(found.content, media_type=media_type)


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
