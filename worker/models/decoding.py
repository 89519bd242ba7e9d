"""JSON of providers, read as far as we need it."""

import json
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec

from shared.domain.errors import ModelError, ModelErrorType

_Event = TypeVar("_Event")

NOT_READ = (msgspec.DecodeError, UnicodeDecodeError)
"""What msgspec raises for what is no JSON, and for bytes inside a text that are no UTF-8."""


class Decoder(Generic[_Event]):
    """Reads the events of one wire."""

    def __init__(self, event: type[_Event]) -> None:
        self._event = event
        self._decoder = msgspec.json.Decoder(event)

    def decode(self, data: bytes) -> _Event:
        """The event. Raises `ModelError` for what is not JSON, or has another form than every answer has."""
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError as error:
            raise ModelError(ModelErrorType.ERROR, f"The model's answer could not be read: {error}") from error
        except (*NOT_READ, RecursionError) as error:
            return self._decode_half_characters(data, error)

    def _decode_half_characters(self, data: bytes, why: Exception) -> _Event:
        try:
            value = read_json(data)
        except (ValueError, RecursionError):
            raise ModelError(ModelErrorType.ERROR, "The model's stream held an event that is not JSON.") from why
        return self.convert(value)

    def convert(self, value: object) -> _Event:
        """The same of JSON that was read. Raises `ModelError`."""
        try:
            return msgspec.convert(value, self._event)
        except msgspec.ValidationError as error:
            raise ModelError(ModelErrorType.ERROR, f"The model's answer could not be read: {error}") from error


def read_json(data: bytes) -> Any:
    """What the JSON says, also with half a character in it (see `characters.py`), or bytes that are none. Raises
    `ValueError` or `RecursionError`."""
    try:
        return msgspec.json.decode(data)
    except NOT_READ:
        try:
            return json.loads(data.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            return json.loads(data.decode("utf-8", "replace"))


def is_json(data: bytes) -> bool:
    """Whether `read_json` can read it."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (*NOT_READ, RecursionError):
        try:
            read_json(data)
        except (ValueError, RecursionError):
            return False
    return True


def number_in(fields: object, *path: str) -> int:
    """The number at the end of the path; 0 where there is none."""
    value: Any = fields
    for name in path:
        value = cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
