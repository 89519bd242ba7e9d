"""Routes of a run's effects: the tools that it has started, their outcomes, and a person's word about a lost one."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from msgspec.structs import replace

from api.dependencies import ProjectDep, RunIdPath, served
from api.direct_route import LateRoute
from api.every_answer import warn_if_pruned
from api.letta.effects import SettleRequest, wire_effect
from shared.concurrency import Clock
from shared.domain.effects import Effect, SettledEffect
from shared.domain.errors import Conflict, NotFound
from shared.domain.runs import Run
from shared.sql.history.messages import MessageStore
from shared.sql.runs.effects import EffectStore
from shared.sql.runs.run_store import RunStore

ClockDep = Annotated[Clock, served(Clock)]
EffectStoreDep = Annotated[EffectStore, served(EffectStore)]
MessageStoreDep = Annotated[MessageStore, served(MessageStore)]
RunStoreDep = Annotated[RunStore, served(RunStore)]

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
    """The run's tool calls, each with its key and its outcome. Of a pruned run the starts are gone, and a `Warning`
    header says so."""
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
    """Stores what a person has found out about a call whose outcome is unknown. It changes nothing of the conversation:
    the model has been told that the outcome is unknown."""
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
