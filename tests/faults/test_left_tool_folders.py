"""A worker is killed while a tool has a folder: the next worker of the machine removes what it has left."""

from pathlib import Path

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.processes import Processes
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

HOLDS = '''
def holds(mark: str) -> str:
    """
    Writes where its folders are, and stays.

    Args:
        mark (str): The file to write to.
    """
    import os, time
    for folder in (os.getcwd(), os.environ["HOLDFAST_RUN_FOLDER"]):
        open(os.path.join(folder, "kept"), "w").close()
        with open(mark, "a") as file:
            file.write(folder + "\\n")
    time.sleep(3600)
'''


async def test_the_folders_of_a_killed_worker_are_removed_by_the_next(
    product: Product, processes: Processes, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    tool_id = await product.tool(HOLDS, extra_body={"scratch": "run"})
    agent = await product.agent(tools=[tool_id])
    product.models.play(Turn(calls=[Call("holds", {"mark": str(mark)})]), Turn(text="Done."))
    worker = await processes.worker(**PLAIN_TOOLS)
    await product.client.agents.messages.create_async(agent.id, input="Go.")

    def folders() -> list[Path]:
        found = mark.read_text().split() if mark.exists() else []
        return [Path(line) for line in found] if len(found) == 2 else []

    of_call, of_run = await wait_until(folders, description="the tool to have its folders")
    await worker.kill()
    assert (of_call / "kept").exists()
    assert (of_run / "kept").exists()
    await processes.worker(**PLAIN_TOOLS)
    await wait_until(
        lambda: not of_call.exists() and not of_run.exists(), description="the folders to be removed by the next worker"
    )
