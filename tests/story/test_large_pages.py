"""What pages may send that is large, or odd: it works, or a refusal names the field and the way out."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.kit.ag_ui import Page
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.tools import LAUNCH

pytestmark = pytest.mark.shared_product

DIALECTS = ["ag-ui", "ai-sdk"]
NAME = "Grüße 🎉/x?"


def message(dialect: str, message_id: str, text: str = "Hi", role: str = "user") -> dict[str, Any]:
    said = {"content": text} if dialect == "ag-ui" else {"parts": [{"type": "text", "text": text}]}
    return {"id": message_id, "role": role, **said}


async def send(product: Product, dialect: str, *messages: dict[str, Any], name: str = "desk") -> httpx.Response:
    """A request of a page with these messages, to a new agent."""
    agent = await product.agent()
    if dialect == "ag-ui":
        body = {"threadId": name, "messages": messages}
        return await product.http.post(f"/ag-ui/{agent.id}", json=body)
    return await product.http.post(f"/ai-sdk/{agent.id}/chat", json={"id": name, "messages": messages})


def asked(product: Product) -> list[str]:
    """What users said in the last request of the model."""
    return [one["content"] for one in product.models.requests[-1].body["messages"] if one["role"] == "user"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_chat_of_2000_messages_goes_on(product: Product, dialect: str) -> None:
    product.models.say("Fine.")
    past = [message(dialect, f"{role}-{number}", role=role) for number in range(1000) for role in ("user", "assistant")]
    answer = await send(product, dialect, *past, message(dialect, "last", "And now?"))
    assert "Fine." in answer.text
    assert asked(product) == ["And now?"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_message_that_is_too_long_was_named_by_its_place_among_the_new_ones(
    product: Product, dialect: str
) -> None:
    limit = product.services.settings.max_message_chars
    past = [message(dialect, "u1"), message(dialect, "a1", role="assistant")]
    answer = await send(product, dialect, *past, message(dialect, "u2"), message(dialect, "u3", "x" * (limit + 1)))
    assert answer.status_code == 400
    assert f"messages[3] has {limit + 1} characters, {limit} are allowed" in answer.text
    product.models.say("Fine.")
    assert "Fine." in (await send(product, dialect, message(dialect, "u1", "x" * limit))).text


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_two_messages_with_one_id_were_both_said_under_it(product: Product, dialect: str) -> None:
    past = [message(dialect, "u0"), message(dialect, "a0", role="assistant")]
    answer = await send(product, dialect, *past, message(dialect, "u1", "One"), message(dialect, "u1", "Two"))
    assert answer.status_code == 400
    assert "messages[3].id is the id of messages[2] as well" in answer.text
    assert "give each message an id of its own" in answer.text


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_message_that_a_page_has_twice_was_said_twice(product: Product, dialect: str) -> None:
    product.models.say("Fine.")
    answer = await send(product, dialect, message(dialect, "u1", "One"), message(dialect, "u1", "One"))
    assert "Fine." in answer.text
    assert asked(product) == ["One"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_empty_message_is_refused(product: Product, dialect: str) -> None:
    """AG-UI's was given to the model, whose provider may refuse it."""
    answer = await send(product, dialect, message(dialect, "u1", ""))
    assert answer.is_client_error
    assert f"messages[0].{'content' if dialect == 'ag-ui' else 'parts'}" in answer.text


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", ["text", "hologram"])
async def test_a_message_of_300_parts_works_and_a_part_of_an_unknown_type_is_named(
    product: Product, dialect: str, kind: str
) -> None:
    product.models.say("Fine.")
    field = "content" if dialect == "ag-ui" else "parts"
    parts = [{"type": "text", "text": "x"}] * 299 + [{"type": kind, "text": "x"}]
    answer = await send(product, dialect, {"id": "u1", "role": "user", field: parts})
    assert ("Fine." if kind == "text" else f"messages[0].{field}[299] is not understood: ") in answer.text
    product.models.forget()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_ids_of_1000_characters_are_refused_by_name_and_others_may_have_any_letters(
    product: Product, dialect: str
) -> None:
    long = "x" * 1000
    assert "messages[0].id" in (await send(product, dialect, message(dialect, long))).text
    named = await send(product, dialect, message(dialect, "u1"), name=long)
    assert named.status_code == 422
    assert "at most 200 characters" in named.text
    product.models.say("Fine.")
    assert "Fine." in (await send(product, dialect, message(dialect, "你好-🎉"), name=NAME)).text


async def test_a_chat_that_never_existed_has_nothing_to_resume(product: Product) -> None:
    agent = await product.agent()
    stream = await product.http.get(f"/ai-sdk/{agent.id}/chat/never/stream")
    listed = await product.http.get(f"/ai-sdk/{agent.id}/chat/never")
    assert (stream.status_code, listed.json()) == (204, {"id": "never", "messages": [], "is_running": False})
    page = Page(product.http, agent.id, "never")
    await page.connect()
    assert (page.status, page.received) == (200, b"")
    await page.resume(**{"approval-none": {"approved": True}})
    assert page.client.outcomes[-1]["code"] == "NO_PENDING_APPROVAL"


async def test_two_tabs_that_decide_differently_at_once_make_one_decision(product: Product) -> None:
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"})]), Turn(text="Done."))
    tabs = [Page(product.http, agent.id, "desk") for _ in range(2)]
    await tabs[0].say("Launch.")
    await tabs[1].connect()
    [interrupt] = tabs[0].client.pending
    async with asyncio.TaskGroup() as group:
        for number, tab in enumerate(tabs):
            group.create_task(tab.resume(**{interrupt["id"]: {"approved": number == 0}}))
    ends = sorted(tab.client.outcomes[-1].get("code", "finished") for tab in tabs)
    assert ends == ["NO_PENDING_APPROVAL", "finished"]
    [lost] = [tab for tab in tabs if "code" in tab.client.outcomes[-1]]
    assert "a decision holds once" in lost.client.outcomes[-1]["message"]
    await lost.connect()
    assert lost.client.text == "Done."
