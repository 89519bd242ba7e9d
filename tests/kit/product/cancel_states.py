"""Every state in which a run can be cancelled, each caused by things that a user could do: models, tools and locks.

A state is a function that brings a run into it; `STATES` names the product's settings that it needs. Models and tools
wait in it until the case continues, so no duration affects the result.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.domain.errors import CancelMode
from shared.domain.ids import RunId
from tests.kit.model_server import Call, Turn
from tests.kit.model_server.turn import FOREVER
from tests.kit.product import Product
from tests.kit.services.databases import run_locked
from tests.kit.tools import is_alive
from tests.kit.wait_until import wait_until

SLOW_TOOL = '''
def slow_tool(path: str) -> str:
    """Tells that it works, and ends when it may.

    Args:
        path: file for the process id; it may end when there is one of this name with .go behind it
    """
    import os, time
    with open(path, "a") as f:
        f.write(str(os.getpid()) + "\\n")
    while not os.path.exists(path + ".go"):
        time.sleep(0.005)
    return "done"
'''
STUBBORN_TOOL = SLOW_TOOL.replace("slow_tool", "stubborn_tool").replace(
    "    import os, time\n", "    import os, signal, time\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
)
ASKING_TOOL = '''
def asking_tool(what: str) -> str:
    """Needs a yes.

    Args:
        what: what
    """
    return what
'''

WORDS = "one two three four five six seven eight nine ten eleven twelve"


@dataclass
class CancelCase:
    """One cell's run, brought into its state."""

    product: Product
    agent_id: str
    pids: Path
    """The file in which its tools write their process ids."""
    run_id: str = ""
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    release: list[Callable[[], Awaitable[object]]] = field(default_factory=list[Callable[[], Awaitable[object]]])
    announce_first: bool = False
    """The cancel reaches the worker over Redis while SQL is held: the checkpoint is being written."""

    may_come_too_late: bool = False
    """The run is about to end."""

    def go_on(self) -> None:
        """Model and tools, which stand still in the case's state, go on if they still can."""
        self.resume.set()
        go_file(self.pids).touch()


State = Callable[[Product, Path], Awaitable[CancelCase]]


def go_file(pids: Path) -> Path:
    return pids.with_name(f"{pids.name}.go")


async def _case(
    product: Product, pids: Path, *, model: str = "openai/gpt-4o-mini", parallel: bool = False
) -> CancelCase:
    tools = [
        await product.tool(SLOW_TOOL, enable_parallel_execution=parallel),
        await product.tool(STUBBORN_TOOL),
        await product.tool(ASKING_TOOL, default_requires_approval=True),
    ]
    agent = await product.agent(model=model, tools=tools)
    return CancelCase(product, agent.id, pids)


async def _submit(case: CancelCase, text: str = "Go") -> CancelCase:
    answer = await case.product.http.post(
        f"/v1/agents/{case.agent_id}/messages/async", json={"input": text, "stream_tokens": True}
    )
    case.run_id = answer.json()["id"]
    return case


async def _asked(product: Product, number: int = 1) -> None:
    await wait_until(lambda: len(product.models.requests) >= number, description=f"model request {number}")


async def _shown(case: CancelCase, message_type: str) -> None:
    """Waits until the run's stream has shown a message of this type."""
    url = f"/v1/runs/{case.run_id}/stream"
    async with case.product.http.stream("POST", url, json={"include_pings": False}) as stream:
        async for line in stream.aiter_lines():
            if f'"message_type":"{message_type}"' in line:
                return


async def created(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    await _occupy(product, case)
    return await _submit(case)


async def _occupy(product: Product, case: CancelCase) -> None:
    """Another run takes the worker's only place, until the case goes on."""
    asked = len(product.models.requests)
    product.models.play(Turn(text=WORDS, silent_before_headers=FOREVER, resume=case.resume))
    other = await product.agent()
    await product.client.agents.messages.create_async(agent_id=other.id, input="Keep busy")
    await _asked(product, asked + 1)


async def queued_behind_another_run(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    product.models.play(Turn(text=WORDS, silent_before_headers=FOREVER, resume=case.resume))
    await _submit(case, "First")
    await _asked(product)
    return await _submit(case, "Second")


async def claimed_but_no_request_sent(product: Product, pids: Path) -> CancelCase:
    case = await _submit(await _case(product, pids, model="ollama/unreachable"))
    running = {"status": "running"}.items()

    async def look() -> bool:
        return running <= (await product.run(case.run_id)).items()

    await wait_until(look, description="the run to be claimed")
    return case


async def waiting_for_headers(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    product.models.play(Turn(text=WORDS, silent_before_headers=FOREVER, resume=case.resume))
    await _submit(case)
    await _asked(product)
    return case


async def waiting_for_the_first_token(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    product.models.play(Turn(text=WORDS, silent_after_headers=FOREVER, resume=case.resume))
    await _submit(case)
    await _asked(product)
    return case


async def mid_text(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    product.models.play(Turn(text=WORDS, silent_after=2, resume=case.resume))
    await _submit(case)
    await _shown(case, "assistant_message")
    return case


async def mid_reasoning(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids, model="anthropic/claude-haiku-4-5")
    product.models.play(Turn(reasoning=WORDS, text="so", silent_after=2, resume=case.resume))
    await _submit(case)
    await _shown(case, "reasoning_message")
    return case


async def mid_tool_arguments(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    call = Call("slow_tool", {"path": str(pids)})
    product.models.play(Turn(calls=[call], silent_after=3, resume=case.resume), Turn(text="ok"))
    await _submit(case)
    await _shown(case, "tool_call_message")
    return case


async def _holding_sql(product: Product, case: CancelCase) -> CancelCase:
    held = run_locked(product.context.database.url.render_as_string(hide_password=False), RunId(case.run_id))
    await held.__aenter__()
    case.release.append(lambda: held.__aexit__(None, None, None))
    case.announce_first = True
    return case


async def between_model_and_tools(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    call = Call("slow_tool", {"path": str(pids)})
    product.models.play(Turn(calls=[call], silent_before_headers=FOREVER, resume=case.resume), Turn(text="ok"))
    return await _answered_while_sql_is_held(product, case)


async def _answered_while_sql_is_held(product: Product, case: CancelCase) -> CancelCase:
    await _submit(case)
    await _asked(product)
    case = await _holding_sql(product, case)
    case.resume.set()
    await wait_until(lambda: product.models.requests[0].finished, description="the model to have answered")
    return case


async def checkpoint_being_written(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    product.models.play(Turn(calls=[Call("slow_tool", {"path": str(pids)})]), Turn(text="ok"))
    await _submit(case)
    await wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), description="the tool to start")
    case = await _holding_sql(product, case)
    go_file(pids).touch()
    await wait_until(lambda: not is_alive(int(pids.read_text().split()[-1])), description="the tool to end")
    return case


async def last_token_and_cancel_at_once(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    product.models.play(Turn(text=WORDS, silent_before_headers=FOREVER, resume=case.resume))
    case.may_come_too_late = True
    return await _answered_while_sql_is_held(product, case)


async def _in_tools(product: Product, pids: Path, *names: str, parallel: bool = False) -> CancelCase:
    case = await _case(product, pids, parallel=parallel)
    product.models.play(Turn(calls=[Call(name, {"path": str(pids)}) for name in names]), Turn(text="ok"))
    await _submit(case)
    started = len(names) if parallel else 1
    await wait_until(
        lambda: pids.exists() and len(pids.read_text().split()) >= started, description="the tools to start"
    )
    return case


async def first_of_two_sequential_tools(product: Product, pids: Path) -> CancelCase:
    return await _in_tools(product, pids, "slow_tool", "slow_tool")


async def parallel_tools(product: Product, pids: Path) -> CancelCase:
    return await _in_tools(product, pids, "slow_tool", "slow_tool", parallel=True)


async def tool_ignoring_sigterm(product: Product, pids: Path) -> CancelCase:
    return await _in_tools(product, pids, "stubborn_tool")


async def awaiting_approval(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    product.models.play(Turn(calls=[Call("asking_tool", {"what": "x"})]))
    await _submit(case)
    await product.ended(case.run_id)
    return case


async def decision_just_posted(product: Product, pids: Path) -> CancelCase:
    case = await awaiting_approval(product, pids)
    [request] = [m for m in await product.history(case.agent_id) if m["message_type"] == "approval_request_message"]
    await _occupy(product, case)
    decision = {"type": "approval", "approve": True, "tool_call_id": request["tool_call"]["tool_call_id"]}
    answer = await product.http.post(
        f"/v1/agents/{case.agent_id}/messages/async",
        json={"messages": [{"type": "approval", "approvals": [decision]}]},
    )
    case.run_id = answer.json()["id"]
    return case


async def ended(product: Product, pids: Path) -> CancelCase:
    case = await _case(product, pids)
    product.models.say("ok")
    await _submit(case)
    await product.ended(case.run_id)
    return case


ONE_PLACE = {"max_runs": 1}
STATES: dict[State, dict[str, Any]] = {
    created: ONE_PLACE,
    queued_behind_another_run: {},
    claimed_but_no_request_sent: {},
    waiting_for_headers: {},
    waiting_for_the_first_token: {},
    mid_text: {},
    mid_reasoning: {},
    mid_tool_arguments: {},
    between_model_and_tools: {},
    first_of_two_sequential_tools: {},
    parallel_tools: {},
    tool_ignoring_sigterm: {"tool_grace": 0.3},
    checkpoint_being_written: {},
    awaiting_approval: {},
    decision_just_posted: ONE_PLACE,
    last_token_and_cancel_at_once: {},
    ended: {},
}
ANSWERS_ALONE = {waiting_for_headers, waiting_for_the_first_token, mid_text, mid_reasoning}
"""States whose step is the last one: a cancel after the step finds nothing left to stop."""


def statuses_of(state: State, mode: CancelMode) -> set[str]:
    """How the run may end."""
    if state is ended:
        return {"completed"}
    if state is last_token_and_cancel_at_once:
        return {"completed", "cancelled"}
    if mode is CancelMode.AFTER_STEP and state in ANSWERS_ALONE:
        return {"completed"}
    if mode is CancelMode.AFTER_STEP and state is claimed_but_no_request_sent:
        return {"cancelled", "failed"}
    return {"cancelled"}
