"""A worker that dies, is told to go, or stands still: its runs go on elsewhere, once, and their readers see no gap."""

import json
import os
from pathlib import Path
from typing import Any

import psutil

from shared.domain.log_writer import NUMBERS_PER_FENCE
from tests.faults.conftest import LEASE_S
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import FrameReader, read_whole, reading
from tests.kit.product.processes import Processes
from tests.kit.runs.quiet_runs import grow_quiet
from tests.kit.services.redis_losses import end_leases, shorten_leases
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.tools import PLAIN_TOOLS
from tests.kit.wait_until import wait_until

WHOLE_TEST_S = 600.0
"""A lease that does not end within the test: no wait here is as long."""

WAITS_FOR_EVER = '''
def wait(log: str) -> str:
    """
    Waits.

    Args:
        log (str): The file that every start is written to.
    """
    import os, time
    with open(log, "a") as starts:
        starts.write(f"{os.getpid()}\\\\n")
    time.sleep(600)
    return "never"
'''.replace("\\\\n", "\\n")


async def submit(product: Product, **fields: Any) -> tuple[str, str]:
    """A run in token mode; the ids of its agent and of itself."""
    agent = await product.agent(**fields)
    answer = await product.http.post(
        f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello", "stream_tokens": True}
    )
    return agent.id, answer.json()["id"]


async def words_shown(reader: FrameReader, count: int) -> None:
    await wait_until(lambda: len(reader.of_type("assistant_message")) >= count, description=f"{count} words")


async def asked_again(models: ModelServer) -> None:
    """Waits for the second model call."""
    await wait_until(lambda: len(models.requests) == 2, description="another worker to ask the model again")


async def test_a_run_goes_on_when_its_worker_is_killed_in_the_middle_of_an_answer(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("one two three four", silent_after=3)
    models.say("All of it.")
    first = await processes.worker()
    agent_id, run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await processes.worker()
        await first.kill()
        await shorten_leases(product.context.redis, to_s=LEASE_S)
        await asked_again(models)
        await reader.end()

    reader.assert_complete()
    (restarted,) = reader.notes("step_restarted")
    shown = reader.of_type("assistant_message")
    assert restarted["void_message_ids"] == [shown[0]["id"]]
    assert shown[-1]["id"] != shown[0]["id"]
    assert (await product.ended(run_id))["status"] == "completed"
    assert [message["content"] for message in (await product.history(agent_id))[1:]] == ["Hello", "All of it."]
    assert len(models.requests) == 2
    (usage,) = reader.of_type("usage_statistics")
    assert usage["estimated"], "the call that was lost with its worker is counted"
    assert (await read_whole(product.http, run_id)).raw == reader.raw


async def test_what_was_lost_with_its_worker_and_redis_is_said_to_be_void(
    product: Product, processes: Processes, models: ModelServer, private_redis: PrivateRedis
) -> None:
    """The next worker must not give the numbers that readers have seen to other events: it does not know them."""
    models.say("one two three four", silent_after=3)
    models.say("All of it.")
    first = await processes.worker()
    agent_id, run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        seen = len(reader.raw)
        await first.kill()
        await private_redis.kill()
        await private_redis.start()
        await grow_quiet(product.context.database)
        await processes.worker()
        await reader.end()

    reader.assert_complete()
    (restarted,) = reader.notes("step_restarted")
    assert restarted["follows"] == 1, "SQL had nothing but the run itself"
    assert reader.seq_ids[:seen] == list(range(1, seen + 1))
    assert reader.seq_ids[seen] == NUMBERS_PER_FENCE + 1
    assert (await product.ended(run_id))["status"] == "completed"
    assert (await product.history(agent_id))[-1]["content"] == "All of it."
    later = await read_whole(product.http, run_id)
    assert later.raw == [reader.raw[0], *reader.raw[seen:]]
    assert (await read_whole(product.http, run_id, starting_after=seen)).raw == reader.raw[seen:]


async def test_a_tool_that_was_started_is_not_started_again_when_its_worker_is_killed(
    product: Product, processes: Processes, models: ModelServer, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    models.call("wait", log=str(log))
    models.say("I do not know whether it worked.")
    first = await processes.worker(**PLAIN_TOOLS)
    _, run_id = await submit(product, tools=[await product.tool(WAITS_FOR_EVER)])
    async with reading(product.http, run_id) as reader:
        await wait_until(log.exists, description="the tool to start")
        await wait_until(lambda: log.read_text().endswith("\n"), description="the tool to say who it is")
        await processes.worker(**PLAIN_TOOLS)
        await first.kill()
        await end_leases(product.context.redis)
        await reader.end()

    reader.assert_complete()
    (tool_process,) = [int(line) for line in log.read_text().split()]
    await wait_until(lambda: not is_alive(tool_process), description="the tool's process to be gone")
    (returned,) = reader.of_type("tool_return_message")
    assert returned["status"] == "error"
    assert "outcome unknown" in returned["tool_return"]
    assert "outcome unknown" in json.dumps(models.requests[1].body)
    assert (await product.ended(run_id))["status"] == "completed"
    assert len(models.requests) == 2


async def test_a_worker_that_is_told_to_end_hands_its_runs_over_at_once(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("one two three four", silent_after=3)
    models.say("All of it.")
    first = await processes.worker(lease_s=WHOLE_TEST_S)
    _, run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await processes.worker(lease_s=WHOLE_TEST_S)
        first.ask_to_end()
        await asked_again(models)
        await reader.end()

    reader.assert_complete()
    assert len(reader.notes("step_restarted")) == 1
    assert models.requests[0].client_left
    assert (await product.ended(run_id))["status"] == "completed"
    assert await first.ended() == 0


async def test_a_worker_may_let_its_runs_finish_before_it_ends(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.play(Turn(text="word " * 100, pace=0.01))
    leaving = await processes.worker(drain_s=30)
    _, run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await processes.worker()
        leaving.ask_to_end()
        await reader.end()

    reader.assert_complete()
    assert not reader.notes("step_restarted")
    assert len(models.requests) == 1
    assert await leaving.ended() == 0


async def test_readiness_knows_whether_a_worker_lives(product: Product, processes: Processes) -> None:
    async def ready(status: int) -> bool:
        return (await product.http.get("/readyz?full")).status_code == status

    assert await ready(503)
    worker = await processes.worker(lease_s=LEASE_S)
    await wait_until(lambda: ready(200), description="the API to be ready")
    await worker.kill()
    await wait_until(lambda: ready(503), description="the API to miss the worker")


async def test_a_zombie_writes_nothing_when_it_wakes_up(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.play(Turn(text="zombie " * 2000, pace=0.01))
    models.say("All of it.")
    zombie = await processes.worker(lease_s=2 * LEASE_S)
    agent_id, run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await words_shown(reader, 3)
        await processes.worker()
        zombie.suspend()
        await reader.end()
    reader.assert_complete()
    run, history = await product.ended(run_id), await product.history(agent_id)

    zombie.resume()

    await wait_until(lambda: models.requests[0].client_left, description="the zombie to hang up on its model")
    assert await zombie.terminate() == 0
    assert await product.run(run_id) == run
    assert await product.history(agent_id) == history
    assert history[-1]["content"] == "All of it."
    assert (await read_whole(product.http, run_id)).raw == reader.raw


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
