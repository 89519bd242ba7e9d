"""What a client asks of a run that is there: to stop, or to be shown again; and what it thinks of a step."""

from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from api.bounded_fields import BoundedSchema
from api.letta.frames import usage_fields
from api.letta.model_settings import OfferedModels
from api.runs.cancel import Cancel
from api.runs.single_runs import Question
from shared.domain.errors import CancelMode, UnknownHandle
from shared.domain.ids import MAX_SEQ
from shared.domain.models import split_handle
from shared.domain.runs import DEFAULT_SYSTEM, Feedback, Generation, Run


class CancelRequestIn(BaseModel):
    """The body of a cancel; all of it may be left out."""

    run_ids: Annotated[list[str], Field(max_length=1000)] | None = None
    reason: Annotated[str | None, Field(max_length=2000)] = None
    mode: CancelMode = CancelMode.INTERRUPT
    wait: Annotated[float | None, Field(ge=0, le=60, description="Seconds to wait for the run to stop.")] = None

    def cancel(self) -> Cancel:
        """The same in our terms, but for the runs that it names."""
        return Cancel(self.reason, self.mode, self.wait)


def _no_boolean(value: object) -> object:
    """Pydantic takes true for 1, which would leave a frame out. Raises pydantic's error."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


class StreamRequest(BaseModel):
    """The body of a resumed stream; all of it may be left out."""

    model_config = ConfigDict(extra="ignore")

    starting_after: Annotated[int, BeforeValidator(_no_boolean), Field(ge=0, le=MAX_SEQ)] | None = None
    include_pings: bool = True
    include_status_events: bool = False
    include_event_times: Annotated[
        bool, Field(description="Each frame has `at_ms`, when it was written, in Unix ms. `date` has whole seconds.")
    ] = False


class StreamTokenRequest(BaseModel):
    """The body of a request for a stream's token; all of it may be left out."""

    valid_for_s: Annotated[int, Field(ge=1, le=86_400)] = 900


class FeedbackRequest(BaseModel):
    """What a person thinks of a step. What is left out stays as it is; null, or an empty list, takes it back."""

    feedback: Feedback | None = None
    tags: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)] | None = None


# One question to a model, without the agent's memory, tools and history, on Letta's wire.


class GenerateRequest(BaseModel):
    """What a model is to be asked, and which one."""

    model_config = ConfigDict(extra="ignore")

    prompt: str = Field(min_length=1)
    system_prompt: str | None = None
    override_model: str | None = None
    response_schema: BoundedSchema | None = None

    @field_validator("prompt")
    @classmethod
    def _says_something(cls, prompt: str) -> str:
        if not prompt.strip():
            raise ValueError("prompt cannot be empty or whitespace-only")
        return prompt

    @field_validator("response_schema")
    @classmethod
    def _is_of_an_object(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema and schema.get("type", "object") != "object":
            raise ValueError("response_schema must describe an object: leave its type out, or say 'object'")
        return schema

    @property
    def system(self) -> str:
        """The instructions for the model."""
        return self.system_prompt or DEFAULT_SYSTEM

    def generation(self) -> Generation:
        """What is asked for beside the question. An object has all of its properties where the schema does not say
        which, as on the wire."""
        schema = self.response_schema
        if not schema:
            return Generation()
        properties: object = schema.get("properties")
        named = list(cast("dict[str, object]", properties)) if isinstance(properties, dict) else []
        return Generation({"type": "object", "properties": {}, "required": named, **schema})


def question_of(request: GenerateRequest, models: OfferedModels) -> Question:
    """What the request asks. Raises `UnknownHandle`, or `InvalidRequest` as `OfferedModels.served` does."""
    return Question(request.prompt, request.system, _model(request.override_model, models), request.generation())


def _model(handle: str | None, models: OfferedModels) -> str | None:
    """The model that the request names. None: the agent's own."""
    if not handle:
        return None
    try:
        meant = models.served(handle, field="override_model") or handle
        split_handle(meant)
    except ValueError as error:
        raise UnknownHandle(handle, str(error)) from error
    return meant


def wire_generated(run: Run, text: str, model: str) -> dict[str, Any]:
    """The answer, and what it has used. `run_ids` names the run that asked: nothing else of the answer does."""
    usage = {**usage_fields(run.usage), "step_count": run.step_count, "run_ids": [run.id]}
    return {"content": text, "model": model, "usage": usage}
