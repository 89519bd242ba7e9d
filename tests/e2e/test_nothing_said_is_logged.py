"""What users say, and the secrets of their agents, are where they belong: followed through a product at DEBUG."""

import re
from pathlib import Path
from typing import Any

import httpx

from shared.secret_keys import new_key
from tests.kit.free_ports import free_port
from tests.kit.model_server import Call, Failure, ModelServer, Turn
from tests.kit.product.processes import api_at, processes_in
from tests.kit.services.redis_servers import PrivateRedis

SECRET = "swordfish-47110815"
TEXT = "the-user-said-hello"

TELLS = '''
def tells(how: str) -> str:
    """
    Tells what it knows.

    Args:
        how (str): How.
    """
    import os, sys
    print(os.environ["TOKEN"], file=sys.stderr)
    if how == "raise":
        raise ValueError(os.environ["TOKEN"] + how)
    if how == "exit":
        os._exit(3)
    return "token: " + os.environ["TOKEN"]
'''


async def _said(http: httpx.AsyncClient, path: str, **body: Any) -> str:
    return (await http.post(path, json=body)).text


async def _exercise(http: httpx.AsyncClient, models: ModelServer) -> dict[str, str]:
    """Stores, runs, fails and is refused in every way; the answers by what they are."""
    tool = (await http.put("/v1/tools", json={"source_code": TELLS})).json()
    wanted = {"model": "openai/gpt-4o-mini", "tool_ids": [tool["id"]], "secrets": {"TOKEN": SECRET}}
    agent_id = (await http.post("/v1/agents", json=wanted | {"description": TEXT})).json()["id"]
    agent, messages = f"/v1/agents/{agent_id}", f"/v1/agents/{agent_id}/messages"
    answers: dict[str, str] = {}
    for how in ("return", "raise", "exit"):
        models.play(Turn(calls=[Call("tells", {"how": how})]), Turn(text=TEXT))
        answers[how] = await _said(http, messages, input=f"{TEXT} {how}")
    models.play(Turn(failure=Failure("bad_request", message=f"invalid: {TEXT}")))
    answers["refused by the model"] = await _said(http, messages, input=TEXT)
    models.play(*[Turn(failure=Failure("server", message=f"overloaded: {TEXT}"))] * 2)
    answers["model away"] = await _said(http, messages, input=TEXT)
    answers["not valid"] = await _said(http, "/v1/agents", **wanted, tags=[{"a": TEXT}], model_settings=TEXT)
    answers["unknown"] = await _said(http, f"/v1/agents/{TEXT}/messages", input=TEXT)
    runs = (await http.get("/v1/runs", params={"agent_id": agent_id})).json()
    answers["events"] = "".join([(await http.get(f"/v1/runs/{run['id']}/stream")).text for run in runs])
    answers["steps"] = "".join([(await http.get(f"/v1/runs/{run['id']}/steps")).text for run in runs])
    answers["file"] = (await http.get(f"{agent}/export")).text
    answers["list"] = (await http.get("/v1/agents")).text
    answers["asked for"] = (await http.get(agent, params={"include": "agent.secrets"})).text
    return answers


async def test_secrets_and_messages_were_in_the_log_at_debug(tmp_path: Path) -> None:
    """Finding M9 of the security audit: 10 lines with the secret, 23 with the user's text."""
    port = free_port()
    settings = {"log_level": "DEBUG", "model_retries": 1, "access_log": True}
    async with ModelServer() as models, processes_in(tmp_path, models.base_urls()) as processes, api_at(port) as http:
        dev = await processes.dev(port, **settings)
        answers = await _exercise(http, models)
        on_disk = b"".join([file.read_bytes() for file in sorted((tmp_path / "dev").iterdir())])
        assert await dev.terminate() == 0
        log = dev.log.read_text()

    assert SECRET in answers.pop("asked for")
    assert {name: text.count(SECRET) for name, text in answers.items()} == dict.fromkeys(answers, 0)
    assert "[secret TOKEN]" in answers["events"]
    assert answers["events"].count("event") > 0
    assert SECRET.encode() not in on_disk
    assert TEXT.encode() in on_disk, "messages are not encrypted"
    for event in (
        "worker_started",
        "jobs_claimed",
        "model_call_ended",
        "tool_call_ended",
        "run_written",
        "worker_ended",
    ):
        assert f" {event} " in log
    assert "error='llm_error (HTTP 500)'" in log, "what can be known without the text"
    failed = [line for line in log.splitlines() if "[warning" in line and " run_settled " in line]
    assert len(failed) == 2
    assert all("worker=" in one and "project=default" in one and "run_id=run-" in one for one in failed)
    assert ["error=llm_bad_request" in failed[0], "error=llm_error" in failed[1]] == [True, True]
    assert "route=/v1/agents/{agent_id}/messages status=422" in log, "the path has what the user wrote"
    assert not re.findall(f".*(?:{SECRET}|{TEXT}|Traceback).*", log)


async def test_production_without_a_key_says_what_that_means(
    tmp_path: Path, postgres_url: str, private_redis: PrivateRedis
) -> None:
    environment = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}
    async with processes_in(tmp_path, environment) as processes:
        await processes.migrate()
        without, with_one = await processes.worker(), await processes.worker(encryption_key=new_key())
        for worker, warns in ((without, True), (with_one, False)):
            await worker.terminate()
            assert ("HOLDFAST_ENCRYPTION_KEY is not set" in worker.log.read_text()) is warns
