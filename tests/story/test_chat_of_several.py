"""`holdfast chat` while others talk in the same conversation: their words and deeds are lines above the prompt."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from cli.client.agents import Conversation
from cli.client.chat import Chat
from cli.client.server import server_at
from tests.kit.model_server import Turn
from tests.kit.product import Product
from tests.kit.product.terminal import INTERRUPT, clean_environment, on_terminal
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product
ELSEWHERE = "(said elsewhere)"


def environment_of(product: Product) -> dict[str, str]:
    return clean_environment(HOLDFAST_URL=product.base_url, HOLDFAST_API_KEY=product.key)


async def say(product: Product, agent_id: str, text: str) -> str:
    """Says something as another client. Returns the run's id."""
    sent = {"messages": [{"role": "user", "content": text}], "stream_tokens": True}
    return (await product.http.post(f"/v1/agents/{agent_id}/messages/async", json=sent)).json()["id"]


async def test_what_others_say_is_shown_above_the_prompt_and_not_while_the_person_types(product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    with on_terminal(["chat", agent.id], environment_of(product)) as terminal:
        await terminal.shows("» ")
        await say(product, agent.id, "Hello")
        await terminal.shows(f"» Hello {ELSEWHERE}\n")
        await terminal.shows("You said: Hello\n» ")
        terminal.type("half a li")
        await terminal.shows("half a li")
        await product.ended(await say(product, agent.id, "Again"))
        terminal.type("ne\n")
        await terminal.shows("half a line\n")
        await terminal.shows("You said: half a line")
        assert f"» Again {ELSEWHERE}" in terminal.text.partition("half a line\n")[2]
        assert f"half a line {ELSEWHERE}" not in terminal.text
        terminal.type("/quit\n")
        assert await terminal.ended() == 0


async def test_a_chat_shows_who_decided_what_it_asks(product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("It is on its way.")
    with on_terminal(["chat", asked.agent_id], environment_of(product)) as terminal:
        await terminal.shows("[a]pprove")
        await asked.decide(decided_by="ada")
        await terminal.shows("[launch: approved by ada]")
        await terminal.shows("It is on its way.")
        terminal.type("d\n\n")
        await terminal.shows("approved by ada", times=2)
        terminal.type("/quit\n")
        assert await terminal.ended() == 0


async def test_a_chat_shows_that_others_have_stopped_its_answer(product: Product) -> None:
    agent = await product.agent(model="builtin/slow")
    with on_terminal(["chat", agent.id], environment_of(product)) as terminal:
        await terminal.shows("» ")
        terminal.type("count\n")
        await terminal.shows("You said: count 1 2 ")
        await product.client.agents.messages.cancel(agent.id)
        await terminal.shows("cancelled]")
        await terminal.shows("» ", times=2)
        # The prompt is back, and the next message is answered.
        terminal.type("again\n")
        await terminal.shows("You said: again 1 2 ")
        terminal.type(INTERRUPT)
        await terminal.shows("[c]ancel")
        terminal.type("c\n")
        await terminal.shows("cancelled]", times=2)
        await terminal.shows("» ", times=3)
        terminal.type("\x04")
        assert await terminal.ended() == 0


@dataclass(frozen=True)
class WatchedHistory(Conversation):
    """A conversation that records which threads run while its history is asked for, and lets the model go on then."""

    go_on: Callable[[], object] = bool
    threads: set[threading.Thread] = field(default_factory=set[threading.Thread])

    def history(self, count: int) -> list[dict[str, Any]]:
        self.threads.update(threading.enumerate())
        self.go_on()
        return super().history(count)


async def test_words_of_an_answer_were_shown_before_the_message_that_it_answers(
    product: Product, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEY", product.key)
    before = set(threading.enumerate())
    agent, may_go_on, loop = await product.agent(), asyncio.Event(), asyncio.get_running_loop()
    product.models.play(Turn(text="Quincunx two three", silent_after=1, resume=may_go_on))
    await say(product, agent.id, "Count.")
    await wait_until(lambda: product.models.requests, description="the model to be asked")

    def opened() -> WatchedHistory:
        go_on = partial(loop.call_soon_threadsafe, may_go_on.set)
        with server_at(product.base_url) as server:
            conversation = WatchedHistory(server, agent.id, go_on=go_on)
            assert Chat(server, conversation, product.base_url).begin(history=10)
            return conversation

    conversation = await asyncio.to_thread(opened)
    assert "conversation" not in {thread.name for thread in conversation.threads - before}
    shown = capsys.readouterr().out  # with the server's log, in which this word is not
    assert -1 < shown.find("» Count.") < shown.find("Quincunx")


async def test_a_chat_that_is_opened_in_the_middle_of_an_answer_shows_it_from_its_beginning(product: Product) -> None:
    agent, go_on = await product.agent(), asyncio.Event()
    product.models.play(Turn(text="one two three", silent_after=1, resume=go_on))
    await say(product, agent.id, "Count.")
    await wait_until(lambda: product.models.requests, description="the model to be asked")
    with on_terminal(["chat", agent.id], environment_of(product)) as terminal:
        await terminal.shows("following it]")
        await terminal.shows("one")
        go_on.set()
        await terminal.shows("one two three\n» ")
        assert terminal.text.count("Count.") == 1
        terminal.type("\x04")
        assert await terminal.ended() == 0
