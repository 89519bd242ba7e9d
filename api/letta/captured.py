"""A turn that a program had with a model by itself, brought afterwards: Letta's `messages/capture`.

The wire has what the program sent to the model and what came back. Of the first the history keeps what users said, of
the second the text: the rest (instructions, earlier answers that a program sends along, tools) is the program's own.
"""

from datetime import datetime
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field

from api.letta.content import content_parts
from api.letta.message_input import MessageIn
from shared.domain.errors import InvalidRequest
from shared.domain.ids import IdMaker
from shared.domain.messages import AssistantMessage, NewMessage, UserMessage

Given = Annotated[list[dict[str, Any]], Field(max_length=1000)]


class CaptureRequest(BaseModel):
    """The body of a capture."""

    model_config = ConfigDict(extra="ignore")

    provider: Annotated[str, Field(min_length=1, max_length=100)]
    model: Annotated[str, Field(min_length=1, max_length=500)]
    request_messages: Given
    """What the program sent: those with the role `user` are kept."""
    response_dict: dict[str, Any]
    """What the model answered: `content` is kept, a text."""

    def users_messages(self) -> list[MessageIn]:
        """What users said, as messages of a submission are written. Raises `InvalidRequest` for content that is
        neither text nor parts."""
        said: list[MessageIn] = []
        for number, message in enumerate(self.request_messages):
            content: Any = message.get("content")
            if message.get("role") != "user" or not content:
                continue
            if not isinstance(content, str | list):
                raise InvalidRequest(f"request_messages[{number}].content must be a text or a list of content parts")
            said.append(MessageIn(role="user", content=cast("str | list[dict[str, Any]]", content)))
        return said

    def answer(self) -> str:
        """What the model said; empty when it said nothing. Raises `InvalidRequest` for content that is no text."""
        content = self.response_dict.get("content")
        if content is None:
            return ""
        if not isinstance(content, str):
            raise InvalidRequest("response_dict.content must be the text that the model answered")
        return content


def captured_messages(request: CaptureRequest, ids: IdMaker, now: datetime) -> list[NewMessage]:
    """The turn's messages, as the history keeps them. Raises `InvalidRequest`."""
    bodies: list[UserMessage | AssistantMessage] = []
    for message in request.users_messages():
        content = message.content or ""
        is_text = isinstance(content, str)
        bodies.append(UserMessage(content if is_text else content_parts(content, field="request_messages[].content")))
    answer = request.answer()
    if answer:
        bodies.append(AssistantMessage(text=answer, model=f"{request.provider}/{request.model}"))
    return [NewMessage(id=ids.message(), created_at=now, body=body) for body in bodies]
