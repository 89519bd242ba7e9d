"""One model that is called with pydantic-ai's `direct.model_request_stream`, and with no other part of pydantic-ai.

Imported with the first SDK, never before. `responses_wire.py` and `google_wire.py` contain the differences between
protocols.

`as_model_error` translates the SDKs' errors; no other code knows both kinds of errors.
"""

import base64
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

import httpx2
from pydantic_ai import UsageExtractionFailedWarning, direct
from pydantic_ai import exceptions as sdk_errors
from pydantic_ai import messages as sdk
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.output import OutputObjectDefinition
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
from worker.models.history_mapping import (
    PLAIN,
    AnswerPart,
    AssistantTurn,
    FileData,
    Image,
    ImageLink,
    Prompt,
    ReasoningPart,
    Result,
    TextPart,
    ToolCallPart,
    Turn,
    UserTurn,
    map_history,
)
from worker.models.model_errors import LONGEST_DETAIL, corrected, message_in, named, pause_in, retry_after
from worker.models.provider import ModelCall, ModelEvent, Route, SilenceLimit
from worker.models.special_tokens import sound
from worker.models.tool_schema import for_openai, parameters_of, schema_of

SDK_ERRORS: tuple[type[Exception], ...] = (
    sdk_errors.AgentRunError,
    sdk_errors.UserError,
    httpx2.HTTPError,
    httpx2.StreamError,
    httpx2.InvalidURL,
    # Errors of parsing a malformed answer: bad JSON (including pydantic's ValidationError), missing fields, a number
    # instead of an object.
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    RecursionError,
    OSError,
)
"""Each of these, raised by an SDK, means that the call failed. Cancellation is not among them."""

_Meaning = tuple[ModelErrorType, bool]
"""How the call failed, and whether a retry may help."""

_BY_CLASS: tuple[tuple[type[sdk_errors.ModelAPIError], _Meaning], ...] = (
    (sdk_errors.ModelContextWindowExceededError, (ModelErrorType.CONTEXT_WINDOW, False)),
    (sdk_errors.ModelRateLimitError, (ModelErrorType.RATE_LIMIT, True)),
    (sdk_errors.ModelQuotaExceededError, (ModelErrorType.RATE_LIMIT, False)),
    (sdk_errors.ModelAuthenticationError, (ModelErrorType.AUTHENTICATION, False)),
    (sdk_errors.ModelRequestTimeout, (ModelErrorType.TIMEOUT, False)),
    (sdk_errors.ModelTimeoutError, (ModelErrorType.TIMEOUT, False)),
    (sdk_errors.ModelUnavailableError, (ModelErrorType.ERROR, True)),
    (sdk_errors.ModelServerError, (ModelErrorType.ERROR, True)),
    (sdk_errors.ModelConnectionError, (ModelErrorType.ERROR, True)),
    (sdk_errors.ModelRequestRejectedError, (ModelErrorType.BAD_REQUEST, False)),
)
"""The first match wins; a class precedes its base classes."""


def as_model_error(error: Exception, now: datetime) -> ModelError:
    """The failure in our terms, with the provider's own words as its detail. `now` is as in `retry_after`."""
    match error:
        case sdk_errors.ModelAPIError():
            return _from_provider(error, now)
        case sdk_errors.UserError():
            return ModelError(ModelErrorType.BAD_REQUEST, str(error)[:LONGEST_DETAIL])
        case httpx2.TimeoutException():
            return ModelError(ModelErrorType.TIMEOUT, _named(error))
        case httpx2.TransportError() | OSError():
            return ModelError(ModelErrorType.ERROR, _named(error), retryable=True)
        case _:
            return ModelError(ModelErrorType.ERROR, f"The model's answer could not be read: {_named(error)}")


def _from_provider(error: sdk_errors.ModelAPIError, now: datetime) -> ModelError:
    detail = _detail(error)
    status = error.status_code if isinstance(error, sdk_errors.ModelHTTPError) else None
    error_type, retryable = corrected(_meaning(error, status), f"{error.provider_error_code} {detail}")
    after = _retry_after(error, now)
    after = pause_in(error_type, detail) if after is None else after
    return ModelError(error_type, detail, retryable=retryable, retry_after=after, status=status)


def _retry_after(error: sdk_errors.ModelAPIError, now: datetime) -> float | None:
    """The pause from the headers, parsed as for every protocol. Google sends it in the body, which the SDK parses."""
    headers = error.headers if isinstance(error, sdk_errors.ModelHTTPError) and error.headers else {}
    asked = retry_after(headers, now)
    return error.retry_after if asked is None else asked


def _meaning(error: sdk_errors.ModelAPIError, status: int | None) -> _Meaning:
    if status == HTTPStatus.REQUEST_TIMEOUT:
        return ModelErrorType.TIMEOUT, True
    if isinstance(error, sdk_errors.ModelTimeoutError) and error.phase in ("pool", "connect"):
        return ModelErrorType.TIMEOUT, True
    # Without a category: a stream that ended early or could not be decoded.
    none: _Meaning = (ModelErrorType.ERROR, True)
    found = next((meaning for error_class, meaning in _BY_CLASS if isinstance(error, error_class)), none)
    is_refusal = status is not None and HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    # Some SDKs know the most common statuses only.
    return (ModelErrorType.BAD_REQUEST, False) if found[0] is ModelErrorType.ERROR and is_refusal else found


def _detail(error: sdk_errors.ModelAPIError) -> str:
    text = message_in(error.body) or error.message
    cause = error.__cause__
    if isinstance(error, sdk_errors.ModelConnectionError) and cause is not None:
        # "Connection error." alone is too vague; the transport's own text is further down the chain.
        deepest = _named(cause.__cause__ or cause)
        text = deepest if text in deepest else f"{text} ({deepest})"
    return sound(text)[:LONGEST_DETAIL]


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_DETAIL]


# Turns as pydantic-ai's messages, for protocols that go through it. Imported with the first SDK.


def sdk_messages(turns: Sequence[Turn], *, results_as_objects: bool) -> list[sdk.ModelMessage]:
    """The messages of one request. `results_as_objects`: a tool's result is an object, and otherwise a text."""
    return [_asked(turn, results_as_objects) if isinstance(turn, UserTurn) else _answered(turn) for turn in turns]


def _asked(turn: UserTurn, results_as_objects: bool) -> sdk.ModelRequest:
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


def _image(image: Image | FileData) -> sdk.ImageUrl | sdk.BinaryContent:
    if isinstance(image, ImageLink):
        return sdk.ImageUrl(image.url)
    return sdk.BinaryContent(base64.b64decode(image.base64), media_type=image.media_type)


def _result(result: Result, as_object: bool) -> sdk.ToolReturnPart[Any]:
    content: Any = result.envelope if as_object and PLAIN not in result.envelope else result.text
    if result.images:
        content = [content, *(_image(image) for image in result.images)]
    return sdk.ToolReturnPart(result.tool_name, content, result.call_id)


def _answered(turn: AssistantTurn) -> sdk.ModelResponse:
    """The answer in its provider's stored form, if there is one, with calls that every provider accepts."""
    kept = None if turn.kept is None else _kept(turn.kept)
    if kept is None:
        return sdk.ModelResponse(parts=[_part(part) for part in turn.parts])
    calls = iter([part for part in turn.parts if isinstance(part, ToolCallPart)])
    return replace(
        kept,
        parts=[
            replace(part, tool_name=call.name, tool_call_id=call.id, args=_arguments(part, call))
            if isinstance(part, sdk.ToolCallPart) and (call := next(calls, None)) is not None
            else part
            for part in kept.parts
        ],
    )


def _arguments(part: sdk.ToolCallPart, call: ToolCallPart) -> str | dict[str, Any]:
    return part.args if isinstance(part.args, dict) else call.arguments


def _kept(stored: str) -> sdk.ModelResponse | None:
    try:
        [answer] = sdk.ModelMessagesTypeAdapter.validate_json(stored)
    except ValueError:
        return None
    return answer if isinstance(answer, sdk.ModelResponse) else None


def _part(part: AnswerPart) -> sdk.ModelResponsePart:
    match part:
        case TextPart(text=text):
            return sdk.TextPart(text)
        case ReasoningPart(text=text, id=name, signature=signature):
            return sdk.ThinkingPart(text, id=name, signature=signature)
        case ToolCallPart(id=call_id, name=name, arguments=arguments):
            return sdk.ToolCallPart(name, arguments, call_id)


# Fetches images at addresses in messages, for a provider that accepts them as data only. A caller chose the address, so
# the fetch has the restrictions of such addresses, and may use as much memory as a request could.


MOST_BYTES = 20_000_000
"""Per image. Gemini allows no more for a whole request."""
MOST_BYTES_TOGETHER = 60_000_000
SAYING_NOTHING = ("", "application/octet-stream", "binary/octet-stream")
"""Media types that servers send for any content. The address must then show the type."""


class _NoImage(Exception):
    """The address does not lead to an image."""


async def with_fetched_images(messages: Sequence[sdk.ModelMessage], http: CallersHttp) -> list[sdk.ModelMessage]:
    """The messages with every image as data.

    Raises `ModelError` when an image of the last message cannot be fetched. An image of an earlier message may have
    disappeared since: a note replaces it, so that the conversation can continue.
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
    """The images of one request to a provider, and the bytes that remain for them."""

    def __init__(self, http: CallersHttp) -> None:
        self._http = http
        self._bytes_left = MOST_BYTES_TOGETHER

    async def image(self, image: sdk.ImageUrl, *, may_be_gone: bool) -> sdk.BinaryContent | str:
        """The image as data, or a note in its place."""
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


@dataclass(frozen=True)
class WireModel:
    """A built SDK model and the options of its protocol."""

    model: Model
    settings: Callable[[ModelCall], ModelSettings]
    results_as_objects: bool = False
    """Whether a tool's result is an object in this protocol; in the others it is text."""
    errors: tuple[type[Exception], ...] = ()
    """Root exceptions of this protocol's SDK, besides those of pydantic-ai."""
    takes_strict: bool = False
    """Whether a tool definition can require that calls match its parameters."""
    takes_format: bool = False
    """Whether the answer format that a run demands is passed to the SDK."""
    takes_images_as_data: bool = False
    """Whether the provider fetches no image itself."""
    hint_if_not_found: str = ""
    """A hint for the case that the server does not know the path."""


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
        # Missing usage is estimated. The SDK would report it outside of our logs.
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
        # Outside the `except` below: an error of ours in the mapping must not look like the provider's.
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
            while (event := await limit.wait(anext(events, None))) is not None:
                limit.event_seen()
                for ours in answer.translate(event):
                    yield ours
            for ours in answer.finish(response, connection.end):
                yield ours

    def _named(self, error: ModelError) -> ModelError:
        """Returns the error with the provider's name and a hint."""
        hint = f" {self._wire.hint_if_not_found}" if error.status == HTTPStatus.NOT_FOUND else ""
        return named(error, self._route, hint.rstrip())

    def _messages(self, call: ModelCall) -> list[ModelMessage]:
        turns = map_history(call, provider_name=self._wire.model.system)
        messages = sdk_messages(turns, results_as_objects=self._wire.results_as_objects)
        return [*messages, ModelResponse(parts=[sdk.TextPart(call.beginning)])] if call.beginning else messages

    def _request(
        self, call: ModelCall, messages: list[ModelMessage], connection: OpenCall
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        settings = self._wire.settings(call)
        if call.tools and not call.may_call:
            settings["tool_choice"] = "none"
        elif call.tools and call.must_call:
            settings["tool_choice"] = [call.forced_tool] if call.forced_tool else "required"
        settings["extra_headers"] = connection.header
        parameters = _parameters(call, takes_strict=self._wire.takes_strict)
        chosen = call.demanded_option("response_format") if self._wire.takes_format else None
        if chosen is not None and chosen.get("type") != "text":
            wanted = OutputObjectDefinition(json_schema=schema_of(chosen) or {"type": "object"})
            parameters = replace(parameters, output_mode="native", output_object=wanted)
        return direct.model_request_stream(
            self._wire.model, messages, model_settings=settings, model_request_parameters=parameters
        )


def _parameters(call: ModelCall, *, takes_strict: bool) -> ModelRequestParameters:
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=for_openai(tool) if takes_strict else parameters_of(tool),
            strict=tool.strict if takes_strict else None,
        )
        for tool in call.tools
    ]
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="text",
        allow_text_output=True,
        instruction_parts=[InstructionPart(content=call.system)] if call.system else [],
    )
