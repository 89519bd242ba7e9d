"""Values in the journal: their JSON, and a hash by which two calls are compared."""

import dataclasses
import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

LARGEST_VALUE = 1_000_000
"""The most bytes of JSON in one entry of the journal."""


LARGEST_DATA = 64_000
"""The most bytes of JSON that readers get at once."""


class Answer(str):
    """An output of an agent that is the answer even if text was shown before it, as of a tool for structured output."""


_DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def plain(value: Any, name: str = "a value of the journal", largest: int = LARGEST_VALUE) -> Any:
    """Returns the value as JSON has it; dataclasses and pydantic models become objects. Raises `TypeError` for values
    that JSON cannot express, and `ValueError`, with this name, for NaN, and for more than `largest` bytes. Half a
    character of UTF-16, as in the name of a file that is not text, becomes a question mark."""
    try:
        text = json.dumps(value, default=_as_json, allow_nan=False)
    except ValueError as error:
        hint = "; use None or a text for NaN and infinity" if "float" in str(error) else ""
        raise ValueError(f"{name} is no JSON: {error}{hint}") from error
    if len(text) > largest or "\\ud" in text:  # long escapes, or half a character, which no database stores
        text = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace").decode()
    if (size := len(text.encode())) > largest:
        raise ValueError(
            f"{name} has {size} bytes, {largest} are allowed: keep what is large elsewhere, and return its address"
        )
    return json.loads(text)


def content_hash(value: Any) -> str:
    """Returns a hash of a call's content. Callables count by their qualified name. Raises `TypeError` for values that
    JSON cannot express: such a call needs a `key`."""
    try:
        text = json.dumps(value, default=_counted, sort_keys=True)
    except TypeError:  # keys of several types, which cannot be compared before JSON has made texts of them
        text = json.dumps(json.loads(json.dumps(value, default=_counted)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def shown_arguments(function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns the arguments of a tool call as an object: positional ones by the function's parameter names."""
    named: dict[str, Any] = {}
    if args:
        try:
            named = dict(inspect.signature(cast("Any", function)).bind_partial(*args).arguments)
        except (TypeError, ValueError):
            named = {"args": list(args)}
    return {name: _counted(value) if callable(value) else value for name, value in {**named, **kwargs}.items()}


def changed_arguments(
    function: Callable[..., Any] | None, args: tuple[Any, ...], arguments: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the named arguments of an object that a person has changed. `args`: the positional ones of
    which `shown_arguments` has made it, which some functions take by no name."""
    left, positional = {**arguments}, list[Any]()
    try:
        bound = inspect.signature(cast("Any", function)).bind_partial(*args)
        parameters = [bound.signature.parameters[name] for name in bound.arguments]
    except (TypeError, ValueError):
        return left.pop("args", []) if args else [], left
    for one in parameters:
        if one.name not in left:
            break
        value = left.pop(one.name)
        positional += value if one.kind is one.VAR_POSITIONAL else [value]
    return positional, left


def shown_data(name: Any, value: Any) -> dict[str, Any]:
    """Returns the name and the value of data for readers. Raises as `Run.emit_data`."""
    if not _DATA_NAME.fullmatch(text_for("the name of data", name)):
        raise ValueError(f"{name!r:.100} is no name of data: letters, digits, '.', '_' and '-', at most 64")
    if name.startswith("holdfast"):
        raise ValueError(f"{name!r} is a name of data of Holdfast itself")
    return {"name": name, "data": plain(value, f"the data {name!r}", LARGEST_DATA)}


def text_for(purpose: str, text: Any) -> str:
    """Returns the text. Raises `TypeError` for any other type."""
    if not isinstance(text, str):
        raise TypeError(f"{purpose} takes a text, not a {type(text).__name__}")
    return text


def restored(value: Any, returns: Any) -> Any:
    """Returns the value as an object of the wanted type: a dataclass or a pydantic model; a list, tuple, set or
    dictionary of these; one of several, as `Page | None`; or the result of any other callable. The fields of a
    dataclass may have all of these but callables. Raises `TypeError` and `ValueError` for a value of another form."""
    if returns is None or get_origin(returns) is not None or isinstance(returns, UnionType) or _is_object(returns):
        return _typed(value, returns)
    return returns(value)


def _is_object(kind: Any) -> bool:
    return hasattr(kind, "model_validate") or dataclasses.is_dataclass(kind)


def _typed(value: Any, kind: Any) -> Any:
    """Returns the value as `restored`. Numbers, texts and values of unknown types stay as JSON has them."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _one_of(value, inner)
    if origin is Annotated:
        return _typed(value, inner[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_key(key, inner[0]): _typed(one, inner[1]) for key, one in value.items()}
    if origin is tuple and inner[-1:] != (...,):
        return tuple(_typed(one, each) for one, each in zip(value, inner, strict=True))
    if isinstance(origin, type) and issubclass(origin, Collection):
        made = [_typed(one, inner[0]) for one in value]
        return cast("Any", origin)(made) if origin in (tuple, set, frozenset) else made
    return _object(value, origin or kind) if _is_object(origin or kind) else value


def _object(value: Any, kind: Any) -> Any:
    """Returns the value as a pydantic model or a dataclass."""
    validate = getattr(kind, "model_validate", None)
    if validate is None and hasattr(kind, "__pydantic_validator__"):  # a dataclass of pydantic
        validate = importlib.import_module("pydantic").TypeAdapter(kind).validate_python
    if validate is not None:  # `plain` writes the names of fields, also where the model has aliases
        by_name = {"by_name": True} if "by_name" in inspect.signature(validate).parameters else {}
        return validate(value, **by_name)
    later = {one.name for one in dataclasses.fields(kind) if not one.init}
    kinds = _fields_of(kind)
    return kind(**{name: _typed(one, kinds.get(name)) for name, one in value.items() if name not in later})


@lru_cache
def _fields_of(kind: Any) -> dict[str, Any]:
    """Returns the types of a dataclass's fields; nothing if one of them cannot be read, as a type that is imported only
    for type checkers."""
    try:
        return get_type_hints(kind)
    except (NameError, AttributeError, SyntaxError, TypeError):
        return {}


def _one_of(value: Any, kinds: tuple[Any, ...]) -> Any:
    """Returns the value as the first of these types that it fits."""
    is_unknown = False
    for kind in kinds:
        if type(value) is kind or (kind is float and type(value) is int):
            return value
        try:
            if get_origin(kind) is not None or _is_object(kind):
                return _typed(value, kind)
        except (AttributeError, TypeError, ValueError):
            continue
        is_unknown = is_unknown or kind not in _OF_JSON
    if is_unknown:
        return value
    raise TypeError(f"{value!r:.100} is none of {', '.join(map(str, kinds))}")


_OF_JSON = (str, int, float, bool, type(None), list, dict)


def _key(key: str, kind: Any) -> Any:
    """Returns a dictionary's key, which is a text in JSON."""
    return kind(key) if kind in (int, float) else key


def _as_json(value: Any) -> Any:
    is_class = isinstance(value, type)
    if dataclasses.is_dataclass(value) and not is_class:
        return dataclasses.asdict(value)
    dump = getattr(value, "model_dump", None)
    if dump is not None and not is_class:
        return dump(mode="json")
    instead = "use texts, numbers, lists, dictionaries, dataclasses or pydantic models"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        instead = "let the function return a list instead of yielding"
    what = f"the class {value.__qualname__}" if is_class else f"a {type(value).__name__}"
    raise TypeError(f"{what} is nothing that JSON can say: {instead}")


def _counted(value: Any) -> Any:
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    try:
        return _as_json(value)
    except TypeError as error:
        raise TypeError(f"{error}, or give it to the function by functools.partial, and the call a key") from None
