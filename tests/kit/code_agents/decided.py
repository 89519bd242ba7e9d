"""An agent that asks a person, and looks into its inbox after that."""

from holdfast.agents import Run, agent
from tests.kit.code_agents.program import at, reach


@agent("desk")
async def desk(run: Run) -> str:
    reach(f"text {run.text}")
    await run.approval("ask", {"of": run.text})
    await run.step("behind", at, "behind the decision")
    for message in await run.inbox.take():
        reach(f"inbox {message['text']}")
    await run.step("end", at, "behind the inbox")
    return "done"
