"""Imports everything that a worker needs to call a model, which takes seconds.

This happens before a test begins, so that no test waits for it while one of its leases runs out. The SDKs import and
compute some parts on first use; so this module makes a client of each, as the first run of a worker does.
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
