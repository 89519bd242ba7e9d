"""The reader of UI message streams in the tests' kit against the AI SDK itself: what one accepts, the other accepts,
and both have the same message in the end."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from hypothesis import find, settings

from api.ai_sdk.answer_chunks import Sdk
from shared.domain import events
from tests.kit.clients import ClientProgram, Nowhere, client_program
from tests.kit.product.ui_messages import DONE, UiMessageReader
from tests.kit.runs.random_logs import AT, logs
from tests.unit.test_answer_chunks import (
    RESTARTED,
    SAID,
    SECOND,
    TABLE,
    answered,
    called,
    decided,
    ended,
    leg_of,
    parked,
    result,
    returned,
    run_of,
    stream_of,
    text,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

VERSIONS: tuple[Sdk, ...] = (5, 6, 7)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=VERSIONS)
async def page(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Sdk, ClientProgram]]:
    async with client_program(f"ai {request.param}") as running:
        running.calls(Nowhere())
        yield request.param, running


def body_of(chunks: list[Any]) -> str:
    frames = [DONE if chunk == DONE else msgspec.json.encode(chunk).decode() for chunk in chunks]
    return "".join(f"data: {frame}\n\n" for frame in frames)


async def told(program: ClientProgram, sdk: Sdk, body: str) -> dict[str, Any]:
    return await program.told("page", agent="a", sdk=sdk, stream=body, acts=[["say", "Hi"]])


@pytest.mark.parametrize("number", range(len(TABLE)))
async def test_the_reader_makes_the_message_that_the_sdk_makes(page: tuple[Sdk, ClientProgram], number: int) -> None:
    sdk, program = page
    body = b"".join(stream_of([*TABLE[number][0], *ended()], sdk)).decode()
    said = await told(program, sdk, body)
    reader = UiMessageReader(sdk).read(body.encode())
    assert (said["status"], said["errors"]) == ("ready", [])
    assert said["messages"][-1] == reader.message


STORIES: dict[str, list[events.Event]] = {
    "restarted": [text("Hi"), RESTARTED, *ended()],
    "injected": [text("Hi"), answered(), SAID, *ended()],
    "cut off": [text("Hi"), *called(), *ended("cancelled")],
    "failed": [text("Hi"), *ended("llm_api_error", events.Failed(AT, "llm_error", "It broke."))],
}


@pytest.mark.parametrize("name", STORIES)
async def test_the_reader_takes_disasters_as_the_sdk_takes_them(page: tuple[Sdk, ClientProgram], name: str) -> None:
    sdk, program = page
    body = b"".join(stream_of(STORIES[name], sdk)).decode()
    said = await told(program, sdk, body)
    reader = UiMessageReader(sdk).read(body.encode())
    assert said["errors"] == ([] if reader.error is None else [reader.error])
    assert said["messages"][-1] == reader.message
    [finish] = said["finishes"]
    assert finish.get("finishReason") == reader.finish_reason


@pytest.mark.parametrize("verdict", ["approved", "denied", "edited"])
async def test_the_reader_decides_as_the_sdk_decides(page: tuple[Sdk, ClientProgram], verdict: str) -> None:
    sdk, program = page
    chunks, head = parked(sdk)
    log = [decided(verdict, arguments='{"a": 2}', reason="so"), returned(result())]
    whole = [*head, *leg_of(chunks, *log, *ended(), run=run_of(SECOND)), *chunks.finish(), DONE]
    said = await told(program, sdk, body_of(whole))
    assert said["errors"] == []
    reader = UiMessageReader(sdk).read(body_of(whole).encode())
    assert said["messages"][-1] == reader.message


async def test_a_random_log_is_the_same_to_both(page: tuple[Sdk, ClientProgram]) -> None:
    sdk, program = page
    for least in (8, 14, 20):
        log = find(logs(), lambda log, least=least: len(log) > least, settings=settings(max_examples=500))
        body = b"".join(stream_of(log, sdk)).decode()
        said = await told(program, sdk, body)
        assert said["messages"][-1] == UiMessageReader(sdk).read(body.encode()).message


BROKEN: dict[str, tuple[list[dict[str, Any]], Sdk]] = {
    "no start": ([{"type": "text-delta", "id": "m", "delta": "Hi"}], 7),
    "an unknown call": ([{"type": "tool-output-available", "toolCallId": "c", "output": 1}], 7),
    "an unknown type": ([{"type": "of-tomorrow"}], 7),
    "an unknown reason": ([{"type": "finish", "finishReason": "of-tomorrow"}], 7),
    "a step that is taken back": ([{"type": "reset-step"}], 6),
    "an interruption": ([{"type": "finish", "finishReason": "interrupted"}], 6),
    "a question": ([{"type": "tool-approval-request", "toolCallId": "c", "approvalId": "a"}], 5),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_breaks_the_sdk_breaks_the_reader(page: tuple[Sdk, ClientProgram], name: str) -> None:
    chunks, newest = BROKEN[name]
    sdk, program = page
    if sdk > newest:
        return
    said = await told(program, sdk, body_of([{"type": "start", "messageId": "a"}, *chunks]))
    assert said["status"] == "error"
    reader = UiMessageReader(sdk)
    with pytest.raises(AssertionError):
        for chunk in chunks:
            reader.take(chunk)
