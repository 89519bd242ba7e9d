"""A request for a response: its fields, the supported values, and refusals that name unsupported ones."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, LiteralString, cast

from fastapi.exceptions import RequestValidationError
from msgspec.structs import replace
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from api.input_limits import BoundedSchema, as_object
from api.openai.client_tools import MOST_TOOLS, DeclaredTool, Namespace, declared_tool, function_name
from api.openai.response_fold import FOLD, USUAL_FOLD, WITH_COMPACTIONS
from api.openai.response_items import SERVER_LABEL
from api.openai.response_object import INCLUDE_ENCRYPTED
from api.openai.responses_input import COMPACTION_TRIGGER, MOST_ITEMS
from shared.domain.agents import ModelOptions
from shared.domain.errors import InvalidRequest
from shared.domain.tools import ToolChoice

LONGEST_KEY, LONGEST_VALUE, MOST_PAIRS = 64, 512, 16
"""OpenAI's limits for metadata."""


def _pairs(value: dict[str, str]) -> dict[str, str]:
    if len(value) > MOST_PAIRS:
        raise ValueError(f"at most {MOST_PAIRS} pairs")
    for key, text in value.items():
        if len(key) > LONGEST_KEY or len(text) > LONGEST_VALUE:
            raise ValueError(f"keys have at most {LONGEST_KEY} characters, and values {LONGEST_VALUE}")
    return value


Metadata = Annotated[dict[str, str], AfterValidator(_pairs)]


class Reasoning(BaseModel):
    """Options for the model's reasoning."""

    model_config = ConfigDict(extra="ignore")

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(BaseModel):
    """The format of the answer's text."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Annotated[BoundedSchema | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "TextFormat":
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise ValueError("a format of the type json_schema needs a name and a schema")
        return self

    def for_model(self) -> dict[str, Any] | None:
        """The format in a model request. None: plain text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "json_object"}
        schema = self.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        return {"type": "json_schema", "json_schema": schema}

    def echoed(self) -> dict[str, Any]:
        """The format as the response repeats it."""
        if self.type != "json_schema":
            return {"type": self.type}
        named = {"type": self.type, "name": self.name, "schema": self.schema_, "strict": self.strict}
        return {**named, "description": self.description}


class TextOptions(BaseModel):
    """Options for the answer's text."""

    model_config = ConfigDict(extra="ignore")

    format: TextFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None


class ContextManagement(BaseModel):
    """The rule for compacting the context."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1000, le=2**31)] | None = None
    """Tokens. Null: the default, which is a full window."""


class ConversationName(BaseModel):
    """A conversation, as an object."""

    id: str


def _names_one(value: Any) -> Any:
    if value is None or isinstance(value, str) or isinstance((as_object(value) or {}).get("id"), str):
        return value
    raise ValueError("must be the id of a conversation, conv_…, or an object that has it as its id")


def _unsupported(said: str, param: str = "", *, code: LiteralString = "unsupported_parameter") -> PydanticCustomError:
    """A refusal with OpenAI's code. `param` names the field if a check concerns several fields."""
    return PydanticCustomError(code, "{said}", {"said": said, "param": param})


def _refused(said: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not value:
            return value
        raise _unsupported(said)

    return check


class ResponseRequest(BaseModel):
    """The body of `POST /openai/v1/responses`. Fields that OpenAI does not define are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    input: Annotated[str | list[dict[str, Any]] | None, Field(union_mode="left_to_right")] = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Annotated[str | ConversationName | None, BeforeValidator(_names_one)] = None
    background: bool | None = None
    stream: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=2**31)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1)] | None = None
    service_tier: str | None = None
    safety_identifier: Annotated[str, Field(max_length=500)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=500)] | None = None
    user: Annotated[str, Field(max_length=500)] | None = None

    prompt: Annotated[Any, AfterValidator(_refused("stored prompts are not supported: send instructions"))] = None
    top_logprobs: Annotated[Any, AfterValidator(_refused("probabilities of tokens are not supported"))] = None

    @field_validator("input")
    @classmethod
    def _is_no_book(cls, value: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]] | None:
        if isinstance(value, list) and len(value) > MOST_ITEMS:
            raise ValueError(f"at most {MOST_ITEMS} items")
        return value

    @field_validator("tools")
    @classmethod
    def _are_known(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        many = 0
        for number, tool in enumerate(value or ()):
            kind = tool.get("type")
            if kind == "mcp" and tool.get("server_label") == SERVER_LABEL:
                continue  # the agent's own tools, which it has anyway: agents' frameworks find their calls by this
            declared = declared_tool(tool, number)
            if declared is None:
                raise _unsupported(
                    f"the tool type {str(kind)[:50]!r} is not there: tools of the types 'function', 'custom' and "
                    "'namespace' are yours to run, and an agent's own tools are attached to it"
                )
            many += len(declared.tools) if isinstance(declared, Namespace) else 1
            if many > MOST_TOOLS:
                raise ValueError(f"at most {MOST_TOOLS} tools, those of namespaces included")
        return value

    @field_validator("include")
    @classmethod
    def _is_given(cls, value: list[str] | None) -> list[str] | None:
        for one in value or ():
            if one == "message.output_text.logprobs":
                raise _unsupported("probabilities of tokens are not supported")
        return value

    @field_validator("service_tier")
    @classmethod
    def _is_usual(cls, value: str | None) -> str | None:
        if value in (None, "auto", "default"):
            return value
        raise _unsupported("service tiers are not supported: leave it out")

    @model_validator(mode="after")
    def _fits_together(self) -> "ResponseRequest":
        if self.previous_response_id is not None and self.conversation is not None:
            why, code = "previous_response_id and conversation exclude each other", "mutually_exclusive_parameters"
            raise _unsupported(why, "conversation", code=code)
        if self.background and self.store is False:
            why = "background needs store: a response that is not kept cannot be read later"
            raise _unsupported(why, "background")
        return self

    @property
    def is_foreground(self) -> bool:
        """Whether the response ends with its connection."""
        return not self.background

    @property
    def conversation_name(self) -> str | None:
        """The id of the conversation."""
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation

    @property
    def compact_over(self) -> int | None:
        """The number of tokens above which the context is compacted. None: the request does not set it."""
        return self.context_management[0].compact_threshold if self.context_management else None

    def declared_tools(self) -> list[DeclaredTool]:
        """The client's tools."""
        read = [declared_tool(tool, number) for number, tool in enumerate(self.tools or ())]
        return [tool for tool in read if tool is not None]

    def asked_options(self) -> dict[str, Any]:
        """The options of `ModelOptions` that the request sets."""
        same = ("temperature", "top_p", "max_output_tokens")
        said: dict[str, Any] = {name: value for name in same if (value := getattr(self, name)) is not None}
        if self.parallel_tool_calls is False:
            said["parallel_tool_calls"] = False
        if self.reasoning is not None and self.reasoning.effort is not None:
            said |= {"reasoning_effort": self.reasoning.effort, "reasoning": self.reasoning.effort != "none"}
        elif "temperature" in said or "top_p" in said:
            said["reasoning"] = False  # some models accept only one of the two options
        if self.text is not None and self.text.format.type != "text":
            said["response_format"] = self.text.format.for_model()
        if self.text is not None and self.text.verbosity is not None:
            said["verbosity"] = self.text.verbosity
        return said

    def model_options(self, own: ModelOptions) -> ModelOptions:
        """The options for the model: those of the request, else those of the agent."""
        said = self.asked_options()
        return replace(own, **said) if said else own

    def echo(self, *, compacts: bool) -> dict[str, Any]:
        """The fields of the request that the response repeats, and the version of the fold that renders it. `compacts`:
        the response is a compaction."""
        said: dict[str, Any] = {FOLD: WITH_COMPACTIONS if compacts or self.context_management else USUAL_FOLD}
        said |= {name: value for name in _ECHOED if (value := getattr(self, name)) is not None}
        if self.tools:
            said["tools"] = [tool.echoed() for tool in self.declared_tools()]
        if self.tool_choice is not None:
            said["tool_choice"] = self.tool_choice
        if self.reasoning is not None:
            summary = self.reasoning.summary or self.reasoning.generate_summary
            said["reasoning"] = {"effort": self.reasoning.effort, "summary": summary}
        if self.text is not None:
            shown: dict[str, Any] = {"format": self.text.format.echoed()}
            said["text"] = shown | ({} if self.text.verbosity is None else {"verbosity": self.text.verbosity})
        if self.include and INCLUDE_ENCRYPTED in self.include:
            said["include"] = [INCLUDE_ENCRYPTED]
        return said


class ResponseCompactRequest(BaseModel):
    """The body of `POST /openai/v1/responses/compact`."""

    model_config = ConfigDict(extra="ignore")

    model: Annotated[str, Field(min_length=1, max_length=200)] | None
    input: Annotated[str | list[dict[str, Any]] | None, Field(union_mode="left_to_right")] = None
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: Annotated[str, Field(max_length=500)] | None = None
    service_tier: str | None = None

    def as_response(self) -> ResponseRequest:
        """The request for the response that makes the compaction. Raises `RequestValidationError` for values that a
        response does not accept."""
        given = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input or []
        said = self.model_dump(exclude={"input"}, exclude_none=True)
        try:
            return ResponseRequest(input=[*given, {"type": COMPACTION_TRIGGER}], **said)
        except ValidationError as error:
            flaws = [{**flaw, "loc": ("body", *flaw["loc"])} for flaw in error.errors(include_url=False)]
            raise RequestValidationError(flaws) from error


_ECHOED = (
    *("model", "instructions", "previous_response_id", "metadata", "max_output_tokens", "temperature", "top_p"),
    *("parallel_tool_calls", "max_tool_calls", "truncation", "safety_identifier", "prompt_cache_key", "store", "user"),
)
"""Fields that the response repeats unchanged."""


def tool_choice_of(request: ResponseRequest) -> ToolChoice | None:
    """The tools that the model may or must call. None: the request sets none. Raises `InvalidRequest`."""
    choice = request.tool_choice
    if choice is None or choice == "auto":
        return None
    if choice in ("none", "required"):
        return ToolChoice(mode=choice)
    named = as_object(choice) or {}
    if named.get("type") in ("function", "custom") and isinstance(named.get("name"), str):
        return ToolChoice(mode="required", names=[_chosen(named)])
    mode = named.get("mode", "auto")
    if named.get("type") == "allowed_tools" and mode in ("auto", "required"):
        allowed = [as_object(one) or {} for one in cast("list[Any]", named.get("tools") or [])]
        names = [_chosen(one) for one in allowed if isinstance(one.get("name"), str)]
        if names and len(names) == len(allowed):
            return ToolChoice(mode=mode, names=names)
    raise InvalidRequest(
        "tool_choice must be 'auto', 'none', 'required', {'type': 'function' or 'custom', 'name': …} or allowed_tools "
        "with the names of your tools",
        field="tool_choice",
    )


def _chosen(named: dict[str, Any]) -> str:
    namespace = named.get("namespace")
    return function_name(named["name"], namespace if isinstance(namespace, str) else None)
