"""The commands of the API's callers, each on one live product: what they print, and how they end."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.client.agents import conversation_of
from cli.client.server import server_at
from tests.kit.commands import Command, fork
from tests.kit.free_ports import free_port
from tests.kit.mcp.authorizing import authorizing_server, consented
from tests.kit.mcp.official import official_server
from tests.kit.product.terminal import INTERRUPT, Said, clean_environment, on_terminal, said
from tests.kit.wait_until import wait_until

SOURCE = '''
def send_money(to: str, amount: int) -> str:
    """Send money.

    Args:
        to: who gets it
        amount: how much
    """
    return f"sent {amount} to {to}"
'''
WORDS = "one two three four five six seven eight nine ten"
CALL = {"name": "send_money", "arguments": {"to": "Ada", "amount": 20}}
ASKS = json.dumps({"turns": [{"text": "Let me see.", "calls": [CALL]}, {"text": "It is done."}]})
SLOW = json.dumps({"turns": [{"text": WORDS, "delay_ms": 400}]})
ENDLESS = json.dumps({"turns": [{"text": "up and down ", "repeat": 1000, "delay_ms": 100}]})
QUICK = json.dumps({"turns": [{"text": "Good morning."}]})


def said_by(text: str) -> str:
    """The message that makes an agent say this."""
    return json.dumps({"turns": [{"text": text}]})


Holdfast = Callable[..., Awaitable[Said]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `holdfast dev`, with a tool that asks first."""
    directory, port = tmp_path_factory.mktemp("dev"), free_port()
    address = f"http://127.0.0.1:{port}"
    arguments = ["dev", "--port", str(port), "--data-dir", str(directory / "data")]
    files = directory / "output", directory / "log"
    for file in files:
        file.touch()
    # Servers of tests are on this machine.
    settings = clean_environment(HOLDFAST_REACHABLE_NETWORKS="127.0.0.0/8")
    process = fork(Command(arguments, settings, *files))

    def answers() -> bool:
        assert process.exit_status() is None, files[1].read_text()
        try:
            return httpx.get(f"{address}/v1/health/").is_success
        except httpx.TransportError:
            return False

    asyncio.run(wait_until(answers, description="holdfast dev to answer", every=0.1))
    tool = {"source_code": SOURCE, "default_requires_approval": True}
    httpx.put(f"{address}/v1/tools/", json=tool).raise_for_status()
    yield address
    os.kill(process.pid, signal.SIGTERM)
    asyncio.run(wait_until(lambda: process.exit_status() is not None, description="holdfast dev to end"))


@pytest.fixture
def holdfast(url: str, tmp_path: Path) -> Holdfast:
    """A command, given to that server."""

    async def give(*arguments: str, **settings: str) -> Said:
        return await said(tmp_path, arguments, clean_environment(**{"HOLDFAST_URL": url, **settings}))

    return give


@pytest.fixture
async def agent(holdfast: Holdfast) -> str:
    """The id of an agent that plays what a message says."""
    made = await holdfast("agents", "create", "scripted", "--model", "builtin/scripted", "--tool", "send_money")
    assert made.status == 0, made.errors
    return made.output.strip()


def rows(said: Said) -> list[dict[str, Any]]:
    """The objects that a command with --json has printed."""
    return [json.loads(line) for line in said.output.splitlines()]


async def test_an_agent_is_shown_with_who_works_in_the_background_for_it(holdfast: Holdfast, url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        made = {"name": "butler", "model": "builtin/echo", "enable_sleeptime": True}
        agent = (await http.post("/v1/agents/", json=made)).json()
        [sleeper] = agent["managed_group"]["agent_ids"]
        assert (
            f"butler-sleeptime ({sleeper}) has not thought yet"
            in (await holdfast("agents", "show", agent["id"])).output
        )
        sent = (await http.post(f"/v1/agents/{agent['id']}/messages", json={"input": "Hello"})).json()
        [run_id] = sent["usage"]["run_ids"]
        thought = (await holdfast("agents", "show", agent["id"])).output
        assert f"butler-sleeptime ({sleeper}) last thought at " in thought
        assert run_id in thought
        back = (await holdfast("agents", "show", sleeper)).output
        assert f"works in the background for butler ({agent['id']})" in back
        assert (await http.delete(f"/v1/agents/{agent['id']}")).is_success


async def test_agents_are_made_shown_listed_and_deleted(holdfast: Holdfast, agent: str) -> None:
    [shown] = rows(await holdfast("agents", "show", agent, "--json"))
    assert (shown["id"], shown["model"]) == (agent, "builtin/scripted")
    assert "send_money" in (await holdfast("agents", "show", agent)).output
    assert agent in (await holdfast("agents", "list", "--limit", "200")).output
    assert agent in [row["id"] for row in rows(await holdfast("agents", "list", "--limit", "200", "--json"))]
    refused = await holdfast("agents", "delete", agent)
    assert (refused.status, "give --yes" in refused.errors) == (2, True)
    assert "is deleted" in (await holdfast("agents", "delete", agent, "--yes")).output
    assert (await holdfast("agents", "show", agent)).status == 2


async def test_mcp_servers_are_added_shown_refreshed_and_deleted(holdfast: Holdfast) -> None:
    async with official_server("stateless") as tools:
        where = f"http://127.0.0.1:{tools.port}/mcp"
        made = await holdfast("mcp", "add", "tools", where, "--token-env", "TOKEN", TOKEN="what-the-server-gave")
        assert made.status == 0, made.errors
        assert "add" in made.errors
        assert tools.authorizations == {"Bearer what-the-server-gave"}
        shown = await holdfast("mcp", "show", "tools")
        assert made.output.strip() in shown.output
        assert "what-the-server-gave" not in shown.output
        [as_json] = rows(await holdfast("mcp", "show", made.output.strip(), "--json"))
        assert "add" in [tool["name"] for tool in as_json["tools"]]
        assert where in (await holdfast("mcp", "list")).output
        assert "nothing has changed" in (await holdfast("mcp", "refresh", "tools")).errors
    away = await holdfast("mcp", "refresh", "tools")
    assert (away.status == 0, "tools" in away.errors) == (False, True)
    assert "give --yes" in (await holdfast("mcp", "delete", "tools")).errors
    assert "is deleted" in (await holdfast("mcp", "delete", "tools", "--yes")).output
    assert "holdfast mcp list" in (await holdfast("mcp", "show", "tools")).errors


async def test_a_person_signs_in_at_an_mcp_server(holdfast: Holdfast, tmp_path: Path) -> None:
    def address() -> str:
        printed = (tmp_path / "output").read_text()
        return printed.strip() if "/authorize" in printed and printed.endswith("\n") else ""

    async def sign_in() -> Said:
        return await holdfast("mcp", "sign-in", "notes")

    async with authorizing_server() as notes:
        assert (await holdfast("mcp", "add", "notes", notes.url)).status == 0
        async with asyncio.TaskGroup() as group:
            signing_in = group.create_task(sign_in())
            url = await wait_until(address, description="the address to be printed")
            async with httpx.AsyncClient() as browser:
                await browser.get(await consented(url))
        done = signing_in.result()
        assert (done.status, "signed in at notes; its tools: note" in done.output) == (0, True), done.errors
        assert "/authorize?response_type=code" in done.output
        assert "signed_in" in (await holdfast("mcp", "show", "notes")).output
        events = [row["event"] for row in rows(await holdfast("mcp", "sign-in", "notes", "--json"))]
        assert events == ["connection_attempt", "success"]
    away = await holdfast("mcp", "sign-in", "notes")
    assert (away.status, "cannot be reached" in away.errors) == (2, True)


async def test_an_mcp_server_that_is_away_is_added_without_tools(holdfast: Holdfast) -> None:
    made = await holdfast("mcp", "add", "away", f"http://127.0.0.1:{free_port()}/mcp", "--sse")
    assert (made.status, "holdfast mcp refresh" in made.errors, ".." in made.errors) == (0, True, False)
    [listed] = [row for row in rows(await holdfast("mcp", "list", "--json")) if row["server_name"] == "away"]
    assert (listed["mcp_server_type"], bool(listed["problem"])) == ("sse", True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the server's URL, or --command"),
        (["http://127.0.0.1:1/mcp", "--command", "uvx clock"], "give the server's URL, or --command"),
        (["--command", "uvx clock"], "HOLDFAST_MCP_COMMANDS"),
        (["--command", "'"], "--command is no command line"),
        (["--command", " "], "--command is empty"),
        (["--command", "uvx clock", "--sse"], "leave them out"),
        (["http://127.0.0.1:1/mcp", "--token-env", "NOT_SET"], "NOT_SET"),
    ],
)
async def test_an_mcp_server_that_cannot_be_added_is_refused(
    holdfast: Holdfast, arguments: list[str], said: str
) -> None:
    refused = await holdfast("mcp", "add", "wrong", *arguments)
    assert (refused.status, said in refused.errors) == (2, True), refused.errors


async def test_a_name_stands_for_the_one_agent_that_has_it(holdfast: Holdfast) -> None:
    made = await holdfast("agents", "create", "the only one", "--model", "builtin/scripted")
    assert (await holdfast("run", "the only one", QUICK)).output == "Good morning.\n"
    await holdfast("agents", "create", "the only one", "--model", "builtin/scripted")
    refused = await holdfast("run", "the only one", QUICK)
    assert (refused.status, "give the id" in refused.errors) == (2, True)
    nobody = await holdfast("run", "nobody", QUICK)
    assert (nobody.status, "holdfast agents list" in nobody.errors) == (2, True)
    assert made.output.startswith("agent-")


async def test_a_run_is_followed_to_its_end(holdfast: Holdfast, agent: str) -> None:
    done = await holdfast("run", agent, SLOW)
    assert (done.status, done.output) == (0, f"{WORDS}\n")
    *frames, run = rows(await holdfast("run", agent, QUICK, "--json"))
    assert run["status"] == "completed"
    assert [frame["seq_id"] for frame in frames] == list(range(1, len(frames) + 1))
    assert "".join(f["content"] for f in frames if f["message_type"] == "assistant_message") == "Good morning."

    [shown] = rows(await holdfast("runs", "show", run["id"], "--json"))
    assert shown["usage"]["completion_tokens"] > 0
    assert run["id"] in (await holdfast("runs", "show", run["id"])).output
    assert (await holdfast("runs", "watch", run["id"])).output == "Good morning.\n"
    listed = await holdfast("runs", "list", "--agent", agent, "--status", "completed", "--json")
    assert rows(listed)[0]["id"] == run["id"]
    assert run["id"] in (await holdfast("runs", "list", "--agent", agent)).output
    assert "agent" not in rows(listed)[0], "JSON is what the API says"

    assert rows(await holdfast("logs", run["id"], "--json")) == frames
    assert rows(await holdfast("logs", run["id"], "--json", "--follow", "--starting-after", "3")) == frames[3:]
    assert "assistant_message" in (await holdfast("logs", run["id"])).output


async def test_a_run_shows_which_runs_it_has_started(url: str, holdfast: Holdfast) -> None:
    asked = {"name": "manager", "model": "builtin/scripted", "include_base_tools": False, "tools": ["run_agent"]}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        manager = (await http.post("/v1/agents", json=asked)).json()["id"]
    calls = [{"name": "run_agent", "arguments": {"agent": manager, "task": QUICK}}]
    script = json.dumps({"turns": [{"calls": calls}, {"text": "It was good."}]})
    done = await holdfast("run", manager, script)
    assert done.status == 0
    assert "[it has started run-" in done.output
    *_, run = rows(await holdfast("runs", "list", "--agent", manager, "--json"))
    [child] = rows(await holdfast("runs", "list", "--parent", run["id"], "--json"))
    assert child["metadata"]["parent_run_id"] == run["id"]


async def test_a_history_was_shown_backwards(url: str, holdfast: Holdfast, agent: str) -> None:
    """An agent's own newest messages are listed oldest first, a conversation's newest first."""
    begun = await holdfast("run", agent, said_by("one"), "--conversation", "new")
    conversation = begun.errors.split("--conversation ")[1].split("]")[0]
    await holdfast("run", agent, said_by("two"), "--conversation", conversation)
    await holdfast("run", agent, said_by("one"))
    await holdfast("run", agent, said_by("two"))
    with server_at(url) as server:
        for given in (None, conversation):
            history = conversation_of(server, {"id": agent}, given).history(4)
            told = [message["content"] for message in history]
            assert told == [said_by("one"), "one", said_by("two"), "two"]


async def test_a_message_goes_into_a_further_conversation(holdfast: Holdfast, agent: str) -> None:
    begun = await holdfast("run", agent, QUICK, "--conversation", "new")
    assert (begun.status, begun.output) == (0, "Good morning.\n"), begun.errors
    conversation = begun.errors.split("--conversation ")[1].split("]")[0]
    await holdfast("run", agent, QUICK, "--conversation", conversation)
    assert len(rows(await holdfast("runs", "list", "--conversation", conversation, "--json"))) == 2
    assert rows(await holdfast("runs", "list", "--agent", agent, "--json"))[0]["conversation_id"] == conversation
    other = await holdfast("agents", "create", "another", "--model", "builtin/scripted")
    refused = await holdfast("run", other.output.strip(), QUICK, "--conversation", conversation)
    assert (refused.status, f"a conversation of {agent}" in refused.errors) == (2, True)


async def test_a_detached_run_takes_a_message_and_is_cancelled(holdfast: Holdfast, agent: str) -> None:
    left = await holdfast("run", agent, ENDLESS, "--detach")
    run_id = left.output.strip()
    assert f"holdfast runs watch {run_id}" in left.errors
    assert "run_status" in (await holdfast("logs", run_id)).output, "what there is of a run that goes on"
    [injected] = rows(await holdfast("runs", "inject", run_id, "And another thing", "--json"))
    assert injected["is_new"] is True
    [receipt] = rows(await holdfast("runs", "cancel", run_id, "--reason", "obsolete", "--json"))
    assert (receipt["status"], receipt["reason"]) == ("cancelled", "obsolete")
    assert "cancelled" in (await holdfast("runs", "cancel", run_id)).output
    watched = await holdfast("runs", "watch", run_id)
    assert (watched.status, watched.errors.count("cancelled")) == (4, 1), "it was said twice"


async def test_what_a_run_has_done_is_listed_and_a_lost_call_is_settled(url: str, holdfast: Holdfast) -> None:
    source = 'def dawdle() -> str:\n    """Dawdle."""\n    import time\n    time.sleep(600)\n    return "done"\n'
    async with httpx.AsyncClient(base_url=url) as http:
        (await http.put("/v1/tools/", json={"source_code": source})).raise_for_status()
    given = ("--model", "builtin/scripted", "--tool", "dawdle")
    made = (await holdfast("agents", "create", "dawdler", *given)).output.strip()
    script = json.dumps({"turns": [{"calls": [{"name": "dawdle", "arguments": {}}]}]})
    run_id = (await holdfast("run", made, script, "--detach")).output.strip()

    async def has_started() -> bool:
        return [one["state"] for one in rows(await holdfast("runs", "effects", run_id, "--json"))] == ["started"]

    await wait_until(has_started, description="the tool to have started", every=0.5)
    await holdfast("runs", "cancel", run_id)
    [lost] = rows(await holdfast("runs", "effects", run_id, "--json"))
    assert (lost["name"], lost["state"]) == ("dawdle", "unknown")
    listed = (await holdfast("runs", "effects", run_id)).output
    assert lost["call_id"] in listed and "unknown" in listed

    call = ("runs", "settle", run_id, lost["call_id"])
    wrong = await holdfast(*call, "did_not_happen", "--result", "Invoice 7")
    assert (wrong.status, "--result is for a call that happened" in wrong.errors) == (2, True)
    [settled] = rows(await holdfast(*call, "happened", "--result", "Invoice 7", "--json"))
    assert (settled["state"], settled["settled_by"], settled["result"]) == ("settled", "person", "Invoice 7")
    assert settled["settled_by_name"]
    again = await holdfast(*call, "did_not_happen")
    assert (again.status, "settled already" in again.errors) == (2, True)
    assert "Invoice 7" in (await holdfast("runs", "effects", run_id)).output
    empty = await holdfast("runs", "effects", (await holdfast("run", made, QUICK, "--detach")).output.strip())
    assert (empty.status, empty.output) == (0, "")


async def test_a_run_that_fails_has_a_status_of_its_own(holdfast: Holdfast) -> None:
    made = await holdfast("agents", "create", "keyless", "--model", "openai/gpt-4o-mini")
    failed = await holdfast("run", made.output.strip(), "Hello")
    assert (failed.status, "OPENAI_API_KEY" in failed.output) == (3, True), failed


async def test_approvals_are_listed_and_decided(holdfast: Holdfast, agent: str) -> None:
    waiting = await holdfast("run", agent, ASKS)
    assert (waiting.status, "holdfast approvals list" in waiting.errors) == (5, True)
    [approval] = rows(await holdfast("approvals", "list", "--agent", agent, "--json"))
    assert approval["id"] in (await holdfast("approvals", "list")).output
    mistaken = await holdfast("approvals", "decide", approval["id"], "approve", "--arguments", "nonsense")
    assert (mistaken.status, "not a JSON object" in mistaken.errors) == (2, True)
    edited = json.dumps({"to": "Ada", "amount": 5})
    [decided] = rows(await holdfast("approvals", "decide", approval["id"], "approve", "--arguments", edited, "--json"))
    watched = await holdfast("runs", "watch", decided["continued_by"])
    assert (watched.status, "sent 5 to Ada" in watched.output) == (0, True)
    parked = await holdfast("runs", "watch", approval["run_id"], "--json")
    assert (parked.status, rows(parked)[-1]["continued_by"]) == (0, decided["continued_by"]), "it waits no more"

    await holdfast("run", agent, ASKS)
    [approval] = rows(await holdfast("approvals", "list", "--agent", agent, "--json"))
    denied = await holdfast("approvals", "decide", approval["id"], "deny", "--reason", "too much")
    assert "denied" in denied.output
    assert "too much" in (await holdfast("runs", "watch", denied.errors.split()[-1].rstrip("]"))).output


async def test_an_edited_call_was_shown_with_the_arguments_before_the_edit(holdfast: Holdfast, agent: str) -> None:
    await holdfast("run", agent, ASKS)
    [approval] = rows(await holdfast("approvals", "list", "--agent", agent, "--json"))
    edited = json.dumps({"to": "Ada", "amount": 4711})
    decided = await holdfast("approvals", "decide", approval["id"], "approve", "--arguments", edited)
    assert (decided.status, "4711" in decided.output) == (0, True), decided


async def test_lists_showed_ids_of_agents_where_people_know_names(holdfast: Holdfast, agent: str) -> None:
    await holdfast("agents", "create", "the teller", "--model", "builtin/scripted")
    for text in (QUICK, QUICK):
        await holdfast("run", "the teller", text)
    listed = (await holdfast("runs", "list", "--agent", "the teller")).output
    assert listed.count("the teller") == 2 and "agent-" not in listed
    run_id = listed.splitlines()[1].split()[0]
    assert "the teller" in (await holdfast("runs", "show", run_id)).output
    await holdfast("run", agent, ASKS)
    waiting = (await holdfast("approvals", "list", "--agent", agent)).output
    assert "send_money" in waiting and agent not in waiting


async def test_top_shows_the_deployment(holdfast: Holdfast) -> None:
    [shown] = rows(await holdfast("top", "--once", "--json"))
    assert shown["services"]["worker"] is True
    text = (await holdfast("top", "--once")).output
    assert shown["workers"][0]["name"] in text
    assert "● worker" in text


async def test_a_server_that_is_not_there_is_a_failure_and_a_wrong_word_is_a_mistake(holdfast: Holdfast) -> None:
    away = await holdfast("runs", "list", HOLDFAST_URL=f"http://127.0.0.1:{free_port()}")
    assert (away.status, "does not answer" in away.errors, away.errors.count("\n")) == (1, True, 1)
    wrong = await holdfast("runs", "list", HOLDFAST_URL="127.0.0.1:8283")
    assert (wrong.status, "write it as http://" in wrong.errors) == (2, True)
    assert (await holdfast("runs", "show", "run-1")).status == 2


async def test_ctrl_c_detaches(url: str, agent: str) -> None:
    environment = clean_environment(HOLDFAST_URL=url)
    with on_terminal(["run", agent, SLOW], environment) as terminal:
        await terminal.shows("one two")
        terminal.type(INTERRUPT)
        await terminal.shows("[d]etach")
        terminal.type("d\n")
        assert await terminal.ended() == 130
        come_back = terminal.text.split("holdfast runs watch ")[1].split(";")[0].split()
    with on_terminal(["runs", "watch", *come_back], environment) as terminal:
        await terminal.shows("ten")
        assert await terminal.ended() == 0
        assert "one" not in terminal.text, "it was shown before"


async def test_a_second_ctrl_c_detaches_and_a_word_cancels(url: str, agent: str) -> None:
    environment = clean_environment(HOLDFAST_URL=url)
    with on_terminal(["run", agent, ENDLESS], environment) as terminal:
        await terminal.shows("up and down up")
        terminal.type(INTERRUPT)
        await terminal.shows("[d]etach")
        terminal.type(INTERRUPT)
        assert await terminal.ended() == 130
        run_id = terminal.text.split("holdfast runs watch ")[1].split()[0]
    with on_terminal(["runs", "watch", run_id], environment) as terminal:
        await terminal.shows("up and down up")
        terminal.type(INTERRUPT)
        await terminal.shows("[c]ancel")
        terminal.type("c\n")
        assert await terminal.ended() == 4


async def test_a_chat_shows_its_history_and_asks_in_place(url: str, agent: str) -> None:
    environment = clean_environment(HOLDFAST_URL=url)
    with on_terminal(["chat", agent], environment) as terminal:
        await terminal.shows("/help]")
        terminal.type(f"{QUICK}\n")
        await terminal.shows("Good morning.", times=2)
        terminal.type(f"{ASKS}\n")
        await terminal.shows("[a]pprove")
        terminal.type("l\n")
        terminal.type("/quit\n")
        assert await terminal.ended() == 0
    with on_terminal(["chat", agent], environment) as terminal:
        await terminal.shows("Good morning.", times=2)
        await terminal.shows("[a]pprove")
        terminal.type("e\n")
        await terminal.shows("Arguments as JSON")
        terminal.type('{"to": "Ada", "amount": 7}\n')
        await terminal.shows("sent 7 to Ada")
        await terminal.shows("It is done.", times=2)
        terminal.type(f"{ENDLESS}\n")
        await terminal.shows("up and down up")
        terminal.type(INTERRUPT)
        await terminal.shows("[c]ancel")
        terminal.type("c\n")
        await terminal.shows("cancelled")
        await wait_until(lambda: terminal.text.rstrip().endswith("»"), description="the chat to ask again")
        terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_a_chat_in_a_further_conversation_leaves_the_agents_own_alone(url: str, agent: str) -> None:
    environment = clean_environment(HOLDFAST_URL=url)
    with on_terminal(["chat", agent, "--conversation", "new"], environment) as terminal:
        await terminal.shows("/help]")
        conversation = terminal.text.split("--conversation ")[1].split("]")[0]
        terminal.type(f"{ASKS}\n")
        await terminal.shows("[a]pprove")
        terminal.type("l\n")
        terminal.type("/quit\n")
        assert await terminal.ended() == 0
    with on_terminal(["chat", agent], environment) as terminal:
        await terminal.shows("/help]")
        terminal.type(f"{QUICK}\n")
        await terminal.shows("Good morning.", times=2)
        terminal.type("/quit\n")
        assert await terminal.ended() == 0
        assert "[a]pprove" not in terminal.text
    with on_terminal(["chat", agent, "--conversation", conversation], environment) as terminal:
        await terminal.shows("Let me see.", times=2)
        await terminal.shows("[a]pprove")
        terminal.type("d\n")
        await terminal.shows("Reason")
        terminal.type("not now\n")
        await terminal.shows("It is done.", times=2)
        terminal.type(f"{ENDLESS}\n")
        await terminal.shows("up and down up")
        terminal.type(INTERRUPT)
        await terminal.shows("[d]etach")
        terminal.type("d\n")
        assert await terminal.ended() in (0, 130)
    with on_terminal(["chat", agent, "--conversation", conversation], environment) as terminal:
        await terminal.shows("is not finished")
        await terminal.shows("up and down up")  # it follows the run
        terminal.type(INTERRUPT)
        await terminal.shows("[c]ancel")
        terminal.type("c\n")
        await terminal.shows("cancelled")
        terminal.type("/cancel\n/quit\n")
        assert await terminal.ended() == 0
