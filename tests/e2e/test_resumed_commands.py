"""A command that follows a run goes on by itself when the server was killed and started again."""

from pathlib import Path

from tests.kit.free_ports import free_port
from tests.kit.product.processes import api_at, processes_in
from tests.kit.product.terminal import clean_environment, on_terminal

SLOW = '{"turns": [{"text": "one two three four five six seven eight nine ten", "delay_ms": 500}]}'


async def test_a_followed_run_survives_its_server(tmp_path: Path) -> None:
    port = free_port()
    environment = clean_environment(HOLDFAST_URL=f"http://127.0.0.1:{port}")
    async with processes_in(tmp_path, {}) as processes:
        dev = await processes.dev(port)
        async with api_at(port) as http:
            agent = (await http.post("/v1/agents", json={"model": "builtin/scripted"})).json()["id"]
        with on_terminal(["run", agent, SLOW], environment) as terminal:
            await terminal.shows("one two")
            await dev.kill()
            await terminal.shows("when it answers]")
            await processes.dev(port)
            await terminal.shows("nine ten")
            assert await terminal.ended() == 0


async def test_a_chat_survives_its_server(tmp_path: Path) -> None:
    port = free_port()
    environment = clean_environment(HOLDFAST_URL=f"http://127.0.0.1:{port}")
    async with processes_in(tmp_path, {}) as processes:
        dev = await processes.dev(port)
        async with api_at(port) as http:
            agent = (await http.post("/v1/agents", json={"model": "builtin/scripted"})).json()["id"]
        with on_terminal(["chat", agent], environment) as terminal:
            await terminal.shows("» ")
            terminal.type(f"{SLOW}\n")
            await terminal.shows("\none two")
            await dev.kill()
            await terminal.shows("resuming when it answers]")
            await processes.dev(port)
            await terminal.shows("[the connection is back]")
            await terminal.shows("nine ten")
            await terminal.shows("» ", times=2)
            terminal.type("\x04")
            assert await terminal.ended() == 0
