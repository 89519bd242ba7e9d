"""Turns as pydantic-ai's messages, for the wires that are asked through it. Imported with the first SDK."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai import messages as sdk

from worker.models.turns import (
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
)


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
