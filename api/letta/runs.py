"""Runs and steps on Letta's wire, and the requests about existing runs: cancel a run, or resume its stream. A run that
waits for a person has the status `completed` there."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from api.errors import wire_waiting
from api.input_limits import BoundedSchema, Names
from api.letta.frames import error_fields, usage_fields
from api.letta.message_input import wire_content
from api.letta.messages import NOT_ANSWERS, wire_messages, wire_stop_reason, wire_time
from api.letta.traces import duration_ns, ns_between
from api.offered_models import OfferedModels
from api.runs.cancel import Cancel
from api.runs.single_runs import Question
from shared.domain.approvals import Approval, WaitingCalls
from shared.domain.errors import CancelMode, UnknownHandle
from shared.domain.ids import MAX_SEQ, RunId, is_id
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision, Message
from shared.domain.models import context_window_of, split_handle
from shared.domain.runs import (
    DEFAULT_SYSTEM,
    CancelRequest,
    Feedback,
    Generation,
    Run,
    RunOptions,
    Step,
    Usage,
)

WIRE_STATUSES: dict[str, list[RunStatus]] = {
    "created": [RunStatus.CREATED],
    "running": [RunStatus.RUNNING],
    "completed": [RunStatus.COMPLETED, RunStatus.AWAITING_APPROVAL],
    "failed": [RunStatus.FAILED],
    "cancelled": [RunStatus.CANCELLED],
}
"""The domain's statuses for each status of the wire."""


DIALECT = RunOptions().dialect
"""The name of this dialect."""


def wire_status(status: RunStatus) -> str:
    """The wire's word for a status."""
    return "completed" if status is RunStatus.AWAITING_APPROVAL else status.value


def wire_run(run: Run, waiting: WaitingCalls | None = None) -> dict[str, Any]:
    """The wire's run. `waiting` has the waiting calls of a parked run."""
    request_config = {
        "use_assistant_message": True,
        "assistant_message_tool_name": "send_message",
        "assistant_message_tool_kwarg": "message",
        "include_return_message_types": run.options.shown_types,
        # Another dialect stores its request in its own terms.
        **(run.options.echoed if run.options.dialect == DIALECT else {}),
    }
    return {
        "id": run.id,
        "status": wire_status(run.status),
        "created_at": wire_time(run.created_at),
        "completed_at": wire_time(run.completed_at),
        "agent_id": run.agent_id,
        "conversation_id": run.conversation_id,
        "base_template_id": None,
        "background": run.options.background,
        "metadata": _metadata(run, waiting),
        "request_config": request_config,
        "stop_reason": wire_stop_reason(run.stop_reason),
        "callback_url": run.callback_url,
        "callback_sent_at": wire_time(run.callback_sent_at),
        "callback_status_code": run.callback_status_code,
        "callback_error": run.callback_error,
        "ttft_ns": ns_between(run.created_at, run.first_token_at),
        "total_duration_ns": duration_ns(run),
        "code_agent": wire_code_agent(run),
    }


def wire_code_agent(run: Run) -> dict[str, str | None] | None:
    """The agent of an operator's own code that executes the run, with the version that executed it last."""
    name = run.options.code_agent
    return None if name is None else {"name": name, "version": run.code_version or None}


def wire_answer(
    run: Run, messages: Iterable[Message], *, with_input: bool = False, started: Sequence[RunId] = ()
) -> dict[str, Any]:
    """The result of a run: its messages, stop reason and usage, and the runs of sleep-time agents that it has
    started."""
    wanted = run.options.shown_types
    left_out = NOT_ANSWERS - {"summary_message"} if run.options.compaction_messages else NOT_ANSWERS
    shown = [
        message for message in wire_messages(messages, wanted) if with_input or message["message_type"] not in left_out
    ]
    return {
        "messages": shown,
        "stop_reason": {"message_type": "stop_reason", "stop_reason": wire_stop_reason(run.stop_reason)},
        "usage": {**usage_fields(run.usage), "step_count": run.step_count, "run_ids": list(started) or None},
        "logprobs": None,
        "turns": None,
    }


def wire_callback(run: Run, messages: Iterable[Message], waiting: WaitingCalls | None = None) -> dict[str, Any]:
    """The body of a run's callback; `waiting` as in `wire_run`."""
    shown = wire_run(run, waiting)
    return {
        "run_id": run.id,
        "project_id": run.project_id,
        "status": shown["status"],
        "completed_at": shown["completed_at"],
        "metadata": {**shown["metadata"], "result": wire_answer(run, messages, with_input=True)},
    }


def wire_usage(usage: Usage) -> dict[str, Any]:
    """The tokens that a run has used so far."""
    fields = usage_fields(usage)
    return {
        **{name: fields[name] for name in ("completion_tokens", "prompt_tokens", "total_tokens")},
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        **({"estimated": True} if usage.estimated else {}),
    }


def wire_receipt(run: Run) -> dict[str, Any]:
    """The receipt of a cancel: the state of the run now."""
    request = run.cancel
    stopped = run.status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
    return {
        "run_id": run.id,
        "status": wire_status(run.status) if stopped else "cancelling",
        "cause": run.cause,
        "requested_at": wire_time(None if request is None else request.requested_at),
        "acknowledged_at": wire_time(None if request is None else request.acknowledged_at),
        "stopped_at": wire_time(run.completed_at if stopped else None),
        "mode": None if request is None else request.mode.value,
        "reason": None if request is None else request.reason,
        "actor": None if request is None else request.actor,
    }


def wire_step(step: Step) -> dict[str, Any]:
    """The wire's step."""
    usage = step.usage
    provider, _, model = step.model.partition("/")
    return {
        "id": step.id,
        "origin": None,
        "organization_id": None,
        "provider_id": None,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "provider_name": provider,
        "provider_category": "base",
        "model": model,
        "model_handle": step.model,
        "model_endpoint": None,
        "context_window_limit": context_window_of(step.model),
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_read_tokens": usage.cached_input_tokens,
            "cache_creation_tokens": usage.cache_write_tokens,
        },
        "stop_reason": wire_stop_reason(step.stop_reason),
        "tags": step.tags,
        "tid": None,
        "trace_id": None,
        "request_id": None,
        "messages": [],
        "feedback": step.feedback,
        "project_id": None,
        "error_type": step.error.error_type if step.error else None,
        "error_data": error_fields(RunId(step.run_id), step.error) if step.error else None,
        "status": step.status,
    }


def _metadata(run: Run, waiting: WaitingCalls | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "run_type": run.options.run_type,
        "started_at": wire_time(run.started_at),
        "queue_wait_ms": _ms(ns_between(run.created_at, run.started_at)),
        "first_token_ms": _ms(ns_between(run.created_at, run.first_token_at)),
        "step_count": run.step_count,
        "prompt_tokens": run.usage.prompt_tokens,
        "completion_tokens": run.usage.completion_tokens,
    }
    if run.options.dialect != DIALECT:
        metadata["dialect"] = run.options.dialect
    if run.options.first_words is not None:
        metadata["first_words"] = run.options.first_words
    if run.options.tool_name is not None:
        metadata["tool_name"] = run.options.tool_name
    if run.error is not None:
        metadata["error"] = error_fields(run.id, run.error)
    if run.cause is not None:
        metadata["cause"] = run.cause
    if run.cancel is not None:
        metadata["cancel"] = _cancel(run.cancel)
    metadata |= _decisions(run, waiting)
    metadata |= _place_in_tree(run)
    if run.pruned_at is not None:
        metadata["pruned_at"] = wire_time(run.pruned_at)
    if run.trace_id is not None:
        metadata["trace_id"] = run.trace_id
    return metadata


def _place_in_tree(run: Run) -> dict[str, Any]:
    """The wait of a run that no worker holds, and the call that started the run."""
    shown: dict[str, Any] = {}
    if run.waits_until is not None:
        shown["waiting"] = {"for": run.waits_for or "budget", "until": wire_time(run.waits_until)}
    if run.options.parent is not None:
        call = run.options.parent
        shown |= {"parent_run_id": call.run_id, "parent_tool_call_id": call.call_id, "root_run_id": call.root_id}
    return shown


def _decisions(run: Run, waiting: WaitingCalls | None) -> dict[str, Any]:
    """The calls that the run waits for or the run that continues it, and the run that it continues."""
    shown: dict[str, Any] = {}
    if run.continues is not None:
        shown["continues_run_id"] = run.continues
    if run.continued_by is not None:
        shown |= {"continued_by_run_id": run.continued_by, "decided_at": wire_time(run.decided_at)}
    if waiting is not None:
        shown["waiting"] = {"for": "approval", **wire_waiting(waiting)}
    return shown


def _cancel(request: CancelRequest) -> dict[str, Any]:
    return {
        "requested_at": wire_time(request.requested_at),
        "acknowledged_at": wire_time(request.acknowledged_at),
        "actor": request.actor,
        "reason": request.reason,
        "mode": request.mode.value,
    }


def _ms(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6


# Approvals on the wire. Letta has none: the shapes are ours, in Letta's style.


Waiting = Annotated[float, Field(gt=0, le=315_360_000, description="Seconds, up to ten years.")]
Text = Annotated[str, Field(max_length=1_000_000)]


class DecisionIn(BaseModel):
    """The body of a decision on one tool call."""

    # If a client misspells `arguments`, the call must not run with the arguments of the model.
    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "deny", "tool_return"]
    reason: Annotated[str | None, Field(max_length=10_000, description="For the model, if it is a denial.")] = None
    arguments: Annotated[dict[str, Any] | None, Field(description="Run the tool with these arguments instead.")] = None
    arguments_hash: Annotated[str | None, Field(description="Decide only if the arguments have this hash.")] = None
    tool_version: Annotated[str | None, Field(description="Decide only if the tool has this version.")] = None
    tool_return: Annotated[
        Text | list[dict[str, Any]] | None,
        Field(description="The result of a tool that ran elsewhere: text, or parts of text and images."),
    ] = None
    status: Literal["success", "error"] = "success"
    stdout: Names | None = None
    stderr: Names | None = None
    decided_by: Annotated[str, Field(min_length=1, max_length=200, description="The name for the record.")] = "api"

    @model_validator(mode="after")
    def _fits_the_decision(self) -> "DecisionIn":
        if self.arguments is not None and self.decision != "approve":
            raise ValueError("arguments may be given with the decision 'approve' only")
        if self.decision == "tool_return" and self.tool_return is None:
            raise ValueError("tool_return is missing: the decision 'tool_return' brings the tool's result")
        given = self.model_fields_set & {"tool_return", "status", "stdout", "stderr"}
        if self.decision != "tool_return" and given:
            raise ValueError(f"{', '.join(sorted(given))} may be given with the decision 'tool_return' only")
        return self


def wire_approval(approval: Approval) -> dict[str, Any]:
    """A tool call, with its decision; if it waits, with the requests that decide it."""
    decision = approval.decision
    return {
        "id": approval.id,
        "status": _status(decision),
        "run_id": approval.run_id,
        "agent_id": approval.agent_id,
        "conversation_id": approval.thread_id if is_id(approval.thread_id, "conv") else None,
        "message_id": approval.message_id,
        "tool_call_id": approval.tool_call_id,
        "tool_name": approval.tool_name,
        "arguments": approval.arguments,
        "arguments_object": parsed_arguments(approval.arguments),
        "arguments_hash": approval.arguments_hash,
        "tool_version": approval.tool_version,
        "client_side": approval.client_side,
        "asked_at": wire_time(approval.asked_at),
        "expires_at": wire_time(approval.expires_at),
        "on_expiry": approval.on_expiry,
        "decision": None if decision is None else _decision(decision),
        "decided_at": wire_time(approval.decided_at),
        "decided_by": approval.decided_by,
        "continued_by": approval.continued_by,
        "decide": _how_to_decide(approval) if decision is None else None,
    }


def wire_decided(approval: Approval, run: Run | None) -> dict[str, Any]:
    """A decided call with the continuation of its run; `run` is null while other calls wait."""
    return {**wire_approval(approval), "run": None if run is None else wire_run(run)}


def parsed_arguments(text: str) -> dict[str, Any] | None:
    """The arguments as an object; None if the model did not write one."""
    try:
        return msgspec.json.decode(text.strip() or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None


def _status(decision: Decision | None) -> str:
    if decision is None:
        return "waiting"
    if decision.kind == "tool":
        return "returned"
    return "approved" if decision.approve else "denied"


def _decision(decision: Decision) -> dict[str, Any]:
    if decision.kind == "tool":
        return {
            "decision": "tool_return",
            "tool_return": decision.tool_return if decision.parts is None else wire_content(decision.parts),
            "status": decision.status,
            "stdout": decision.stdout,
            "stderr": decision.stderr,
        }
    edited = decision.edited_arguments
    return {
        "decision": "approve" if decision.approve else "deny",
        "reason": decision.reason,
        "arguments": None if edited is None else parsed_arguments(edited),
    }


def _how_to_decide(approval: Approval) -> dict[str, Any]:
    return {
        "method": "POST",
        "path": f"/v1/approvals/{approval.id}",
        "decisions": ["tool_return", "deny"] if approval.client_side else ["approve", "deny", "tool_return"],
        "body": {
            "decision": "tool_return" if approval.client_side else "approve",
            "arguments_hash": approval.arguments_hash,
            **({} if approval.tool_version is None else {"tool_version": approval.tool_version}),
            **({"tool_return": "…"} if approval.client_side else {}),
        },
    }


class CancelRequestIn(BaseModel):
    """The body of a cancel; all of it may be omitted."""

    run_ids: Annotated[list[str], Field(max_length=1000)] | None = None
    reason: Annotated[str | None, Field(max_length=2000)] = None
    mode: CancelMode = CancelMode.INTERRUPT
    wait: Annotated[float | None, Field(ge=0, le=60, description="Seconds to wait for the run to stop.")] = None

    def cancel(self) -> Cancel:
        """The cancel in the domain's terms, without the runs that the request names."""
        return Cancel(self.reason, self.mode, self.wait)


def _no_boolean(value: object) -> object:
    """Pydantic converts true to 1, which would skip a frame. Raises pydantic's error."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


class StreamRequest(BaseModel):
    """The body of a resumed stream; all of it may be omitted."""

    starting_after: Annotated[int, BeforeValidator(_no_boolean), Field(ge=0, le=MAX_SEQ)] | None = None
    include_pings: bool | None = True
    include_status_events: bool = False
    include_event_times: Annotated[
        bool, Field(description="Each frame has `at_ms`, its event's time in Unix ms; `date` has whole seconds.")
    ] = False


class StreamTokenRequest(BaseModel):
    """The body of a request for a stream's token; all of it may be omitted."""

    valid_for_s: Annotated[int, Field(ge=1, le=86_400)] = 900


class FeedbackRequest(BaseModel):
    """A person's feedback on a step. An omitted field stays; null, or an empty list, removes it."""

    feedback: Feedback | None = None
    tags: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)] | None = None


# One question to a model, without the agent's memory, tools and history, on Letta's wire.


class GenerateRequest(BaseModel):
    """A question to a model, and the model."""

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
        """The request beyond the question. As on Letta's server, an object must have all of its properties if its
        schema does not name required ones."""
        schema = self.response_schema
        if not schema:
            return Generation()
        properties: object = schema.get("properties")
        named = list(cast("dict[str, object]", properties)) if isinstance(properties, dict) else []
        return Generation({"type": "object", "properties": {}, "required": named, **schema})


def question_of(request: GenerateRequest, models: OfferedModels) -> Question:
    """The question in the domain's terms. Raises `UnknownHandle`, and `InvalidRequest` as `OfferedModels.served`."""
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
    """The answer and its usage. `run_ids` names the run of the question; no other field does."""
    usage = {**usage_fields(run.usage), "step_count": run.step_count, "run_ids": [run.id]}
    return {"content": text, "model": model, "usage": usage}
