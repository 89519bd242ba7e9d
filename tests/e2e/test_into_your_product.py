"""The program of docs/into-your-product.md, beside `holdfast dev`: its server by HTTP, and its page in a browser."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import httpx
import pytest

from tests.kit.browser.chromium import running_browser
from tests.kit.free_ports import free_port
from tests.kit.project.documents import ROOT, blocks
from tests.kit.wait_until import wait_until

SENDS = {
    "turns": [
        {"text": "One moment.", "calls": [{"name": "send_money", "arguments": {"to": "Ada", "amount": 20}}]},
        {"text": "It is done."},
    ]
}
SECRETS = {"HOLDFAST_CALLBACK_ALLOW_PRIVATE": "true", "HOLDFAST_CALLBACK_SECRET": "a-secret-for-callbacks"}


@pytest.fixture
async def product(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The program of the page, served; as a client that is the user Ada."""
    dev, ours = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    program = "\n".join(blocks(ROOT / "docs/into-your-product.md", "python"))
    (tmp_path / "product.py").write_text(program.replace("http://127.0.0.1:8283", dev), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= SECRETS | {"PRODUCT_URL": ours}
    holdfast = Path(sys.executable).with_name("holdfast")
    data = ["--port", dev.rpartition(":")[2], "--data-dir", str(tmp_path / "data")]
    serving = ["-m", "uvicorn", "product:app", "--port", ours.rpartition(":")[2]]
    started = [([holdfast, "dev", *data], f"{dev}/v1/health/"), ([sys.executable, *serving], f"{ours}/")]
    running: list[subprocess.Popen[bytes]] = []
    try:
        with (tmp_path / "log").open("wb") as log:
            for command, health in started:
                running.append(begun(command, tmp_path, environment, log))
                await wait_until(answers(running[-1], health), description=f"{health} to answer", every=0.1)
        async with httpx.AsyncClient(base_url=ours, timeout=60, cookies={"user": "ada"}) as client:
            yield client
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(timeout=60)


def begun(command: list[Any], place: Path, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=subprocess.STDOUT)


def answers(process: subprocess.Popen[bytes], health: str) -> Callable[[], bool]:
    def look() -> bool:
        assert process.poll() is None, f"what serves {health} has ended"
        try:
            return httpx.get(health).status_code == 200
        except httpx.TransportError:
            return False

    return look


async def say(product: httpx.AsyncClient, key: str) -> str:
    """The id of the run that a message has become."""
    answer = await product.post("/chat", json={"text": json.dumps(SENDS)}, headers={"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    return answer.json()["run_id"]


async def outcome(product: httpx.AsyncClient, run_id: str) -> str:
    """What the webhook has said of the run."""

    async def look() -> str | None:
        known = (await product.get(f"/runs/{run_id}")).json()["outcome"]
        return None if known == "working" else known

    return await wait_until(look, description="the webhook to come")


async def test_a_message_is_a_run_that_a_person_approves_and_a_webhook_reports(product: httpx.AsyncClient) -> None:
    key = str(uuid4())
    run_id = await say(product, key)
    assert await say(product, key) == run_id, "a click that is sent twice is one run"
    whole = (await product.get(f"/runs/{run_id}/events")).text
    assert whole.endswith("data: [DONE]\n\n")
    assert await outcome(product, run_id) == "requires_approval"

    numbers = re.findall(r"^id: (\d+)$", whole, re.MULTILINE)
    rest = (await product.get(f"/runs/{run_id}/events", headers={"Last-Event-ID": numbers[0]})).text
    assert re.findall(r"^id: (\d+)$", rest, re.MULTILINE) == numbers[1:]
    assert (await product.get(f"/runs/{run_id}/events", headers={"Last-Event-ID": numbers[-1]})).status_code == 204

    [waiting] = (await product.get("/approvals")).json()
    assert (waiting["tool_name"], waiting["arguments_object"]) == ("send_money", {"to": "Ada", "amount": 20})
    decided = await product.post(
        f"/approvals/{waiting['id']}", json={"approve": True, "arguments_hash": waiting["arguments_hash"]}
    )
    goes_on = (await product.get(f"/runs/{decided.json()['run_id']}/events")).text
    assert "sent 20 to Ada" in goes_on
    assert (await product.get("/approvals")).json() == []


async def test_a_new_users_first_requests_at_once_were_of_two_agents(product: httpx.AsyncClient) -> None:
    """The page asked for the approvals of one, and the message had gone to the other."""
    async with asyncio.TaskGroup() as group:
        run_id = group.create_task(say(product, str(uuid4())))
        for _ in range(5):
            group.create_task(product.get("/approvals"))
    await outcome(product, run_id.result())
    assert len((await product.get("/approvals")).json()) == 1


async def test_what_is_not_a_users_own_is_not_shown(product: httpx.AsyncClient) -> None:
    run_id = await say(product, str(uuid4()))
    await outcome(product, run_id)
    [waiting] = (await product.get("/approvals")).json()
    stranger = {"cookie": "user=eve"}
    for path in (f"/runs/{run_id}", f"/runs/{run_id}/events"):
        assert (await product.get(path, headers=stranger)).status_code == 404
    decision = {"approve": True, "arguments_hash": waiting["arguments_hash"]}
    product.cookies.clear()
    assert (await product.post(f"/approvals/{waiting['id']}", json=decision, headers=stranger)).status_code == 404
    forged = {"webhook-id": run_id, "webhook-timestamp": "1", "webhook-signature": "v1,none"}
    assert (await product.post("/webhooks/holdfast", content=b"{}", headers=forged)).status_code == 401


async def test_the_page_shows_the_answer_and_asks_for_the_approval(product: httpx.AsyncClient) -> None:
    async with running_browser() as browser:
        page = await browser.new_page()
        await page.goto(str(product.base_url))
        await page.fill("#text", json.dumps(SENDS))
        await page.click("text=Send")
        await page.wait_for_selector("text=send_money", timeout=180_000)
        assert (await page.inner_text("#log")).strip() == "One moment."
        await page.click("text=Approve")
        await page.wait_for_selector("text=It is done.", timeout=180_000)
        assert await page.inner_text("#approvals") == ""
