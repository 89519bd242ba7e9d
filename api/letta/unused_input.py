"""Finds fields of a request that have no effect, so that the API can report them to the client.

`NOT_ACTED_ON` lists fields of Letta's wire. Other fields are unknown if the request's model does not have them. Delete
a row once Holdfast uses its field. docs/api.md shows the table, and a test compares the two.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin

from pydantic import BaseModel

from api.letta.agents import AgentFields
from api.letta.blocks import BlockCreate, BlockUpdate
from api.letta.message_input import MessageIn, MessagesRequest
from api.letta.model_settings import ModelSettingsFields
from api.letta.runs import StreamRequest
from api.letta.tools import ToolFields


class Unused(NamedTuple):
    """Fields of one kind of body, and their treatment."""

    body: str
    models: tuple[type[BaseModel], ...]
    fields: tuple[str, ...]
    because: str


NOT_ACTED_ON = (
    Unused("agent", (AgentFields,), ("base_template_id", "template_id"), "given back; there are no templates"),
    Unused(
        "agent", (AgentFields,), ("max_files_open", "per_file_view_window_char_limit"), "given back; there are no files"
    ),
    Unused("agent", (AgentFields,), ("from_template", "template"), "noted in `not_acted_on`; there are no templates"),
    Unused("agent", (AgentFields,), ("folder_ids", "source_ids"), "noted in `not_acted_on`; as for files"),
    Unused("agent", (AgentFields,), ("include_default_source",), "dropped; as for files"),
    Unused("agent", (AgentFields,), ("project", "project_id"), "dropped; the API key says the project"),
    Unused("agent", (AgentFields,), ("embedding_chunk_size",), "dropped; nothing is cut into chunks"),
    Unused(
        "agent",
        (AgentFields,),
        ("last_run_completion", "last_run_duration_ms", "last_stop_reason", "message_ids"),
        "dropped; they follow from runs and messages",
    ),
    Unused(
        "message",
        (MessagesRequest,),
        ("return_logprobs", "return_token_ids", "top_logprobs"),
        "dropped; answers have no probabilities",
    ),
    Unused("message", (MessagesRequest,), ("enable_thinking",), "dropped; the model's settings say it"),
    Unused("message", (MessageIn,), ("batch_item_id", "group_id"), "dropped; there are no batches and groups"),
    Unused("stream", (StreamRequest,), ("batch_size", "poll_interval"), "dropped; events are sent as they come"),
    Unused("tool", (ToolFields,), ("npm_requirements",), "given back; nothing is installed"),
    Unused("tool", (ToolFields,), ("pip_requirements",), "given back; a server without a package index installs none"),
    Unused(
        "block",
        (BlockCreate, BlockUpdate),
        (
            "base_template_id", "deployment_id", "entity_id", "hidden", "is_template", "preserve_on_migration",
            "project_id", "template_id", "template_name",
        ),
        "dropped; there are no templates",
    ),
)  # fmt: skip

MAX_ITEMS = 100
"""The search examines at most this many items of a list."""


class Known(NamedTuple):
    """A model's knowledge of a body: the effective fields under all their names, those among them that are models, and
    the fields without effect, each with the reason."""

    fields: frozenset[str]
    nested: Mapping[str, type[BaseModel]]
    unused: Mapping[str, str]


@lru_cache(maxsize=100)
def known_of(model: type[BaseModel]) -> Known:
    """Returns the fields of a request's model that have an effect, those that are models themselves, and those without
    effect."""
    unused = {
        name: line.because
        for line in NOT_ACTED_ON
        for known in line.models
        if issubclass(model, known)
        for name in line.fields
    }
    nested: dict[str, type[BaseModel]] = {}
    fields: set[str] = set()
    for name, field in model.model_fields.items():
        names = {name, *([field.alias] if field.alias else [])} - unused.keys()
        fields |= names
        inner = next(models_in(field.annotation), None)
        if inner is not None:
            nested |= dict.fromkeys(names, inner)
    return Known(frozenset(fields), nested, unused)


class Unacted(NamedTuple):
    """A field of a body without effect."""

    loc: tuple[str | int, ...]
    known: Known
    """What the model has at this place."""

    def __str__(self) -> str:
        return "".join("[]" if isinstance(one, int) else f".{one}" for one in self.loc).removeprefix(".")


def unused_fields(model: type[BaseModel], given: Mapping[str, Any]) -> Iterator[str]:
    """Yields the fields without effect, for example `memory_blocks[].hidden`. Skips empty values, which request
    nothing."""
    return map(str, unacted(model, given))


def unacted(
    model: type[BaseModel], given: Mapping[str, Any], *, strict: bool = False, loc: tuple[str | int, ...] = ()
) -> Iterator[Unacted]:
    """As `unused_fields`, with the places. `strict`: reports an unknown field even if its value is empty."""
    known = known_of(model)
    # Tool rules have fields that only their type knows.
    is_open = model.model_config.get("extra") == "allow" and model is not ModelSettingsFields
    for name, value in given.items():
        if not value and (not strict or name in known.unused):
            continue
        if name not in known.fields:
            yield from () if is_open else (Unacted((*loc, name), known),)
        elif name in known.nested:
            yield from _unacted_inside(known.nested[name], value, (*loc, name), strict=strict)


def _unacted_inside(
    model: type[BaseModel], value: object, loc: tuple[str | int, ...], *, strict: bool
) -> Iterator[Unacted]:
    if isinstance(value, dict):
        yield from unacted(model, cast("dict[str, Any]", value), strict=strict, loc=loc)
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[object]", value)[:MAX_ITEMS]):
            if isinstance(item, dict):
                yield from unacted(model, cast("dict[str, Any]", item), strict=strict, loc=(*loc, number))


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the models in a field's annotation, also inside unions, lists and `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated, list):
        for argument in get_args(annotation):
            yield from models_in(argument)
