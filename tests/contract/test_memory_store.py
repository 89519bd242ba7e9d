"""Edits of an agent's memory in SQL: once per call, and by the run's owner only."""

from collections.abc import AsyncGenerator, Sequence

import pytest
from msgspec.structs import replace

from shared.domain.agents import Block
from shared.domain.errors import StaleFence
from shared.domain.ids import ThreadId
from shared.domain.lifecycle import RunTrigger
from shared.domain.memory import EditedMemory, RefusedEdit
from shared.domain.messages import SystemMessage, ToolCall, ToolReturns
from shared.domain.runs import Run
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.blocks import BlockStore, MemoryStore
from tests.kit.runs.definitions import NOW, PROJECT, some_agent, some_block
from tests.kit.runs.stored_runs import AGENT, IDS, Stores, answer, call, found, results, stored_runs


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


@pytest.fixture
async def block(stores: Stores) -> Block:
    """A block of the agent's."""
    block = await BlockStore(stores.database).create(some_block(value="begin"))
    await AgentEditor(stores.database).attach_block(PROJECT, AGENT.id, block.id, NOW)
    return block


async def append(stores: Stores, run: Run, by: ToolCall, text: str) -> str:
    """Appends to the agent's block by a call; what the model is told."""

    def edit(blocks: Sequence[Block]) -> EditedMemory:
        [block] = blocks
        value = f"{block.value} {text}"
        return EditedMemory(value, changed=[replace(block, value=value)])

    return (await MemoryStore(stores.database).edit(run, by, edit, NOW)).result.text


async def test_an_edit_that_is_repeated_is_made_once(stores: Stores, block: Block) -> None:
    """As after a commit whose answer was lost, or by the next owner of the run."""
    run = await stores.recorded(await stores.claimed(), answer("", call("a")), starting=[call("a")])

    first = await append(stores, run, call("a"), "one")
    again = await append(stores, await stores.claim(run), call("a"), "one")

    assert first == again == "begin one"
    [stored] = (await AgentStore(stores.database).equipped(PROJECT, AGENT.id)).blocks
    assert (stored.id, stored.value, stored.version) == (block.id, "begin one", block.version + 1)
    [system] = [body for body in await stores.context(ThreadId(AGENT.id)) if isinstance(body, SystemMessage)]
    assert "begin one" in system.text


@pytest.mark.usefixtures("block")
async def test_a_worker_that_lost_its_run_edits_nothing(stores: Stores) -> None:
    run = await stores.claimed()
    await stores.claim(run)

    with pytest.raises(StaleFence):
        await append(stores, run, call("a"), "one")
    [stored] = (await AgentStore(stores.database).equipped(PROJECT, AGENT.id)).blocks
    assert stored.value == "begin"


@pytest.mark.usefixtures("block")
async def test_a_call_of_a_later_answer_that_has_the_same_id_is_another_call(stores: Stores) -> None:
    """Some servers number the calls of every answer anew. The second edit was taken for the first."""
    run = await stores.recorded(await stores.claimed(), answer("", call("a")))
    await append(stores, run, call("a"), "one")
    run = await stores.recorded(run, results(found("a")))
    run = await stores.recorded(run, answer("", call("b"), call("a")), starting=[call("b")])

    assert await append(stores, run, call("a"), "two") == "begin one two"


@pytest.mark.usefixtures("block")
async def test_a_cancel_between_an_edit_and_its_checkpoint_tells_the_edit(stores: Stores) -> None:
    run = await stores.recorded(await stores.claimed(), answer("", call("a"), call("b")), starting=[call("a")])
    await append(stores, run, call("a"), "one")

    await stores.settle(run, RunTrigger.CANCEL)

    [returned] = [body for body in await stores.context() if isinstance(body, ToolReturns)]
    assert [one.status for one in returned.returns] == ["success", "error"]
    assert returned.returns[0].text == "begin one"


async def test_a_label_that_another_agent_has_already_is_refused_and_changes_nothing(
    stores: Stores, block: Block
) -> None:
    editor, blocks = AgentEditor(stores.database), BlockStore(stores.database)
    theirs = await blocks.create(some_block("persona"))
    other = (await editor.create(some_agent(block_ids=[block.id, theirs.id]), system_message_id=IDS.message())).agent
    run = await stores.claimed()

    def rename(found: Sequence[Block]) -> EditedMemory:
        return EditedMemory("renamed", changed=[replace(found[0], label="persona")])

    with pytest.raises(RefusedEdit, match=f"{other.id} would have two memory blocks labelled 'persona'"):
        await MemoryStore(stores.database).edit(run, call("a"), rename, NOW)
    assert (await blocks.get(PROJECT, block.id)).label == "human"
    assert await stores.checkpoints.intents(run.id) == {}
