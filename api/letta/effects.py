"""The effects of a run on the wire: its tool calls, and what was found out about those whose outcome was unknown."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.letta.messages import wire_time
from shared.domain.effects import Effect, Outcome


class SettleRequest(BaseModel):
    """What a person has found out about a tool call whose outcome is unknown."""

    # A misspelled result must not be lost in silence.
    model_config = ConfigDict(extra="forbid")

    outcome: Outcome
    result: Annotated[str | None, Field(max_length=100_000, description="What the call has come to.")] = None
    settled_by: Annotated[str, Field(min_length=1, max_length=200, description="Who says so, for the record.")] = "api"

    @model_validator(mode="after")
    def _fits_the_outcome(self) -> "SettleRequest":
        if self.result is not None and self.outcome != "happened":
            raise ValueError("result may be given with the outcome 'happened' only")
        return self


def wire_effect(effect: Effect) -> dict[str, Any]:
    """One tool call, and how far it has come."""
    found = effect.settlement
    return {
        "call_id": effect.call_id,
        "name": effect.name,
        "state": effect.state,
        "idempotency_key": effect.idempotency_key,
        "attempt": effect.attempt,
        "started_at": wire_time(effect.started_at),
        "ended_at": wire_time(effect.ended_at),
        "settled_by": None if found is None else found.by,
        "settled_by_name": None if found is None else found.who,
        "outcome": None if found is None else found.outcome,
        "result": None if found is None else found.result,
        "settled_at": None if found is None else wire_time(found.at),
    }
