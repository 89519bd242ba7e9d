"""JSON of providers, read as far as we need it."""

import json
import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec
import msgspec.inspect

from shared.domain.errors import ModelError, ModelErrorType

_Event = TypeVar("_Event")

NOT_READ = (msgspec.DecodeError, UnicodeDecodeError)
"""What msgspec raises for what is no JSON, and for bytes inside a text that are no UTF-8."""

_NUMBER = re.compile("-?[0-9]{1,18}")


class Decoder(Generic[_Event]):
    """Reads the events of one wire."""

    def __init__(self, event: type[_Event]) -> None:
        self._event = event
        self._type = msgspec.inspect.type_info(event)
        self._decoder = msgspec.json.Decoder(event)

    def decode(self, data: bytes) -> _Event:
        """The event. Raises `ModelError` for what is not JSON, or has another form than every answer has."""
        try:
            return self._decoder.decode(data)
        except (*NOT_READ, RecursionError) as error:
            return self._decode_otherwise(data, error)

    def _decode_otherwise(self, data: bytes, why: Exception) -> _Event:
        try:
            value = read_json(data)
        except (ValueError, RecursionError):
            raise ModelError(ModelErrorType.ERROR, "The model's stream held an event that is not JSON.") from why
        return self.convert(value)

    def convert(self, value: object) -> _Event:
        """The same of JSON that was read. Raises `ModelError`."""
        try:
            return msgspec.convert(_fitting(value, self._type), self._event)
        except msgspec.ValidationError as error:
            raise ModelError(ModelErrorType.ERROR, f"The model's answer could not be read: {error}") from error


def _fitting(value: Any, kind: msgspec.inspect.Type) -> Any:
    """The value with its texts and numbers as the fields have them. Servers that imitate a wire send numbers as ids and
    texts as numbers; what can be neither is left out, as if the server had not sent it. What has another structure
    stays as it is, and is refused."""
    match kind:
        case msgspec.inspect.StructType(fields=fields) if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            types = {field.encode_name: field.type for field in fields}
            fitted = {name: _fitting(one, types[name]) if name in types else one for name, one in given.items()}
            return {name: one for name, one in fitted.items() if one is not None}
        case msgspec.inspect.ListType(item_type=item) if isinstance(value, list):
            return [_fitting(one, item) for one in cast("list[Any]", value)]
        case msgspec.inspect.UnionType(types=types):
            [only] = [one for one in types if not isinstance(one, msgspec.inspect.NoneType)]
            return None if value is None else _fitting(value, only)
        case msgspec.inspect.StrType():
            return as_text(value)
        case msgspec.inspect.IntType():
            return whole_number(value)
        case _:
            return value


def as_text(value: object) -> str | None:
    """The text that a server means by this, if it is one."""
    match value:
        case str():
            return value
        case bool():
            return None
        case int() | float():
            return str(value)
        case _:
            return None


def whole_number(value: object) -> int | None:
    """The number that a server means by this, if it is a whole one."""
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case str() if _NUMBER.fullmatch(value):
            return int(value)
        case _:
            return None


def read_json(data: bytes) -> Any:
    """What the JSON says, also with half a character in it (see `special_tokens.py`), or bytes that are none. Raises
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
    return whole_number(value) or 0
