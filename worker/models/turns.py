"""A conversation as turns of the two sides, in no provider's form. `history_mapping.py` makes them of our messages;
each wire makes its own request of them."""

from typing import Any

import msgspec


class ImageLink(msgspec.Struct, frozen=True):
    """An image that the provider fetches."""

    url: str


class ImageData(msgspec.Struct, frozen=True):
    """An image that goes with the request, in base64."""

    base64: str
    media_type: str

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


Image = ImageLink | ImageData


class Prompt(msgspec.Struct, frozen=True):
    """What a user says."""

    content: str | list[str | Image]


class Result(msgspec.Struct, frozen=True):
    """What a tool call came to."""

    call_id: str
    tool_name: str
    envelope: dict[str, str]
    images: list[Image] = []


class Said(msgspec.Struct, frozen=True):
    """Text of the model."""

    text: str


class Reasoned(msgspec.Struct, frozen=True):
    """Reasoning of the model. What it is called and how it is signed is the provider's business."""

    text: str
    id: str | None = None
    signature: str | None = None


class Called(msgspec.Struct, frozen=True):
    """A tool call of the model. `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str
    details: dict[str, Any] | None = None
    """What the provider added to the call, and wants back."""


AnswerPart = Said | Reasoned | Called


class Asked(msgspec.Struct, frozen=True):
    """What the model is told until it speaks again."""

    parts: list[Prompt | Result]


class Answered(msgspec.Struct, frozen=True):
    """What the model said until it was told something again."""

    parts: list[AnswerPart]
    kept: str | None = None
    """The provider's own form of the answer, from which the parts are, if there is one."""
    details: dict[str, Any] | None = None
    """What the provider added to the answer as a whole."""


Turn = Asked | Answered
