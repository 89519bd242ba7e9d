"""Chats of the AI SDK, as a small client of the protocol sees them; `test_ai_sdk_clients.py` has the real ones."""

import asyncio
from typing import Any

import pytest

from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.product.ui_messages import UiMessageReader

pytestmark = pytest.mark.shared_product


def said(text: str, message_id: str = "u1") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


async def post(product: Product, agent_id: str, *messages: dict[str, Any], chat: str = "chat", **fields: Any) -> Any:
    body = {"id": chat, "messages": list(messages), "trigger": "submit-message", **fields}
    return await product.http.post(f"/ai-sdk/{agent_id}/chat", json=body)


async def test_an_answer_is_a_ui_message(product: Product) -> None:
    agent = await product.agent()
    product.models.say("Hello.")
    answer = await post(product, agent.id, said("Hi"))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    reader = UiMessageReader(7).read(answer.content)
    assert (reader.text, reader.finish_reason, reader.is_done) == ("Hello.", "stop", True)
    listed = (await product.http.get(f"/ai-sdk/{agent.id}/chat/chat")).json()
    assert listed["messages"] == [said("Hi"), reader.message]
    assert listed["is_running"] is False


async def test_a_question_before_a_message_of_the_system_was_lost(product: Product) -> None:
    agent = await product.agent()
    product.models.say("Hello.")
    hint = {"id": "s1", "role": "system", "parts": [{"type": "text", "text": "Be brief."}]}
    answer = await post(product, agent.id, said("Hi"), hint, said("Now.", "u2"))
    assert UiMessageReader(7).read(answer.content).text == "Hello."
    told = [one["content"] for one in product.models.requests[-1].body["messages"] if one["role"] == "user"]
    assert told == ["Hi", "Now."]
    empty = await post(product, agent.id, {**said(""), "id": "u3", "parts": []}, hint)
    assert "messages[0].parts" in empty.text


async def test_a_page_that_was_loaded_again_did_not_show_the_names_of_its_images(product: Product) -> None:
    agent = await product.agent()
    product.models.say("Cats.")
    urls = ("data:image/png;base64,aGk=", "https://example.com/cat")
    pictures = [{"type": "file", "mediaType": "image/png", "filename": "cat.png", "url": url} for url in urls]
    unnamed = {"type": "file", "mediaType": "image/png", "url": urls[0]}
    message = {"id": "u1", "role": "user", "parts": [*pictures, unnamed]}
    assert (await post(product, agent.id, message)).status_code == 200
    [shown, _] = (await product.http.get(f"/ai-sdk/{agent.id}/chat/chat")).json()["messages"]
    assert [part.get("filename") for part in shown["parts"]] == ["cat.png", "cat.png", None]


async def test_a_stopped_answer_ends_as_interrupted(product: Product) -> None:
    agent = await product.agent()
    product.models.play(Turn(text="One two three four", silent_after=2))
    body = {"id": "chat", "messages": [said("Hi")]}
    async with product.http.stream("POST", f"/ai-sdk/{agent.id}/chat", json=body) as answer:
        reader = UiMessageReader(7)
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                reader.read(f"{line}\n\n".encode())
            if "text-delta" in line and reader.text == "One two":
                stopped = await product.http.post(f"/ai-sdk/{agent.id}/chat/chat/stop")
                assert stopped.json()["status"] == "cancelled"
    assert (reader.finish_reason, reader.is_done) == ("interrupted", True)


@pytest.mark.parametrize("before", [[], [Turn(text="I look.", calls=[Call("look", {})])]], ids=["at once", "later"])
async def test_a_page_that_was_loaded_again_did_not_say_why_its_answer_had_failed(
    product: Product, before: list[Turn]
) -> None:
    agent = await product.agent()
    product.models.play(*before, Turn(failure=Failure("auth")))
    reader = UiMessageReader(7).read((await post(product, agent.id, said("Hi"))).content)
    assert reader.error
    assert reader.parts[-1]["data"] == {"code": "llm_authentication", "message": reader.error}
    loaded = (await product.http.get(f"/ai-sdk/{agent.id}/chat/chat")).json()
    assert loaded["messages"] == [said("Hi"), reader.message]

    product.models.say("Better.")
    assert UiMessageReader(7).read((await post(product, agent.id, said("Again", "u2"))).content).text == "Better."


async def test_a_message_in_the_middle_of_an_answer_is_in_the_answer(product: Product) -> None:
    agent = await product.agent()
    resume = asyncio.Event()
    product.models.play(Turn(text="One two", silent_after=1, resume=resume), Turn(text="Three."))
    body = {"id": "chat", "messages": [said("Hi")]}
    async with product.http.stream("POST", f"/ai-sdk/{agent.id}/chat", json=body) as answer:
        reader = UiMessageReader(7)
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                reader.read(f"{line}\n\n".encode())
            if "text-delta" in line and not resume.is_set():
                async with product.http.stream(
                    "POST",
                    f"/ai-sdk/{agent.id}/chat",
                    json={"id": "chat", "messages": [said("And?", "u2")], "if_busy": "inject"},
                ) as other:
                    assert other.status_code == 200
                    resume.set()
    kinds = [part["type"] for part in reader.parts]
    assert kinds == ["step-start", "text", "steering-message", "step-start", "text"]
    listed = (await product.http.get(f"/ai-sdk/{agent.id}/chat/chat")).json()
    assert listed["messages"] == [said("Hi"), reader.message]
