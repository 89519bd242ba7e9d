"""A worker's own port, asked of processes as an operator runs them: alive, ready, draining, standing still."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.commands import Command, fork
from tests.kit.free_ports import free_port
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product.processes import Processes, api_at, processes_in
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import wait_until

READY: dict[str, Any] = {
    "status": "ready",
    "services": {"database": True, "database_writes": True, "redis": True, "redis_writes": True, "queue": True},
    "draining": False,
    "runs": 0,
}
WITHOUT_REDIS = {"database": True, "database_writes": True, "redis": False, "redis_writes": False, "queue": False}


@asynccontextmanager
async def asked(port: int) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        yield http


def answered(port: int, said: bytes) -> bytes:
    """What a connection is answered that says something else than a request."""
    answer = b""
    with suppress(ConnectionResetError), socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(said)
        answer = connection.recv(1000)
    return answer


def error_of(answer: httpx.Response) -> tuple[str, str, str]:
    """The code, the sentence and the hint of a body that has the fields of every error."""
    body = answer.json()
    assert body["detail"] == body["message"] and body["field"] is None, body
    return body["code"], body["message"], body["hint"]


async def is_said(http: httpx.AsyncClient, **expected: Any) -> None:
    """Returns when `/readyz` says so."""

    async def says() -> bool:
        said = (await http.get("/readyz")).json()
        return all(said[name] == value for name, value in expected.items())

    await wait_until(says, description=f"/readyz to say {expected}")


@pytest.fixture
async def processes(tmp_path: Path, postgres_url: str, private_redis: PrivateRedis) -> AsyncGenerator[Processes]:
    environment = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}
    async with processes_in(tmp_path, environment) as processes:
        await processes.migrate()
        yield processes


async def test_a_worker_says_what_it_lacks_and_one_that_stands_still_says_nothing(
    processes: Processes, private_redis: PrivateRedis
) -> None:
    port = free_port()
    worker = await processes.worker(worker_port=port)
    async with asked(port) as http:
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        await is_said(http, **READY)
        metrics = await http.get("/metrics")
        assert metrics.status_code == 200
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")

        async with private_redis.hanging():
            await is_said(http, status="not ready", services=WITHOUT_REDIS)
            not_ready = await http.get("/readyz")
            assert not_ready.status_code == 503
            code, sentence, hint = error_of(not_ready)
            assert code == "service_unavailable" and "Redis does not answer" in sentence
            assert "`services`" in hint, "the 503 had neither code nor sentence nor hint"
            assert (await http.get("/healthz")).status_code == 200, "a restart would not mend Redis"
        await is_said(http, **READY)

        worker.suspend()
        with pytest.raises(httpx.TimeoutException):
            await http.get("/healthz", timeout=1)
        worker.resume()
        assert (await http.get("/healthz")).status_code == 200
        assert await worker.terminate() == 0
        with pytest.raises(httpx.ConnectError):
            await http.get("/healthz")


async def test_a_worker_without_the_setting_has_no_port_and_one_that_is_taken_is_named(
    processes: Processes, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        files = tmp_path / "refused.out", tmp_path / "refused.log"
        for file in files:
            file.touch()
        settings = {**processes.environment, "HOLDFAST_WORKER_PORT": str(port)}
        refused = fork(Command(("worker",), settings, *files))
        await wait_until(lambda: refused.exit_status() is not None, description="the worker to end")
        last = files[1].read_text().splitlines()[-1]
        worker = await processes.worker()
        assert await worker.terminate() == 0

    assert refused.exit_status() == 2
    assert f"holdfast: HOLDFAST_WORKER_PORT {port} is taken on 127.0.0.1" in last


async def test_a_worker_without_the_key_of_stored_secrets_is_not_ready_and_says_why(processes: Processes) -> None:
    """It was ready, so a rollout that had forgotten the key went on to the last worker."""
    key, api_port, port, other_port = f"k1:{'A' * 43}=", free_port(), free_port(), free_port()
    await processes.api(api_port, encryption_key=key, builtin_models="true")
    async with api_at(api_port) as api:
        made = await api.post("/v1/agents", json={"model": "builtin/echo", "secrets": {"CRM_KEY": "swordfish"}})
        assert made.status_code == 200, made.text
    await processes.worker(worker_port=port)
    async with asked(port) as http:
        await is_said(http, status="not ready", services=READY["services"])
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert "encrypted with the key 'k1', which is not configured" in answer.json()["secrets"]
        assert "CRM_KEY" not in answer.text
        code, sentence, hint = error_of(answer)
        assert code == "service_unavailable" and "encrypted with the key 'k1'" in sentence and "secrets.md" in hint
        assert (await http.get("/healthz")).status_code == 200, "a restart would not bring the key"
    await processes.worker(worker_port=other_port, encryption_key=key)
    async with asked(other_port) as http:
        await is_said(http, **READY, secrets="can be read")
        assert (await http.get("/readyz")).status_code == 200


async def test_a_draining_worker_lives_and_is_not_ready(tmp_path: Path) -> None:
    port, api_port = free_port(), free_port()
    async with ModelServer() as models, processes_in(tmp_path, models.base_urls()) as processes, asked(port) as http:
        models.play(Turn(text="word " * 20_000, pace=0.01))
        dev = await processes.dev(api_port, worker_port=port, drain_s=60)
        async with api_at(api_port) as api:
            agent = (await api.post("/v1/agents", json={"model": "openai/gpt-4o-mini"})).json()
            sent = await api.post(f"/v1/agents/{agent['id']}/messages/async", json={"input": "write"})
            assert sent.status_code == 200, sent.text
            await is_said(http, runs=1)
        dev.ask_to_end()
        await is_said(http, status="not ready", draining=True)
        ends = await http.get("/readyz")
        assert ends.status_code == 503
        assert error_of(ends)[:2] == ("server_ending", "Not ready: the worker ends")
        assert (await http.get("/healthz")).status_code == 200


async def test_what_is_no_question_of_a_probe_is_refused(tmp_path: Path) -> None:
    port = free_port()
    async with processes_in(tmp_path, {}) as processes, asked(port) as http:
        await processes.dev(free_port(), worker_port=port)
        posted, elsewhere = await http.post("/healthz"), await http.get("/v1/agents")
        assert (posted.status_code, elsewhere.status_code) == (405, 404)
        assert (error_of(posted)[0], error_of(elsewhere)[0]) == ("method_not_allowed", "path_not_found")
        head = await http.head("/readyz?verbose")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        assert b"405" in await asyncio.to_thread(answered, port, b"nonsense\r\n\r\n")
        endless = b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 10_000
        assert await asyncio.to_thread(answered, port, endless) == b""
        assert (await http.get("/healthz")).status_code == 200
