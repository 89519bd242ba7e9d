"""Files in the input of a response: who is shown them, and which are refused."""

import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from tests.kit.model_server import Turn
from tests.kit.model_server.model_calls import HANDLES
from tests.kit.product import Product
from tests.kit.product.responses_client import created, responses_client

pytestmark = pytest.mark.shared_product

PDF = b64encode(b"%PDF-1.4 a report of nothing in particular").decode()
REPORT = {"type": "input_file", "filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def asking(*parts: dict[str, Any]) -> list[Any]:
    return [{"role": "user", "content": [*parts, {"type": "input_text", "text": "What is it?"}]}]


def text_file(text: str, name: str, media_type: str) -> dict[str, Any]:
    data = f"data:{media_type};base64,{b64encode(text.encode()).decode()}"
    return {"type": "input_file", "filename": name, "file_data": data}


def sent(product: Product) -> str:
    """What the model was sent last."""
    return json.dumps(product.models.requests[-1].body, ensure_ascii=False)


@pytest.mark.parametrize("model", HANDLES)
async def test_a_document_goes_to_the_model_as_it_is(product: Product, openai: AsyncOpenAI, model: str) -> None:
    product.models.play(Turn(text="A report."), Turn(text="Still a report."))
    first = await created(openai, model=model, input=asking(REPORT))
    assert first.output_text == "A report."
    assert PDF.rstrip("=") in sent(product).replace("-", "+").replace("_", "/")
    assert "application/pdf" in sent(product)
    assert "bytes]" not in sent(product), "the note is for those who take no files"
    [item] = [one.to_dict() async for one in openai.responses.input_items.list(first.id)]
    content: Any = item["content"]
    assert {name: content[0][name] for name in REPORT} == REPORT
    await created(openai, input="And now?", previous_response_id=first.id)
    assert PDF.rstrip("=") in sent(product).replace("-", "+").replace("_", "/"), "it stays in the context"


async def test_a_model_that_takes_no_files_is_named(product: Product, openai: AsyncOpenAI) -> None:
    for model in ("builtin/echo", "vllm/local-model"):
        refused = await created(openai, model=model, input=asking(REPORT))
        assert refused.status == "failed"
        assert refused.error is not None
        assert "input_file" in refused.error.message
        assert model in refused.error.message
    product.models.play(Turn(text="A report."), Turn(text="I see no files."))
    first = await created(openai, input=asking(REPORT))
    await created(openai, model="vllm/local-model", input="And now?", previous_response_id=first.id)
    assert "[file report.pdf, 42 bytes]" in sent(product), "a later model is told that there was one"
    assert PDF not in sent(product)


async def test_a_text_goes_to_every_model_under_its_name(product: Product, openai: AsyncOpenAI) -> None:
    table = text_file("name,age\nÄda,36\n", "people.csv", "text/csv")
    product.models.say("People.")
    first = await created(openai, model="vllm/local-model", input=asking(table))
    assert first.status == "completed"
    assert "[file people.csv]\\nname,age\\nÄda,36" in sent(product)
    begun = await openai.conversations.create(items=asking(table))
    [item] = [one.to_dict() async for one in openai.conversations.items.list(begun.id)]
    content: Any = item["content"]
    assert {name: content[0][name] for name in table} == table
    untyped = {"type": "input_file", "filename": "a.json", "file_data": b64encode(b'{"a": 1}').decode()}
    product.models.say("A number.")
    await created(openai, input=[{"role": "user", "content": [untyped]}])
    assert "[file a.json]" in sent(product)


@pytest.mark.parametrize(
    ("part", "because"),
    [
        ({"type": "input_file", "file_id": "file-1"}, r"content\[0\].file_id: this server has no store"),
        ({"type": "input_file", "file_url": "https://example.org/a.pdf"}, r"content\[0\].file_url: .* in file_data"),
        ({"type": "input_file", "filename": "a.pdf"}, r"content\[0\].file_data: it is missing"),
        ({"type": "input_file", "filename": "a.pdf", "file_data": "§"}, "must be base64"),
        (text_file("PK", "a.docx", "application/msword"), "application/msword"),
        ({"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,/w=="}, "must be UTF-8"),
    ],
)
async def test_a_file_that_is_not_taken_is_refused(openai: AsyncOpenAI, part: dict[str, Any], because: str) -> None:
    with pytest.raises(BadRequestError, match=because):
        await created(openai, input=asking(part))


async def test_a_result_of_a_function_takes_no_document(openai: AsyncOpenAI) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [REPORT]}
    with pytest.raises(BadRequestError, match="only messages of users"):
        await created(openai, input=[{"role": "user", "content": "Look."}, call, output])
