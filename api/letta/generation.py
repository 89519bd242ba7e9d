"""One question to a model, without the agent's memory, tools and history, on Letta's wire."""

from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator

from api.bounded_fields import BoundedSchema
from api.letta.frames import usage_fields
from api.letta.model_settings import OfferedModels
from api.runs.generation import Question
from shared.domain.errors import UnknownHandle
from shared.domain.models import split_handle
from shared.domain.runs import DEFAULT_SYSTEM, Generation, Run


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
