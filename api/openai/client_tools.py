"""The tools that a client declares with a response and runs itself: functions, tools that take one text (`custom`), and
namespaces of both.

A model knows only functions with JSON arguments. So the model gets a custom tool as a function with one text, and a
tool of a namespace under both names joined. The response repeats the request's tools, and by these its fold gives each
call the names and the form that the client declared. Source: OpenAI's API reference, "Create a response", `tools`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from api.errors import place_of, text_of
from api.input_limits import BoundedSchema, as_object
from shared.domain.tools import ClientTool

MOST_TOOLS = 1_000
"""Tools of one request, those of namespaces included."""

LONGEST_NAME = 64
"""Characters of a function's name that every provider accepts."""

_INPUT = "input"
"""The argument that carries the text of a custom tool."""

_Name = Annotated[str, Field(min_length=1, max_length=128)]


class FunctionTool(BaseModel):
    """A tool that takes arguments."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function"]
    name: _Name
    description: str | None = None
    parameters: BoundedSchema | None = None
    strict: bool | None = None

    def client_tool(self, namespace: str | None = None) -> ClientTool:
        """The tool in the domain's terms."""
        parameters = self.parameters or {}
        return ClientTool(function_name(self.name, namespace), self.description or "", parameters, strict=self.strict)

    def echoed(self) -> dict[str, Any]:
        """The tool as the response repeats it."""
        return self.model_dump()


class TextFormat(BaseModel):
    """The form of a custom tool's text."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Annotated[str, Field(max_length=100_000)] | None = None


class CustomTool(BaseModel):
    """A tool that takes one text."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom"]
    name: _Name
    description: str | None = None
    format: TextFormat | None = None

    def client_tool(self, namespace: str | None = None) -> ClientTool:
        """The tool in the domain's terms. Only the description tells the model the grammar of the text."""
        words = [self.description] if self.description else []
        if self.format is not None and self.format.definition:
            words.append(f"The input must match this {self.format.syntax or ''} grammar:\n{self.format.definition}")
        text = {"type": "object", "properties": {_INPUT: {"type": "string"}}, "required": [_INPUT]}
        parameters = {**text, "additionalProperties": False}
        return ClientTool(function_name(self.name, namespace), "\n\n".join(words), parameters)

    def echoed(self) -> dict[str, Any]:
        """The tool as the response repeats it."""
        return self.model_dump(exclude_none=True)


class Namespace(BaseModel):
    """A group of tools with a name of its own, such as those of one MCP server."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["namespace"]
    name: _Name
    description: str = ""
    tools: Annotated[
        list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]],
        Field(min_length=1, max_length=MOST_TOOLS),
    ]

    def echoed(self) -> dict[str, Any]:
        """The namespace as the response repeats it."""
        named = {"type": self.type, "name": self.name, "description": self.description}
        return {**named, "tools": [tool.echoed() for tool in self.tools]}


DeclaredTool = FunctionTool | CustomTool | Namespace

_KINDS: dict[object, type[DeclaredTool]] = {"function": FunctionTool, "custom": CustomTool, "namespace": Namespace}


def declared_tool(tool: Mapping[str, Any], number: int) -> DeclaredTool | None:
    """Reads the tool with this number in the request. None: the client cannot run tools of this type. Raises
    `ValueError`, which names the field."""
    named = tool.get("type")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        return None
    try:
        return kind.model_validate(tool)
    except ValidationError as error:
        flaw = error.errors(include_url=False, include_context=False)[0]
        keys = [key for key in flaw["loc"] if key not in _KINDS]  # pydantic also names the type of a tool
        raise ValueError(f"{place_of((number, *keys), 'tools')}: {text_of(flaw)}") from None


def client_tools_of(declared: Sequence[DeclaredTool]) -> Iterator[ClientTool]:
    """The tools for the model. The first tool of a namespace also has the namespace's description."""
    for tool in declared:
        if not isinstance(tool, Namespace):
            yield tool.client_tool()
            continue
        about = tool.description
        for one in tool.tools:
            of_model = one.client_tool(tool.name)
            words = [text for text in (about, of_model.description) if text]
            yield ClientTool(of_model.name, "\n\n".join(words), of_model.parameters, strict=of_model.strict)
            about = ""


def function_name(name: str, namespace: str | None) -> str:
    """The name by which the model calls a tool."""
    if not namespace:
        return name
    whole = f"{namespace}__{name}"
    if len(whole) <= LONGEST_NAME:
        return whole
    return f"{whole[: LONGEST_NAME - 9]}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


class CalledTool(NamedTuple):
    """A tool with the names that its client gave it. `takes_text`: its call has a text instead of arguments."""

    name: str
    namespace: str | None
    takes_text: bool


def called_tools(echoed: Sequence[Mapping[str, Any]]) -> dict[str, CalledTool]:
    """The tools that a response repeats, by the names by which the model calls them."""
    found: dict[str, CalledTool] = {}
    for tool in echoed:
        namespace = tool["name"] if tool["type"] == "namespace" else None
        for one in [tool] if namespace is None else tool["tools"]:
            called = CalledTool(one["name"], namespace, one["type"] == "custom")
            found[function_name(called.name, namespace)] = called
    return found


def arguments_with(text: str) -> str:
    """The arguments of a function for the input of a custom tool."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def text_in(arguments: str) -> str:
    """The input of a custom tool in a function's arguments, which may be cut. Other arguments are the input as they
    are."""
    try:
        found = as_object(from_json(arguments or "{}", allow_partial="trailing-strings"))
    except ValueError:
        return arguments
    if found == {}:
        return ""
    text = None if found is None else found.get(_INPUT)
    return text if isinstance(text, str) else arguments
