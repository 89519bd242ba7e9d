"""Runs the tools of one answer: each call at most once, checked against its schema, all results in one message. Each
result is stored at once, so a crash loses only the results of tools that were running."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from msgspec.structs import replace

from shared.concurrency import task_group
from shared.domain.approvals import Approval, hash_of
from shared.domain.errors import NotFound
from shared.domain.events import CallDecided, ToolsReturned, ToolStarted, tool_ended
from shared.domain.ids import StepId
from shared.domain.messages import (
    AssistantMessage,
    Decision,
    NewMessage,
    TextContent,
    ToolCall,
    ToolReturn,
    ToolReturns,
    text_of,
)
from shared.domain.run_trees import CallWaits
from shared.domain.runs import Step
from shared.domain.settling import OpenCalls, decided_return, unknown_return
from shared.domain.tools import Tool, filled_arguments
from shared.tool_arguments import RefusedArguments, as_object, check_arguments
from worker.bodies.agent_context import AgentContext
from worker.bodies.answer import without_middle
from worker.bodies.answer_draft import Answer
from worker.bodies.probes import result_of_lost_call
from worker.run.run_handle import AwaitsRuns, Parked
from worker.runners.tool_runner import ForeignOutcome, ToolRunner, error_return
from worker.tools.outcomes import ToolOutcome, without_secrets

# Makes one tool call: checks its arguments, lets its runner make it, and removes secrets from its result.


TOO_LONG = "Error: the tool was given up: it has not answered within {:g} s. Whether it did its work is not known."

OVER_LIMIT = "[… {characters} characters are left out here: the tool's results may not be so long …]"

EMPTY_AGAIN = "[The folder that earlier calls of this run shared is empty again: the run went on elsewhere.]\n"
"""The beginning of the first result in a new folder, for the model and for readers. The folder belongs to the worker: a
continuation gets a new one, and so does a run that another worker continues."""


async def result_of(
    context: AgentContext, call: ToolCall, tool: Tool, arguments: str, *, beginning: str = "", is_shown: bool = True
) -> ToolReturn:
    """Returns `beginning` and the result of a call whose intent is stored. `arguments` is JSON, and replaces the call's
    own arguments. `is_shown`: readers see its start and its end.

    A tool is not started with arguments that do not fit its schema. The result then explains the error.
    """
    runner = context.services.runners.of(tool)
    checked = await check_arguments(as_object(arguments), runner.arguments(tool))
    if isinstance(checked, RefusedArguments):
        return error_return(call, beginning + checked.text)
    step_id = context.handle.progress.step_id
    shows = is_shown and context.run.options.item_events and call.speech is None
    if shows:
        is_held_back = context.run.continues is not None and context.handle.progress.in_hand is None
        context.emit(ToolStarted(context.at, step_id, call.id, call.name, (arguments or "{}") if is_held_back else ""))
    made = await _made(context, runner, call, tool, checked)
    result = replace(made, text=beginning + made.text)
    if shows:
        context.emit(tool_ended(result, step_id, context.at))
    return result


async def _made(
    context: AgentContext, runner: ToolRunner, call: ToolCall, tool: Tool, checked: dict[str, Any]
) -> ToolReturn:
    """Returns the result of the runner's call, in the form to show and store."""
    traits = runner.traits
    lost_folder = tool.scratch == "run" and await _enter_folder(context, call)
    result = await _within_its_time(runner.call(context, call, tool, checked), call, traits.timeout_s)
    if isinstance(result, ForeignOutcome):
        result = result.returned(await without_secrets(result.outcome, context.secrets))
    elif traits.sees_secrets:
        result = await _redacted(result, context.secrets)
    if not traits.limits_results:
        result = within_limit(result, tool.return_char_limit)
    return replace(result, text=EMPTY_AGAIN + result.text) if lost_folder else result


async def _within_its_time(
    making: Awaitable[ToolReturn | ForeignOutcome], call: ToolCall, timeout_s: float | None
) -> ToolReturn | ForeignOutcome:
    """Returns the runner's result, or an error result after `timeout_s` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            return await making
    except TimeoutError:
        if timeout_s is None:
            raise
        return error_return(call, TOO_LONG.format(timeout_s))


async def _redacted(result: ToolReturn, secrets: Mapping[str, str]) -> ToolReturn:
    """Returns the result without the secrets' values, in its text and its output."""
    said = ToolOutcome("error", result.text, list(result.stdout or ()), list(result.stderr or ()))
    clean = await without_secrets(said, secrets)
    return replace(
        result,
        text=clean.text,
        stdout=None if result.stdout is None else clean.stdout,
        stderr=None if result.stderr is None else clean.stderr,
    )


def within_limit(result: ToolReturn, most: int) -> ToolReturn:
    """Returns the result, without its middle if it has more than `most` characters."""
    if len(result.text) <= most:
        return result
    shorter = replace(result, text=without_middle(result.text, most, OVER_LIMIT))
    if result.parts is None:
        return shorter
    # The model gets the parts, so their text is shortened as well. Images are no text.
    text = TextContent(without_middle(text_of(result.parts), most, OVER_LIMIT))
    return replace(shorter, parts=[text, *(part for part in result.parts if not isinstance(part, TextContent))])


async def _enter_folder(context: AgentContext, call: ToolCall) -> bool:
    """Keeps the folder that calls of the run share, from this owner's first such call until the run's end is stored.
    Returns whether this is that first call, and earlier calls have used another folder."""
    if context.progress.has_run_folder:
        return False
    context.progress.has_run_folder = True
    run, messages = context.run, context.handle.services.messages
    await context.handle.held.enter_async_context(context.services.sandbox.of_run(run.id))
    if run.fence == 1 and run.continues is None:
        return False
    users = {name for name, tool in context.tools.items() if tool.scratch == "run"}
    turn = await context.whole(lambda: messages.list_of_turn(run))
    started = await context.handle.calls.started()
    for message in turn:
        if isinstance(message.body, ToolReturns):
            # A result without output shows that no tool ran here, unless the outcome is unknown.
            ran = [one for one in message.body.returns if one.stdout is not None or one.is_unknown]
            if any(one.tool_name in users for one in ran):
                return True
        elif isinstance(message.body, AssistantMessage):
            begun = [one for one in message.body.tool_calls if one.id in started and one.id != call.id]
            if any(one.name in users for one in begun):
                return True
    return False


# Parks a run whose answer has calls that a person must decide or the client must run.


async def ask_for_approval(context: AgentContext, answer: Answer) -> Parked:
    """Stores the answer with its requests and parks the run, so that no worker waits for a person.

    Calls of the same answer that need no approval wait, too, because all results are stored together.
    """
    context.handle.stop_if_asked()
    asked = [_request(context, answer, call) for call in answer.calls if call.needs_approval]
    return await context.handle.park([answer.message], asked)


def _request(context: AgentContext, answer: Answer, call: ToolCall) -> Approval:
    now = context.handle.clock.now()
    body = answer.message.body
    shown_as = answer.message.id
    if isinstance(body, AssistantMessage) and body.sibling_holds == "approvals" and body.sibling_id is not None:
        shown_as = body.sibling_id
    expires_s, on_expiry = expiry_of(context, call.name)
    return Approval(
        id=context.handle.ids.approval(),
        project_id=context.run.project_id,
        agent_id=context.run.agent_id,
        thread_id=context.run.thread_id,
        run_id=context.run.id,
        message_id=shown_as,
        tool_call_id=call.id,
        tool_name=call.name,
        arguments=call.arguments,
        arguments_hash=hash_of(call.arguments),
        tool_version=call.tool_version,
        client_side=any(tool.name == call.name for tool in context.run.options.client_tools),
        asked_at=now,
        expires_at=None if expires_s is None else now + timedelta(seconds=expires_s),
        on_expiry=on_expiry,
    )


def expiry_of(context: AgentContext, name: str) -> tuple[float | None, Literal["keep", "deny", "cancel"]]:
    """Returns the tool's own expiry, else the agent's."""
    tool = context.tools.get(name)
    if tool is not None and tool.approval_expires_s is not None:
        return tool.approval_expires_s, tool.on_approval_expiry
    return context.agent.approval_expires_s, context.agent.on_approval_expiry or "keep"


NOT_ASKED = (
    "Error: since this call was written, calls of {!r} wait for a person. It was not made: call the tool again, and a "
    "person is asked."
)
NOT_CHOSEN = "Error: the tool_choice of this request does not allow a call of {!r}. It was not made: answer without it."
TOO_MANY = (
    "Error: this request allows {} calls of tools (max_tool_calls), and they were made. This call of {!r} was not: "
    "answer without it."
)
CHANGED_TOOL = (
    "Error: the tool {!r} was changed after a person was asked about this call. So it was not made, though it was "
    "approved: call the tool again, and a person is asked about it as it is now."
)

LONGEST_RESULTS = 16_000_000
"""The limit in characters for the results of one answer together, because the worker shows, stores and sends them
together. It is several times the largest window."""

LEAST_OF_A_RESULT = 1_000
"""The characters that each result keeps even beyond `LONGEST_RESULTS`."""

NO_ROOM = "[… {characters} characters are left out here: the results of one answer have too many together …]"


async def run_tools(context: AgentContext, message: NewMessage, calls: Sequence[ToolCall]) -> AwaitsRuns | None:
    """Runs the calls of a new answer, and stores the answer and the results in two checkpoints. Returns the wait of
    the run if a call waits for other runs."""
    together = _may_run_together(context, calls)
    context.count_calls(calls)
    starting = list(calls) if together else list(calls[:1])
    await context.handle.checkpoint([message], starting=[call for call in starting if _may_start(context, call)])
    if together:
        await context.read_equipment()
        async with task_group() as group:
            for call in calls:
                group.create_task(_run_beside(context, call, calls), name=f"tool {call.name}")
    else:
        for number, call in enumerate(calls):
            await context.read_equipment()
            if number and _may_start(context, call):
                await context.handle.calls.starting(call)
            await _run_into(context, call)
            if context.progress.waits:
                break
    if context.progress.waits:
        return await _wait(context)
    await _store_returns(context, message.step_id, [context.handle.progress.returns[call.id] for call in calls])
    return None


async def _wait(context: AgentContext) -> AwaitsRuns:
    """Stores the results so far. The run then waits until one of the awaited runs changes."""
    await context.handle.calls.store_results()
    waits = context.progress.waits
    seen = [child for one in waits for child in one.seen]
    return await context.handle.let_wait(CallWaits(seen, min(one.wait for one in waits)))


async def finish_open_calls(context: AgentContext, open_: OpenCalls) -> AwaitsRuns | None:
    """Completes calls that a person allowed, that a lost worker left open, or that have waited for other runs. Returns
    the wait of the run if one of them waits.

    The model gets "outcome unknown" for a call whose tool was started and may not be started twice.
    """
    decisions = {decision.tool_call_id: decision for decision in open_.decisions}
    if context.run.options.item_events and context.run.continues is not None:
        await _show_decisions(context, open_, decisions)
    started = await context.handle.calls.started()
    context.progress.seen_memory, context.handle.progress.open_step_id = dict(open_.seen_memory), open_.step_id
    decided = {call.id: decided_return(call, decisions.get(call.id)) for call in open_.calls}
    context.handle.progress.returns.update(
        {call_id: result for call_id, result in decided.items() if result is not None}
    )
    brought = [call for call in open_.calls if call.id in decisions and decisions[call.id].kind == "tool"]
    free = [call for call in open_.calls if decided[call.id] is None]
    denied = [call for call in open_.calls if call not in brought and call not in free]
    context.count_calls(free)
    for call in free:
        await context.read_equipment()
        decision = decisions.get(call.id)
        known = await _known_result(context, call, decision, started)
        if known is not None:
            context.handle.progress.returns[call.id] = known
            continue
        await _run_into(context, call, decision)
        if context.progress.waits and not _may_run_together(context, free):
            break
    if context.progress.waits:
        return await _wait(context)
    returns = [context.handle.progress.returns[call.id] for call in [*brought, *denied, *free]]
    late_input: list[NewMessage] = []
    if context.run.continues is not None:
        late_input = await context.handle.input()
    await _store_returns(context, open_.step_id, returns, late_input)
    return None


async def _known_result(
    context: AgentContext, call: ToolCall, decision: Decision | None, started: Mapping[str, ToolReturn | None]
) -> ToolReturn | None:
    """Returns the result of a call that must not be started: the stored one, the probe's, or "outcome unknown". None if
    the call may start; its intent is stored then."""
    tool = context.tools.get(call.name)
    if call.id not in started:
        if _may_start(context, call):
            await context.handle.calls.starting(call)
        return None
    stored = started[call.id]
    if tool is None:
        return stored or unknown_return(call)
    may_repeat = tool.idempotent and _refusal(context, call, tool, decision) is None
    if stored is None:
        arguments = _arguments(context, call, decision)
        return await result_of_lost_call(context, call, tool, arguments, may_repeat=may_repeat)
    if not context.services.runners.of(tool).traits.finds_its_result:
        return stored
    # A tool whose runner finds the stored effect is called again.
    return None if may_repeat else unknown_return(call)


async def _show_decisions(context: AgentContext, open_: OpenCalls, decisions: Mapping[str, Decision]) -> None:
    """Shows the decisions about the calls of the run that this one continues, except those that an earlier owner of
    this run has shown."""
    approvals, shown = context.services.approvals, context.handle.shown.decided_calls
    asked = await context.whole(lambda: approvals.followed_by(context.run))
    by_call = {approval.tool_call_id: approval for approval in asked}
    for call in open_.calls:
        decision, approval = decisions.get(call.id), by_call.get(call.id)
        if decision is None or decision.kind != "approval" or call.id in shown:
            continue
        edited = decision.edited_arguments if decision.approve else None
        # A run in another thread may have decided these calls again. The approval names the first of the two.
        is_first = approval is not None and approval.continued_by == context.run.id
        context.emit(
            CallDecided(
                at=context.at,
                step_id=open_.step_id,
                call_id=call.id,
                name=call.name,
                verdict="denied" if not decision.approve else "approved" if edited is None else "edited",
                arguments="" if not decision.approve else call.arguments if edited is None else edited,
                approval_id=None if approval is None else approval.id,
                decided_by=approval.decided_by if approval is not None and is_first else None,
                reason=decision.reason,
            )
        )


async def _store_returns(
    context: AgentContext, step_id: StepId | None, returns: list[ToolReturn], late_input: Sequence[NewMessage] = ()
) -> None:
    """Shows the results and stores them, followed by the input that waited for them."""
    message = NewMessage(
        id=context.handle.ids.message(),
        created_at=context.handle.clock.now(),
        body=ToolReturns(returns=returns),
        step_id=step_id,
    )
    if shown := [result for result in returns if not result.of_speech]:
        context.emit(ToolsReturned(context.at, message.step_id, message.id, shown))
    context.progress.turn = context.progress.turn.and_then(message.body)
    await context.handle.checkpoint([message, *late_input], earlier=await _earlier_step(context))
    context.handle.progress.returns.clear()
    context.handle.progress.unstored.clear()


async def _earlier_step(context: AgentContext) -> Step | None:
    """Returns the step of calls that an earlier owner left open or a person allowed, with the times of the calls made
    here. None if this owner made the step, or the step is deleted."""
    steps, run, step_id = context.services.steps, context.run, context.handle.progress.step_id
    if context.handle.progress.in_hand is not None or step_id is None:
        return None
    try:
        step = await context.whole(lambda: steps.get(run.project_id, step_id))
    except NotFound:
        return None
    calls = [*step.timing.tools, *context.observation.times.calls_of(step_id)]
    return replace(step, timing=replace(step.timing, tools=calls))


def _may_start(context: AgentContext, call: ToolCall) -> bool:
    return call.name in context.tools and call.id not in context.progress.refused_calls


def _may_run_together(context: AgentContext, calls: Sequence[ToolCall]) -> bool:
    tools = [context.tools.get(call.name) for call in calls]
    return len(calls) > 1 and all(tool is not None and tool.enable_parallel_execution for tool in tools)


async def _run_beside(context: AgentContext, call: ToolCall, calls: Sequence[ToolCall]) -> None:
    """Makes one of several calls, and stores its result while others are running. The step's checkpoint stores the last
    results."""
    await _run_into(context, call)
    if len(context.handle.progress.returns) < len(calls):
        await context.handle.calls.store_results()


async def _run_into(context: AgentContext, call: ToolCall, decision: Decision | None = None) -> None:
    try:
        made = await _run(context, call, decision)
    except CallWaits as waits:
        context.progress.waits.append(waits)
        return
    result = within_room(made, context.handle.progress.returns.values())
    context.handle.progress.returns[call.id] = result
    if call.name in context.tools:
        context.handle.progress.unstored.append(result)


def within_room(result: ToolReturn, earlier: Iterable[ToolReturn]) -> ToolReturn:
    """Returns the result, without its middle if it and the answer's earlier results are too long together."""
    room = max(LONGEST_RESULTS - sum(len(one.text) for one in earlier), LEAST_OF_A_RESULT)
    return result if len(result.text) <= room else replace(result, text=without_middle(result.text, room, NO_ROOM))


async def _run(context: AgentContext, call: ToolCall, decision: Decision | None) -> ToolReturn:
    tool = context.tools.get(call.name)
    if tool is None:
        offered = ", ".join(filter(context.permits, context.tool_names)) or "none"
        return error_return(call, f"Error: there is no tool named {call.name!r}. Available: {offered}.")
    refusal = _refusal(context, call, tool, decision)
    if refusal is not None:
        return error_return(call, refusal)
    edited = decision.edited_arguments if decision is not None else None
    beginning = "" if edited is None else f"[The user changed the arguments to {edited}]\n"
    with context.observation.tool_call(call, context.handle.progress.step_id) as observed:
        result = await result_of(context, call, tool, _arguments(context, call, decision), beginning=beginning)
        observed.returns(result)
        return result


def _arguments(context: AgentContext, call: ToolCall, decision: Decision | None) -> str:
    """Returns the arguments with which the call is made, as JSON."""
    edited = decision.edited_arguments if decision is not None else None
    arguments = call.arguments if edited is None else edited
    if call.needs_approval:
        # `answer_draft.py` has filled in the rules' arguments, so that the person sees them.
        return arguments
    return filled_arguments(context.agent.tool_rules, call.name, context.progress.turn, arguments)


def _refusal(context: AgentContext, call: ToolCall, tool: Tool, decision: Decision | None) -> str | None:
    """Returns why the call's tool may not start, by the current rules, gates and tool. None if it may start."""
    if call.id in context.progress.refused_calls:
        return TOO_MANY.format(context.run.options.max_tool_calls, call.name)
    allowed = context.next_calls().allowed
    if call.name not in allowed:
        offered = ", ".join(sorted(allowed)) or "none"
        return f"Error: the tool rules do not allow a call of {call.name!r} now. Allowed: {offered}."
    # Calls before the run's first answer belong to the run that it continues, which had its own choice of tools.
    if context.handle.progress.step_count and not context.permits(call.name):
        return NOT_CHOSEN.format(call.name)
    is_approved = decision is not None and decision.approve
    if not is_approved and (call.needs_approval or context.asks_a_person(call.name)):
        return NOT_ASKED.format(call.name)
    if is_approved and call.tool_version not in (None, tool.version):
        return CHANGED_TOOL.format(call.name)
    return None
