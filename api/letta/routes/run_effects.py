"""Routes of a run's effects: the tool calls that it has started, their outcomes, and a person's finding about a lost
call."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.dependencies import ClockDep, MessageStoreDep, ProjectDep, RunIdPath, RunStoreDep, served
from api.direct_route import LateRoute
from api.every_answer import warn_if_pruned
from api.letta.messages import wire_time
from shared.domain.effects import Effect, Outcome, SettledEffect
from shared.domain.errors import Conflict, NotFound
from shared.domain.runs import Run
from shared.sql.history.messages import MessageStore
from shared.sql.runs.effects import EffectStore

# The effects of a run on the wire: its tool calls, and the findings about calls with an unknown outcome.


class SettleRequest(BaseModel):
    """A person's finding about a tool call whose outcome is unknown."""

    # A misspelled result must not be lost silently.
    model_config = ConfigDict(extra="forbid")

    outcome: Outcome
    result: Annotated[str | None, Field(max_length=100_000, description="The result of the call.")] = None
    settled_by: Annotated[str, Field(min_length=1, max_length=200, description="The name for the record.")] = "api"

    @model_validator(mode="after")
    def _fits_the_outcome(self) -> "SettleRequest":
        if self.result is not None and self.outcome != "happened":
            raise ValueError("result may be given with the outcome 'happened' only")
        return self


def wire_effect(effect: Effect) -> dict[str, Any]:
    """One tool call, and its state."""
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


# The routes.


EffectStoreDep = Annotated[EffectStore, served(EffectStore)]

CallIdPath = Annotated[str, Path(min_length=1, max_length=1000)]

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=LateRoute)


async def _effects(run: Run, effect_store: EffectStore, message_store: MessageStore) -> list[Effect]:
    return await effect_store.of_run(run, await message_store.list_of_turn(run))


@router.get("/{run_id}/effects")
async def list_effects(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    message_store: MessageStoreDep,
    effect_store: EffectStoreDep,
    project_id: ProjectDep,
    response: Response,
) -> list[dict[str, Any]]:
    """The run's tool calls, each with its key and its outcome. For a pruned run the start times are deleted, and a
    `Warning` header says so."""
    run = await run_store.get(project_id, run_id)
    warn_if_pruned(response, run)
    return [wire_effect(effect) for effect in await _effects(run, effect_store, message_store)]


@router.post("/{run_id}/effects/{call_id}")
async def settle_effect(
    run_id: RunIdPath,
    call_id: CallIdPath,
    request: SettleRequest,
    run_store: RunStoreDep,
    message_store: MessageStoreDep,
    effect_store: EffectStoreDep,
    clock: ClockDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """Stores a person's finding about a call whose outcome is unknown. The conversation does not change: there the
    model has read that the outcome is unknown."""
    run = await run_store.get(project_id, run_id)
    effects = await _effects(run, effect_store, message_store)
    of_call = [effect for effect in effects if effect.call_id == call_id]
    if not of_call:
        raise NotFound(f"run {run_id} has no such tool call")
    effect = next((one for one in of_call if one.state == "unknown"), of_call[-1])
    if effect.state not in ("unknown", "settled"):
        raise Conflict(f"the call {call_id} is not unknown, it is {effect.state}: there is nothing to settle")
    settlement = SettledEffect(
        idempotency_key=effect.idempotency_key,
        call_id=call_id,
        by="person",
        who=request.settled_by,
        outcome=request.outcome,
        result=request.result,
        at=clock.now(),
    )
    return wire_effect(replace(effect, state="settled", settlement=await effect_store.settle(run, settlement)))
