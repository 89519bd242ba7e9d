"""Imports all that a worker needs to ask a model, which takes seconds.

Done before a test begins, no test pays for it, nor waits for it while a lease of its own runs out. Some of it the SDKs
import, or work out, when they are first used; so a client of each is made here, as the first run of a worker does.
"""

import asyncio

from worker.models.registry import Models

KEYS = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "GEMINI_API_KEY": "none"}
HANDLES = ("openai/gpt-5", "openai/gpt-4.1", "anthropic/claude-sonnet-4-5", "google_ai/gemini-2.5-flash")


async def _make_clients() -> None:
    models = Models(KEYS, first_event_timeout=180, idle_timeout=180, retries=0)
    for handle in HANDLES:
        await models.model_for(handle)
    await models.aclose()


asyncio.run(_make_clients())
