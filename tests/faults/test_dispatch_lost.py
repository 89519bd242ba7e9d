"""Accepted is kept: a run that was stored and never dispatched goes on, and one in flight when everything died."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from shared.domain.ids import AgentId, ProjectId, ThreadId
from shared.sql.runs.run_store import RunStore
from tests.kit.free_ports import free_port
from tests.kit.model_server import ModelServer
from tests.kit.product import Product
from tests.kit.product.frame_reader import FrameReader, read_whole
from tests.kit.product.processes import api_at, processes_in
from tests.kit.runs.stored_runs import said, some_run
from tests.kit.wait_until import wait_until


async def test_a_run_whose_dispatch_never_happened_is_found(working_product: Product, models: ModelServer) -> None:
    agent = await working_product.agent()
    submitted = some_run(
        project_id=ProjectId("default"),
        agent_id=AgentId(agent.id),
        thread_id=ThreadId(agent.id),
        created_at=datetime.now(UTC) - timedelta(minutes=1),
    )
    models.say("Here I am.")

    await RunStore(working_product.context.database).submit(submitted, [said("hi")])

    assert (await working_product.ended(submitted.id))["status"] == "completed"
    (await read_whole(working_product.http, submitted.id)).assert_complete()


async def test_dev_goes_on_with_what_was_in_flight_when_it_was_killed(models: ModelServer, tmp_path: Path) -> None:
    models.say("one two three four", silent_after=3)
    models.say("All of it.")
    port = free_port()
    async with processes_in(tmp_path, models.base_urls()) as processes, api_at(port) as http:
        dev = await processes.dev(port)
        agent = await http.post("/v1/agents/", json={"name": "Ada", "model": "openai/gpt-4o-mini"})
        messages = f"/v1/agents/{agent.json()['id']}/messages"
        in_flight = (await http.post(f"{messages}/async", json={"input": "Hello", "stream_tokens": True})).json()["id"]
        behind = (await http.post(f"{messages}/async", json={"input": "And you?"})).json()["id"]
        await wait_until(lambda: models.requests and models.requests[0].pieces_sent == 3, description="the first words")

        await dev.kill()
        await processes.dev(port)

        for run_id in (in_flight, behind):
            (await read_whole(http, run_id)).assert_complete()
            assert (await http.get(f"/v1/runs/{run_id}")).json()["status"] == "completed"
        history = (await http.get(messages, params={"order": "asc"})).json()
        assert [message["content"] for message in history[1:]] == ["Hello", "All of it.", "And you?", "OK."]


async def test_a_reader_of_dev_goes_on_where_it_was_when_dev_was_killed(models: ModelServer, tmp_path: Path) -> None:
    """What dev had shown and not stored died with its Redis: other events got the same numbers."""
    models.say("one two three four", silent_after=3)
    models.say("All of it.")
    port = free_port()
    async with processes_in(tmp_path, models.base_urls()) as processes, api_at(port) as http:
        dev = await processes.dev(port)
        agent = await http.post("/v1/agents/", json={"name": "Ada", "model": "openai/gpt-4o-mini"})
        messages = f"/v1/agents/{agent.json()['id']}/messages"
        run_id = (await http.post(f"{messages}/async", json={"input": "Hello", "stream_tokens": True})).json()["id"]
        cut_off = FrameReader(http, run_id)
        reader = asyncio.ensure_future(cut_off.read())
        await wait_until(lambda: len(cut_off.of_type("assistant_message")) == 3, description="the first words")
        await dev.kill()
        await asyncio.gather(reader, return_exceptions=True)
        await processes.dev(port)

        whole = await read_whole(http, run_id)
        whole.assert_complete()
        seen = len(cut_off.raw)
        assert whole.raw[:seen] == cut_off.raw
        assert (await read_whole(http, run_id, starting_after=seen)).raw == whole.raw[seen:]
        assert len(whole.notes("step_restarted")) == 1


async def test_dev_that_is_told_to_end_hands_its_runs_over_first(models: ModelServer, tmp_path: Path) -> None:
    models.say("one two three four", silent_after=3)
    models.say("All of it.")
    port = free_port()
    async with processes_in(tmp_path, models.base_urls()) as processes, api_at(port) as http:
        dev = await processes.dev(port)
        agent = await http.post("/v1/agents/", json={"name": "Ada", "model": "openai/gpt-4o-mini"})
        messages = f"/v1/agents/{agent.json()['id']}/messages"
        run_id = (await http.post(f"{messages}/async", json={"input": "Hello", "stream_tokens": True})).json()["id"]
        await wait_until(lambda: models.requests and models.requests[0].pieces_sent == 3, description="the first words")

        assert await dev.terminate() == 0
        assert "run_handed_over" in dev.log.read_text()
        await processes.dev(port)

        whole = await read_whole(http, run_id)
        whole.assert_complete()
        assert [word["content"] for word in whole.of_type("assistant_message")][:3] == ["one", " two", " three"]
