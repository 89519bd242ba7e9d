"""What a tool returns and prints has no secret of its agent in it."""

import asyncio
import json

from shared.concurrency import background
from worker.tools.outcomes import CUT, MOST, ToolOutcome, without_secrets


async def redacted(text: str, **secrets: str) -> str:
    return (await without_secrets(ToolOutcome("success", text), secrets)).text


async def test_values_are_replaced_by_their_names_everywhere() -> None:
    outcome = ToolOutcome(
        "error", "401 for swordfish-1", ["key=swordfish-1", "swordfish-1swordfish-1"], ["swordfish-1"]
    )
    shown = "[secret TOKEN]"
    assert await without_secrets(outcome, {"TOKEN": "swordfish-1"}) == ToolOutcome(
        "error", f"401 for {shown}", [f"key={shown}", shown * 2], [shown]
    )


async def test_short_values_are_words_and_stay() -> None:
    assert await redacted("production", STAGE="product") == "production"
    assert await redacted("anything at all", EMPTY="") == "anything at all"


async def test_a_value_is_found_as_json_and_python_write_it() -> None:
    key = 'pass"word\nüber\\'
    assert json.loads(await redacted(json.dumps({"key": key}), KEY=key)) == {"key": "[secret KEY]"}
    assert await redacted(repr(key), KEY=key) == "'[secret KEY]'"


async def test_the_lines_of_a_long_key_are_found_one_by_one() -> None:
    outcome = ToolOutcome("success", "None", ["-----BEGIN KEY-----", "and then", "MIIEvQIBADANBg", "end"])
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nend"
    assert (await without_secrets(outcome, {"PEM": key})).stdout == ["[secret PEM]", "and then", "[secret PEM]", "end"]
    whole = ToolOutcome("success", "None", ["the key:", *key.splitlines()])
    assert (await without_secrets(whole, {"PEM": key})).stdout == ["the key:", "[secret PEM]"]


async def test_of_two_secrets_the_longer_one_is_named() -> None:
    assert await redacted("swordfish-1-and-more", A="swordfish-1", B="swordfish-1-and-more") == "[secret B]"


async def test_a_name_cannot_break_out_of_its_place() -> None:
    assert json.loads(await redacted('{"a": "swordfish-1"}', **{'x", "b': "swordfish-1"})) == {"a": "[secret x____b]"}


async def test_what_a_tenant_chooses_cannot_hold_the_worker_up() -> None:
    """Many secrets that begin alike, in a text that is made of their beginning: as one expression it took 23 s."""
    secrets = {f"N{number}": "v" * (40 + number) + "x" for number in range(100)}
    outcome = ToolOutcome("success", "v" * 1_000_000, ["v" * 500_000], ["v" * 500_000])
    rounds = 0

    async def look() -> None:
        nonlocal rounds
        while True:
            await asyncio.to_thread(int)
            rounds += 1

    async with background(look(), name="look"):
        assert await without_secrets(outcome, secrets) == outcome
    assert rounds > 5, "the event loop went on"


async def test_a_text_that_is_too_long_for_so_many_secrets_loses_its_end() -> None:
    secrets = {f"N{number}": f"swordfish-{number:06}" for number in range(5_000)}
    said = await redacted("swordfish-000017 " + "x" * 60_000 + "swordfish-000018", **secrets)
    assert said == "[secret N17] " + "x" * (MOST // 5_000 - 17) + CUT
